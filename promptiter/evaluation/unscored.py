"""Which case runs of an evaluation could not be scored, and why, as sentences."""

from __future__ import annotations

from collections import Counter

from promptiter.errors import MetricError
from promptiter.evaluation.result import Evaluation
from promptiter.wording import plural
from traces.text import cut

MAX_CAUSE = 200
"""Characters of an error that a sentence quotes."""


def describe_unscored(evaluation: Evaluation, *, noun: str = "case") -> tuple[str, ...]:
    """One sentence for the agent and one for each metric that failed, with the number of cases and the commonest error.

    Of a run without cases, `noun` is `scorer`. With several repeats, `run` is added to it: a case is unscored only if
    all its runs are.
    """
    runner = "scorer" if noun == "scorer" else "agent"
    causes: dict[str, Counter[str]] = {}
    for row in evaluation.rows:
        if row.error is not None:
            causes.setdefault("", Counter())[f"the {runner} failed with {row.error}"] += 1
            continue
        for score in row.scores:
            if not score.is_scored:
                cause = _name_metric(score.metric, score.error or "it returned no score")
                causes.setdefault(score.metric, Counter())[cause] += 1
    if len(evaluation.rows) > len(evaluation.cases):
        noun = f"{noun} run"
    total = plural(len(evaluation.rows), noun)
    return tuple(_write_sentence(counts, total) for _, counts in sorted(causes.items()))


def _name_metric(metric: str, error: str) -> str:
    text = error.removeprefix(f"{MetricError.__name__}: ")
    return text if f"metric {metric!r}" in text else f"metric {metric!r}: {text}"


def _write_sentence(causes: Counter[str], total: str) -> str:
    count = causes.total()
    [(cause, _)] = causes.most_common(1)
    others = f" (and {plural(len(causes) - 1, 'other error')})" if len(causes) > 1 else ""
    verb = "is" if count == 1 else "are"
    return f"{count:,} of {total} {verb} unscored: {cut(' '.join(cause.split()), MAX_CAUSE)}{others}"
