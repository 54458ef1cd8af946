"""Checks of what a search passes to its session, made before anything is recorded or paid."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from promptiter.errors import SetupError
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.data.splits import digest_input
from promptiter.evaluation.result import Evaluation
from promptiter.profile import PatchSet, Profile
from promptiter.runlog.events import ENGINE_EVENTS
from promptiter.wording import shorten


def check_pairs(pairs: Sequence[object], repeats: object) -> None:
    """Raise unless these are pairs of an eval set and a profile, and the repeats are a range."""
    if repeats is not None and not isinstance(repeats, range):
        raise SetupError(f"repeats is {shorten(repeats)}; give a range: range(2) are the first two repeats")
    for place, pair in enumerate(pairs):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise SetupError(f"evaluation {place} is {shorten(pair)}; give a pair (eval set, profile)")
        eval_set, profile = pair
        if isinstance(eval_set, Profile) and isinstance(profile, EvalSet):
            raise SetupError(f"evaluation {place} is a pair (profile, eval set); give the eval set first")
        if not isinstance(eval_set, EvalSet):
            raise SetupError(f"the eval set of evaluation {place} is {shorten(eval_set)}; give an EvalSet")
        if isinstance(profile, PatchSet):
            raise SetupError(
                f"the profile of evaluation {place} is a PatchSet; give the profile that session.candidate(patches) "
                "or session.propose(patches) returns"
            )
        if not isinstance(profile, Profile):
            raise SetupError(f"the profile of evaluation {place} is {shorten(profile)}; give a Profile")


def check_candidate(candidate: object, parents: object) -> None:
    """Raise unless a candidate is a profile or patches, and its parents are a list of profiles."""
    if not isinstance(candidate, Profile | PatchSet):
        raise SetupError(f"a candidate is {shorten(candidate)}; give a Profile or a PatchSet")
    if isinstance(parents, Profile):
        raise SetupError("parents is one profile; give a list: [profile]")
    if not isinstance(parents, Sequence) or isinstance(parents, str):
        raise SetupError(f"parents is {shorten(parents)}; give a list of profiles")
    if wrong := [each for each in parents if not isinstance(each, Profile)]:
        raise SetupError(f"a parent is {shorten(wrong[0])}; give the profile itself")


def check_train_pair(train: Sequence[object], *, accepted: Profile, candidate: Profile) -> None:
    """Raise unless these are recorded evaluations of the accepted profile and the candidate, on equal runs."""
    if len(train) != 2 or not all(isinstance(each, Evaluation) for each in train):
        raise SetupError(f"train is {shorten(train)}; give the evaluations of the accepted profile and the candidate")
    before, after = (each for each in train if isinstance(each, Evaluation))
    for name, evaluation, profile in (("accepted profile", before, accepted), ("candidate", after, candidate)):
        if evaluation.profile_digest != profile.digest:
            raise SetupError(f"train has an evaluation of another profile than the {name}; give that of the {name}")
    if before.number is None or after.number is None:
        raise SetupError("an evaluation in train has no number; give those that session.evaluate returned")
    runs = [{(row.case_id, row.repeat) for row in each.rows} for each in (before, after)]
    if runs[0] != runs[1]:
        raise SetupError("the evaluations in train have other cases or repeats; evaluate both on the same ones")


def includes_case(eval_sets: Iterable[EvalSet], of: EvalSet, *, known: EvalSet) -> bool:
    """Whether some eval sets have a case with the input of one of another set. The `known` cases are not of it."""
    skipped = {id(case) for case in known.cases}
    others = {id(case): case for each in eval_sets for case in each.cases if id(case) not in skipped}
    return bool(others) and not set(map(digest_input, of.cases)).isdisjoint(map(digest_input, others.values()))


def check_event(kind: object) -> None:
    """Raise if events of this class are the engine's own: they say what a run did, so a search cannot record them."""
    name = getattr(kind, "event_type", None)
    if name in ENGINE_EVENTS:
        raise SetupError(
            f"{getattr(kind, '__qualname__', kind)} is an event of the engine's own; call session.propose, validate or "
            "reject, which record it, or record a dataclass of yours, registered with @event_type"
        )
