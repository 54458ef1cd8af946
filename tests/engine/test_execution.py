"""The id of a run: the time, and a hash of everything that makes it another run."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from promptiter.engine.execution import find_rest_of_second, new_run_id
from promptiter.search.descent.search import CoordinateDescent
from tests.worlds.quadratic_world import TEXT, build_engine, build_request

STARTED = datetime(2026, 5, 16, 14, 22, 8, tzinfo=UTC)
ENGINE = build_engine(CoordinateDescent(), seed=0)
CHECKED = ENGINE.check(build_request())


def test_equal_inputs_have_equal_ids() -> None:
    first = new_run_id(STARTED, CHECKED, CoordinateDescent(max_cycles=3))
    assert first == new_run_id(STARTED, CHECKED, CoordinateDescent(max_cycles=3))
    assert first.startswith("2026-05-16T14-22-08_")
    assert len(first) == len("2026-05-16T14-22-08_a3f2c891")


def test_the_agents_text_the_weights_and_the_search_count() -> None:
    search = CoordinateDescent()
    known = CHECKED.snapshot
    surfaces = tuple(replace(each, value="Another text.") if each.id == TEXT else each for each in known.surfaces)
    other_agent = replace(CHECKED, snapshot=replace(known, surfaces=surfaces))
    other_weights = replace(CHECKED, evaluator=CHECKED.evaluator.with_weights({"quality": 2.0}))
    ids = {
        new_run_id(STARTED, CHECKED, search),
        new_run_id(STARTED, CHECKED, CoordinateDescent(max_cycles=3)),
        new_run_id(STARTED, other_agent, search),
        new_run_id(STARTED, other_weights, search),
    }
    assert len(ids) == 4


def test_the_content_of_a_prompt_file_counts_and_its_place_does_not(tmp_path: Path) -> None:
    for name, text in (("a", "Diagnose."), ("b", "Diagnose."), ("c", "Diagnose it.")):
        (tmp_path / f"{name}.md").write_text(text)
    ids = [
        new_run_id(STARTED, CHECKED, CoordinateDescent(critic="openai/gpt-4o", critic_prompt=str(tmp_path / name)))
        for name in ("a.md", "b.md", "c.md")
    ]
    assert ids[0] == ids[1] != ids[2]


def test_an_id_can_be_given_again_until_its_second_is_over() -> None:
    run_id = new_run_id(STARTED, CHECKED, CoordinateDescent())
    moments = [STARTED.replace(microsecond=0) + timedelta(seconds=each) for each in (-1, 0, 0.75, 1, 60)]

    assert [find_rest_of_second(run_id, each) for each in moments] == [0.0, 1.0, 0.25, 0.0, 0.0]
    assert find_rest_of_second(f"{run_id}~2", moments[1]) == 1.0
    assert find_rest_of_second("mine", moments[1]) == 0.0
