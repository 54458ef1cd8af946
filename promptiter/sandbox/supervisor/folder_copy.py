"""A copy in a folder of its own, with Landlock or without any protection."""

from __future__ import annotations

import os
import stat

from promptiter.agents.black_box.removal import remove_tree
from promptiter.sandbox.supervisor.aliases import find_aliases, find_hidden, read_mounts
from promptiter.sandbox.supervisor.changes import ChangeList, compare_copy, find_differences, take_snapshot
from promptiter.sandbox.supervisor.commands import Restrictions
from promptiter.sandbox.supervisor.copies import TEMPORARY, OpenRequest, find_touched, is_in, write_plan
from promptiter.sandbox.supervisor.copying import copy_file, copy_tree
from promptiter.sandbox.supervisor.files import find_mode, write_file
from promptiter.sandbox.supervisor.landlock import Ruleset, list_readable, read_abi
from promptiter.sandbox.supervisor.processes import Descendants
from promptiter.sandbox.supervisor.quota import Quota
from promptiter.sandbox.supervisor.rights import Rights, count_threads_of_user
from promptiter.sandbox.supervisor.seccomp import has_filter
from promptiter.sandbox.supervisor.view import DEVICES, SCRATCH, find_entries

PRIVATE = ("promptiter-private-", "promptiter-new-")
"""What the names of private folders begin with (`private_files`): those of other copies are beside this one."""
_DEVICE_FILES = tuple(f"/dev/{name}" for name in DEVICES)


class FolderCopy:
    """A copy in a folder of its own, with Landlock or without any protection."""

    def __init__(self, request: OpenRequest) -> None:
        assert request.folder is not None
        self._request = request
        self.root, self._temporary = f"{request.folder}/copy", f"{request.folder}/tmp"  # noqa: S108 - below the private folder
        for folder in (self.root, self._temporary):
            os.mkdir(folder, 0o700)
        self._outside = take_snapshot(request.root)
        self._hidden = find_hidden(request.root, request.hidden, request.repositories)
        copy_tree(request.root, self.root, skipped=frozenset(self._list_left_out()))
        write_plan(self.root, request.files)
        self._before = take_snapshot(self.root)
        self._tampered: set[str] = set()
        self._quota = Quota(request.folder, request.disk_bytes)
        self._quota.start()
        self._ruleset, self.description = None, "no protection"
        if request.kind == "landlock":
            self._ruleset = self._make_ruleset(self._hidden)
            self.description = f"Landlock {read_abi()}, {'seccomp, ' if has_filter() else ''}copy"

    def prepare_run(self) -> None:
        """Restore what is protected: Landlock cannot protect files in a folder that may be written."""
        changes = self.list_changes()
        for path in find_touched(self._request.protected, changes):
            self._tampered.add(path)
            self._restore(path)

    def restrict(self) -> Restrictions:
        threads = count_threads_of_user()
        rights = Rights(
            ruleset=self._ruleset,
            capabilities=None if self._ruleset is None else frozenset(),
            processes=None if threads is None else threads + self._request.processes,
            file_bytes=self._request.disk_bytes,
            memory_bytes=self._request.memory_bytes,
            filtered="all" if self._ruleset is not None and has_filter() else "",
            network=self._request.network,
        )
        return Restrictions(
            apply=rights.apply,
            processes=Descendants(),
            max_processes=self._request.processes,
            quota=self._quota,
            changeable=(self.root, self._temporary),
        )

    def adapt_environment(self, environment: dict[str, str]) -> dict[str, str]:
        return {**environment, **dict.fromkeys(TEMPORARY, self._temporary)}

    def list_changes(self) -> ChangeList:
        planned = frozenset(self._request.files)
        return compare_copy(self.root, self._before, original=self._request.root, planned=planned)

    def find_tampering(self) -> list[str]:
        return sorted(self._tampered.union(find_touched(self._request.protected, self.list_changes())))

    def find_outside_changes(self) -> list[str]:
        return find_differences(self._outside, take_snapshot(self._request.root))

    def reveal(self) -> None:
        for path in self._list_left_out():
            self._restore(path)
        if self._ruleset is not None:
            self._ruleset.close()
            self._ruleset = self._make_ruleset([])

    def _list_left_out(self) -> list[str]:
        """Hidden paths of the original that the copy is made without. Those behind links to folders are elsewhere."""
        start = f"{self._request.root}/"
        real = (path for path in self._hidden if os.path.realpath(os.path.dirname(path)) == os.path.dirname(path))
        return [path.removeprefix(start) for path in real if path.startswith(start)]

    def _restore(self, path: str) -> None:
        """Put a path back as it was when the copy was made."""
        source, target = f"{self._request.root}/{path}", f"{self.root}/{path}"
        above = ""
        for name in path.split("/")[:-1]:
            above = f"{above}/{name}"
            if not stat.S_ISDIR(find_mode(f"{self.root}{above}")):
                remove_tree(f"{self.root}{above}")
                os.mkdir(f"{self.root}{above}")
        remove_tree(target)
        mode = find_mode(source)
        if stat.S_ISDIR(mode):
            os.mkdir(target)
            copy_tree(source, target)
        elif mode:
            copy_file(source, target)
        for file, content in self._request.files.items():
            if is_in(file, path):
                write_file(self.root, file, content)
        known = {file: signature for file, signature in self._before.items() if not is_in(file, path)}
        after = take_snapshot(self.root)
        self._before = {**known, **{file: after[file] for file in after if is_in(file, path)}}

    def _make_ruleset(self, paths: list[str]) -> Ruleset:
        """Everything can be read but what is hidden, temporary files of others, and devices."""
        folder = self._request.folder
        assert folder is not None
        mounts = read_mounts()
        hidden = [alias for path in paths for alias in find_aliases(path, mounts)]
        beside = os.path.dirname(folder)
        others = [f"{beside}/{name}" for name in os.listdir(beside) if name.startswith(PRIVATE)]
        readable = list_readable([*hidden, *others, *SCRATCH, "/dev"])
        for entry in find_entries(self._request.visible):
            readable += list_readable([*hidden, *others], start=entry)
        writable = [self.root, self._temporary, *_DEVICE_FILES]
        return Ruleset(writable=writable, readable=[*readable, folder, *_DEVICE_FILES], network=self._request.network)
