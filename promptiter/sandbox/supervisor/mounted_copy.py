"""A copy that is mounted over the original, in namespaces of its own."""

from __future__ import annotations

import os
import stat

from promptiter.sandbox.supervisor.aliases import find_aliases, find_hidden, read_mounts
from promptiter.sandbox.supervisor.changes import ChangeList, compare_copy, read_overlay, take_snapshot
from promptiter.sandbox.supervisor.commands import Restrictions
from promptiter.sandbox.supervisor.copies import TEMPORARY, OpenRequest, find_touched, write_plan
from promptiter.sandbox.supervisor.copying import copy_tree
from promptiter.sandbox.supervisor.files import find_mode
from promptiter.sandbox.supervisor.landlock import Ruleset, read_abi
from promptiter.sandbox.supervisor.mounts import READ_ONLY, attach_tree, clone_tree
from promptiter.sandbox.supervisor.namespaces import enter_namespaces
from promptiter.sandbox.supervisor.processes import NamespaceProcesses
from promptiter.sandbox.supervisor.quota import Quota
from promptiter.sandbox.supervisor.rights import IN_NAMESPACES, Rights
from promptiter.sandbox.supervisor.seccomp import has_filter
from promptiter.sandbox.supervisor.syscalls import unmount
from promptiter.sandbox.supervisor.view import EMPTY_FILE, EMPTY_FOLDER, SCRATCH, list_sockets, mount_view


class MountedCopy:
    """A copy that is mounted over the original. This process becomes the first one of its namespaces."""

    def __init__(self, request: OpenRequest) -> None:
        self.root = request.root
        self._request = request
        self._covered: list[str] = []
        self._pinned: set[str] = set()
        sockets = list_sockets()
        mounts = read_mounts()
        places = find_hidden(self.root, request.hidden, request.repositories)
        hidden = [alias for place in places for alias in find_aliases(place, mounts)]
        enter_namespaces(network=request.network)
        if request.folder is not None:
            os.mkdir(f"{request.folder}/copy")
            copy_tree(request.root, f"{request.folder}/copy")
        layers = mount_view(
            request.root,
            copy=None if request.folder is None else f"{request.folder}/copy",
            visible=request.visible,
            sockets=sockets,
            disk_bytes=request.disk_bytes,
        )
        self._upper, self._lower = (f"/proc/self/fd/{layer}" for layer in layers)
        self._planned = write_plan(self.root, request.files)
        for path in request.protected:
            self._protect(f"{self.root}/{path}")
        for place in hidden:
            self._hide(place)
        self._before = take_snapshot(self.root) if request.folder else {}
        self._quota = Quota(self.root if request.folder else None, request.disk_bytes)
        self._quota.start()
        self._processes = NamespaceProcesses()
        has_landlock = read_abi() > 0
        writable = [self.root, "/dev", *SCRATCH]
        self._ruleset = Ruleset(writable=writable, network=True) if has_landlock else None
        parts = ("user namespace", "copy" if request.folder else "overlay", *(("Landlock",) if has_landlock else ()))
        self.description = ", ".join(parts)

    def prepare_run(self) -> None:
        """Mounts protect what is protected."""

    def restrict(self) -> Restrictions:
        rights = Rights(
            ruleset=self._ruleset,
            capabilities=IN_NAMESPACES if os.getuid() == 0 else frozenset(),
            processes=self._request.processes + 2,  # and this one, and its parent
            file_bytes=self._request.disk_bytes,
            memory_bytes=self._request.memory_bytes,
            filtered="shared" if has_filter() else "",
            network=self._request.network,
        )
        return Restrictions(
            apply=rights.apply,
            processes=self._processes,
            max_processes=self._request.processes,
            quota=self._quota,
        )

    def adapt_environment(self, environment: dict[str, str]) -> dict[str, str]:
        return {name: "/tmp" if name in TEMPORARY else value for name, value in environment.items()}  # noqa: S108

    def list_changes(self) -> ChangeList:
        if self._request.folder:
            planned = frozenset(self._request.files)
            return compare_copy(self.root, self._before, original=self._lower, planned=planned)
        return read_overlay(self._upper, self._lower, planned=self._planned)

    def find_tampering(self) -> list[str]:
        return find_touched(self._request.protected, self.list_changes())

    def find_outside_changes(self) -> list[str]:
        return []

    def reveal(self) -> None:
        for path in reversed(self._covered):
            unmount(os.fsencode(path))
        self._covered = []

    def _protect(self, path: str) -> None:
        if not os.path.lexists(path) or os.path.islink(path):
            return
        self._pin_folders(path)
        attach_tree(clone_tree(path, flags=READ_ONLY), path)

    def _pin_folders(self, path: str) -> None:
        """Keep the folders above a path where they are. An overlay refuses to move those of the original anyway."""
        for at in (place for place, letter in enumerate(path) if letter == "/" and place > len(self.root)):
            folder = path[:at]
            is_original = stat.S_ISDIR(find_mode(f"{self._lower}{folder[len(self.root) :]}"))
            if folder not in self._pinned and (self._request.folder or not is_original):
                attach_tree(clone_tree(folder), folder)
                self._pinned.add(folder)

    def _hide(self, path: str) -> None:
        """Mount something empty over it. What a link leads to is hidden itself."""
        if not os.path.lexists(path) or os.path.islink(path):
            return
        empty = EMPTY_FOLDER if os.path.isdir(path) else EMPTY_FILE
        attach_tree(clone_tree(empty, flags=READ_ONLY), path)
        self._covered.append(path)
