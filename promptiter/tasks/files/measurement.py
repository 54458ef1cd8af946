"""Measurement: the runner and the scorers of a task, run on one candidate in a private copy of the workspace.

A crash (an exit code, a timeout, a full disk, no JSON) is a measurement, too. The answer is stored as that of a tool
is, so a resumed run never runs the commands again.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Literal

from promptiter.agents.base import RunContext
from promptiter.agents.black_box.process import FinishedProcess, ProcessLimits, describe_exit, select_environment
from promptiter.endpoint.sessions import EndpointSession, open_session
from promptiter.errors import CommandError, ModelUnavailableError
from promptiter.evaluation.metrics.judge_prompts import truncate_middle
from promptiter.llm.gateway import current_gateway
from promptiter.llm.messages import CallSite
from promptiter.runlog.codec import from_plain, to_plain
from promptiter.sandbox import CopyPlan, PrivateCopy, find_sandbox
from promptiter.tasks.files.globs import matches
from promptiter.tasks.files.recorded_traces import read_recorded
from promptiter.tasks.files.scorer_output import CaseOutcome, ScorerOutput, read_output
from promptiter.tasks.files.task import CASE, FileTask, TaskCommand, TaskScorer
from promptiter.tasks.files.workspace import Workspace, hash_files
from promptiter.wording import join_names
from traces import Usage, digest
from traces.model import Json, sum_usage

CASE_ID = "scorer"
"""The case of a run with a scorer: measurements of the same files are the same call in every part of the run."""

MOST_OUTPUT = 4_000
"""Of what each command printed, this many characters are kept."""
MAX_TRACE_BYTES = 5_000_000
IMPORTED = (".py", ".pyc", ".so", ".pth")
"""Files that Python would import instead of what a scorer needs, if a runner put them beside it."""
PYTEST = "conftest.py"
"""What pytest imports from every folder above its tests."""
COMPILED = "__pycache__"
REMOVAL = ProcessLimits(timeout_s=60)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredOutput:
    """What one scorer printed. `metric` is the name of its score."""

    metric: str
    score: float | None
    metrics: Mapping[str, float]
    cases: tuple[CaseOutcome, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What running a candidate gave. With a `crash`, nothing else counts.

    `spans` are the traces that the runner wrote, as promptiter's JSON.
    """

    scored: tuple[ScoredOutput, ...] = ()
    output: str = ""
    crash: str = ""
    tampered: tuple[str, ...] = ()
    spans: tuple[str, ...] = ()
    usage: Usage = field(default_factory=Usage)


async def measure(
    task: FileTask, workspace: Workspace, texts: Mapping[str, str], context: RunContext, *, holdout_case: str = ""
) -> Measurement:
    """Measure artifacts with these texts: with the scorers, or with the hold-out scorer on one of its cases."""
    part: Literal["measure", "holdout"] = "holdout" if holdout_case else "measure"
    only = holdout_case if task.holdout is not None and task.holdout.runs_per_case else ""
    arguments = {
        "files": {path: digest(text) for path, text in sorted(texts.items())},
        "task": _describe_commands(task, part),
        "case": only,
    }
    gateway = current_gateway()

    async def execute(files: Json, task: Json, case: Json) -> Json:  # noqa: ARG001 - the key of the answer
        gateway.check_stop()
        return to_plain(await _Copy(given, workspace, context, part=part, case=only).measure(texts))

    given = task
    site = CallSite(role=context.role, case_id=CASE_ID, repeat=context.repeat, step_id=part)
    answer = await gateway.call_tool(f"task:{part}", arguments, execute, site)
    found: Measurement = from_plain(Measurement, answer)
    return found


@dataclass(frozen=True, slots=True)
class _Copy:
    """One private copy, and what runs in it."""

    task: FileTask
    workspace: Workspace
    context: RunContext
    part: Literal["measure", "holdout"]
    case: str = ""

    async def measure(self, texts: Mapping[str, str]) -> Measurement:
        context = replace(self.context, case_id=f"{CASE_ID}/{self.part}{self.case and f'/{self.case}'}")
        plan = build_plan(self.task, self.workspace, texts)
        async with open_session(context) as session, find_sandbox(self.task.sandbox.kind).open(plan) as copy:
            try:
                found = await self._run_commands(copy, session, texts)
            except CommandError as error:
                found = Measurement(crash=_hide_root(str(error), copy))
        if session.outages:
            raise ModelUnavailableError(f"a model call of the task failed: {session.outages[0].message}")
        usage = sum_usage(call.reply.usage for call in session.calls if call.reply is not None)
        crash, output = (text.replace(session.key, "***") for text in (found.crash, found.output))
        return replace(found, crash=crash, output=output, usage=usage)

    async def _run_commands(self, copy: PrivateCopy, session: EndpointSession, texts: Mapping[str, str]) -> Measurement:
        printed: list[str] = []
        stdout, runtime_s = b"", 0.0
        if self.task.runner is not None:
            started = time.perf_counter()
            finished = await self._run(copy, session, self.task.runner, what="the runner")
            runtime_s, stdout = time.perf_counter() - started, finished.stdout
            printed.append(_show_output("runner", finished))
        spans = await self._read_spans(copy)
        changed = await self._find_misplaced(copy, texts)
        if self.part == "holdout":
            await copy.reveal()
        scored = []
        for scorer in self._scorers:
            command = replace(
                scorer.command, arguments=tuple(each.replace(CASE, self.case) for each in scorer.command.arguments)
            )
            what = "the hold-out scorer" if self.part == "holdout" else f"the scorer {scorer.name!r}"
            try:
                finished = await self._run(copy, session, command, what=what, stdin=stdout)
                output = read_output(finished.stdout, scorer.fields, name=what)
            except CommandError as error:
                if changed:
                    raise CommandError(f"the runner changed {join_names(changed, limit=5)}; {error}") from error
                raise
            scored.append(_name_score(output, scorer))
            printed.append(_show_output("scorer", finished))
        if self.part == "measure" and "runtime_seconds" in self.task.named_figures:
            known = {name for each in scored for name in each.metrics}
            if "runtime_seconds" not in known:
                scored.append(ScoredOutput(metric="", score=None, metrics={"runtime_seconds": round(runtime_s, 3)}))
        return Measurement(
            scored=tuple(scored),
            output=_hide_root("\n".join(filter(None, printed)), copy),
            tampered=(*await copy.find_tampering(), *changed, *await self._find_outside(copy)),
            spans=spans,
        )

    @property
    def _scorers(self) -> tuple[TaskScorer, ...]:
        if self.part == "measure" or self.task.holdout is None:
            return self.task.scorers
        return (self.task.holdout.scorer,)

    async def _run(
        self, copy: PrivateCopy, session: EndpointSession, command: TaskCommand, *, what: str, stdin: bytes = b""
    ) -> FinishedProcess:
        environment = {
            **select_environment(command.inherit),
            **session.environment,
            **command.environment,
            "PROMPTITER_REPEAT": str(self.context.repeat),
        }
        arguments = find_program(command.arguments, environment)
        limits = ProcessLimits(timeout_s=command.timeout_s, max_output_bytes=command.max_output_bytes)
        try:
            finished = await copy.run(arguments, environment=environment, cwd=command.cwd, stdin=stdin, limits=limits)
        except CommandError as error:
            raise CommandError(f"{what}: {error}") from error
        if finished.code:
            raise CommandError(f"{what}: {describe_exit(arguments, finished)}")
        return finished

    async def _read_spans(self, copy: PrivateCopy) -> tuple[str, ...]:
        """The traces that the runner wrote into the files that the task names."""
        if not self.task.traces:
            return ()
        changes = await copy.list_changes()
        wanted = [path for path in sorted(changes.written) if matches(path, self.task.traces)]
        raw = [await copy.read(path, max_bytes=MAX_TRACE_BYTES) for path in wanted]
        return read_recorded([each for each in raw if each])

    async def _find_outside(self, copy: PrivateCopy) -> tuple[str, ...]:
        """Files of the user's own tree that changed meanwhile. Without a sandbox, commands could do that."""
        logs = self.task.logs
        found = await copy.find_outside_changes()
        return tuple(f"{each} (not in the copy)" for each in found if not matches(each, logs))

    async def _find_misplaced(self, copy: PrivateCopy, texts: Mapping[str, str]) -> tuple[str, ...]:
        """What the runner changed that scorers would believe: the texts of artifacts, and modules that they import."""
        if self.task.runner is None:
            return ()
        changes = await copy.list_changes()
        await self._remove_compiled(copy, (*changes.written, *changes.links))
        written = {**self.workspace.files, **self.workspace.encode(texts)}
        found = [path for path in (*changes.deleted, *changes.links, *changes.special) if path in written]
        for path in sorted(set(changes.written) & set(written)):
            try:
                is_same = await copy.read(path, max_bytes=len(written[path])) == written[path]
            except CommandError:
                is_same = False
            found += [] if is_same else [path]
        found += [
            path for path in (*changes.written, *changes.deleted) if path not in written and self._is_imported(path)
        ]
        found += [path for path in changes.links if self._is_imported(path) or self._is_package_link(path)]
        return tuple(sorted(set(found)))

    async def _remove_compiled(self, copy: PrivateCopy, paths: Iterable[str]) -> None:
        """Remove the modules that the runner compiled: a scorer would run them instead of its own sources."""
        parts = [PurePosixPath(path).parts for path in paths]
        folders = {"/".join(each[: each.index(COMPILED) + 1]) for each in parts if COMPILED in each}
        if folders:
            await copy.run(("rm", "-rf", "--", *sorted(folders)), environment={"PATH": os.defpath}, limits=REMOVAL)

    def _is_imported(self, path: str) -> bool:
        """Whether a scorer may import a file: a module or a package beside its script, or one that was there before."""
        place, folders = PurePosixPath(path), self._import_folders
        if not folders or not path.endswith(IMPORTED) or COMPILED in place.parts:
            return False
        is_package = place.stem.partition(".")[0] == "__init__"
        return (
            place.parent in folders
            or place.name == PYTEST
            or (is_package and place.parent.parent in folders)
            or (self.task.root / path).is_file()
        )

    def _is_package_link(self, path: str) -> bool:
        """Whether a scorer may import a link to a folder: it is where a package would be, or where a folder was."""
        place = PurePosixPath(path)
        return (place.parent in self._import_folders and not place.suffix) or (self.task.root / path).is_dir()

    @property
    def _import_folders(self) -> set[PurePosixPath]:
        """Where Python looks first: the folders of scripts, and with `-m` the one in which it is started."""
        scripts = {PurePosixPath(each).parent for each in self.task.protected if each.endswith(".py")}
        commands = (each.command for each in self._scorers)
        return scripts | {PurePosixPath(each.cwd) for each in commands if "-m" in each.arguments}


def build_plan(task: FileTask, workspace: Workspace, texts: Mapping[str, str]) -> CopyPlan:
    """The private copy of the workspace with a candidate in it."""
    return CopyPlan(
        root=task.root,
        files=workspace.encode(texts),
        hidden=tuple(each for each in task.hidden if (task.root / each).exists()),
        protected=tuple(each for each in task.protected if (task.root / each).exists()),
        repositories=task.repositories,
        disk_bytes=task.sandbox.disk_bytes,
        processes=task.sandbox.processes,
        memory_bytes=task.sandbox.memory_bytes,
        network=task.sandbox.network,
    )


def find_program(arguments: tuple[str, ...], environment: Mapping[str, str]) -> tuple[str, ...]:
    """The arguments, with this Python for a `python` that is not in PATH."""
    program = arguments[0]
    if program in ("python", "python3") and shutil.which(program, path=environment.get("PATH", "")) is None:
        return (sys.executable, *arguments[1:])
    return arguments


def _describe_commands(task: FileTask, part: str) -> Json:
    """What the answer depends on besides the artifacts: the commands, and the files that are protected."""
    scorers = task.scorers if part == "measure" or task.holdout is None else (task.holdout.scorer,)
    described = [to_plain(replace(each.command, environment={})) for each in scorers]
    runner = None if task.runner is None else to_plain(replace(task.runner, environment={}))
    environments = [dict(each.command.environment) for each in scorers]
    functions = [[each.function, each.metric, to_plain(each.fields)] for each in scorers]
    hidden = task.holdout.files if task.holdout is not None and part == "holdout" else ()
    return digest(
        [runner, described, functions, digest(environments), hash_files(task.root, {*task.protected, *hidden})]
    )


def _name_score(output: ScorerOutput, scorer: TaskScorer) -> ScoredOutput:
    metric = scorer.metric
    if not scorer.is_named and output.metrics.get(metric, output.score) != output.score:
        metric = "score"
    return ScoredOutput(metric=metric, score=output.score, metrics=output.metrics, cases=output.cases)


def _show_output(what: str, finished: FinishedProcess) -> str:
    texts = [each.decode(errors="replace").strip() for each in (finished.stdout, finished.stderr)]
    shown = [truncate_middle(each, MOST_OUTPUT) for each in texts if each]
    return f"{what}:\n" + "\n".join(shown) if shown else ""


def _hide_root(text: str, copy: PrivateCopy) -> str:
    """A text without the place of a private copy, which differs between equal runs."""
    return text.replace(f"{copy.root}/", "").replace(str(copy.root), ".")
