"""What holds for root holds for an ordinary user: the tests of this folder again, as `nobody`."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from promptiter.agents.black_box.removal import remove_tree

ROOT = Path(__file__).parents[2]
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


def find_interpreter() -> str:
    """One that `nobody` may start, and that is of this version."""
    for interpreter in (sys.executable, f"/usr/bin/python{VERSION}", f"/usr/local/bin/python{VERSION}"):
        try:
            subprocess.run([interpreter, "-c", ""], user="nobody", check=True, cwd="/", env={}, timeout=60)
        except (OSError, subprocess.CalledProcessError):
            continue
        return interpreter
    pytest.skip(f"no Python {VERSION} that an ordinary user may start")


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.skipif(os.getuid() != 0, reason="the other tests of this folder run as an ordinary user already")
def test_everything_as_an_ordinary_user() -> None:
    interpreter = find_interpreter()
    spec = find_spec("pytest")
    assert spec is not None
    assert spec.origin is not None
    user = pwd.getpwnam("nobody")
    home = tempfile.mkdtemp(prefix="promptiter-test-", dir="/var/tmp")
    try:
        os.chown(home, user.pw_uid, user.pw_gid)
        environment = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": home,
            "TMPDIR": home,
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(Path(spec.origin).parents[1]))),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        finished = subprocess.run(
            [interpreter, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-rs", "tests/sandbox"],
            user=user.pw_uid,
            group=user.pw_gid,
            extra_groups=[],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=580,
        )
        assert finished.returncode == 0, finished.stdout
    finally:
        remove_tree(home)
