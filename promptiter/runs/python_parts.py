"""The parts of a run that Python began, so that `promptiter resume` can build it again.

Every part is stored by its name in a module (`my_agent:agent`), or as the arguments of its class. The cases are stored
whole. A part that has neither is a note of the run that begins, and an error when it is resumed by name.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from promptiter.engine.engine import Engine
from promptiter.engine.request import SETS, RunRequest
from promptiter.errors import SetupError
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.metrics.judge import JudgeMetric
from promptiter.evaluation.metrics.judge_model import JudgeEndpoint
from promptiter.evaluation.workers.wire_format import Packer, Unpacker, refer_to, refer_to_agent, refer_to_class
from promptiter.llm.gateway import Gateway
from promptiter.llm.redaction import Redactor
from promptiter.llm.secret import Secret
from promptiter.runlog.events import Observer
from promptiter.runs.artifacts import KeepTraces
from promptiter.runs.header import PythonParts
from promptiter.runs.part_comparison import find_difference
from traces.model import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuiltRun:
    """A run that was built again from its parts."""

    engine: Engine
    request: RunRequest
    observers: tuple[Observer, ...] = ()
    keep_traces: KeepTraces = "all"
    notes: tuple[str, ...] = ()


def describe_parts(
    engine: Engine, request: RunRequest, *, observers: Sequence[Observer] = (), keep_traces: KeepTraces = "all"
) -> PythonParts:
    """The parts of a run that is about to start, without secrets."""
    evaluator = engine.evaluator
    packer = _PartPacker(evaluator.gateway)
    named, nameless = packer.pack_observers(observers)
    packed: dict[str, Json] = {
        "gateway": packer.pack_gateway(evaluator),
        "agent": refer_to_agent(engine.agent) or packer.pack(engine.agent, "agent"),
        "search": packer.pack(engine.search, "search"),
        "metrics": [packer.pack_metric(each, f"metrics[{each.name!r}]") for each in evaluator.metrics],
        "executor": packer.pack(evaluator.executor, "evaluator.executor"),
        "evaluator": {
            name: packer.pack(getattr(evaluator, name), f"evaluator.{name}")
            for name in ("options", "user_simulator", "weights", "penalties")
        },
        "request": packer.pack_request(request),
        "keep_traces": keep_traces,
        "observers": named,
        "nameless_observers": nameless,
    }
    return packer.finish(packed)


def describe_request(engine: Engine, request: RunRequest) -> PythonParts:
    """The parts of a run whose engine is registered elsewhere: its request alone, without secrets."""
    packer = _PartPacker(engine.evaluator.gateway)
    return packer.finish({"request": packer.pack_request(request)})


def _holds_secret(packed: dict[str, Json], redactor: Redactor) -> bool:
    """Whether anything would have to be redacted. Cases and profiles are data: only known secrets count in them."""
    data = {name: value for name, value in packed["request"].items() if name in _DATA}
    others = {name: value for name, value in packed["request"].items() if name not in _DATA}
    settings = {**packed, "request": others}
    return bool(redactor.redact_known_json(data) != data or redactor.redact_json(settings) != settings)


_DATA = (*SETS, "initial_profile")


def rebuild_run(parts: PythonParts, *, environ: Mapping[str, str] | None = None) -> RebuiltRun:
    """Build a run from its parts. Raises SetupError if a part has no name, or is no longer where it was."""
    if parts.problems:
        raise SetupError("; ".join(parts.problems))
    packed = parts.packed
    if "agent" not in packed:
        raise SetupError("it was started by a Manager, which has its engine; start that Manager, or its server")
    unpacker = _PartUnpacker(os.environ if environ is None else environ)
    if packed["gateway"] is not None:
        unpacker.gateway = unpacker.unpack(packed["gateway"])
    evaluator = Evaluator(
        [unpacker.unpack(each) for each in packed["metrics"]],
        gateway=unpacker.gateway,
        executor=unpacker.unpack(packed["executor"]),
        **{name: unpacker.unpack(each) for name, each in packed["evaluator"].items()},
    )
    return RebuiltRun(
        engine=Engine(unpacker.unpack(packed["agent"]), evaluator, search=unpacker.unpack(packed["search"])),
        request=unpacker.unpack_request(packed),
        observers=tuple(unpacker.unpack(each) for each in packed["observers"]),
        keep_traces=packed["keep_traces"],
        notes=tuple(
            f"the observer {name} cannot be built again, so it does not watch the resumed run"
            for name in packed["nameless_observers"]
        ),
    )


def rebuild_request(parts: PythonParts, engine: Engine, *, environ: Mapping[str, str] | None = None) -> RunRequest:
    """Build the request of a run again. Raises SetupError if a part of it has no name, or is no longer where it was."""
    if parts.problems:
        raise SetupError("; ".join(parts.problems))
    unpacker = _PartUnpacker(os.environ if environ is None else environ, gateway=engine.evaluator.gateway)
    return unpacker.unpack_request(parts.packed)


class _PartPacker(Packer):
    """Packs parts to be stored. `gateway` is the evaluator's, which parts may hold.

    A part without a name is added to `problems`, so that all of them are found.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.problems: list[str] = []

    def refuse(self, problem: str) -> Json:
        """Add a problem. Returns None in place of what cannot be packed."""
        self.problems.append(problem)
        return None

    def pack_request(self, request: RunRequest) -> Json:
        names = [field.name for field in fields(request) if field.name != "run_id"]
        return {name: self.pack(getattr(request, name), f"request.{name}") for name in names}

    def finish(self, packed: dict[str, Json]) -> PythonParts:
        """What was packed, or the problems."""
        if not self.problems and _holds_secret(packed, self._gateway.redactor):
            self.refuse("a case or an option contains a secret, which is not stored; read it from a variable")
        if self.problems:
            return PythonParts(problems=tuple(self.problems))
        return PythonParts(packed=packed, folders=tuple(_find_folders(packed)))

    def pack_metric(self, metric: Any, place: str) -> Json:
        if isinstance(metric, JudgeMetric):
            served = [metric.gateway.model(each.model) for each in metric.judges if each.runner is None]
            if any(isinstance(each, JudgeEndpoint) for each in served):  # only build_metrics adds it to a gateway
                return refer_to(metric) or self.refuse(
                    f"{place} has a judge with an address or key of its own; give it as a model of the gateway, or "
                    "assign the metric to a name at the top level of a module"
                )
        return self.pack(metric, place)

    def pack_gateway(self, evaluator: Evaluator) -> Json:
        """Pack the name of the gateway; None if the evaluator made its own."""
        reference = refer_to(evaluator.gateway)
        if reference is None and evaluator.is_gateway_given:
            self.refuse(_explain_nameless(evaluator.gateway, "evaluator.gateway"))
        return reference

    def pack_observers(self, observers: Sequence[Observer]) -> tuple[list[Json], list[str]]:
        """Pack the observers, and list the classes of those that have no name."""
        packed: list[Json] = []
        nameless: list[str] = []
        for each in observers:
            plain = self.pack(each, "observers")
            if self.problems:
                nameless.append(type(each).__name__)
                self.problems.clear()
            else:
                packed.append(plain)
        return packed, nameless

    def pack_object(self, value: Any, place: str) -> Json:
        kind: type = type(value)
        if isinstance(value, Secret):
            variable = re.fullmatch(r"\$\{(\w+)\}", str(value))
            if variable is None:
                return self.refuse(f"{place} is a secret, which is not stored; give it as ${{VARIABLE}}")
            return {"$env": variable[1]}
        if isinstance(value, Gateway):
            if value is self._gateway or value.shares_models_with(self._gateway):
                return {"$gateway": 0}
            return refer_to(value) or self.pack_unnamed(value, place)
        if kind.__module__.startswith("promptiter.") and not is_dataclass(value) and _find_arguments(value) is not None:
            # looking for a name takes hundredths of a second
            return self._pack_or_refer(value, lambda: self.pack_unnamed(value, place))
        return super().pack_object(value, place)

    def pack_dataclass(self, value: Any, name: str, place: str) -> Json:
        return self._pack_or_refer(value, lambda: self._pack_fields(value, name, place))

    def _pack_fields(self, value: Any, name: str, place: str) -> Json:
        kind: type = type(value)
        given = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
        if hasattr(kind, "__post_init__") and (problem := find_difference(value, (), given)):
            return self.refuse(f"{place} ({kind.__name__}) {problem}; {_STORE_UNCHANGED}")
        return super().pack_dataclass(value, name, place)

    def _pack_or_refer(self, value: Any, pack: Callable[[], Json]) -> Json:
        """Pack the arguments of a value, or its name if one of them has none."""
        known = len(self.problems)
        packed = pack()
        if len(self.problems) == known or (reference := refer_to(value)) is None:
            return packed
        del self.problems[known:]
        return reference

    def pack_unnamed(self, value: Any, place: str) -> Json:
        kind: type = type(value)
        name, arguments = refer_to_class(kind), _find_arguments(value)
        if name is None or arguments is None or inspect.isroutine(value) or isinstance(value, Gateway):
            return self.refuse(_explain_nameless(value, place))
        positional, named = arguments
        if problem := find_difference(value, *arguments):
            return self.refuse(f"{place} ({kind.__name__}) {problem}; {_STORE_UNCHANGED}")
        return {
            "$new": [
                name,
                [self.pack(each, f"argument {number} of {place}") for number, each in enumerate(positional, 1)],
                {key: self.pack(each, f"{place}.{key}") for key, each in named.items()},
            ]
        }


_STORE_UNCHANGED = "let its class store them unchanged, or assign it to a name at the top level of a module"


class _PartUnpacker(Unpacker):
    def __init__(self, environ: Mapping[str, str], *, gateway: Gateway | None = None) -> None:
        self.gateway = gateway or Gateway()
        self._environ = environ

    def unpack_request(self, packed: Mapping[str, Json]) -> RunRequest:
        return RunRequest(**{name: self.unpack(each) for name, each in packed["request"].items()})

    def unpack_tagged(self, tag: str, plain: Json) -> Any:
        match tag:
            case "$gateway":
                return self.gateway
            case "$env":
                if plain not in self._environ:
                    raise SetupError(f"the environment variable {plain!r} is not set; export it")
                return Secret(self._environ[plain], source=f"${{{plain}}}")
            case "$new":
                name, positional, named = plain
                kind = super().unpack_tagged("$ref", name)
                arguments = {key: self.unpack(each) for key, each in named.items()}
                return _build(name, lambda: kind(*(self.unpack(each) for each in positional), **arguments))
            case "$data" | "$made":
                name = plain if tag == "$made" else plain[0]
                return _build(name, lambda: super(_PartUnpacker, self).unpack_tagged(tag, plain))
        return super().unpack_tagged(tag, plain)


def _build(name: str, build: Callable[[], Any]) -> Any:
    """Build a part whose class or function, which is the user's, may have changed since the run began."""
    try:
        return build()
    except SetupError:
        raise
    except Exception as error:
        raise SetupError(
            f"{name!r} no longer takes the arguments that it had when the run began: {type(error).__name__}: {error}"
        ) from error


def _find_arguments(value: Any) -> tuple[list[Any], dict[str, Any]] | None:
    """The arguments that a class stored under the names of its parameters; None if one of them is unknown."""
    positional: list[Any] = []
    named: dict[str, Any] = {}
    try:
        parameters = list(inspect.signature(type(value)).parameters.values())
    except (TypeError, ValueError):
        return None
    has_more = any(each.kind is each.VAR_POSITIONAL for each in parameters)
    for each in parameters:
        stored = next((name for name in (each.name, f"_{each.name}") if hasattr(value, name)), None)
        if stored is None or each.kind is each.VAR_KEYWORD:
            return None
        argument = getattr(value, stored)
        if each.kind is each.VAR_POSITIONAL:
            positional.extend(argument)
        elif each.kind is each.POSITIONAL_ONLY or (has_more and each.kind is each.POSITIONAL_OR_KEYWORD):
            positional.append(argument)
        else:
            named[each.name] = argument
    return positional, named


def _explain_nameless(value: Any, place: str) -> str:
    if inspect.isroutine(value):
        return f"{place} ({value.__qualname__}) has no name; define it at the top level of a module"
    kind: type = type(value)
    advice = "assign it to a name at the top level of a module"
    if refer_to_class(kind) is None:
        advice += ", or define its class there"
    elif not isinstance(value, Gateway):
        advice += ", or let its class store its arguments under their names (`self.rule = rule`)"
    return f"{place} ({kind.__name__}) has no name; {advice}"


def _find_folders(packed: Json) -> Iterator[str]:
    """The folders that the modules of names are imported from, except those of installed packages."""
    installed = {Path(path).resolve() for path in sysconfig.get_paths().values()}
    installed.add(Path(__file__).resolve().parents[2])  # of promptiter, in a development install
    seen = set()
    for name in sorted(set(_find_modules(packed))):
        module = sys.modules.get(name)
        spec = getattr(module, "__spec__", None) or find_spec(name)
        if spec is None or spec.origin is None or not Path(spec.origin).is_file():
            continue
        depth = name.count(".") + (spec.submodule_search_locations is not None)
        folder = Path(spec.origin).resolve().parents[depth]
        if folder not in seen and folder not in installed:
            seen.add(folder)
            yield str(folder)


def _find_modules(packed: Json) -> Iterator[str]:
    if isinstance(packed, list):
        for each in packed:
            yield from _find_modules(each)
    elif isinstance(packed, dict):
        for key, value in packed.items():
            if key in ("$ref", "$made"):
                yield cast("str", value).partition(":")[0]
            elif key in ("$data", "$new"):
                yield value[0].partition(":")[0]
                yield from _find_modules(value[1:])
            else:
                yield from _find_modules(value)
