"""Commands that try to change something outside of their copy, to read what is hidden, or to reach other processes.

Each runs with every kind of protection that the machine has.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from promptiter.errors import CommandError
from promptiter.sandbox import CopyPlan, PrivateCopy, Sandbox
from tests.sandbox.observation import Surroundings, make_mark, run_python, run_shell

pytestmark = pytest.mark.slow

TRY = """
import errno, json, os, socket, sys
succeeded = []
def attempt(name, function, *arguments):
    try:
        function(*arguments)
    except (OSError, ValueError):
        return
    succeeded.append(name)
def write(path, text="evil"):
    with open(path, "w") as file:
        file.write(text)
outside, workspace = sys.argv[1:3]
victim, folder = outside + "/victim.txt", outside + "/folder"
"""
REPORT = "\nprint(json.dumps(succeeded))\n"


async def attack(sandbox: Sandbox, surroundings: Surroundings, code: str, **plan: object) -> list[str]:
    """Run attempts, and return those that succeeded. Whatever they did, nothing outside may differ."""
    before, mark = surroundings.describe(), make_mark()
    paths = (str(surroundings.outside), str(surroundings.workspace))
    async with sandbox.open(CopyPlan(root=surroundings.workspace, **plan)) as copy:  # type: ignore[arg-type]
        finished = await run_python(copy, TRY + code + REPORT, *paths, mark=mark)
        assert mark.find_processes() == []
    assert surroundings.describe() == before
    assert finished.code == 0, finished.stderr.decode()
    found: list[str] = json.loads(finished.stdout)
    return found


async def test_writing_outside(protection: Sandbox, surroundings: Surroundings) -> None:
    code = """
attempt("write", write, victim)
attempt("append", lambda: open(victim, "a").write("x"))
attempt("truncate", os.truncate, victim, 0)
attempt("create", write, outside + "/new")
attempt("mkdir", os.mkdir, outside + "/new")
attempt("relative", write, "../outside/new")
attempt("of /proc", write, "/proc/self/root" + victim)
attempt("of cwd", write, "/proc/self/cwd/../outside/victim.txt")
attempt("home", write, os.path.expanduser("~") + "/promptiter-test-evil")
attempt("etc", write, "/etc/promptiter-test-evil")
attempt("usr", write, "/usr/promptiter-test-evil")
attempt("open then write", lambda: os.write(os.open(victim, os.O_RDWR), b"x"))
attempt("python", write, sys.prefix + "/promptiter-test-evil")
"""
    assert await attack(protection, surroundings, code) == []
    for folder in (Path.home(), Path("/etc"), Path("/usr"), Path(sys.prefix)):
        assert not (folder / "promptiter-test-evil").exists()


async def test_deleting_and_moving_outside(protection: Sandbox, surroundings: Surroundings) -> None:
    code = """
attempt("unlink", os.unlink, victim)
attempt("rmdir", os.rmdir, folder)
attempt("rename", os.rename, victim, victim + "2")
attempt("move in", os.rename, victim, "stolen")
attempt("move out", os.rename, "prompt.md", outside + "/prompt.md")
attempt("hard link in", os.link, victim, "linked")
attempt("hard link out", os.link, "prompt.md", outside + "/prompt.md")
attempt("symlink", os.symlink, "x", outside + "/link")
attempt("fifo", os.mkfifo, outside + "/pipe")
import shutil
shutil.rmtree(outside, ignore_errors=True)
"""
    assert await attack(protection, surroundings, code) == []


async def test_following_links(protection: Sandbox, surroundings: Surroundings) -> None:
    """Links that were in the workspace, and links that a command makes."""
    (surroundings.workspace / "to file").symlink_to(surroundings.outside / "victim.txt")
    (surroundings.workspace / "to folder").symlink_to("../outside")
    code = """
attempt("file", write, "to file")
attempt("folder", write, "to folder/victim.txt")
attempt("new", write, "to folder/new")
attempt("delete", os.unlink, "to folder/victim.txt")
os.symlink(victim, "mine")
os.symlink(outside, "my folder")
attempt("my file", write, "mine")
attempt("my folder", write, "my folder/new")
attempt("truncate", os.truncate, "mine", 0)
"""
    assert await attack(protection, surroundings, code) == []


async def test_modes_owners_times_and_attributes_outside(protection: Sandbox, surroundings: Surroundings) -> None:
    code = """
attempt("chmod", os.chmod, victim, 0o777)
attempt("fchmod", lambda: os.fchmod(os.open(victim, os.O_RDONLY), 0o777))
attempt("chmod of a path descriptor", lambda: os.chmod("/proc/self/fd/%d" % os.open(victim, os.O_PATH), 0o777))
attempt("chmod in a folder", lambda: os.chmod("victim.txt", 0o777, dir_fd=os.open(outside, os.O_RDONLY)))
attempt("chown", os.chown, victim, os.getuid(), os.getgid())
attempt("lchown", os.lchown, victim, os.getuid(), os.getgid())
attempt("fchown", lambda: os.fchown(os.open(victim, os.O_RDONLY), os.getuid(), os.getgid()))
attempt("utime", os.utime, victim, (1, 1))
attempt("utime of a descriptor", lambda: os.utime(os.open(victim, os.O_RDONLY), (1, 1)))
attempt("utime of a folder", os.utime, folder, (1, 1))
attempt("xattr", os.setxattr, victim, "user.evil", b"x")
attempt("fxattr", lambda: os.setxattr(os.open(victim, os.O_RDONLY), "user.evil", b"x"))
attempt("link", lambda: (os.symlink(victim, "link"), os.chmod("link", 0o777)))
import fcntl, struct
attempt("flags", lambda: fcntl.ioctl(os.open(victim, os.O_RDONLY), 0x40086602, struct.pack("l", 0x40)))
attempt("version", lambda: fcntl.ioctl(os.open(victim, os.O_RDONLY), 0x40087602, struct.pack("l", 7)))
"""
    assert await attack(protection, surroundings, code) == []


async def test_modes_and_times_inside_can_be_changed(protection: Sandbox, workspace: Path) -> None:
    script = """
        chmod 700 prompt.md && touch -d @1000 prompt.md && stat -c '%a %Y' prompt.md && ln -s prompt.md l
        touch -h -d @2000 l && stat -c %Y l && touch new && chmod -R u+rwX .
        cp -p prompt.md copied && stat -c %Y copied
    """
    async with protection.open(CopyPlan(root=workspace)) as copy:
        finished = await run_shell(copy, script)
    assert finished.stderr == b""
    assert finished.stdout == b"700 1000\n2000\n1000\n"


async def test_reading_what_is_hidden(protection: Sandbox, surroundings: Surroundings) -> None:
    root = surroundings.workspace
    (root / "hard link").hardlink_to(root / "data" / "inner" / "case.txt")
    code = """
import glob
def read(path):
    text = open(path, "rb").read()
    if b"SECRET" not in text:
        raise ValueError(path)
attempt("here", read, "holdout.py")
attempt("absolute", read, workspace + "/holdout.py")
attempt("through root", read, "/proc/self/root" + workspace + "/holdout.py")
attempt("through cwd", read, "/proc/self/cwd/holdout.py")
for pid in filter(str.isdigit, os.listdir("/proc")):
    attempt("root of " + pid, read, f"/proc/{pid}/root{workspace}/holdout.py")
    attempt("cwd of " + pid, read, f"/proc/{pid}/cwd/holdout.py")
    for fd in glob.glob(f"/proc/{pid}/fd/*"):
        attempt("descriptor " + fd, read, fd + "/holdout.py")
attempt("after a rename", lambda: (os.rename("holdout.py", "other"), read("other")))
attempt("after a link", lambda: (os.link("holdout.py", "linked"), read("linked")))
attempt("folder moved", lambda: (os.rename("checks", "moved"), read("moved/secret.py")))
attempt("in a folder", read, "checks/secret.py")
attempt("in a folder, absolute", read, workspace + "/checks/secret.py")
for device in ("/dev/vda", "/dev/sda", "/dev/mem", "/proc/kcore"):
    attempt(device, lambda: open(device, "rb").read(1))
"""
    (root / "checks").mkdir()
    (root / "checks" / "secret.py").write_text("SECRET")
    assert await attack(protection, surroundings, code, hidden=("holdout.py", "checks")) == []


async def test_mounts_namespaces_and_devices(protection: Sandbox, surroundings: Surroundings) -> None:
    code = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    if getattr(libc, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)
w, h = workspace.encode(), (workspace + "/holdout.py").encode()
def attack_mounts(how):
    attempt(how + "umount of the workspace", call, "umount2", w, 2)
    attempt(how + "umount of the hidden file", call, "umount2", h, 2)
    attempt(how + "umount of /tmp", call, "umount2", b"/tmp", 2)
    attempt(how + "umount of /proc", call, "umount2", b"/proc", 2)
    attempt(how + "remount of /", call, "mount", None, b"/", None, 32 | 4096, None)
    attempt(how + "remount of outside", call, "mount", outside.encode(), outside.encode(), None, 4096 | 32, None)
    attempt(how + "write", write, victim)
    attempt(how + "read", lambda: open("holdout.py").read().index("SECRET"))
    attempt(how + "sysctl", write, "/proc/sys/kernel/core_pattern", "core")
    attempt(how + "sysrq", write, "/proc/sysrq-trigger", "h")
    attempt(how + "device node", lambda: os.mknod("disk", 0o60600, os.makedev(254, 0)))
    attempt(how + "raw device", lambda: open("/dev/vda", "r+b"))
    attempt(how + "hostname", lambda: socket.sethostname("evil"))
    attempt(how + "chroot", lambda: os.chroot("/"))
attack_mounts("")
if libc.unshare(0x10000000 | 0x00020000) == 0:
    name = str(os.getuid())
    attack_mounts("nested: ")
succeeded = [each for each in succeeded if each not in ("nested: chroot",)]
"""
    assert await attack(protection, surroundings, code, hidden=("holdout.py",)) == []
    assert socket.gethostname() != "evil"


async def test_other_processes(protection: Sandbox, surroundings: Surroundings) -> None:
    """A process of the same user, and the supervisor."""
    with subprocess.Popen(["/bin/sleep", "100"]) as bystander:  # noqa: ASYNC220 - it starts at once
        try:
            code = f"""
import ctypes, signal
libc = ctypes.CDLL(None, use_errno=True)
def trace(pid):
    if libc.ptrace(16, pid, 0, 0) < 0:
        raise OSError(ctypes.get_errno())
for name, pid in (("bystander", {bystander.pid}), ("test", {os.getpid()}), ("supervisor", os.getppid())):
    if pid == 1:
        try:
            os.kill(1, signal.SIGKILL)  # it is not delivered
        except OSError:
            pass
    else:
        attempt("kill " + name, os.kill, pid, signal.SIGKILL)
        attempt("stop " + name, os.kill, pid, signal.SIGSTOP)
        attempt("priority of " + name, os.setpriority, os.PRIO_PROCESS, pid, 19)
    attempt("trace " + name, trace, pid)
    attempt("memory of " + name, lambda: open(f"/proc/{{pid}}/mem", "r+b"))
    attempt("variables of " + name, lambda: open(f"/proc/{{pid}}/environ").read())
    import resource
    if pid != 1:  # that of its own copy may be limited: it ends with the copy
        attempt("limits of " + name, resource.prlimit, pid, resource.RLIMIT_CORE, (0, 0))
    for fd in range(64):
        attempt(f"descriptor of {{name}}", write, f"/proc/{{pid}}/fd/{{fd}}")
    attempt("root of " + name, os.listdir, f"/proc/{{pid}}/root")
signal.signal(signal.SIGTERM, signal.SIG_IGN)
try:
    os.kill(-1, signal.SIGTERM)
except OSError:
    pass
"""
            assert await attack(protection, surroundings, code) == []
            assert bystander.poll() is None
        finally:
            bystander.kill()


async def test_inherited_descriptors(protection: Sandbox, surroundings: Surroundings) -> None:
    inheritable = os.open(surroundings.outside / "victim.txt", os.O_RDWR)
    os.set_inheritable(inheritable, True)
    try:
        code = """
for fd in range(3, 1024):
    attempt(f"descriptor {fd}", os.fstat, fd)
"""
        assert await attack(protection, surroundings, code) == []
    finally:
        os.close(inheritable)


async def test_services_that_would_do_it(protection: Sandbox, surroundings: Surroundings) -> None:
    """A service with a socket, such as a container engine, changes files for anyone who connects."""
    with tempfile.TemporaryDirectory(dir=Path.home(), prefix="promptiter-test-") as folder:
        by_path, abstract = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
        with by_path, abstract:
            by_path.bind(f"{folder}/service")
            by_path.listen()
            abstract.bind(f"\0{folder}")
            abstract.listen()
            code = f"""
attempt("path", lambda: socket.socket(socket.AF_UNIX).connect({folder + "/service"!r}))
attempt("abstract", lambda: socket.socket(socket.AF_UNIX).connect("\\0" + {folder!r}))
first, second = socket.socketpair()
first.send(b"x")
"""
            assert await attack(protection, surroundings, code) == []


async def run_into_quota(copy: PrivateCopy, code: str) -> bool:
    """Whether a command failed because it wrote too much, or was ended for it."""
    try:
        finished = await run_python(copy, code)
    except CommandError as error:
        return "bytes to its copy" in str(error)
    return finished.code != 0 and any(word in finished.stderr for word in (b"No space left", b"File too large"))


async def test_filling_the_quota(protection: Sandbox, surroundings: Surroundings) -> None:
    before = surroundings.describe()
    code = """
import os
for number in range(100):
    with open(f"data-{number}", "wb") as file:
        for _ in range(4):
            file.write(os.urandom(1 << 20))
            file.flush()
import time; time.sleep(30)
"""
    async with protection.open(CopyPlan(root=surroundings.workspace, disk_bytes=32 << 20)) as copy:
        assert await run_into_quota(copy, code)
        if protection.kind == "namespaces":
            everywhere = await run_shell(copy, "for i in /tmp /dev/shm /var/tmp .; do echo x > $i/file; done")
            assert everywhere.stderr.count(b"error") == 4
    assert surroundings.describe() == before


async def test_many_small_files_and_one_sparse_one(protection: Sandbox, surroundings: Surroundings) -> None:
    code = """
import os, resource
for number in range(200_000):
    os.close(os.open(f"f{number}", os.O_CREAT | os.O_WRONLY))
"""
    async with protection.open(CopyPlan(root=surroundings.workspace, disk_bytes=8 << 20)) as copy:
        assert await run_into_quota(copy, "open('sparse', 'wb').truncate(1 << 40)")
        assert await run_into_quota(copy, code)


async def test_without_a_network_nothing_can_be_reached(protection: Sandbox, workspace: Path) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        code = f"""
import socket
socket.create_connection(("127.0.0.1", {server.getsockname()[1]}), timeout=5)
"""
        async with protection.open(CopyPlan(root=workspace)) as copy:
            assert (await run_python(copy, code)).code == 0
        async with protection.open(CopyPlan(root=workspace, network=False)) as copy:
            refused = await run_python(copy, code)
            assert refused.code != 0
            assert b"Error" in refused.stderr


async def test_without_a_network_nothing_beyond_the_machine_can_be_reached(
    protection: Sandbox, workspace: Path
) -> None:
    """A virtual machine reaches its host by sockets that belong to no namespace."""
    code = """
import socket
try:
    socket.socket(40, socket.SOCK_STREAM)
except OSError:
    print("refused")
"""
    async with protection.open(CopyPlan(root=workspace, network=False)) as copy:
        assert (await run_python(copy, code)).stdout == b"refused\n"


@pytest.mark.parametrize("protection", ["namespaces"], indirect=True)
async def test_loopback_works_within_a_copy_without_a_network(workspace: Path, protection: Sandbox) -> None:
    code = """
import socket
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname())
"""
    async with protection.open(CopyPlan(root=workspace, network=False)) as copy:
        assert (await run_python(copy, code)).code == 0


async def test_limits_of_memory(protection: Sandbox, workspace: Path) -> None:
    async with protection.open(CopyPlan(root=workspace, memory_bytes=256 << 20)) as copy:
        finished = await run_python(copy, "bytearray(1 << 30)")
    assert b"MemoryError" in finished.stderr


async def test_a_mutator_that_swaps_its_copy(protection: Sandbox, surroundings: Surroundings) -> None:
    """Files that are read afterwards come from the copy, whatever was put in place of its folders."""
    before = surroundings.describe()
    script = f"""
        rm -rf data; ln -s '{surroundings.outside}' data
        rm prompt.md; ln -s '{surroundings.outside}/victim.txt' prompt.md
    """
    async with protection.open(CopyPlan(root=surroundings.workspace)) as copy:
        await run_shell(copy, script)
        for path in ("prompt.md", "data/victim.txt"):
            with pytest.raises(CommandError, match="a symbolic link"):
                await copy.read(path, max_bytes=100)
    assert surroundings.describe() == before


async def test_programs_with_special_rights_have_none(protection: Sandbox, workspace: Path) -> None:
    """`su` and `sudo` cannot help: no program gives more rights than its caller has."""
    code = "print(*(line for line in open('/proc/self/status') if line.startswith(('NoNewPrivs', 'Cap'))), sep='')"
    async with protection.open(CopyPlan(root=workspace)) as copy:
        lines = (await run_python(copy, code)).stdout.decode().split()
    status = dict(zip(lines[::2], lines[1::2], strict=True))
    assert status["NoNewPrivs:"] == "1"
    assert {int(status[name], 16) for name in ("CapInh:", "CapPrm:", "CapEff:", "CapAmb:")} <= {0, 1 << 1 | 1 << 3}
