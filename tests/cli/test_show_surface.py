"""`promptiter show RUN --blame SURFACE`: the evidence for each change of a surface, down to the trace."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from promptiter.api import load_run
from promptiter.evaluation.trace_file import FILE_NAME as TRACES
from promptiter.evaluation.trace_file import TraceFile
from promptiter.runs.hunk_evidence import read_hunks
from promptiter.runs.summary import read_result
from tests.cli.conftest import Run
from tests.runs.hunk_links import check_links, list_hunks

pytestmark = pytest.mark.slow


def test_every_hunk_of_the_demo_links_to_gradients_cases_and_steps_of_the_record(
    desk: Path, finished_run: Path
) -> None:
    given = load_run(desk).request.train
    assert isinstance(given, tuple)
    [train] = given
    result = read_result(finished_run)
    check_links(result, train, TraceFile(finished_run / TRACES))
    assert set(read_hunks(result)) == {"filing#instruction", "reception#instruction"}
    for hunk in list_hunks(result):
        assert (hunk.rounds, hunk.whole_surface, hunk.is_reviewed, len(hunk.cases)) == ((1,), False, False, 12)
        candidate, surface = hunk.effects
        assert (candidate.scope, candidate.delta, candidate.surfaces) == ("candidate", 0.5, 2)
        assert (len(candidate.newly_passed), candidate.newly_failed) == (8, ())
        assert (surface.scope, surface.delta) == ("surface", 0.5)
        assert 0 < hunk.tokens_before < hunk.tokens_after


def test_a_changed_surface_is_shown_with_its_evidence(run: Run, finished_run: Path) -> None:
    lines = run("show", finished_run, "--blame", "filing#instruction", width=100).splitlines()
    assert lines[0] == "filing#instruction  1 change, adopted"
    assert lines[2] == "1. round 1, about 21 → 32 tokens"
    assert lines[3].startswith("    - Reply only with a JSON object with the keys")
    text = " ".join(" ".join(lines).split())
    assert "effect: +0.500 for the candidate of round 1: 2 changes in 2 surfaces together; 8 cases newly pass" in text
    assert "effect: 0.500 lost without all changes of this surface together (the ablation on train cases" in text
    assert "evidence: 12 gradients, 12 cases, 12 steps P0 case chair, step filing: This step received" in text
    assert "… 6 more gradients; --json has all" in text
    assert lines[-1].endswith("--case chair")
    assert run("show", "--blame", "filing#instruction", width=100).splitlines() == lines


def test_the_evidence_can_be_printed_as_json(run: Run, finished_run: Path) -> None:
    found = orjson.loads(run("show", finished_run, "--blame", "reception#instruction", "--json"))
    assert (found["surface_id"], found["is_adopted"], found["blame"]["outcome"]) == (
        "reception#instruction",
        True,
        "adopted",
    )
    [hunk] = found["hunks"]
    assert {each["step_id"] for each in hunk["gradients"]} == {"reception"}
    assert all(each["trace_digest"] for each in hunk["gradients"])


def test_an_unknown_surface_is_an_error_that_names_the_nearest(run: Run, finished_run: Path) -> None:
    assert "did you mean 'filing#instruction'?" in run("show", finished_run, "--blame", "filing#instructon", code=2)
    assert "'filing' is a node" in run("show", finished_run, "--blame", "filing", code=2)
    message = run("show", finished_run, "--blame", "filing#instruction", "--rounds", code=2)
    assert "--blame SURFACE cannot be combined with" in message


def test_a_surface_that_did_not_change_says_what_became_of_its_blame(run: Run, finished_run: Path) -> None:
    shown = run("show", finished_run, "--blame", "filing#examples")
    assert shown.splitlines()[0] == "filing#examples  not changed: it is not a target of this run"
