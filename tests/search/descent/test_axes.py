import pytest

from promptiter.errors import SetupError
from promptiter.search.descent.axes import Axis, find_axes, find_texts
from promptiter.structure import Limits, Node, StructureSnapshot, Surface

SNAPSHOT = StructureSnapshot(
    nodes=(Node(id="a"),),
    surfaces=(
        Surface(node_id="a", type="instruction", value="Answer."),
        Surface(node_id="a", type="model", value="small", limits=Limits(choices=("small", "large"))),
        Surface(
            node_id="a",
            type="parameter",
            part="rate",
            value=0.1,
            limits=Limits(kind="number", minimum=0.01, maximum=1, scale="log"),
        ),
        Surface(
            node_id="a", type="parameter", part="top_k", value=3, limits=Limits(kind="integer", minimum=1, maximum=9)
        ),
        Surface(node_id="a", type="parameter", part="on", value=True, limits=Limits(kind="boolean")),
        Surface(
            node_id="a", type="parameter", part="only", value=1, limits=Limits(kind="integer", minimum=1, maximum=1)
        ),
        Surface(node_id="a", type="parameter", part="free", value=0.5, limits=Limits(kind="number", minimum=0)),
    ),
)


def test_numbers_with_bounds_choices_and_switches_are_axes() -> None:
    targets = [each for each in SNAPSHOT.surface_ids if each != "a#parameter.free"]

    assert find_axes(SNAPSHOT, targets) == (
        Axis(surface_id="a#model", kind="choice", choices=("small", "large")),
        Axis(surface_id="a#parameter.rate", kind="number", minimum=0.01, maximum=1, is_log=True),
        Axis(surface_id="a#parameter.top_k", kind="integer", minimum=1, maximum=9),
        Axis(surface_id="a#parameter.on", kind="choice", choices=(False, True)),
    )
    assert find_texts(SNAPSHOT, targets) == ("a#instruction",)


def test_only_targets_are_axes() -> None:
    assert find_axes(SNAPSHOT, ["a#instruction"]) == ()


def test_a_number_without_bounds_is_an_error_that_says_what_to_declare() -> None:
    with pytest.raises(SetupError, match=r"a#parameter\.free: a study needs a minimum and a maximum, or choices"):
        find_axes(SNAPSHOT, SNAPSHOT.surface_ids)


@pytest.mark.parametrize(
    ("axis", "text"),
    [
        (Axis(surface_id="x", kind="integer", minimum=1, maximum=9), "x: whole number from 1 to 9"),
        (Axis(surface_id="x", kind="number", minimum=0.01, is_log=True), "x: number from 0.01 to 1, log scale"),
        (Axis(surface_id="x", kind="choice", choices=("a", "b")), "x: a | b"),
    ],
)
def test_an_axis_describes_its_values(axis: Axis, text: str) -> None:
    assert axis.describe() == text
