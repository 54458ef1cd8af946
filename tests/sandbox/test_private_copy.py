"""What every kind of copy does alike: run, read, list changes, hide, protect, reveal."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from promptiter.errors import CommandError, SetupError
from promptiter.sandbox import Changes, CopyPlan, Sandbox
from tests.sandbox.observation import PATH, QUICK, Surroundings, run_python, run_shell

pytestmark = pytest.mark.slow


async def test_a_command_gets_its_input_arguments_and_variables_only(sandbox: Sandbox, workspace: Path) -> None:
    code = "import os, sys; print(sys.stdin.read(), sys.argv[1], sorted(os.environ)); sys.exit(3)"
    async with sandbox.open(CopyPlan(root=workspace)) as copy:
        command = (sys.executable, "-Sc", code, "größe\n")
        finished = await copy.run(command, environment={"A": "ä", "LC_ALL": "C.UTF-8"}, stdin=b"x" * 200_000)
    assert finished.code == 3
    assert finished.stdout.startswith(b"x" * 200_000 + b" gr\xc3\xb6\xc3\x9fe\n ['A', 'LC_ALL'")
    assert b"PROMPTITER" not in finished.stdout


async def test_commands_share_the_copy_and_the_original_stays(
    sandbox: Sandbox, workspace: Path, surroundings: Surroundings
) -> None:
    before = surroundings.describe()
    async with sandbox.open(CopyPlan(root=workspace, files={"prompt.md": "Be short.\n", "new/file": b"\xff"})) as copy:
        first = await run_shell(copy, "cat prompt.md; echo one > result; rm -r data; mkdir data; echo 1 > data/x")
        second = await copy.run(("cat", "result", "new/file"), environment={"PATH": PATH})
        assert first.stdout == b"Be short.\n"
        assert second.stdout == b"one\n\xff"
        changes = await copy.list_changes()
        assert await copy.read("result", max_bytes=10) == b"one\n"
        assert await copy.read("data/inner/case.txt", max_bytes=10) is None
        assert await copy.find_outside_changes() == ()
    assert changes == Changes(written=("data/x", "result"), deleted=("data/inner/case.txt",))
    assert surroundings.describe() == before


async def test_changes_are_what_differs_and_nothing_else(sandbox: Sandbox, workspace: Path) -> None:
    (workspace / "link").symlink_to("prompt.md")
    script = """
        touch score.py; cp prompt.md p; cat p > prompt.md; rm p
        echo other > planned; rm gone; ln -s /etc/passwd escape; rm link; ln -s score.py link
        mkdir empty; mkfifo pipe; rm holdout.py; mkdir holdout.py; echo in > holdout.py/in
    """
    async with sandbox.open(CopyPlan(root=workspace, files={"planned": "p", "gone": "g", "same": "s"})) as copy:
        assert (await run_shell(copy, script)).stderr == b""
        changes = await copy.list_changes()
    assert changes.written == ("holdout.py/in", "planned")
    assert changes.deleted == ("gone", "holdout.py")
    assert changes.links == ("escape", "link")
    assert changes.special == ("pipe",)
    assert changes.paths == ("escape", "gone", "holdout.py", "holdout.py/in", "link", "pipe", "planned")


async def test_reading_refuses_links_large_files_and_paths_that_lead_out(sandbox: Sandbox, workspace: Path) -> None:
    async with sandbox.open(CopyPlan(root=workspace)) as copy:
        await run_shell(copy, "ln -s /etc/passwd out; ln -s /etc folder; mkfifo pipe; head -c 100 /dev/zero > large")
        with pytest.raises(CommandError, match="a symbolic link"):
            await copy.read("out", max_bytes=10_000)
        with pytest.raises(CommandError, match="'folder' is a symbolic link"):
            await copy.read("folder/passwd", max_bytes=10_000)
        with pytest.raises(CommandError, match="a pipe"):
            await copy.read("pipe", max_bytes=10)
        with pytest.raises(CommandError, match="has 100 bytes; at most 99 are read"):
            await copy.read("large", max_bytes=99)
        with pytest.raises(CommandError, match="a folder"):
            await copy.read("data", max_bytes=10)
        for path in ("../outside", "/etc/passwd", "data/../../x", ".", "", "a//b"):
            with pytest.raises(SetupError, match="is not a path inside of the folder"):
                await copy.read(path, max_bytes=10)
        assert await copy.read("missing/file", max_bytes=10) is None


async def test_hidden_paths_have_no_content_until_they_are_revealed(sandbox: Sandbox, workspace: Path) -> None:
    (workspace / "checks").mkdir()
    (workspace / "checks" / "deep.py").write_text("DEEP = 1\n")
    (workspace / "hidden link").symlink_to("holdout.py")
    hidden = ("holdout.py", "checks", "hidden link", "missing")
    async with sandbox.open(CopyPlan(root=workspace, hidden=hidden)) as copy:
        before = await run_shell(copy, "cat holdout.py checks/* 'hidden link'; ls checks; echo x > holdout.py")
        await copy.reveal()
        after = await run_shell(copy, "cat holdout.py checks/deep.py 'hidden link'")
    assert b"SECRET" not in before.stdout
    assert b"deep.py" not in before.stdout
    assert after.stdout == b"SECRET = 42\nDEEP = 1\nSECRET = 42\n"


async def test_protected_files_are_the_original_for_the_next_command(sandbox: Sandbox, workspace: Path) -> None:
    script = """
        echo 'print(100)' > score.py; rm -f score.py; mv score.py other; echo 'print(100)' > new; mv -f new score.py
        echo x > data/inner/case.txt; echo y > data/inner/more; mv data moved && mkdir -p data/inner
        chmod 777 score.py
    """
    async with sandbox.open(CopyPlan(root=workspace, protected=("score.py", "data"))) as copy:
        await run_shell(copy, script)
        tampered = await copy.find_tampering()
        after = await run_python(copy, "print(open('score.py').read(), open('data/inner/case.txt').read())")
    assert after.stdout == b"print(1)\n case\n\n"
    assert set(tampered) <= {"score.py", "data"}
    assert (sandbox.kind == "namespaces") == (tampered == ())


async def test_absolute_paths_lead_into_the_copy_with_namespaces(sandbox: Sandbox, workspace: Path) -> None:
    async with sandbox.open(CopyPlan(root=workspace, files={"prompt.md": "candidate"})) as copy:
        finished = await run_shell(copy, f"cat '{copy.root}/prompt.md'; pwd")
    assert finished.stdout == f"candidate{copy.root}\n".encode()
    assert (copy.root == workspace) == (sandbox.kind == "namespaces")


@pytest.mark.parametrize("name", ["with space", "größe 模型", "line\nbreak", "quote'\"$(x)", "a:b,c=d\\e", "-r"])
async def test_unusual_names(sandbox: Sandbox, tmp_path: Path, name: str) -> None:
    root = tmp_path / name / name
    root.mkdir(parents=True)
    (root / name).write_text("content")
    plan = CopyPlan(root=root, files={f"{name} 2": "planned"}, hidden=(f"{name} 3",), protected=(name,))
    (root / f"{name} 3").write_text("hidden")
    async with sandbox.open(plan) as copy:
        finished = await run_python(copy, "import sys; print(open(sys.argv[1]).read()); open('new', 'w')", name)
        assert finished.stdout == b"content\n"
        assert await copy.read(f"{name} 2", max_bytes=100) == b"planned"
        assert (await copy.list_changes()).written == ("new",)


async def test_names_that_are_not_utf_8(sandbox: Sandbox, workspace: Path) -> None:
    name = os.fsdecode(b"\xff\xfe")
    (workspace / name).write_text("x")
    async with sandbox.open(CopyPlan(root=workspace, files={f"{name}2": "y"})) as copy:
        await run_shell(copy, "echo z >> $(printf '\\377\\376')")
        assert (await copy.list_changes()).written == (name,)
        assert await copy.read(f"{name}2", max_bytes=5) == b"y"


async def test_a_workspace_that_is_reached_through_links(sandbox: Sandbox, workspace: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(workspace.parent)
    root = link / "workspace"
    async with sandbox.open(CopyPlan(root=root, files={"prompt.md": "candidate"})) as copy:
        finished = await run_shell(copy, f"cat '{copy.root}/prompt.md'; echo x > '{copy.root}/new'")
        assert finished.stdout == b"candidate"
        assert (await copy.list_changes()).written == ("new",)
    assert not (workspace / "new").exists()


@pytest.mark.parametrize("place", [Path.home(), Path("/dev/shm"), Path("/var/tmp")])
async def test_workspaces_anywhere(sandbox: Sandbox, place: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    if not os.access(place, os.W_OK):
        pytest.skip(f"{place} cannot be written")
    root = place / f"promptiter-test-{tmp_path_factory.mktemp('name').name}-{os.getpid()}"
    root.mkdir()
    try:
        (root / "file").write_text("content")
        async with sandbox.open(CopyPlan(root=root)) as copy:
            finished = await run_shell(copy, "cat file; echo x > file; echo y > new")
            assert finished.stdout == b"content"
        assert [path.name for path in root.iterdir()] == ["file"]
        assert (root / "file").read_text() == "content"
    finally:
        for file in root.iterdir():
            file.unlink()
        root.rmdir()


async def test_pipes_sockets_and_unreadable_things_in_the_workspace(sandbox: Sandbox, workspace: Path) -> None:
    os.mkfifo(workspace / "pipe")
    (workspace / "dangling").symlink_to("nowhere")
    (workspace / "secret").write_text("x")
    (workspace / "secret").chmod(0)
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(workspace)  # the path of a socket may have 107 characters
        try:
            server.bind("socket")
        finally:
            os.chdir(here)
        server.listen()
        code = (
            "import socket\ntry: socket.socket(socket.AF_UNIX).connect('socket')\nexcept OSError as e: print(type(e))"
        )
        async with sandbox.open(CopyPlan(root=workspace)) as copy:
            finished = await run_python(copy, code)
            assert b"Error" in finished.stdout
            assert await copy.list_changes() == Changes()


async def test_files_that_may_not_be_written_are_as_they_are_for_the_user(sandbox: Sandbox, workspace: Path) -> None:
    (workspace / "prompt.md").chmod(0o444)
    (workspace / "data" / "inner").chmod(0o555)
    async with sandbox.open(CopyPlan(root=workspace, files={"prompt.md": "candidate"})) as copy:
        finished = await run_shell(copy, "ls -l prompt.md; cat prompt.md data/inner/case.txt")
        assert finished.stdout.startswith(b"-r--r--r--")
        assert finished.stdout.endswith(b"candidatecase\n")
    (workspace / "data" / "inner").chmod(0o755)


async def test_git_works_in_a_copy(sandbox: Sandbox, workspace: Path) -> None:
    setup = "git init -q . && git add -A && git -c user.name=a -c user.email=a@b commit -qm first"
    async with sandbox.open(CopyPlan(root=workspace)) as copy:
        finished = await run_shell(copy, f"{setup} && echo new >> prompt.md && git diff --stat && git checkout -q .")
        assert finished.code == 0, finished.stderr
        assert b"prompt.md | 1 +" in finished.stdout
        assert "prompt.md" not in (await copy.list_changes()).paths
    assert not (workspace / ".git").exists()


async def test_a_deep_tree(sandbox: Sandbox, workspace: Path) -> None:
    deep = workspace / "/".join(["d"] * 300)
    deep.mkdir(parents=True)
    (deep / "leaf").write_text("leaf")
    path = (deep / "leaf").relative_to(workspace).as_posix()
    async with sandbox.open(CopyPlan(root=workspace, protected=(path,))) as copy:
        assert (await run_python(copy, f"print(open({path!r}).read())")).stdout == b"leaf\n"
        code = "import os\nfor _ in range(1500): os.mkdir('deep'); os.chdir('deep')"
        if sandbox.kind == "namespaces":
            await run_python(copy, code)
            assert [len(path) for path in (await copy.list_changes()).special] == [3004]
        else:  # what is that deep is not counted, so it is too much
            with pytest.raises(CommandError, match="bytes to its copy"):
                await run_python(copy, code)


async def test_folders_that_cannot_be_read(sandbox: Sandbox, workspace: Path) -> None:
    """What a command writes there could not be counted. Root reads every folder."""
    script = "mkdir secret; echo x > secret/file; chmod 000 secret"
    async with sandbox.open(CopyPlan(root=workspace)) as copy:
        if os.getuid() == 0 or sandbox.kind == "namespaces":
            await run_shell(copy, script)
            assert (await copy.list_changes()).written == ("secret/file",)
        else:
            with pytest.raises(CommandError, match="or made a folder that cannot be measured"):
                await run_shell(copy, script)
            assert (await copy.list_changes()).special == ("secret",)


async def test_a_virtual_environment_in_the_workspace(sandbox: Sandbox, workspace: Path) -> None:
    """Its interpreter is a link out of the workspace, and its scripts name it by its absolute path."""
    (workspace / ".venv" / "bin").mkdir(parents=True)
    (workspace / ".venv" / "bin" / "python").symlink_to(sys.executable)
    script = workspace / ".venv" / "bin" / "tool"
    script.write_text(f"#!{workspace}/.venv/bin/python -IS\nprint('tool')\n")
    script.chmod(0o755)
    async with sandbox.open(CopyPlan(root=workspace, hidden=("holdout.py",))) as copy:
        assert (await copy.run((".venv/bin/tool",), environment={"PATH": PATH})).stdout == b"tool\n"
        python = await copy.run((".venv/bin/python", "-ISc", "print(1)"), environment={"PATH": PATH})
        assert python.stdout == b"1\n"


async def test_programs_that_cannot_be_started(sandbox: Sandbox, workspace: Path) -> None:
    (workspace / "text").write_text("echo hello")
    (workspace / "text").chmod(0o755)
    (workspace / "script").write_text("#!/no/such/interpreter")
    (workspace / "script").chmod(0o755)
    async with sandbox.open(CopyPlan(root=workspace)) as copy:
        for command, problem in (
            ("no-such-program", "neither the program nor its interpreter"),
            ("./script", "neither the program nor its interpreter"),
            ("./prompt.md", "Permission denied"),
            ("./text", "begin it with a line such as #!/bin/sh"),
            ("nul\0", "a NUL character"),
        ):
            with pytest.raises(CommandError, match=problem):
                await copy.run((command,), environment={"PATH": "/usr/bin:/bin"}, limits=QUICK)
        with pytest.raises(CommandError, match="or the folder it is to run in"):
            await copy.run(("true",), environment={"PATH": PATH}, cwd="nowhere")


async def test_temporary_files_can_be_written(sandbox: Sandbox, workspace: Path) -> None:
    code = "import tempfile; f = tempfile.NamedTemporaryFile(); f.write(b'x'); f.flush(); print(f.name)"
    async with sandbox.open(CopyPlan(root=workspace)) as copy:
        environment = {"PATH": PATH, "TMPDIR": str(workspace.parent)}
        finished = await copy.run((sys.executable, "-c", code), environment=environment)
    assert finished.code == 0, finished.stderr
    assert not finished.stdout.startswith(bytes(workspace.parent))


def test_plans_with_paths_that_lead_out_are_refused(tmp_path: Path) -> None:
    for path in ("/etc/passwd", "../x", "a/../../x", "", ".", "a\0b"):
        with pytest.raises(SetupError, match="is not a path inside of the folder"):
            CopyPlan(root=tmp_path, files={path: ""})
        with pytest.raises(SetupError, match="is not a path inside of the folder"):
            CopyPlan(root=tmp_path, hidden=(path,))
    with pytest.raises(SetupError, match="is not an absolute path"):
        CopyPlan(root=tmp_path, repositories=(".git",))


async def test_files_of_a_plan_are_not_written_through_links(
    sandbox: Sandbox, workspace: Path, surroundings: Surroundings
) -> None:
    (workspace / "out").symlink_to(surroundings.outside)
    (workspace / "file").symlink_to(surroundings.outside / "victim.txt")
    before = surroundings.describe()
    for path in ("out/victim.txt", "file"):
        with pytest.raises(CommandError, match="a symbolic link"):
            async with sandbox.open(CopyPlan(root=workspace, files={path: "x"})):
                pytest.fail("it was opened")
    assert surroundings.describe() == before


async def test_folders_that_cannot_be_copied(sandbox: Sandbox, tmp_path: Path) -> None:
    for root, problem in ((tmp_path / "none", "does not exist"), (Path("/"), "into a folder of their own")):
        with pytest.raises(SetupError, match=problem):
            async with sandbox.open(CopyPlan(root=root)):
                pytest.fail("it was opened")
