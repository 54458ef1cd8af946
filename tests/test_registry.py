from __future__ import annotations

import pytest

from promptiter.errors import SetupError, UnknownNameError
from promptiter.registry import METRICS, Registry


def registry() -> Registry[object]:
    items: Registry[object] = Registry("part")
    items.register("planner", 1)
    items.register("answer", 2)
    return items


def test_an_item_is_found_by_its_name() -> None:
    assert registry().get("planner") == 1
    assert registry().names() == ("answer", "planner")


def test_all_unknown_names_are_listed_together_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError) as caught:
        registry().resolve(["planer", "answer", "zzz"], also_known=["judge"])
    assert str(caught.value) == (
        "unknown part: 'planer' (did you mean 'planner'?), 'zzz'; known are answer, judge, planner"
    )


def test_module_and_attribute_are_imported() -> None:
    assert registry().get(f"{__name__}:registry") is registry
    assert registry().get("promptiter.registry:Registry.get") is Registry.get


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no_such_module:x", "cannot import 'no_such_module': ModuleNotFoundError: No module named 'no_such_module'"),
        (":x", "must have the form module:attr"),
        (".relative:x", "cannot import '.relative'"),
        ("promptiter.registry:Registri", r"has no 'Registri' \(did you mean 'Registry'\?\)"),
        ("promptiter.registry:", "must have the form module:attr"),
    ],
)
def test_a_path_that_leads_nowhere_is_a_setup_error(path: str, message: str) -> None:
    with pytest.raises(SetupError, match=message):
        registry().get(path)


def test_a_name_is_not_taken_twice() -> None:
    items = registry()
    items.register("planner", 1)
    with pytest.raises(SetupError, match="'planner' is taken by 1"):
        items.register("planner", 3)
    with pytest.raises(SetupError, match="means module:attr"):
        items.register("a:b", 3)


def test_entry_points_of_installed_packages_are_found() -> None:
    scripts: Registry[object] = Registry("script", entry_point_group="console_scripts")
    assert "pytest" in scripts.names()
    assert callable(scripts.get("pytest"))


def test_the_registry_of_metrics_looks_for_entry_points_of_promptiter() -> None:
    with pytest.raises(UnknownNameError, match="unknown metric: 'missing'"):
        METRICS.get("missing")


def test_built_in_items_are_imported_by_name_and_their_names_are_taken() -> None:
    items: Registry[object] = Registry("part", built_in={"registry": "promptiter.registry:Registry"})
    assert "registry" in items
    assert "planner" not in items
    assert items.get("registry") is Registry
    with pytest.raises(SetupError, match="'registry' is taken by 'promptiter"):
        items.register("registry", 1)
