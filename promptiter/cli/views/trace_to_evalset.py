"""What `promptiter trace to-evalset` says about the cases that it made."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from promptiter.cli.output import SteadyConsole, console
from promptiter.wording import join_names, plural

if TYPE_CHECKING:
    from collections.abc import Iterator

    from promptiter.tasks.cases_from_traces import TraceCases
    from traces.model import Json
    from traces.otel.recover.coverage import Coverage

_OUTCOMES = {
    "failed": "of runs that failed",
    "disliked": "of runs that people disliked",
    "good": "of runs that people liked",
    "unknown": "of runs without feedback",
}
_LEFT_OUT = {
    "no_content": "without any text: content was not captured",
    "no_question": "without a question",
    "later_turn": "after a turn that had already failed",
    "duplicate": "similar to another one",
    "sampled_out": "not in the sample: --most",
}
_REDACTED = {
    "secret": ("secret", ""),
    "email": ("e-mail address", "e-mail addresses"),
    "phone": ("phone number", ""),
    "card": ("card number", ""),
    "iban": ("IBAN", ""),
    "ip": ("IP address", "IP addresses"),
}


def print_cases(made: TraceCases, coverage: Coverage, output: Path | None) -> None:
    """Print how many cases there are, of which runs, and what became of the other runs.

    If there is no output file, standard output has the cases, so this goes to standard error.
    """
    screen = SteadyConsole() if output is None else console()
    for line in _list_lines(made, coverage, output):
        screen.print(line, markup=False, soft_wrap=True)


def as_document(made: TraceCases, coverage: Coverage) -> dict[str, Json]:
    """The same as JSON."""
    return {
        "cases": len(made.cases),
        "with_reference": made.references,
        "outcomes": dict(made.outcomes),
        "runs": made.runs,
        "left_out": dict(made.left_out),
        "redacted": dict(made.redacted),
        "unmatched_feedback": made.unmatched,
        "traces_without_steps": coverage.without_steps,
    }


def _list_lines(made: TraceCases, coverage: Coverage, output: Path | None) -> Iterator[str]:
    where = "" if output is None else f", written to {output}"
    yield f"{plural(len(made.cases), 'case')} of {plural(made.runs, 'run')}{where}"
    for outcome, count in made.outcomes.items():
        if count:
            yield f"  {count:,} {_OUTCOMES[outcome]}"
    yield _describe_references(made)
    for reason, count in made.left_out.items():
        if count:
            yield f"{plural(count, 'run')} left out: {_LEFT_OUT[reason]}"
    if coverage.without_steps:
        yield f"{plural(coverage.without_steps, 'OTLP trace')} without any step left out"
    if made.redacted:
        counts = [plural(made.redacted[kind], *words) for kind, words in _REDACTED.items() if made.redacted.get(kind)]
        yield f"redacted: {join_names(counts)}"
    if made.unmatched:
        yield f"{plural(made.unmatched, 'row')} of feedback about other runs"


def _describe_references(made: TraceCases) -> str:
    if made.references:
        return f"{plural(made.references, 'case')} with a reference answer"
    return "no case has a reference answer: give --feedback that says which answers were good, or what to expect"
