"""Two projects in one process."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path

import pytest

from promptiter.config.loading import load_agent
from promptiter.config.namesakes import claim_modules
from promptiter.errors import SetupError

NOTHING: Mapping[str, str] = {}
AGENT = """
{imports}
from promptiter import GraphAgent, ModelNode

agent = GraphAgent(name="echo", nodes=(ModelNode(name="echo", instruction={text}),))
"""


@pytest.fixture(autouse=True)
def _forget_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name, module in list(sys.modules.items()):
        places = [getattr(module, "__file__", None) or "", *getattr(module, "__path__", ())]
        if any(place.startswith(str(tmp_path)) for place in places):
            del sys.modules[name]


def write(folder: Path, name: str, imports: str, *, text: str = "'Hello.'", files: Mapping[str, str] = NOTHING) -> Path:
    folder.mkdir()
    (folder / f"{name}.py").write_text(AGENT.format(imports=imports, text=text))
    for module, content in files.items():
        place = folder / module
        place.parent.mkdir(exist_ok=True)
        place.write_text(content)
    return folder


def load(folder: Path, name: str) -> str:
    return str(load_agent(f"{name}:agent", folders=[folder]).describe().surface("echo#instruction").value)


@pytest.mark.parametrize(
    ("imports", "files"),
    [
        ("from prompts import TEXT", {"prompts.py": "TEXT = {!r}"}),
        ("from shop.prompts import TEXT", {"shop/prompts.py": "TEXT = {!r}"}),
        ("from shop import prompts; TEXT = prompts.TEXT", {"shop/prompts.py": "TEXT = {!r}", "shop/__init__.py": ""}),
        ("from middle import TEXT", {"middle.py": "from prompts import TEXT", "prompts.py": "TEXT = {!r}"}),
        ("from shop import TEXT", {"shop/__init__.py": "from .prompts import TEXT", "shop/prompts.py": "TEXT = {!r}"}),
    ],
)
def test_a_module_of_another_project_is_refused(tmp_path: Path, imports: str, files: dict[str, str]) -> None:
    places = [
        write(
            tmp_path / name,
            f"{name}_bot",
            imports,
            text="TEXT",
            files={key: each.format(name) for key, each in files.items()},
        )
        for name in ("first", "second")
    ]
    assert load(places[0], "first_bot") == "first"
    with pytest.raises(
        SetupError, match=r"the module '[a-z.]+' was already imported from .*/first/.*; .*/second/.* has th"
    ):
        load(places[1], "second_bot")
    assert load(places[0], "first_bot") == "first"


def test_a_module_that_is_imported_later_is_refused_too(tmp_path: Path) -> None:
    first = write(tmp_path / "first", "late_bot", "def work():\n    import tools", files={"tools.py": ""})
    second = write(tmp_path / "second", "early_bot", "import tools", files={"tools.py": ""})
    load(first, "late_bot")
    with pytest.raises(
        SetupError, match=r"'late_bot' imports the module 'tools' from .*/first/tools.py; .*/second/tools"
    ):
        load(second, "early_bot")


def test_namesakes_that_an_agent_does_not_import_are_allowed(tmp_path: Path) -> None:
    first = write(tmp_path / "first", "one_bot", "import helpers", files={"helpers.py": ""})
    second = write(tmp_path / "second", "two_bot", "import json", files={"helpers.py": ""})
    load(first, "one_bot")
    assert load(second, "two_bot") == "Hello."


def test_projects_may_share_a_folder(tmp_path: Path) -> None:
    write(tmp_path / "shared", "unused_bot", "", files={"helpers.py": ""})
    for name in ("first", "second"):
        folder = write(tmp_path / name, f"{name}_one", "import helpers")
        load_agent(f"{name}_one:agent", folders=[folder, tmp_path / "shared"])


def test_a_project_that_is_no_longer_imported_has_no_names(tmp_path: Path) -> None:
    for name in ("first", "second"):
        folder = write(
            tmp_path / name, "bot", "from prompts import TEXT", text="TEXT", files={"prompts.py": f"TEXT = {name!r}"}
        )
        assert load(folder, "bot") == name
        del sys.modules["bot"], sys.modules["prompts"]


def test_a_metric_with_the_module_name_of_another_project_is_refused(tmp_path: Path) -> None:
    folders = [write(tmp_path / name, "checks", "") for name in ("first", "second")]
    claim_modules("checks", folders[:1])
    sys.path.insert(0, str(folders[0]))
    import_module("checks")
    claim_modules("checks", folders[:1])
    with pytest.raises(SetupError, match=r"'checks' was already imported from .*/first/checks.py; .*/second/checks.py"):
        claim_modules("checks", folders[1:])
