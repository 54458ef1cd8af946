from __future__ import annotations

import pytest

from promptiter.tasks.files.guards import list_bounds, read_guards
from promptiter.tasks.files.score_scale import scale_figure
from promptiter.tasks.files.task import TaskConstraint, TaskGuards, TaskObjective

PROSE = {"SKILL.md": "# Writing\n\n" + " ".join(f"sentence{chr(97 + n % 26)}{chr(97 + n // 26)}" for n in range(120))}


def read(guards: TaskGuards, text: str) -> dict[str, tuple[float, str]]:
    return {each.figure: (each.value, each.reason) for each in read_guards(guards, {"SKILL.md": text}, PROSE)}


def test_only_the_guards_that_are_given_are_measured() -> None:
    assert read_guards(TaskGuards(), PROSE, PROSE) == ()
    assert [each.metric for each in list_bounds(TaskGuards(max_growth=2, required_texts=("x",)))] == [
        "guard_growth",
        "guard_missing_parts",
    ]


def test_a_stuffed_keyword_is_named_with_its_share() -> None:
    stuffed = PROSE["SKILL.md"] + " rubric" * 60
    value, reason = read(TaskGuards(max_keyword_share=0.1), stuffed)["guard_keyword_share"]
    assert value > 0.3
    assert "'rubric'" in reason
    assert read(TaskGuards(max_keyword_share=0.1), PROSE["SKILL.md"])["guard_keyword_share"][1] == ""


def test_repeated_phrases_count() -> None:
    text = "the quick brown fox jumps over the lazy dog " * 10
    assert read(TaskGuards(max_repeated_share=0.2), text)["guard_repeated_share"][0] > 0.8


def test_growth_is_relative_to_the_files_as_they_are() -> None:
    value, reason = read(TaskGuards(max_growth=2), PROSE["SKILL.md"] * 3)["guard_growth"]
    assert value == pytest.approx(3, abs=0.1)
    assert "grew from" in reason
    assert read(TaskGuards(max_growth=2), PROSE["SKILL.md"] + "a few words")["guard_growth"][0] == 1.0


def test_missing_sections_and_forbidden_texts_are_named() -> None:
    guards = TaskGuards(
        required_sections=("Writing", "## When to use"), required_texts=("MUST",), forbidden_texts=(r"rubric\.md",)
    )
    found = read(guards, "# Writing\nsee rubric.md")
    assert found["guard_missing_parts"] == (2, "missing: the section '## When to use', the text 'MUST'")
    assert found["guard_forbidden_texts"][0] == 1


@pytest.mark.parametrize(
    ("direction", "baseline", "value", "expected"),
    [
        ("maximize", 0.4, 0.7, 0.7),
        ("maximize", 40.0, 40.0, 0.5),
        ("minimize", 3.0, 3.0, 0.5),
        ("minimize", 0.0, 0.0, 0.5),
    ],
)
def test_a_score_is_the_figure_or_a_half_for_the_baseline(
    direction: str, baseline: float, value: float, expected: float
) -> None:
    objective = TaskObjective(metric="m", direction="maximize" if direction == "maximize" else "minimize")
    assert scale_figure(value, objective, baseline=baseline) == pytest.approx(expected)


def test_better_figures_have_higher_scores_in_both_directions() -> None:
    down = TaskObjective(metric="s", direction="minimize")
    up = TaskObjective(metric="s")
    values = [-50.0, 0.0, 3.0, 300.0, 1e9]
    falling = [scale_figure(each, down, baseline=3.0) for each in values]
    rising = [scale_figure(each, up, baseline=3.0) for each in values]
    assert falling == sorted(falling, reverse=True)
    assert rising == sorted(rising)
    assert all(0 <= each <= 1 for each in (*falling, *rising))


def test_a_scale_is_clamped() -> None:
    objective = TaskObjective(metric="s", direction="minimize", scale=(300.0, 100.0))
    assert [scale_figure(each, objective, baseline=1) for each in (400, 200, 50)] == [0.0, 0.5, 1.0]


@pytest.mark.parametrize(
    ("op", "figure", "holds"), [("<=", 3, True), ("<", 3, False), ("==", 3, True), ("!=", 3, False), (">", 2.9, False)]
)
def test_constraints_compare_decimal_numbers(op: str, figure: float, holds: bool) -> None:
    assert TaskConstraint(metric="m", op=op, value=3).holds(figure) is holds  # type: ignore[arg-type]
