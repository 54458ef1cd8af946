"""Figures: what a policy reads of two evaluations besides the score: tokens, dollars, what a scorer measured.

A figure is one that a scorer recorded with its scores (`ScoredProfile.figures`), the mean of a metric, `tokens` or
`cost_usd` of a case run by its recorded usage, `characters` of the texts that may change, or `latency_s` by the clock.
If several have the name, the first of these counts. Figures of case runs are means over the runs without an error. An
unknown figure is never 0: it meets no bound and breaks no tie.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

from promptiter.errors import SetupError, nearest
from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.policies.evidence import Evidence

FIGURES = ("tokens", "cost_usd", "characters", "latency_s")
"""Lower is better for these; for a metric, higher is."""


def compare_figure(name: str, evidence: Evidence) -> tuple[float | None, float | None]:
    """Return a figure under the accepted profile and under the candidate, None where it is unknown."""
    before, after = evidence.common.accepted, evidence.common.candidate
    if has_recorded_figure(name, (before, after)):
        return _average_recorded(name, before.rows), _average_recorded(name, after.rows)
    if name in evidence.candidate.thresholds:
        means = [[case.means[name] for case in each.cases] for each in (before, after)]
        worst = min([0.0, *(mean for each in means for mean in each if mean is not None)])
        first, second = (_mean([worst if mean is None else mean for mean in each]) for each in means)
        return first, second
    if name == "characters":
        return evidence.characters or (None, None)
    return _average_usage(name, before), _average_usage(name, after)


def has_recorded_figure(name: str, evaluations: Iterable[Evaluation]) -> bool:
    """Whether the scorer recorded such a figure in one of these evaluations."""
    return any(name in row.figures for each in evaluations for row in each.rows)


def has_figure_noise(names: Iterable[str], evaluation: Evaluation) -> bool:
    """Whether one of these recorded figures differed between two runs of a case."""
    wanted = tuple(names)
    return any(
        len({row.figures.get(name) for row in rows}) > 1 for rows in evaluation.rows_by_case.values() for name in wanted
    )


def list_run_figures(name: str, evaluation: Evaluation) -> list[float]:
    """A recorded figure in each run without an error."""
    return [row.figures[name] for row in evaluation.rows if row.error is None and name in row.figures]


def average_figures(rows: Sequence[CaseRow]) -> dict[str, float]:
    """The mean of each recorded figure that every run without an error has, by name, in the order of the scorer."""
    names = dict.fromkeys(name for row in rows for name in row.figures)
    means = {name: _average_recorded(name, rows) for name in names}
    return {name: mean for name, mean in means.items() if mean is not None}


def check_recorded_figures(names: Iterable[str], evaluation: Evaluation) -> None:
    """Raise SetupError for a name that is not a figure of this evaluation, the baseline of a run with a scorer."""
    recorded = sorted({name for row in evaluation.rows for name in row.figures})
    known = [*recorded, *evaluation.thresholds, *FIGURES]
    for name in names:
        if name not in known:
            returned = f"the scorer returned {', '.join(recorded)}" if recorded else "the scorer returned no figures"
            raise SetupError(f"acceptance names {name!r}, which is not a figure: {returned}{nearest(name, known)}")


def check_figure_name(name: object, *, measured: bool = True) -> None:
    """Raise SetupError unless this can be the name of a figure. The clock counts only if it may be `measured`."""
    if not isinstance(name, str) or not name:
        raise SetupError(f"the figure is {name!r}; give a metric or one of {', '.join(FIGURES)}")
    if name == "latency_s" and not measured:
        raise SetupError(
            "latency_s is measured by the clock, so two equal runs may decide differently; "
            "pass measured=True if you want that, or bound tokens instead"
        )


def _average_recorded(name: str, rows: Sequence[CaseRow]) -> float | None:
    values = [row.figures.get(name) for row in rows if row.error is None]
    known = [value for value in values if value is not None]
    return _mean(known) if len(known) == len(values) else None


def _average_usage(name: str, evaluation: Evaluation) -> float | None:
    values = [_measure_run(name, row) for row in evaluation.rows if row.error is None]
    if name == "latency_s":
        values = [value for value in values if value is not None]  # cached answers take no time
    known = [value for value in values if value is not None]
    return _mean(known) if len(known) == len(values) else None


def _measure_run(name: str, row: CaseRow) -> float | None:
    match name:
        case "tokens":
            parts = (row.usage.input_tokens, row.usage.output_tokens)
            return None if parts == (None, None) else float(row.usage.tokens)
        case "cost_usd":
            return row.usage.cost_usd
        case "latency_s":
            return row.measured.duration_s if row.origin == "executed" else None
        case _:
            return None


def _mean(values: Collection[float]) -> float | None:
    """The mean; of equal values exactly that value."""
    if len(set(values)) == 1:
        return next(iter(values))
    return math.fsum(values) / len(values) if values else None
