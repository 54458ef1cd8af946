from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from promptiter.errors import SetupError
from promptiter.references import call_factory, find_factory, find_reference, is_of_script, load_reference


class Outer:
    class Inner:
        pass

    def method(self) -> None: ...


ITEM = [1]


@pytest.mark.parametrize("item", [Outer, Outer.Inner, Outer.method, ITEM, len, find_reference])
def test_what_a_module_has_is_found_and_loaded_as_itself(item: object) -> None:
    reference = find_reference(item)
    assert reference is not None
    assert load_reference(reference) is item


def make_local() -> object:
    class Local:
        pass

    return Local


@pytest.mark.parametrize("item", [make_local(), lambda: 1, [1], Outer(), Outer().method, str.upper])
def test_what_no_module_has_is_not_found(item: object) -> None:
    assert find_reference(item) is None


def test_a_name_that_means_something_else_now_is_not_a_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    original = make_local
    monkeypatch.setattr(sys.modules[__name__], "make_local", Outer)
    assert find_reference(original) is None


def test_a_module_that_cannot_be_imported_gives_no_references(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = ModuleType("__main__")  # without a file, as in a notebook
    notebook.thing = thing = {"a": 1}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "__main__", notebook)
    assert find_reference(thing) is None


def test_a_name_in_a_module_comes_before_one_in_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    script = ModuleType("__main__")
    script.__file__ = __file__
    script.thing, script.ITEM = thing, _ = {"a": 1}, ITEM  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "__main__", script)
    monkeypatch.syspath_prepend(Path(__file__).parent)
    assert find_reference(thing) == "test_references:thing"
    assert is_of_script("test_references:thing")
    assert find_reference(ITEM) == f"{__name__}:ITEM"
    assert not is_of_script(f"{__name__}:ITEM")


def test_the_factory_of_an_object_is_remembered_for_that_object_only() -> None:
    made, other = call_factory(make_local, what="it"), make_local()
    assert find_factory(made) == "tests.test_references:make_local"
    assert find_factory(other) is None


def test_a_wrong_reference_says_what_is_missing() -> None:
    with pytest.raises(
        SetupError, match=r"cannot import 'no_such_module': ModuleNotFoundError: .* or name that folder as python_path"
    ):
        load_reference("no_such_module:x")
    with pytest.raises(SetupError, match=r"has no 'OUTER' \(did you mean 'Outer'\?\)|has no 'Outr'"):
        load_reference(f"{__name__}:Outr")


def test_a_module_with_a_mistake_is_to_be_fixed_not_searched_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "module_with_a_mistake.py").write_text("def (\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SetupError, match=r"cannot import 'module_with_a_mistake': SyntaxError: "):
        load_reference("module_with_a_mistake:x")
