"""Builds policies from promptiter.yaml: the goal of a run, what a candidate must show, and when the search ends."""

from __future__ import annotations

from functools import reduce
from operator import and_, or_

from promptiter.config.sections import Acceptance, EditLimitsEntry, FigureGainEntry, FinalTestSection, Goals, Stop
from promptiter.errors import SetupError
from promptiter.evaluation.result import Objective, get_best_value
from promptiter.policies.acceptance import AcceptancePolicy, AnyGain, MinGain, NoRegression, Protected
from promptiter.policies.constraints import Constraint, TieBreak
from promptiter.policies.edit_limits import EditLimits
from promptiter.policies.figure_gain import Bound, FigureGain, Side
from promptiter.policies.final_test import FinalTest
from promptiter.policies.goals import SCORE, Goal
from promptiter.policies.non_inferiority import NonInferior
from promptiter.policies.sigma_gain import SigmaGain
from promptiter.policies.stop_limits import Deadline, MaxCalls, MaxEvaluations, MaxFailures, MaxTokens, MaxUsd
from promptiter.policies.stopping import Patience, RequiredMetrics, StopFile, StopPolicy, TargetScore, UserStop

PATIENCE = 3


def build_goal(section: Goals) -> Goal:
    """The goal of a run; by default the score."""
    if section.cheaper is not None:
        return Goal(kind="cheaper", margin=section.cheaper.margin, models=section.cheaper.models)
    return Goal(kind="fewer_tokens", margin=section.fewer_tokens.margin) if section.fewer_tokens else SCORE


def build_acceptance(section: Acceptance, goal: Goal = SCORE) -> AcceptancePolicy:
    """The policies of the section, combined with `&`; by default any gain, or NonInferior for other goals."""
    gains: list[AcceptancePolicy | None] = [
        MinGain(section.min_gain) if section.min_gain is not None else None,
        SigmaGain(**section.sigma_gain.model_dump()) if section.sigma_gain else None,
        TieBreak(**section.tie_break.model_dump()) if section.tie_break else None,
        build_figure_gain(section.figure_gain) if section.figure_gain else None,
    ]
    policies = [gain for gain in gains if gain is not None] or [AnyGain()]
    bounds = [Bound(each.figure, each.op, _to_whole(each.value)) for each in section.bounds]
    if goal.figure is not None:
        if any(gains):
            raise SetupError(f"a gain is required, but the goal is {goal.kind}; remove the gain or the goal")
        policies = [NonInferior(goal.margin, goal.figure)]
    policies = [*bounds, *policies]
    if section.no_regression:
        policies.append(NoRegression())
    policies += [Constraint(**each.model_dump()) for each in section.constraints]
    if section.protected:
        policies.append(Protected())
    return reduce(and_, policies)


def build_figure_gain(section: FigureGainEntry) -> FigureGain:
    """The policy that compares a figure of the scorer, and breaks ties with others."""
    pairs: list[tuple[Side, str]] = []
    for each in section.tie_breakers:
        pairs += [("lower", each.lower)] if each.lower is not None else []
        pairs += [("higher", each.higher)] if each.higher is not None else []
    return FigureGain(
        section.figure,
        direction=section.direction,
        min_gain=section.min_gain,
        tie_breakers=tuple(pairs),
        sigma=section.sigma,
    )


def build_edit_limits(section: EditLimitsEntry) -> EditLimits | None:
    """How much a candidate may change, or None if there is no limit."""
    limits = EditLimits(max_files=section.max_files, max_changed_lines=section.max_changed_lines)
    return None if limits == EditLimits() else limits


def build_final_test(section: FinalTestSection | None) -> FinalTest | None:
    """The final test of the section, or None if there is none."""
    if section is None:
        return None
    return FinalTest(repeats=section.repeats, min_detectable_gain=section.min_detectable_gain, ablate=section.ablate)


def build_stop(
    section: Stop | None, *, objective: Objective, goal: Goal = SCORE, has_patience: bool = True
) -> StopPolicy | None:
    """The conditions of the section, combined with `|`; by default the best possible score, or no gain for 3 rounds.

    A run without patience ends by itself.
    """
    if section is None and goal.kind != "score":
        return None
    if section is None:
        perfect = TargetScore(get_best_value(objective))
        return perfect | Patience(PATIENCE) if has_patience else perfect
    names = section.required_metrics
    policies: list[StopPolicy | None] = [
        RequiredMetrics("all" if names == ("all",) else names) if names else None,
        TargetScore(section.target_score) if section.target_score is not None else None,
        StopFile(section.stop_file) if section.stop_file else None,
        Patience(section.patience) if section.patience else None,
        Deadline(minutes=section.minutes) if section.minutes else None,
        MaxEvaluations(section.max_evaluations) if section.max_evaluations else None,
        MaxCalls(section.max_calls) if section.max_calls else None,
        MaxTokens(section.max_tokens) if section.max_tokens else None,
        MaxUsd(section.max_usd) if section.max_usd else None,
        MaxFailures(section.max_failures) if section.max_failures else None,
    ]
    given = [policy for policy in policies if policy is not None]
    return reduce(or_, given) if given else UserStop()


def _to_whole(value: float) -> float:
    """A whole number as one, so that messages show it without `.0`."""
    return int(value) if value.is_integer() else value
