"""Policies as promptiter.yaml says them: what a candidate must show, and when the search ends."""

from __future__ import annotations

from functools import reduce
from operator import and_, or_

from promptiter.config.sections import Acceptance, Claiming, Stop
from promptiter.engine.acceptance import AcceptancePolicy, AnyGain, MinGain, NoRegression, Protected
from promptiter.engine.conclusion import ClaimOnce
from promptiter.engine.figures import Constraint, TieBreak
from promptiter.engine.paired import PairedGain
from promptiter.engine.sigma import SigmaGain
from promptiter.engine.stopping import (
    Deadline,
    MaxCalls,
    MaxEvaluations,
    MaxTokens,
    MaxUsd,
    Patience,
    RequiredMetrics,
    StopFile,
    StopPolicy,
    TargetScore,
)
from promptiter.evaluation.result import Objective

PATIENCE = 3


def acceptance_of(section: Acceptance) -> AcceptancePolicy:
    """All that is asked for, with `&`; any gain, if none is."""
    gains: list[AcceptancePolicy | None] = [
        MinGain(section.min_gain) if section.min_gain is not None else None,
        PairedGain(**section.paired_gain.model_dump()) if section.paired_gain else None,
        SigmaGain(**section.sigma_gain.model_dump()) if section.sigma_gain else None,
        TieBreak(**section.tie_break.model_dump()) if section.tie_break else None,
    ]
    policies = [gain for gain in gains if gain is not None] or [AnyGain()]
    if section.no_regression:
        policies.append(NoRegression())
    policies += [Constraint(**each.model_dump()) for each in section.constraints]
    if section.protected:
        policies.append(Protected())
    return reduce(and_, policies)


def claim_of(section: Claiming | None) -> ClaimOnce | None:
    """How the claim at the end is made; None: nothing is claimed."""
    if section is None:
        return None
    return ClaimOnce(draws=section.draws, wanted_gain=section.wanted_gain, ablate=section.ablate)


def stop_of(section: Stop | None, *, objective: Objective) -> StopPolicy | None:
    """All that is asked for, with `|`. A file that says nothing means: until there is nothing left to gain or find."""
    if section is None:
        best = 0.0 if objective == "weighted_loss" else 1.0
        return TargetScore(best) | Patience(PATIENCE)
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
    ]
    given = [policy for policy in policies if policy is not None]
    return reduce(or_, given) if given else None
