"""Every command and code block of README and docs is run, from top to bottom of each page, in an empty folder.

A `text` block right below a `bash` or `python` block is what it must print; see pages.py. A block with a title, such as
`yaml title="desk/promptiter.yaml"`, is written to that file. `promptiter` runs in this process, which saves two seconds
per command; other commands run in their own. `make` targets are looked up, not run: they set up environments of their
own, and CI runs them.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from promptiter.cli import main
from tests.marks import take_some
from tests.pages import Block, Output, blocks, check_output

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LONG = (
    *("runs", "server", "ci", "black-box-agents", "extending", "learning", "comparing-searches", "manager"),
    *("optimization", "from-holodeck", "observers"),
)
"""Pages whose commands take several seconds."""
SHORT = [page for page in PAGES if page.stem not in LONG]
EXAMPLES = sorted((ROOT / "examples").rglob("README.md"))
"""Their commands are run by test_examples.py."""

RUNS = ("bash", "python", "text")
GENERATED = re.compile(r"\bcli\.md$|\bpython/\w+\.md$|\bpictures/\w+\.svg$")
"""Pages and pictures that docs/hooks.py writes when the site is built."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder with the examples, as in a clone."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")
    monkeypatch.setenv("PYTEST_PLUGINS", "promptiter.pytest_plugin")  # its entry point may not be installed yet
    monkeypatch.setenv("COLUMNS", "120")
    with forget_imports(tmp_path):
        yield tmp_path


@contextlib.contextmanager
def forget_imports(folder: Path) -> Iterator[None]:
    """Forget the modules below a folder that are imported here, and the changes to `sys.path`.

    The examples of this checkout, which other tests import, have the names of those in the folder.
    """
    own = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "examples"}
    before, path = set(sys.modules), list(sys.path)
    try:
        yield
    finally:
        new = {name: sys.modules[name] for name in set(sys.modules) - before}
        places = {
            name: [getattr(module, "__file__", None) or "", *getattr(module, "__path__", ())]
            for name, module in new.items()
        }
        sys.path[:] = path
        for name in new:
            if any(place.startswith(str(folder)) for place in places[name]):
                del sys.modules[name]
        sys.modules.update(own)


@pytest.mark.slow
@pytest.mark.parametrize("page", take_some(PAGES, SHORT), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_block_of_the_page_runs(page: Path, folder: Path) -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page):
        if block.file is not None:
            (folder / block.file).parent.mkdir(exist_ok=True)
            (folder / block.file).write_text(block.code, encoding="utf-8")
            continue
        output = run_python(block, namespace) if block.kind == "python" else run_commands(block, folder)
        if block.expected is not None:
            check_output(output, block.expected, place=f"{page.name}, line {block.line}")


@pytest.mark.parametrize("page", [*PAGES, *EXAMPLES], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_block_says_what_it_is(page: Path) -> None:
    assert [block.line for block in blocks(page) if block.file is None and block.kind not in RUNS] == []


@pytest.mark.parametrize("page", [*PAGES, *EXAMPLES], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_local_link_has_a_target(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        assert "://" in target or GENERATED.search(target) or (page.parent / target).exists(), target


def run_python(block: Block, namespace: dict[str, Any]) -> Output:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block.code, f"line {block.line}", "exec"), namespace)
    return Output(printed.getvalue(), "")


def run_commands(block: Block, folder: Path) -> Output:
    outputs = []
    for line in block.code.splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["make"]:
            words = ["make", "--dry-run", "--directory", str(ROOT), *words[1:]]
        if words[:1] == ["source"]:
            assert words[1] == ".venv/bin/activate"  # where the Makefile puts it
            continue
        if words[:2] == ["pip", "install"]:
            check_extras(words)
            continue
        if words[:1] == ["promptiter"]:
            outputs.append(run_promptiter(words, folder))
        elif words:
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
            outputs.append(Output(done.stdout, done.stderr))
    return Output("".join(each.printed for each in outputs), "".join(each.errors for each in outputs))


def run_promptiter(words: list[str], folder: Path) -> Output:
    printed, errors = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with (
        forget_imports(folder),
        pytest.MonkeyPatch.context() as patched,
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(errors),
    ):
        patched.setattr(sys, "argv", words)
        code: object = "did not exit"
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
    output = Output(*(each.buffer.getvalue().decode() for each in (printed, errors)))
    assert code == 0, f"{shlex.join(words)}\n{output.printed}{output.errors}"
    return output


@pytest.mark.slow
def test_the_command_is_installed() -> None:
    command = [str(Path(sys.executable).parent / "promptiter"), "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"promptiter {version('promptiter')}\n"


def check_extras(words: list[str]) -> None:
    """Installing needs a network, which tests do not have: check that the extras exist."""
    known = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for extras in re.findall(r"\[([^\]]+)\]", " ".join(words)):
        assert set(extras.split(",")) <= set(known)


NAMED = re.compile(r"`((?:promptiter|traces|tests|examples|benchmarks)/[\w./]*)`")


BENCHMARK = re.compile(r"python -m benchmarks\.(\w+)")


def test_every_path_in_the_docs_exists() -> None:
    pages = (*PAGES, *EXAMPLES, ROOT / "CHANGELOG.md")
    texts = {page.relative_to(ROOT): page.read_text(encoding="utf-8") for page in pages}
    named = {(name, path) for name in texts for path in NAMED.findall(texts[name])}
    named |= {(name, f"benchmarks/{module}.py") for name in texts for module in BENCHMARK.findall(texts[name])}
    assert {(name, path) for name, path in named if not (ROOT / path).exists()} == set()


def test_the_architecture_page_lists_every_module() -> None:
    tables = first_columns("architecture.md", heading="### ")
    listed = {f"{package}/{module}" for package, modules in tables.items() for module in modules}
    files = [path for package in ("promptiter", "traces") for path in (ROOT / package).rglob("*.py")]
    modules = {path.relative_to(ROOT).with_suffix("").as_posix() for path in files if not path.stem.startswith("__")}
    assert listed == {name for name in modules if not name.startswith("promptiter/starter/")}


def first_columns(page: str, *, heading: str) -> dict[str, set[str]]:
    """The names in the first column of the table below each heading."""
    _, *sections = (ROOT / "docs" / page).read_text(encoding="utf-8").split(f"\n{heading}")
    rows = {text.partition("\n")[0]: re.findall(r"^\| (`.*?) \|", text, re.MULTILINE) for text in sections}
    return {title: {name for row in rows[title] for name in re.findall(r"`(\w+)`", row)} for title in rows}
