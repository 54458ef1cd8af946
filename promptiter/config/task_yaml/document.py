"""Reads a task.yaml into a FileTask: its keys, its paths, and the files that its commands must not change."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from promptiter.agents.black_box.command import INHERITED
from promptiter.config.task_yaml.named_files import NamedFiles, list_outputs
from promptiter.config.task_yaml.sections import CommandBlock, JudgeBlock, ScorerBlock, TaskFile
from promptiter.errors import SetupError
from promptiter.evaluation.data.evalset_yaml import read_yaml
from promptiter.llm.secret_fields import expand_variables
from promptiter.sandbox.plan import MEBIBYTE
from promptiter.tasks.files.disclosure import find_compiled, find_repositories
from promptiter.tasks.files.globs import find_escape, has_wildcard, list_files
from promptiter.tasks.files.python_scorer import build_command
from promptiter.tasks.files.task import (
    ALL_JUDGES,
    Artifacts,
    FileTask,
    OutputFields,
    TaskCommand,
    TaskConstraint,
    TaskGuards,
    TaskHoldout,
    TaskJudge,
    TaskObjective,
    TaskSandbox,
    TaskScorer,
    TaskTieBreaker,
)
from promptiter.tasks.rubrics import read_rubrics
from promptiter.user_files import Location, read_object, read_text
from traces.model import Json

FILE_NAME = "task.yaml"
RUBRIC, PROMPT = "rubric.md", "prompt.md"
"""Files beside task.yaml that are used if they are there: rubrics of judges, and what editors should know."""

_OWN_KEYS = ("artifacts", "runner", "mutation")
"""Keys of task.yaml that promptiter.yaml does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDocument:
    """A task.yaml: its keys, and the task that they describe."""

    file: Path
    given: TaskFile
    task: FileTask

    @property
    def folder(self) -> Path:
        return self.task.folder

    def resolve(self, path: str | None) -> Path | None:
        """A path of the file, relative to its folder."""
        return None if path is None else self.folder / path


def is_task_yaml(document: Mapping[str, Json]) -> bool:
    """Whether a configuration file is a task.yaml."""
    return any(key in document for key in _OWN_KEYS)


def read_task_file(file: Path, *, environ: Mapping[str, str] | None = None) -> TaskDocument:
    """Read a task.yaml, or the one in a folder. SetupError lists what is wrong with it."""
    file = file / FILE_NAME if file.is_dir() else file
    text = read_text(file, missing="; `promptiter task init` writes one")
    document = read_yaml(text, file=os.fspath(file))
    if not isinstance(document, dict) or not is_task_yaml(document):
        raise SetupError(f"{file}: is not a file task, which has the key artifacts")
    return parse_task_file(document, file=file, environ=environ)


def parse_task_file(
    document: Mapping[str, Json], *, file: Path, environ: Mapping[str, str] | None = None
) -> TaskDocument:
    """The content of a task.yaml as a task."""
    given = read_object(TaskFile, dict(document), Location(os.fspath(file)), error=SetupError)
    builder = _TaskBuilder(given, file, os.environ if environ is None else environ)
    return TaskDocument(file=file, given=given, task=builder.build())


class _TaskBuilder:
    def __init__(self, given: TaskFile, file: Path, environ: Mapping[str, str]) -> None:
        self.given = given
        self.file = file
        self.folder = Path(os.path.realpath(file.parent))
        self.root = Path(os.path.realpath(self.folder / given.workspace))
        self.environ = environ

    def build(self) -> FileTask:
        given = self.given
        if not self.root.is_dir():
            raise self._fail("workspace", f"{str(self.root)!r} is not a folder")
        artifacts = Artifacts(
            include=tuple(given.artifacts.include),
            exclude=tuple(given.artifacts.exclude),
            types=tuple(given.mutation.allowed_file_types),
        )
        objectives = tuple(
            TaskObjective(
                metric=each.primary_metric,
                direction=each.direction,
                min_gain=next(gain for gain in (each.min_gain, given.policy.min_gain, 0.0) if gain is not None),
                scale=each.scale,
            )
            for each in given.objectives
        )
        judges = tuple(self._build_judge(each, at) for at, each in enumerate(given.all_judges))
        judged = {ALL_JUDGES, *(each.metric for each in judges)}
        metric = objectives[0].metric if objectives[0].metric not in judged else "score"
        scorers = tuple(
            self._build_scorer(each, f"scorer[{at}]", default=metric) for at, each in enumerate(given.scorers)
        )
        runner = None if given.runner is None else self._build_command(given.runner, "runner")
        running = () if runner is None else (runner,)
        outputs = list_outputs(given.outputs, (*running, *(each.command for each in scorers)))
        named = NamedFiles(self.root, artifacts, outputs)
        scripts = set(named.list_scripts(running, scorers))
        holdout = self._build_holdout(metric, scripts, named)
        return FileTask(
            id=given.id,
            folder=self.folder,
            root=self.root,
            artifacts=artifacts,
            objectives=objectives,
            description=given.description.strip(),
            prompt=self._read_prompt(),
            runner=runner,
            traces=() if given.runner is None else tuple(given.runner.traces),
            scorers=scorers,
            judges=judges,
            holdout=holdout,
            constraints=tuple(
                TaskConstraint(metric=each.metric, op=each.op, value=float(each.value)) for each in given.constraints
            ),
            tie_breakers=tuple(
                TaskTieBreaker(metric=str(each.lower or each.higher), better="lower" if each.lower else "higher")
                for each in given.policy.tie_breakers
            ),
            guards=self._build_guards(),
            protected=tuple(sorted({*scripts, *self._list_protected(scorers, holdout, named)})),
            logs=tuple(self._list_logs()),
            compiled=() if holdout is None else find_compiled(self.root, holdout.files),
            repositories=() if holdout is None else find_repositories(self.root),
            sandbox=TaskSandbox(
                kind=given.sandbox.kind,
                disk_bytes=given.sandbox.disk_mb * MEBIBYTE,
                processes=given.sandbox.processes,
                memory_bytes=None if given.sandbox.memory_mb is None else given.sandbox.memory_mb * MEBIBYTE,
                network=given.sandbox.network,
            ),
        )

    def _build_command(self, block: CommandBlock, place: str, *, function: str = "") -> TaskCommand:
        arguments = build_command(function) if function else self._split(block, place)
        if problem := None if block.cwd == "." else find_escape(block.cwd.removeprefix("./")):
            raise self._fail(f"{place}.cwd", f"{block.cwd!r} {problem}")
        if not (self.root / block.cwd).is_dir():
            raise self._fail(f"{place}.cwd", f"{block.cwd!r} is not a folder of the workspace")
        environment = {**self.given.environment, **block.environment}
        try:
            expanded = {name: expand_variables(value, self.environ) for name, value in environment.items()}
        except ValueError as error:
            raise self._fail(f"{place}.environment", str(error)) from error
        inherit = block.inherit if block.inherit is not None else self.given.inherit
        return TaskCommand(
            arguments=arguments,
            cwd=block.cwd.removeprefix("./") or ".",
            timeout_s=block.timeout_seconds,
            max_output_bytes=block.max_output_bytes,
            environment=expanded,
            inherit=INHERITED if inherit is None else tuple(inherit),
        )

    def _split(self, block: CommandBlock, place: str) -> tuple[str, ...]:
        given = block.command
        if given is None:
            raise self._fail(f"{place}.command", "is missing; name the command")
        if block.shell:
            if not isinstance(given, str):
                raise self._fail(f"{place}.shell", "a shell reads one text, and the command is a list; remove shell")
            return ("/bin/sh", "-c", given)
        if not isinstance(given, str):
            return tuple(given)
        try:
            arguments = tuple(shlex.split(given))
        except ValueError as error:
            raise self._fail(f"{place}.command", f"{given!r} cannot be split: {error}; write a list") from error
        if not arguments:
            raise self._fail(f"{place}.command", "is empty")
        if found := [each for each in arguments if each in _OPERATORS]:
            raise self._fail(f"{place}.command", f"contains {found[0]!r}, which only a shell reads; set shell: true")
        return arguments

    def _build_scorer(self, block: ScorerBlock, place: str, *, default: str) -> TaskScorer:
        fields = OutputFields(
            score=block.parse.score_field, metrics=block.parse.metrics_field, cases=block.parse.cases_field
        )
        return TaskScorer(
            command=self._build_command(block, place, function=block.function or ""),
            function=block.function or "",
            metric=block.metric or default,
            is_named=block.metric is not None,
            fields=fields,
        )

    def _build_holdout(self, metric: str, scripts: Collection[str], named: NamedFiles) -> TaskHoldout | None:
        """The hold-out. Its own scripts are hidden as its files are, but not `scripts` that others need."""
        block = self.given.holdout
        if block is None:
            return None
        for path in block.files:
            if problem := find_escape(path.rstrip("/")):
                raise self._fail("holdout.files", f"{path!r} {problem}")
            if not (self.root / path).exists() and not any(list_files(self.root, [path])):
                raise self._fail(
                    "holdout.files", f"{path!r} matches nothing in the workspace, so it would hide nothing"
                )
        files = [path.rstrip("/") for path in block.files if not has_wildcard(path)]
        files += list_files(self.root, [path for path in block.files if has_wildcard(path)])
        scorer = self._build_scorer(block, "holdout", default=metric)
        files += sorted(set(named.list_scripts((), (scorer,))).difference(scripts, files))
        return TaskHoldout(scorer=scorer, cases=tuple(block.cases), files=tuple(files))

    def _build_judge(self, block: JudgeBlock, at: int) -> TaskJudge:
        file = self.folder / (block.rubric or RUBRIC)
        return TaskJudge(
            metric=block.metric or ("judge" if at == 0 else f"judge_{at + 1}"),
            model=block.model,
            rubrics=read_rubrics(file),
            rubric_file=file,
            subject=block.subject,
            options=block.options,
        )

    def _build_guards(self) -> TaskGuards:
        block = self.given.guards
        return TaskGuards(
            max_characters=block.max_characters,
            max_growth=block.max_growth,
            max_keyword_share=block.max_keyword_share,
            max_repeated_share=block.max_repeated_share,
            required_sections=tuple(block.required_sections),
            required_texts=tuple(block.required_texts),
            forbidden_texts=tuple(block.forbidden_texts),
        )

    def _read_prompt(self) -> str:
        file = self.folder / PROMPT
        try:
            return file.read_text(encoding="utf-8-sig").strip() if file.is_file() else ""
        except UnicodeDecodeError as error:
            raise SetupError(f"{file}: invalid UTF-8 at byte {error.start}; save it as UTF-8") from error

    def _list_protected(
        self, scorers: Sequence[TaskScorer], holdout: TaskHoldout | None, named: NamedFiles
    ) -> Iterator[str]:
        """What scorers need, the rubric, this file, and those of `protected`, as far as none may change."""
        hidden = () if holdout is None else (holdout.scorer,)
        yield from named.list_scripts((), hidden)
        yield from named.list_modules((*scorers, *hidden))
        for name in (self.file.name, RUBRIC):
            place = self.folder / name
            if place.is_relative_to(self.root):
                yield from named.protect(place.relative_to(self.root).as_posix())
        for pattern in self.given.protected:
            found = list(list_files(self.root, [pattern.removeprefix("./")]))
            if not found:
                raise self._fail("protected", f"{pattern!r} matches no file of the workspace")
            for path in found:
                yield from named.protect(path)

    def _list_logs(self) -> Iterator[str]:
        """What the run writes, if it is inside the workspace: no command may see it."""
        given = self.given
        written = {
            "logging.results_file": given.logging.results_file,
            "logging.candidate_dir": given.logging.candidate_dir,
            "runs": given.runs,
            "": ".promptiter",
        }
        for key, path in written.items():
            place = None if path is None else Path(os.path.normpath(self.folder / path))
            if place is None or place == self.root or not place.is_relative_to(self.root):
                continue
            log = place.relative_to(self.root).as_posix()
            needed = [*self.given.artifacts.include, *(each.removeprefix("./") for each in self.given.protected)]
            if hidden := [each for each in needed if each == log or each.startswith(f"{log}/")]:
                raise self._fail(key, f"{path!r} holds {hidden[0]!r}, which commands must see; write to another place")
            yield log

    def _fail(self, place: str, problem: str) -> SetupError:
        return SetupError(f"{self.file}: {place}: {problem}")


_OPERATORS = frozenset(("|", "||", "&&", ";", ">", ">>", "<", "&"))
