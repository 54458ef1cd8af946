"""The files that an agent was built from. A server reads them once, and says when one of them has changed."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from promptiter.config.file import RunConfig
from promptiter.config.run_project import open_project
from promptiter.runs.place_search import Project, find_files
from promptiter.sources import FileSource
from promptiter.structure import StructureSnapshot


def list_agent_files(config: RunConfig, *, file: Path, structure: StructureSnapshot) -> list[Path]:
    """The configuration, the modules of the agent, and the files with its prompts. Files of other code are left out."""
    found = open_project(config, file=file)
    prompts = [each.file for each in found.sources.values() if isinstance(each, FileSource)]
    texts = [each.value for each in structure.surfaces if isinstance(each.value, str) and each.value.strip()]
    files = (file, *prompts, *_list_modules(found.project), *find_files(found.project, texts))
    return list(dict.fromkeys(each.resolve() for each in files))


def _list_modules(project: Project) -> list[Path]:
    """The files of the modules that were imported from a project."""
    imported = (getattr(each, "__file__", None) for each in list(sys.modules.values()))
    files = [Path(each).resolve() for each in imported if each is not None and "site-packages" not in each]
    roots = [root.resolve() for root in project.roots]
    return [file for file in files if any(file.is_relative_to(root) for root in roots)]


class ReadFiles:
    """Files that were read, to find those that have changed since then."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._states = {file: (_stamp(file), _hash(file)) for file in files}

    def take_changed(self) -> list[Path]:
        """The files that have changed. Each is returned once."""
        changed = [
            file
            for file, (stamp, digest) in list(self._states.items())
            if _stamp(file) != stamp and _hash(file) != digest  # one that was only touched is read again each time
        ]
        for file in changed:
            self._states.pop(file, None)  # another thread may have been faster
        return changed


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        state = file.stat()
    except OSError:
        return None
    return state.st_mtime_ns, state.st_size


def _hash(file: Path) -> bytes | None:
    try:
        return sha256(file.read_bytes()).digest()
    except OSError:
        return None
