"""GitCommit: one commit of some files, which leaves everything else in the work tree and the index as it is."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from promptiter.errors import SetupError
from promptiter.wording import join_names

MAX_NAMES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class GitCommit:
    """A commit that is yet to be made. All files are in the same work tree. Those that are `created` are new in it."""

    root: Path
    files: tuple[Path, ...]
    created: tuple[Path, ...] = ()

    @staticmethod
    def of(files: Sequence[Path], *, created: Collection[Path] = ()) -> GitCommit:
        """The commit of these files. SetupError if one git repository does not track all that are not `created`."""
        roots = {_find_root(next(each for each in file.parents if each.is_dir())) for file in files}
        if len(roots) > 1:
            raise SetupError(f"the files are in several git repositories: {join_names(sorted(map(str, roots)))}")
        root = roots.pop() if roots else Path()
        if files:
            tracked = run_git(root, "ls-files", "-z", "--full-name", "--", *_relate(root, files)).split("\0")
            known = [file for file in files if file not in created]
            unknown = [name for name in _relate(root, known) if name not in tracked]
            if unknown:
                raise SetupError(
                    f"git does not track {join_names(unknown, limit=MAX_NAMES)}; add and commit them first"
                )
        return GitCommit(root=root, files=tuple(files), created=tuple(created))

    def check_clean(self) -> None:
        """SetupError if one of the files has changes that are not committed: they would be in the commit as well."""
        if changed := self._list_changed():
            raise SetupError(
                f"{join_names(changed, limit=MAX_NAMES)} has uncommitted changes, which would be part of the commit; "
                "commit or stash them first"
            )

    def check_committed(self, before: Mapping[Path, bytes]) -> None:
        """SetupError if what the files held before they were changed is not what was committed last."""
        edited = [
            name
            for file, name in zip(self.files, _relate(self.root, self.files), strict=True)
            if run_git(self.root, "hash-object", f"--path={name}", "--stdin", text=before[file])
            != run_git(self.root, "rev-parse", f"HEAD:{name}")
        ]
        if edited:
            raise SetupError(
                f"{join_names(edited, limit=MAX_NAMES)} had uncommitted changes when it was applied, which would be "
                "part of the commit; commit it with git"
            )

    def without_clean_files(self) -> GitCommit:
        """The commit of those files only that have changes."""
        changed = self._list_changed()
        pairs = zip(self.files, _relate(self.root, self.files), strict=True)
        return replace(self, files=tuple(file for file, name in pairs if name in changed))

    def make(self, message: str) -> str:
        """Commit the files, with all hooks; returns the hash. What is staged of other files stays staged."""
        names, created = _relate(self.root, self.files), _relate(self.root, self.created)
        if created:
            run_git(self.root, "add", "--intent-to-add", "--", *created)
        try:
            run_git(self.root, "commit", "--only", "--file=-", "--", *names, text=message.encode())
        except SetupError:
            if created:
                run_git(self.root, "reset", "--quiet", "--", *created)
            raise
        return run_git(self.root, "rev-parse", "HEAD").strip()

    def _list_changed(self) -> list[str]:
        if not self.files:
            return []
        names = _relate(self.root, self.files)
        listed = run_git(self.root, "status", "--porcelain=v1", "-z", "--no-renames", "--", *names).split("\0")
        return [line[3:] for line in listed if line]


def _find_root(folder: Path) -> Path:
    try:
        return Path(run_git(folder, "rev-parse", "--show-toplevel").rstrip("\n"))
    except SetupError as error:
        raise SetupError(f"--commit needs a git work tree, and {str(folder)!r} is not in one ({error})") from error


def _relate(root: Path, files: Sequence[Path]) -> list[str]:
    return [Path(os.path.relpath(file.resolve(), root.resolve())).as_posix() for file in files]


def run_git(
    folder: Path, *arguments: str, text: bytes | None = None, variables: Mapping[str, str] | None = None
) -> str:
    """What git prints. SetupError if it fails. `variables` are added to the environment."""
    command = ["git", "--literal-pathspecs", "-C", str(folder), *arguments]
    environment = None if variables is None else {**os.environ, **variables}
    try:
        done = subprocess.run(command, input=text, capture_output=True, check=False, env=environment)
    except OSError as error:
        raise SetupError(f"git cannot be run: {error.strerror or error}") from error
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).decode(errors="replace").replace("\n", "; ")
        raise SetupError(f"git {arguments[0]} failed: {said or f'exit code {done.returncode}'}")
    return os.fsdecode(done.stdout)
