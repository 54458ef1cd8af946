"""Which kind of sandbox a machine has is found by trying, and said in words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from promptiter.errors import SetupError
from promptiter.sandbox import CopyPlan, Sandbox, find_sandbox
from promptiter.sandbox.supervision import supervisor_command
from promptiter.sandbox.supervisor.syscalls import CLONE_NEWUSER
from tests.sandbox.observation import run_shell

pytestmark = pytest.mark.slow

AFTER = """
import sys
from promptiter.sandbox import find_sandbox
{before}
found = find_sandbox()
print(found.kind, found.description, sep=": ")
"""
NO_MORE_NAMESPACES = """
import resource
from pathlib import Path
Path("/proc/sys/user/max_user_namespaces").write_text("0")
"""


def test_descriptions() -> None:
    assert find_sandbox("none").description.startswith("not sandboxed: ")
    found = find_sandbox()
    assert found is find_sandbox()
    expected = {"namespaces": "user namespace, ", "landlock": "Landlock ", "none": "not sandboxed: "}
    assert found.description.startswith(expected[found.kind])


def test_a_supervisor_imports_the_standard_library_only() -> None:
    code = """
import sys
sys.path.append(sys.argv[1])
import promptiter.sandbox.supervisor.main
known = sys.stdlib_module_names | {"promptiter", "traces", "__main__"}
print([name for name in sys.modules if name.split(".")[0] not in known])
print([name for name in ("dataclasses", "pathlib", "asyncio", "inspect") if name in sys.modules])
"""
    command = [*supervisor_command()[:-2], code, supervisor_command()[-1]]
    finished = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert finished.stdout == "[]\n[]\n"


def test_a_kind_that_the_machine_does_not_have_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("promptiter.sandbox.sandbox._try_kind", lambda kind: (f"no {kind} here", True))
    find_sandbox.cache_clear()
    try:
        with pytest.raises(SetupError, match=r"no sandbox of the kind 'landlock' \(no landlock here\)"):
            find_sandbox("landlock")
        expected = "not sandboxed: namespaces: no namespaces here; landlock: no landlock here"
        assert find_sandbox() == Sandbox("none", expected)
    finally:
        find_sandbox.cache_clear()


@pytest.mark.parametrize("protection", ["landlock"], indirect=True)
def test_a_machine_without_user_namespaces_has_landlock(protection: Sandbox) -> None:
    """In a namespace in which no further one can be made."""
    inner = AFTER.format(before=NO_MORE_NAMESPACES)
    code = f"""
import os, subprocess, sys
from promptiter.sandbox.supervisor.syscalls import unshare
uid, gid = os.getuid(), os.getgid()
unshare({CLONE_NEWUSER})
for name, text in (("setgroups", "deny"), ("uid_map", f"0 {{uid}} 1"), ("gid_map", f"0 {{gid}} 1")):
    open(f"/proc/self/{{name}}", "w").write(text)
sys.exit(subprocess.run([sys.executable, "-c", {inner!r}]).returncode)
"""
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert finished.stdout.startswith("landlock: Landlock "), finished.stderr


async def test_without_protection_changes_of_the_original_are_reported(workspace: Path) -> None:
    (workspace / "other.txt").write_text("other")
    async with find_sandbox("none").open(CopyPlan(root=workspace)) as copy:
        assert await copy.find_outside_changes() == ()
        script = (
            f"cd '{workspace}'; echo evil >> prompt.md; rm score.py; echo x > new; chmod 777 other.txt; touch -d @1 a"
        )
        await run_shell(copy, script)
        assert await copy.find_outside_changes() == ("a", "new", "other.txt", "prompt.md", "score.py")


async def test_a_change_with_the_old_size_and_time_is_reported(workspace: Path) -> None:
    async with find_sandbox("none").open(CopyPlan(root=workspace)) as copy:
        script = f"cd '{workspace}'; cp -p prompt.md old; tr a-z b-za < old > prompt.md; touch -r old prompt.md; rm old"
        await run_shell(copy, script)
        assert await copy.find_outside_changes() == ("prompt.md",)
