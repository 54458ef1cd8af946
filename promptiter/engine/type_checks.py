"""Checks that each part of a run is of the right kind: structure, observers, journal, request."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, get_args

from promptiter.agents.runner import check_runner, is_runner
from promptiter.engine.request import SETS, RunRequest
from promptiter.errors import SetupError
from promptiter.evaluation.data.case import EvalSet, advise_eval_set
from promptiter.evaluation.evaluator import EvaluationOptions
from promptiter.evaluation.result import Objective
from promptiter.evaluation.scorer import Scorer
from promptiter.numbers import is_number
from promptiter.policies.acceptance import ComposablePolicy
from promptiter.policies.combine import describe_policy, iter_policies
from promptiter.policies.edit_limits import EditLimits
from promptiter.policies.final_test import FinalTest
from promptiter.policies.goals import Goal
from promptiter.policies.stopping import ComposableStop
from promptiter.profile import Profile
from promptiter.signatures import find_misfit
from promptiter.stages.losses import LossHint, LossPlacement
from promptiter.stages.roles import OBSERVER, check_part, has_method
from promptiter.structure import StructureSnapshot
from promptiter.wording import shorten


def check_structure(structure: object, agent: object) -> None:
    """Raise SetupError if `describe` of an agent returned something else than a structure."""
    if not isinstance(structure, StructureSnapshot):
        name = type(agent).__name__
        raise SetupError(f"{name}.describe() returned {shorten(structure)}; return a StructureSnapshot")


def check_observers(observers: Sequence[object]) -> None:
    """Raise SetupError if one of the observers cannot observe."""
    if not isinstance(observers, Sequence):
        raise SetupError(f"observers is {shorten(observers)}; give a list of objects with the method observe(event)")
    for observer in observers:
        check_part(observer, OBSERVER)


def check_journal(journal: object) -> None:
    """Raise SetupError if a journal lacks one of its methods."""
    missing = [name for name in ("append", "read", "last", "reader") if not has_method(journal, name)]
    if missing:
        raise SetupError(
            f"the journal is {shorten(journal)}, which lacks {', '.join(missing)}; give a Journal, or store the run "
            "in a folder: RunDirectory.begin(folder, engine, request).run_sync()"
        )


def check_request_type(request: object) -> None:
    """Raise SetupError if a request is something else."""
    if not isinstance(request, RunRequest):
        raise SetupError(f"the request is {shorten(request)}; give a RunRequest, such as RunRequest(train=..., ...)")


def find_wrong_types(request: RunRequest) -> Iterator[str]:
    """Yield the fields of a request with values of the wrong type, which the other checks could not handle."""
    yield from _wrong_sets(request)
    yield from _wrong_collections(request)
    rounds = request.max_rounds
    if rounds is not None and (not is_number(rounds) or rounds != int(rounds)):
        yield f"max_rounds is {rounds!r}; give a whole number"
    cap = request.max_metric_calls
    if cap is not None and (not is_number(cap, least=1) or cap != int(cap)):
        yield f"max_metric_calls is {cap!r}; give a whole number of at least 1"
    if request.objective not in get_args(Objective):
        yield f"objective is {request.objective!r}; give one of {', '.join(get_args(Objective))}"
    if request.scorer is not None and not callable(request.scorer) and not isinstance(request.scorer, Scorer):
        yield f"scorer is {shorten(request.scorer)}; give a function of a profile that returns its scores"
    if request.seed is not None and not isinstance(request.seed, int):
        yield f"seed is {shorten(request.seed)}; give a whole number"
    if not isinstance(request.run_id, str):
        yield f"run_id is {shorten(request.run_id)}; give a text"
    for name, kind, example in (
        ("goal", Goal, "a Goal, such as Goal(kind='fewer_tokens')"),
        (
            "initial_profile",
            Profile | None,
            "a Profile, such as Profile.load('best.json') or Profile.of(structure, values)",
        ),
        ("evaluation", EvaluationOptions | None, "EvaluationOptions, such as EvaluationOptions(repeats=2)"),
        ("edit_limits", EditLimits | None, "EditLimits, such as EditLimits(max_files=2)"),
        ("final_test", FinalTest | None, "a FinalTest, such as FinalTest(repeats=2), or None"),
    ):
        if not isinstance(getattr(request, name), kind):
            yield f"{name} is {shorten(getattr(request, name))}; give {example}"
    for name in ("teacher", "judge"):
        runner: object = getattr(request, name)
        if runner is None or isinstance(runner, str):
            continue
        if not is_runner(runner):
            yield f"{name} is {shorten(runner)}; give a model name, an agent, or a function from message to answer"
            continue
        try:
            check_runner(runner, what=name)
        except SetupError as error:
            yield str(error)
    yield from _wrong_policies("acceptance", request.acceptance)
    yield from _wrong_policies("stop", request.stop)


def _wrong_sets(request: RunRequest) -> Iterator[str]:
    for name in SETS:
        value = getattr(request, name)
        if value is None:
            continue
        sets = [value] if isinstance(value, EvalSet) else value
        if not isinstance(sets, Sequence) or not sets or not all(isinstance(each, EvalSet) for each in sets):
            yield f"{name} is {shorten(value)}; give an EvalSet, or a list of them{advise_eval_set(value)}"


def _wrong_collections(request: RunRequest) -> Iterator[str]:
    targets: Sequence[object] = request.targets or ()
    if isinstance(targets, str):
        yield f"targets is {targets!r}; give a list: [{targets!r}]"
    elif wrong := [each for each in targets if not isinstance(each, str)]:
        yield f"targets holds {shorten(wrong[0])}; give surface ids, such as 'planner#instruction'"
    if not isinstance(request.protected, frozenset | set):
        example = f"frozenset([{shorten(request.protected)}])" if isinstance(request.protected, str) else "a set of ids"
        yield f"protected is {shorten(request.protected)}; give {example}"
    for name, kind in (("hints", LossHint), ("loss_placements", LossPlacement)):
        given = getattr(request, name)
        if not isinstance(given, Sequence) or not all(isinstance(each, kind) for each in given):
            yield f"{name} is {shorten(given)}; give a tuple of {kind.__name__}"


class _PolicyKind(NamedTuple):
    base: type
    name: str
    example: str
    argument: str


_KINDS = {
    "acceptance": _PolicyKind(ComposablePolicy, "an acceptance policy", "MinGain(0.005)", "evidence"),
    "stop": _PolicyKind(ComposableStop, "a stop policy", "Patience(3)", "progress"),
}


def _wrong_policies(field: str, policy: object) -> Iterator[str]:
    """Find policies, also inside combined ones, without a fitting `decide`, and those for another field."""
    wanted, [other] = _KINDS[field], [name for name in _KINDS if name != field]
    for part in [] if policy is None and field == "stop" else iter_policies(policy):
        decide: Any = getattr(part, "decide", None)
        if not has_method(part, "decide"):
            yield f"{field} is {shorten(part)}; give {wanted.name}, such as {wanted.example}, with the method decide"
        elif isinstance(part, _KINDS[other].base):
            what = f"{describe_policy(part)}, which is {_KINDS[other].name}"
            yield f"{field} has {what}; give it as {other}, and here {wanted.name} such as {wanted.example}"
        elif inspect.iscoroutinefunction(decide):
            yield f"{field} has {describe_policy(part)}, whose decide is async; write it with def"
        elif problem := find_misfit(decide, wanted.argument):
            what = f"{describe_policy(part)}, whose decide does not fit: {problem}"
            yield f"{field} has {what}; define it as `def decide(self, {wanted.argument})`"
