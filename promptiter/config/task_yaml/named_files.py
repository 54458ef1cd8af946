"""The files that the commands of a task name: scripts, modules and data, which no command may change."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePosixPath

from promptiter.tasks.files.globs import find_escape, list_files, matches
from promptiter.tasks.files.task import Artifacts, TaskCommand, TaskScorer

_MODULE_FILES = (".py", "/__main__.py")
"""The files that `python -m` runs."""

_OUTPUT = re.compile(r"-o|>>?|--?(out|output|outfile|out-file|output-file|save|save-to|write-to|log|log-file|report)")
"""Words before the path of a file that a command writes."""


def list_outputs(given: Iterable[str], commands: Iterable[TaskCommand]) -> tuple[str, ...]:
    """Patterns of what commands write: those that are given, and paths that follow an option such as `--output`."""
    found = [each.removeprefix("./") for each in given]
    for command in commands:
        pairs = pairwise(_list_words(command))
        found += [_locate(command, path) for option, path in pairs if _OUTPUT.fullmatch(option)]
    return tuple(found)


@dataclass(frozen=True, slots=True)
class NamedFiles:
    """Finds the files below `root` that commands name and must not change: neither artifacts nor `outputs`."""

    root: Path
    artifacts: Artifacts
    outputs: tuple[str, ...] = ()

    def list_scripts(self, commands: Iterable[TaskCommand], scorers: Iterable[TaskScorer] = ()) -> Iterator[str]:
        """The files that these commands name, and the commands and functions of these scorers."""
        scorers = tuple(scorers)
        for command in (*commands, *(each.command for each in scorers)):
            words = _list_words(command)
            modules = [each.replace(".", "/") for option, each in pairwise(words) if option == "-m"]
            for each in (*words, *(f"{module}{end}" for module in modules for end in _MODULE_FILES)):
                yield from self._find(_locate(command, each))
        for function in (each.function for each in scorers if each.function):
            yield from self._find(f"{function.partition(':')[0].replace('.', '/')}.py")

    def list_modules(self, scorers: Iterable[TaskScorer]) -> Iterator[str]:
        """The modules in folders that the commands of scorers name, such as `tests`."""
        for command in (each.command for each in scorers):
            named = [_locate(command, each) for each in command.arguments]
            folders = [each for each in named if find_escape(each) is None and (self.root / each).is_dir()]
            for path in list_files(self.root, folders):
                if path.endswith(".py"):
                    yield from self._find(path)

    def _find(self, path: str) -> Iterator[str]:
        if not matches(path, self.outputs):
            yield from self.protect(path)

    def protect(self, path: str) -> Iterator[str]:
        """The path, if it is that of a file which is not an artifact."""
        if find_escape(path) is None and (self.root / path).is_file():
            artifacts = self.artifacts
            may_change = matches(path, artifacts.include) and not matches(path, artifacts.exclude)
            if not may_change or not path.endswith(artifacts.types or ("",)):
                yield path


def _list_words(command: TaskCommand) -> list[str]:
    """The words of a command, also those of a text that a shell reads."""
    return [part for argument in command.arguments for part in argument.split()]


def _locate(command: TaskCommand, word: str) -> str:
    """A path that a command names, relative to the workspace."""
    return PurePosixPath(command.cwd, word).as_posix()
