"""The release gate: whether the result of a run may go to production. It fails closed: what is not known is refused.

It is separate from what a search accepts: acceptance chooses what to try next, the gate what to ship. A rule that
cannot be checked, because the run has no test set or a price is unknown, keeps the gate closed and says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.evaluation.stats.final_test import Scope
from promptiter.policies.constraints import Constraint
from promptiter.policies.evidence import Evidence
from promptiter.policies.figures import compare_figure
from promptiter.policies.verdict import Verdict
from promptiter.profile import Profile
from promptiter.runlog.results import RunResult
from promptiter.runs.header import RunHeader
from promptiter.wording import join_names
from traces.model import Json

MAX_NAMES = 5
NewFailures: TypeAlias = Literal["none", "soft", "any"]
"""Which new failures are allowed. A case that fails in every repeat, or with an error, is a hard failure, not soft."""


class _Rules(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Bounds(_Rules):
    """The bounds of a figure: absolute ones, or multiples of the figure before the change."""

    at_most: float | None = None
    at_least: float | None = None
    at_most_times: Annotated[float | None, Field(ge=0)] = None
    at_least_times: Annotated[float | None, Field(ge=0)] = None

    @property
    def is_relative(self) -> bool:
        return self.at_most_times is not None or self.at_least_times is not None

    @model_validator(mode="after")
    def check(self) -> Bounds:
        if not self.model_fields_set:
            raise ValueError("give at_most, at_least, at_most_times or at_least_times")
        return self


class TestSetRules(_Rules):
    """What the test set must show. Without figures, it must have been run."""

    min_score: float | None = None
    min_gain: float | None = None


class GateRules(_Rules):
    """The rules of a gate.yaml; every one that is given must hold. Without any, the verdict must be an improvement."""

    verdicts: tuple[Verdict, ...] = ("improved", "improved_on_validation")
    scope: Scope | None = None
    min_gain: float | None = None
    new_failures: NewFailures = "soft"
    protected: tuple[str, ...] = ()
    test_set: TestSetRules | None = None
    max_overfit_gap: Annotated[float | None, Field(ge=0)] = None
    limits: Mapping[str, Bounds] = Field(default_factory=dict)
    max_age_days: Annotated[float | None, Field(gt=0)] = None
    unchanged_inputs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GateCheck:
    """One rule: whether it holds, and why. `is_known` is False if the run has no evidence about it."""

    rule: str
    passed: bool
    reason: str
    is_known: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """All rules of a gate, applied to a run."""

    run_id: str
    checks: tuple[GateCheck, ...]

    @property
    def is_open(self) -> bool:
        return all(check.passed for check in self.checks)


def check_gate(
    rules: GateRules,
    result: RunResult,
    header: RunHeader,
    *,
    changed_inputs: Sequence[str] | None = None,
    now: datetime | None = None,
) -> GateResult:
    """Apply the rules. `changed_inputs` says how the current inputs differ from the run's; None if that is unknown."""
    checks = [
        *_check_verdict(rules, result),
        *_check_gain(rules, result),
        *_check_cases(rules, result),
        *_check_test_set(rules, result),
        *_check_limits(rules, result),
        *_check_age(rules, header, now or datetime.now(UTC)),
        *_check_inputs(rules, changed_inputs),
    ]
    return GateResult(run_id=header.run_id, checks=tuple(checks))


def _check_verdict(rules: GateRules, result: RunResult) -> Iterator[GateCheck]:
    if not result.is_final or result.conclusion is None:
        reason = "the run has no verdict yet" if result.status != "failed" else f"the run failed: {result.error}"
        yield _unknown("verdicts", reason)
        return
    reason = f"the verdict is {result.verdict}"
    yield GateCheck(rule="verdicts", passed=result.verdict in rules.verdicts, reason=reason)
    if rules.scope is not None:
        found = result.conclusion.scope
        order: tuple[Scope | None, ...] = ("new cases", "these cases", "this scorer", None)
        is_met = found is not None and order.index(found) <= order.index(rules.scope)
        yield GateCheck(rule="scope", passed=is_met, reason=f"the gain is shown for {found or 'no cases'}")


def _check_gain(rules: GateRules, result: RunResult) -> Iterator[GateCheck]:
    if rules.min_gain is None:
        return
    conclusion = result.conclusion
    if conclusion is None or conclusion.before is None or conclusion.after is None:
        yield _unknown("min_gain", "there was no final test")
        return
    yield _at_least("min_gain", f"gain in {result.objective}", conclusion.after - conclusion.before, rules.min_gain)


def _check_cases(rules: GateRules, result: RunResult) -> Iterator[GateCheck]:
    pairs = list(_list_pairs(result))
    if rules.new_failures != "any":
        if not pairs:
            yield _unknown("new_failures", "the run has not compared both profiles on any case")
        else:
            found = [name for before, after in pairs for name in _list_new_failures(before, after, rules.new_failures)]
            kind = "hard failure" if rules.new_failures == "soft" else "failure"
            reason = f"new {kind}: {join_names(found, limit=MAX_NAMES)}" if found else f"no new {kind}"
            yield GateCheck(rule="new_failures", passed=not found, reason=reason)
    if rules.protected:
        passes = {case.case_id: case.passed for _, after in pairs for case in after.cases}
        missing = [name for name in rules.protected if name not in passes]
        failing = [name for name in rules.protected if not passes.get(name, True)]
        if failing or not missing:
            reason = f"fails: {join_names(failing, limit=MAX_NAMES)}" if failing else "all of them pass"
            yield GateCheck(rule="protected", passed=not failing, reason=reason)
        else:
            yield _unknown("protected", f"not run under the new profile: {join_names(missing, limit=MAX_NAMES)}")


def _list_pairs(result: RunResult) -> Iterator[tuple[Evaluation, Evaluation]]:
    """The evaluations of both profiles: on the cases of the search, and on the test set."""
    if (searched := _find_search_pair(result)) is not None:
        yield searched
    before, after = (_find_test(result, profile) for profile in (result.initial_profile, result.working_profile))
    if before is not None and after is not None:
        yield before, after


def _find_test(result: RunResult, profile: Profile) -> Evaluation | None:
    found = (each for each in result.evaluations if each.phase == "test" and each.profile_digest == profile.digest)
    return next(found, None)


def _list_new_failures(before: Evaluation, after: Evaluation, allowed: NewFailures) -> list[str]:
    """The cases that fail now and did not before, in the sense of the rule."""
    if allowed == "none":
        passed = {case.case_id for case in before.cases if case.passed}
        return [case.case_id for case in after.cases if not case.passed and case.case_id in passed]
    failed = {case_id for case_id, rows in before.rows_by_case.items() if _is_hard(rows)}
    return [case_id for case_id, rows in after.rows_by_case.items() if _is_hard(rows) and case_id not in failed]


def _is_hard(rows: Sequence[CaseRow]) -> bool:
    """Whether a case fails in every repeat, or with an error of the agent in one."""
    if any(row.error is not None and row.outage is None for row in rows):
        return True
    return all(any(score.is_scored and not score.passed for score in row.scores) for row in rows)


def _check_test_set(rules: GateRules, result: RunResult) -> Iterator[GateCheck]:
    conclusion = result.conclusion
    before = after = None
    if conclusion is not None:
        before, after = conclusion.test_before, conclusion.test_after
    is_run = before is not None and after is not None
    if rules.test_set is not None:
        if before is None or after is None:
            yield _unknown("test_set", "the test set was not run under both profiles")
        else:
            least_score, least_gain = rules.test_set.min_score, rules.test_set.min_gain
            if least_score is not None:
                yield _at_least("test_set.min_score", f"{result.objective} on the test set", after, least_score)
            if least_gain is not None:
                yield _at_least("test_set.min_gain", "gain on the test set", after - before, least_gain)
            if least_score is None and least_gain is None:
                yield GateCheck(rule="test_set", passed=True, reason="the test set was run under both profiles")
    if rules.max_overfit_gap is not None:
        if (
            conclusion is None
            or before is None
            or after is None
            or conclusion.before is None
            or conclusion.after is None
        ):
            what = "the final test" if is_run else "the test set"
            yield _unknown("max_overfit_gap", f"the gap cannot be measured without {what}")
        else:
            gap = (conclusion.after - conclusion.before) - (after - before)
            reason = f"the gain is {gap:+.3f} larger on the cases of the search than on the test set"
            yield GateCheck(rule="max_overfit_gap", passed=gap <= rules.max_overfit_gap + _ROUNDING, reason=reason)


def _find_search_pair(result: RunResult) -> tuple[Evaluation, Evaluation] | None:
    """Both profiles on the cases of the search. A run that adopted nothing ends with its baseline: it has no second."""
    before, after = result.baseline, result.accepted
    if before is None or after is None or result.conclusion is None or before.profile_digest == after.profile_digest:
        return None
    return before, after


def _check_limits(rules: GateRules, result: RunResult) -> Iterator[GateCheck]:
    for figure, bounds in rules.limits.items():
        rule = f"limits.{figure}"
        searched = _find_search_pair(result)
        if searched is None:
            yield _unknown(rule, "the profiles were not compared")
            continue
        constraint = Constraint(figure, **bounds.model_dump(), measured=True)
        evidence = Evidence(
            accepted=searched[0],
            candidate=searched[1],
            objective=result.objective,
            characters=_count_characters(result),
        )
        decision = constraint.decide(evidence)
        before, after = compare_figure(figure, evidence)
        is_known = after is not None and (before is not None or not bounds.is_relative)
        reason = decision.reason.replace("that of the accepted profile", "what it was")
        yield GateCheck(rule=rule, passed=decision.accepted, reason=reason, is_known=is_known)


def _count_characters(result: RunResult) -> tuple[int, int]:
    """The length of all texts that may change, before and after."""

    def count(profile: Profile) -> int:
        return sum(len(_as_text(profile.value(surface_id, result.structure))) for surface_id in result.targets)

    return count(result.initial_profile), count(result.accepted_profile)


def _as_text(value: Json) -> str:
    return value if isinstance(value, str) else str(value)


def _check_age(rules: GateRules, header: RunHeader, now: datetime) -> Iterator[GateCheck]:
    if rules.max_age_days is None:
        return
    created = datetime.fromisoformat(header.created_at)
    days = (now - (created if created.tzinfo else created.replace(tzinfo=UTC))).total_seconds() / 86_400
    reason = f"the run is {days:.1f} days old, at most {rules.max_age_days:g} are allowed"
    yield GateCheck(rule="max_age_days", passed=0 <= days <= rules.max_age_days, reason=reason)


def _check_inputs(rules: GateRules, changed: Sequence[str] | None) -> Iterator[GateCheck]:
    if not rules.unchanged_inputs:
        return
    if changed is None:
        yield _unknown("unchanged_inputs", "the current inputs could not be read")
        return
    reason = "; ".join(changed[:MAX_NAMES]) if changed else "agent, cases and configuration are those of the run"
    yield GateCheck(rule="unchanged_inputs", passed=not changed, reason=reason)


_ROUNDING = 1e-9


def _at_least(rule: str, what: str, value: float, limit: float) -> GateCheck:
    is_met = value >= limit - _ROUNDING
    reason = f"{what} is {value:+.3f}, {'at least' if is_met else 'below'} {limit:g}"
    return GateCheck(rule=rule, passed=is_met, reason=reason)


def _unknown(rule: str, reason: str) -> GateCheck:
    return GateCheck(rule=rule, passed=False, reason=f"missing evidence: {reason}", is_known=False)
