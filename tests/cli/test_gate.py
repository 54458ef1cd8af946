"""The release gate on planted situations: it opens only if every rule is known to hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from xml.etree import ElementTree

import orjson
import pytest

from promptiter.errors import SetupError
from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.runlog.results import RunResult
from promptiter.runs.gate import GateRules, check_gate
from promptiter.runs.gate_file import load_rules
from promptiter.runs.header import RunHeader, read_header
from promptiter.runs.summary import read_result
from tests.cli.conftest import Run
from traces import Failure, Usage

pytestmark = pytest.mark.slow

Plant = Callable[[RunResult], RunResult]

RULES = GateRules.model_validate(
    {
        "scope": "these cases",
        "min_gain": 0.1,
        "test_set": {"min_score": 0.5, "min_gain": 0.0},
        "max_overfit_gap": 0.2,
        "limits": {"tokens": {"at_most_times": 1.5}, "latency_s": {"at_most": 60}, "characters": {"at_most_times": 9}},
        "max_age_days": 7,
        "unchanged_inputs": True,
    }
)


@pytest.fixture
def found(finished_run: Path) -> tuple[RunResult, RunHeader]:
    """A run that improved, with a test set on which it improved as much."""
    return conclude(test_before=0.5, test_after=1.0)(read_result(finished_run)), read_header(finished_run)


def conclude(**changes: object) -> Plant:
    def plant(result: RunResult) -> RunResult:
        assert result.conclusion is not None
        conclusion = replace(result.conclusion, **changes)  # type: ignore[arg-type]
        return replace(result, conclusion=conclusion, verdict=conclusion.verdict)

    return plant


def change_rows(change: Callable[[CaseRow], CaseRow], *, only: int | None = None) -> Plant:
    """Change what was measured under the new profile, in all repeats of all cases, or of one."""

    def plant(result: RunResult) -> RunResult:
        assert result.accepted is not None
        chosen = sorted(result.accepted.rows_by_case)[only : None if only is None else only + 1]
        rows: Iterable[CaseRow] = (change(row) if row.case_id in chosen else row for row in result.accepted.rows)
        accepted: Evaluation = replace(result.accepted, rows=tuple(rows))
        return replace(result, accepted=accepted)

    return plant


def fail(row: CaseRow) -> CaseRow:
    return replace(row, scores=tuple(replace(each, value=0.0) for each in row.scores))


def fail_half(row: CaseRow) -> CaseRow:
    return fail(row) if row.repeat % 2 else row


def crash(row: CaseRow) -> CaseRow:
    return replace(row, error=Failure("ValueError", "no such order")) if row.repeat % 2 else row


def pass_before(result: RunResult) -> RunResult:
    """A first case that passed before as well."""
    assert result.baseline is not None
    assert result.accepted is not None
    first = min(result.baseline.rows_by_case)
    passing = {row.case_id: row.scores for row in result.accepted.rows}
    rows = tuple(replace(row, scores=passing[first]) if row.case_id == first else row for row in result.baseline.rows)
    return replace(result, baseline=replace(result.baseline, rows=rows))


def check(
    found: tuple[RunResult, RunHeader],
    rules: GateRules = RULES,
    *,
    changed_inputs: Sequence[str] | None = (),
    now: datetime | None = None,
) -> dict[str, str]:
    """The rules that keep the gate closed, and why."""
    result = check_gate(
        rules, *found, changed_inputs=changed_inputs, now=now or datetime.fromisoformat(found[1].created_at)
    )
    return {each.rule: each.reason for each in result.checks if not each.passed}


def test_a_run_that_meets_every_rule_opens_the_gate(found: tuple[RunResult, RunHeader]) -> None:
    assert check(found) == {}


@pytest.mark.parametrize(
    ("plant", "rule", "reason"),
    [
        (conclude(verdict="no_evidence", before=0.5, after=0.4), "verdicts", "the verdict is no_evidence"),
        (conclude(before=0.5, after=0.5), "min_gain", "gain in mean_score is +0.000, below 0.1"),
        (conclude(scope=None), "scope", "the gain is shown for no cases"),
        (
            conclude(test_before=0.5, test_after=0.55),
            "max_overfit_gap",
            "the gain is +0.450 larger on the cases of the search",
        ),
        (conclude(test_before=0.5, test_after=0.4), "test_set.min_gain", "gain on the test set is -0.100, below 0"),
        (conclude(test_before=None, test_after=None), "test_set", "missing evidence: the test set was not run"),
        (
            conclude(test_before=None, test_after=None),
            "max_overfit_gap",
            "missing evidence: the gap cannot be measured without the test set",
        ),
        (conclude(before=None, after=None), "min_gain", "missing evidence: there was no final test"),
        (
            change_rows(lambda row: replace(row, usage=Usage(input_tokens=90_000, output_tokens=9))),
            "limits.tokens",
            ", 1.5 times what it was (",
        ),
        (change_rows(lambda row: replace(row, usage=Usage())), "limits.tokens", "tokens is unknown"),
        (lambda result: replace(result, conclusion=None, is_final=False), "verdicts", "missing evidence"),
        (lambda result: replace(result, baseline=None), "new_failures", "missing evidence"),
    ],
)
def test_one_broken_rule_closes_the_gate(
    found: tuple[RunResult, RunHeader], plant: Plant, rule: str, reason: str
) -> None:
    assert reason in check((plant(found[0]), found[1]))[rule]


@pytest.mark.parametrize(
    ("change", "allowed", "is_refused"),
    [
        (fail, "soft", True),
        (crash, "soft", True),
        (fail_half, "soft", False),
        (fail_half, "none", True),
        (fail, "any", False),
    ],
)
def test_a_better_mean_does_not_excuse_a_new_hard_failure(
    found: tuple[RunResult, RunHeader], change: Callable[[CaseRow], CaseRow], allowed: str, is_refused: bool
) -> None:
    result = change_rows(change, only=0)(pass_before(found[0]))
    rules = GateRules.model_validate({"new_failures": allowed})
    assert ("new_failures" in check((result, found[1]), rules)) == is_refused


def test_a_run_that_adopted_nothing_does_not_show_that_no_case_fails(found: tuple[RunResult, RunHeader]) -> None:
    """Its baseline would be compared with itself, whatever the candidate did."""
    result, header = found
    refused = replace(result, accepted=result.baseline, accepted_profile=result.initial_profile)
    assert refused.baseline is not None
    limits = {"tokens": {"at_most_times": 1.0}}
    rules = GateRules.model_validate({"protected": [min(refused.baseline.rows_by_case)], "limits": limits})
    closed = check((refused, header), rules)
    assert closed["limits.tokens"] == "missing evidence: the profiles were not compared"
    assert closed["new_failures"] == "missing evidence: the run has not compared both profiles on any case"
    assert closed["protected"].startswith("missing evidence: not run under the new profile")


def test_protected_cases_must_be_run_and_pass(found: tuple[RunResult, RunHeader]) -> None:
    result, header = found
    assert result.accepted is not None
    name = min(result.accepted.rows_by_case)
    rules = GateRules(protected=(name,), new_failures="any")
    assert check(found, rules) == {}
    assert check((change_rows(fail, only=0)(result), header), rules) == {"protected": f"fails: {name}"}
    assert "not run under the new profile: gone" in check(found, GateRules(protected=("gone",)))["protected"]


def test_old_runs_and_changed_inputs_are_refused(found: tuple[RunResult, RunHeader]) -> None:
    late = datetime.fromisoformat(found[1].created_at) + timedelta(days=8)
    assert "8.0 days old" in check(found, now=late)["max_age_days"]
    assert check(found, changed_inputs=["seed is new: 3"]) == {"unchanged_inputs": "seed is new: 3"}
    assert "could not be read" in check(found, changed_inputs=None)["unchanged_inputs"]


def test_the_command_exits_with_1_and_writes_reports(run: Run, finished_run: Path, desk: Path) -> None:
    assert "Gate open" in run("gate")
    (desk / "gate.yaml").write_text("unchanged_inputs: true\ntest_set: {}\n")
    shown = run("gate", "latest", "gate.yaml", "--junit", "gate.xml", "--markdown", "gate.md", code=1, stream="out")
    assert "Gate closed by 1 rule" in shown
    [error] = ElementTree.parse(desk / "gate.xml").getroot().iter("error")
    assert error.get("message") == "missing evidence: the test set was not run under both profiles"
    assert "| ❔ | `test_set` |" in (desk / "gate.md").read_text(encoding="utf-8")
    assert orjson.loads(run("gate", finished_run, "gate.yaml", "--json", code=1, stream="out"))["is_open"] is False
    cases = desk / "data" / "validation.jsonl"
    cases.write_text(cases.read_text().replace("order", "parcel"))
    assert "validation: case" in run("gate", "latest", "gate.yaml", code=1, stream="out")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("min_gian: 1", "min_gian is not a rule; known are .*did you mean 'min_gain'"),
        ("limits: {tokens: {}}", "limits.tokens: .*give at_most"),
        ("", "is empty; give rules"),
        ("max_age_days: -1", "max_age_days: .*greater than 0"),
    ],
)
def test_mistakes_in_the_rules_are_named(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "gate.yaml"
    file.write_text(text)
    with pytest.raises(SetupError, match=problem):
        load_rules(file)
