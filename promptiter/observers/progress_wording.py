"""What the lines of the progress say about cases, blame and patches."""

from __future__ import annotations

from collections.abc import Sequence

from promptiter.backprop.iteration_record import TextsProposed
from promptiter.backprop.record import PatchesWritten
from promptiter.backprop.trial_record import PhaseResult, PhaseStarted, Trial
from promptiter.runlog.payloads import RunStarted
from promptiter.stages.contracts import AggregateResult
from promptiter.stages.optimizer import Rejection
from promptiter.wording import join_names, plural
from traces.text import cut_at_word

MAX_NAMED = 4
"""Maximum number of surfaces that a line names; the others are counted."""

MAX_REASON = 150
"""Maximum length of the reason why a patch is missing."""

MAX_REASONS = 3
"""Maximum number of such reasons in a line; the others are counted."""


def describe_patches(written: PatchesWritten) -> str:
    """The patched surfaces, and why patches were refused or are missing."""
    return _describe("patches", [patch.surface_id for patch in written.patches], written.refused, written.notes)


def describe_texts(proposed: TextsProposed) -> str:
    """The same of a reflection."""
    return _describe("new texts", list(proposed.texts), proposed.refused, proposed.notes)


def _describe(what: str, patched: Sequence[str], refused: Sequence[Rejection], notes: Sequence[str]) -> str:
    parts = [f"{what}: {list_names(patched) or 'none'}"]
    if refused:
        reasons = [f"{each.surface_id}: {each.reason}" for each in refused]
        parts.append(f"{len(refused)} refused ({_join_reasons(reasons)})")
    if notes:
        parts.append(f"{plural(len(notes), 'surface')} without a patch ({_join_reasons(notes)})")
    return "; ".join(parts)


def _join_reasons(reasons: Sequence[str]) -> str:
    """The first different reasons, each cut; the others are counted."""
    different = list(dict.fromkeys(cut_at_word(" ".join(each.split()), MAX_REASON) for each in reasons))
    more = f"; and {len(different) - MAX_REASONS:,} more" if len(different) > MAX_REASONS else ""
    return "; ".join(different[:MAX_REASONS]) + more


def describe_phase_start(started: PhaseStarted) -> str:
    """`cycle 1, numeric phase: loss 0.234 on train`."""
    return f"cycle {started.cycle}, {started.phase} phase: loss {started.first.mean:.3f} on train"


def describe_trial_result(trial: Trial) -> str:
    """`numeric trial 2, accepted: loss 0.215 ± 0.009, gain +0.019 (noise 0.013)`."""
    head = f"{trial.phase} trial {trial.place}, {trial.outcome.replace('_', ' ')}"
    if trial.train is None:
        return f"{head}: {cut_at_word(trial.reason, MAX_REASON)}"
    spread = f" ± {trial.train.std:.3f}" if len(trial.train.runs) > 1 else ""
    gain = "" if trial.gain is None else f", gain {trial.gain:+.3f}"
    noise = "" if trial.noise_bar is None else f" (noise {trial.noise_bar:.3f})"
    return f"{head}: loss {trial.train.mean:.3f}{spread}{gain}{noise}"


def describe_phase_end(phase: PhaseResult) -> str:
    """`numeric phase: 2 of 11 trials accepted, gain +0.194; no candidate was accepted in the last 5 trials`."""
    accepted = f"{phase.accepted} of {plural(phase.attempts, 'trial')} accepted"
    return f"{phase.phase} phase: {accepted}, gain {phase.gain:+.3f}; {phase.reason}"


def describe_cases(started: RunStarted) -> str:
    """How many cases a run has, and what they are for."""
    test = f", {started.test.cases} test" if started.test is not None else ""
    match started.shape:
        case "two_sets":
            return f"{started.train.cases} train, {started.validation.cases} validation{test} cases"
        case "one_set":
            return f"{plural(started.validation.cases, 'case')} to learn from and validate on{test}"
        case "scorer":
            return "a scorer, no cases"


def name_blamed(signals: Sequence[AggregateResult]) -> str:
    """The blamed surfaces, with how many cases blame each, the most first."""
    ordered = sorted(signals, key=lambda signal: len(signal.case_ids), reverse=True)
    return list_names([f"{signal.surface_id} ({plural(len(signal.case_ids), 'case')})" for signal in ordered])


def list_names(names: Sequence[str]) -> str:
    """The first names; the others are counted."""
    return join_names(names, limit=MAX_NAMED)
