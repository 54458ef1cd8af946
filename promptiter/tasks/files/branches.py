"""BranchWriter: an observer that writes each kept candidate as a commit on a git branch of its own.

It writes objects and refs only. The user's work tree, index and current branch stay as they are.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from promptiter.concurrency import run_in_thread
from promptiter.errors import SetupError
from promptiter.profile import Profile
from promptiter.runlog.events import Event
from promptiter.runlog.observation import ObservedRun
from promptiter.runlog.payloads import RoundCompleted
from promptiter.runlog.results import CandidateResult
from promptiter.runlog.run_state import RunState
from promptiter.runs.git_commit import run_git
from promptiter.tasks.files.workspace import Workspace

AUTHOR = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "promptiter"), ("EMAIL", "promptiter@localhost"))
}


class BranchWriter:
    """Writes the branches of one run: `PREFIX/RUN/0003` for its third candidate, each on top of the one before."""

    def __init__(self, workspace: Workspace, *, prefix: str, title: str) -> None:
        self.workspace = workspace
        self.prefix = prefix.strip("/")
        self.title = title
        run_git(workspace.root, "rev-parse", "--verify", "HEAD^{commit}")  # SetupError without a repository
        self._run: ObservedRun | None = None
        self._start()

    async def begin_run(self, run: ObservedRun) -> None:
        self._run = run
        self._start()
        await run_in_thread(self._read_on)

    async def observe(self, event: Event) -> None:
        if event.type == RoundCompleted.event_type:
            await run_in_thread(self._read_on)

    async def end_run(self, run: ObservedRun) -> None:  # noqa: ARG002 - protocol
        await run_in_thread(self._read_on)

    def _start(self) -> None:
        self._state = RunState()
        self._next = 0
        self._count = 0
        self._parent = ""

    def _read_on(self) -> None:
        assert self._run is not None, "a run begins before its branches are written"
        for event in self._run.events.read(self._next):
            self._next = event.seq + 1
            self._state.take(event)
            if event.type != RoundCompleted.event_type or self._state.round is None:
                continue
            found = self._state.round
            for each in found.candidates:
                self._count += 1
                if each.decision is not None and each.decision.accepted:
                    self._write(each, f"{self.prefix}/{self._run.run_id}/{self._count:04}")
            self._count += not found.candidates and bool(found.skipped)

    def _write(self, candidate: CandidateResult, branch: str) -> None:
        """Write a branch, unless an earlier process of the run did."""
        root, ref = self.workspace.root, f"refs/heads/{branch}"
        try:
            self._parent = run_git(root, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}").strip()
        except SetupError:
            pass
        else:
            return
        parent = self._parent or run_git(root, "rev-parse", "HEAD").strip()
        tree = _write_tree(root, parent, self._encode(candidate.profile))
        reason = "" if candidate.decision is None else candidate.decision.reason
        message = f"{self.title}: candidate {self._count}\n\n{reason}\n"
        commit = run_git(root, "commit-tree", tree, "-p", parent, text=message.encode(), variables=AUTHOR).strip()
        run_git(root, "update-ref", ref, commit, "")
        self._parent = commit

    def _encode(self, profile: Profile) -> Mapping[str, bytes]:
        texts = self.workspace.read_profile(profile)
        return {**self.workspace.files, **self.workspace.encode(texts)}


def _write_tree(root: Path, parent: str, files: Mapping[str, bytes]) -> str:
    """The tree of a commit with other files in it, built in an index of its own."""
    prefix = run_git(root, "rev-parse", "--show-prefix").strip()
    with tempfile.TemporaryDirectory() as folder:
        variables = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
        run_git(root, "read-tree", parent, variables=variables)
        lines = []
        for path, raw in files.items():
            blob = run_git(root, "hash-object", "-w", "--stdin", text=raw).strip()
            mode = "100755" if (root / path).exists() and (root / path).stat().st_mode & 0o111 else "100644"
            lines.append(f"{mode} {blob}\t{prefix}{path}\n")
        run_git(root, "update-index", "--index-info", text="".join(lines).encode(), variables=variables)
        return run_git(root, "write-tree", variables=variables).strip()
