"""Stages that are commands, such as a coding agent that rewrites a prompt.

    optimizer = CommandOptimizer(command=("my-agent", "Read {folder}/README.md and do what it says."))

A command gets a private folder with the evidence (`evidence_files`) as `{folder}` and in PROMPTITER_FOLDER, and writes
its answer there. Its model calls through the endpoint are counted under the role of the stage. Its answer is stored
as that of a model is, so a resumed run does not run it again.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import orjson

from promptiter.agents.argument_checks import check_items, check_named
from promptiter.agents.base import RunContext
from promptiter.agents.black_box.command import INHERITED
from promptiter.agents.black_box.private_files import make_private_folder
from promptiter.agents.black_box.process import (
    ProcessLimits,
    describe_exit,
    find_start_problem,
    run_process,
    select_environment,
)
from promptiter.backprop.command.evidence_files import (
    find_suffix,
    show_value,
    to_request_json,
    write_aggregate_files,
    write_attribute_files,
    write_backward_files,
    write_optimize_files,
)
from promptiter.concurrency import Slots
from promptiter.endpoint.sessions import open_session
from promptiter.errors import CommandError, SetupError
from promptiter.llm.gateway import current_gateway
from promptiter.llm.messages import CallSite, Role
from promptiter.profile import PatchEvidence, SurfacePatch
from promptiter.stages.contracts import (
    AggregateRequest,
    AggregateResult,
    AttributeRequest,
    BackwardRequest,
    BackwardResult,
    GradientPacket,
    SurfaceGradient,
)
from promptiter.stages.optimizer import OptimizeRequest, PatchResult
from promptiter.structure import TEXT_TYPES
from promptiter.wording import shorten
from traces import digest
from traces.model import Json

FOLDER = "{folder}"
MAX_ANSWER_BYTES = 2_000_000
"""A larger file in the output folder is an error."""


@dataclass(frozen=True, kw_only=True)
class CommandStage:
    """How a command is run for a stage. `concurrency` commands run at the same time."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    inherit: tuple[str, ...] = INHERITED
    cwd: Path | None = None
    timeout_s: float = 900.0
    max_output_bytes: int = 10_000_000
    concurrency: int = 4

    def __post_init__(self) -> None:
        check_items("the command of a stage", self.command, str, wanted="arguments, such as ('my-agent', '{folder}')")
        check_items("inherit of a stage", self.inherit, str, wanted="names of variables")
        check_named("environment of a stage", self.environment, str, wanted="texts by name")
        if not self.command or not self.command[0]:
            raise SetupError("the command of a stage is empty; give its program and arguments")
        if self.concurrency < 1:
            raise SetupError(f"the concurrency of a stage must be at least 1, got {self.concurrency}")
        _ = self._limits

    @cached_property
    def _limits(self) -> ProcessLimits:
        return ProcessLimits(timeout_s=self.timeout_s, max_output_bytes=self.max_output_bytes)

    @cached_property
    def _slots(self) -> Slots:
        return Slots(self.concurrency)

    def find_setup_problem(self) -> str | None:
        """Why the program cannot be started; None if it can."""
        environment = {**select_environment(self.inherit), **self.environment}
        return find_start_problem(self.command, environment=environment, cwd=self.cwd)

    async def ask(
        self, request: object, files: Mapping[str, str], *, role: Role, answers: Sequence[str]
    ) -> Mapping[str, str | None]:
        """Run the command with these files, and return the text of each answer file; None for one that is missing.

        Raises CommandError if the command fails. What it answered before is not asked for again.
        """
        plain = to_request_json(request)
        gateway = current_gateway()

        async def execute(command: list[str], request: str) -> Json:
            gateway.check_stop()
            async with self._slots:
                return await self._run(command, {**files, "request.json": show_value(plain)}, role, request, answers)

        arguments = {"command": list(self.command), "request": digest(plain)}
        found: Mapping[str, str | None]
        found = await gateway.call_tool(f"command:{role}", arguments, execute, CallSite(role=role))
        return found

    async def _run(
        self, command: list[str], files: Mapping[str, str], role: Role, key: str, answers: Sequence[str]
    ) -> Json:
        with make_private_folder() as folder:
            name = str(folder)
            for path, text in {**files, "output/.keep": ""}.items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_text(text, encoding="utf-8", errors="replace")
            async with open_session(RunContext(role=role, case_id=f"{role} {key[:16]}")) as session:
                finished = await run_process(
                    [each.replace(FOLDER, name) for each in command],
                    environment={
                        **select_environment(self.inherit),
                        **session.environment,
                        **self.environment,
                        "PROMPTITER_FOLDER": name,
                    },
                    cwd=self.cwd,
                    limits=self._limits,
                )
            if finished.code:
                raise CommandError(describe_exit(command, finished))
            return {each: _read_answer(folder / "output" / each) for each in answers}


class CommandOptimizer(CommandStage):
    """A command that writes the new value of a surface to output/value.txt, or value.json if it is not text."""

    async def optimize(self, request: OptimizeRequest) -> PatchResult:
        surface = request.surface
        name = f"value{find_suffix(surface)}"
        files = write_optimize_files(request)
        found = await self.ask(request, files, role="optimizer", answers=(name, "reason.txt"))
        reason = (found["reason.txt"] or "").strip()
        if found[name] is None:
            return PatchResult(patch=None, reason=reason or f"the command wrote no output/{name}")
        value = found[name] if surface.type in TEXT_TYPES else _parse(found[name], name)
        if isinstance(value, str) and isinstance(surface.value, str) and not surface.value.endswith("\n"):
            value = value.removesuffix("\n")  # editors add one
        patch = SurfacePatch(
            surface_id=surface.id,
            value=value,
            reason=reason or "written by a command",
            evidence=PatchEvidence(cases=request.signal.case_ids),
        )
        return PatchResult(patch=patch, reason=patch.reason)


class CommandAggregator(CommandStage):
    """A command that merges the gradients of a surface into output/signal.md."""

    async def aggregate(self, request: AggregateRequest) -> AggregateResult:
        files = write_aggregate_files(request)
        found = await self.ask(request, files, role="aggregator", answers=("signal.md",))
        if not (text := (found["signal.md"] or "").strip()):
            raise CommandError("the command wrote no output/signal.md")
        return AggregateResult(
            surface_id=request.surface.id,
            text=text,
            severity=min((each.severity for each in request.gradients), default="P1"),
            case_ids=tuple(dict.fromkeys(each.case_id for each in request.gradients)),
        )


class CommandAttributor(CommandStage):
    """A command that blames surfaces for the losses of a whole trace, in output/blame.json."""

    async def attribute(self, request: AttributeRequest) -> list[BackwardResult]:
        files = write_attribute_files(request)
        found = await self.ask(request, files, role="backwarder", answers=("blame.json",))
        known = {step.id for step in request.trace.steps}
        loss = request.case_loss
        results: dict[str, list[SurfaceGradient]] = {}
        dropped = 0
        for each in _list_entries(_parse(found["blame.json"], "blame.json"), "blame.json"):
            step, surface = each.get("step"), each.get("surface")
            if step not in known or surface not in request.targets:
                dropped += 1
                continue
            gradient = SurfaceGradient(
                surface_id=surface,
                case_id=loss.case_id,
                step_id=step,
                text=str(each.get("text") or ""),
                repeat=loss.repeat,
                turn=loss.turn,
            )
            results.setdefault(step, []).append(gradient)
        ordered = [step.id for step in reversed(request.trace.steps) if step.id in results]
        built = [BackwardResult(step_id=step, gradients=tuple(results[step])) for step in ordered]
        if dropped and not built:
            built = [BackwardResult(step_id=request.trace.steps[-1].id, dropped=dropped)]
        return built


class CommandBackwarder(CommandStage):
    """A command that blames the surfaces of one step, or passes the blame on, in output/blame.json."""

    async def backward(self, request: BackwardRequest) -> BackwardResult:
        files = write_backward_files(request)
        found = await self.ask(request, files, role="backwarder", answers=("blame.json",))
        answer = _parse(found["blame.json"], "blame.json")
        if not isinstance(answer, dict):
            raise CommandError(f"output/blame.json is {shorten(answer)}; write an object with gradients and packets")
        before = {step.id for step in request.predecessors}
        gradients = _list_entries(answer.get("gradients") or [], "gradients")
        packets = _list_entries(answer.get("packets") or [], "packets")
        usable = [each for each in gradients if each.get("surface") in request.blamable]
        sent = [each for each in packets if each.get("step") in before]
        return BackwardResult(
            step_id=request.step.id,
            gradients=tuple(
                SurfaceGradient(
                    surface_id=each["surface"],
                    case_id=request.case_id,
                    step_id=request.step.id,
                    text=str(each.get("text") or ""),
                    repeat=request.repeat,
                    turn=request.turn,
                )
                for each in usable
            ),
            packets=tuple(
                GradientPacket(source=request.step.id, target=each["step"], text=str(each.get("text") or ""))
                for each in sent
            ),
            dropped=len(gradients) + len(packets) - len(usable) - len(sent),
        )


def _read_answer(path: Path) -> str | None:
    """The text of an answer; None if there is none. Links are not followed: they could lead to any file."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # a pipe would wait for a writer
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CommandError(f"output/{path.name} cannot be read: {error.strerror or error}") from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise CommandError(f"output/{path.name} is not a file; write the answer to a file of this name")
    with os.fdopen(handle, "rb") as file:
        raw = file.read(MAX_ANSWER_BYTES + 1)
    if len(raw) > MAX_ANSWER_BYTES:
        raise CommandError(f"output/{path.name} has more than {MAX_ANSWER_BYTES:,} bytes")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise CommandError(f"output/{path.name} is not UTF-8, at byte {error.start}") from error


def _parse(text: str | None, name: str) -> Json:
    if text is None:
        raise CommandError(f"the command wrote no output/{name}")
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise CommandError(f"output/{name} is not JSON ({error}): {shorten(text)}") from error


def _list_entries(value: Json, name: str) -> list[dict[str, Json]]:
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise CommandError(f"{name} is {shorten(value)}; write a list of objects")
    return value
