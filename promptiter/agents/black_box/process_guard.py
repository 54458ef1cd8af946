"""Ends the commands of a process that is killed: a shell beside it knows their process groups.

SIGKILL leaves a process no time to end its commands. The shell notices, because the pipe that it reads is closed. It
sends SIGTERM to what is left of these groups, and SIGKILL two seconds later.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import threading

_SCRIPT = """
groups=' '
while read -r what group; do
  case $what in
    +) groups="$groups$group " ;;
    -) groups="${groups%% $group *} ${groups#* $group }" ;;
  esac
done
for group in $groups; do kill -s TERM -- "-$group"; done
for group in $groups; do sleep 2; break; done
for group in $groups; do kill -s KILL -- "-$group"; done
"""


class ProcessGuard:
    """Knows the process groups of commands that run. May be used by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: set[int] = set()
        self._shell: subprocess.Popen[bytes] | None = None
        self._is_registered = False

    def add(self, group: int) -> None:
        """End this process group if this process is killed."""
        with self._lock:
            self._groups.add(group)
            if self._shell is not None and self._send(f"+ {group}\n"):
                return
            with contextlib.suppress(OSError):  # a machine without a shell has no guard
                self._start()
                self._send("".join(f"+ {each}\n" for each in sorted(self._groups)))

    def remove(self, group: int) -> None:
        """Forget a process group that has ended."""
        with self._lock:
            self._groups.discard(group)
            self._send(f"- {group}\n")

    def _send(self, lines: str) -> bool:
        """Tell the shell. False if there is none any more."""
        if self._shell is None or self._shell.stdin is None:
            return False
        try:
            os.write(self._shell.stdin.fileno(), lines.encode())
        except OSError:
            return False
        return True

    def _start(self) -> None:
        if not self._is_registered:
            self._is_registered = True
            atexit.register(self._close)
            os.register_at_fork(after_in_child=self._forget)
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={"PATH": os.defpath},
            start_new_session=True,
            bufsize=0,
        )

    def _close(self) -> None:
        """Let the shell end. It does so at once if no command is left."""
        if self._shell is not None and self._shell.stdin is not None:
            self._shell.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._shell.wait(timeout=0.5)

    def _forget(self) -> None:
        """In a forked process: the shell is that of its parent, and must notice when that one ends."""
        if self._shell is not None and self._shell.stdin is not None:
            self._shell.stdin.close()
            self._shell.returncode = 0  # not a child of this process
        self._lock, self._groups, self._shell = threading.Lock(), set(), None


guard = ProcessGuard()
