"""`promptiter rejudge`: each decision in the run and now, and what the record cannot tell."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.text import Text

from promptiter.cli.output import new_table
from promptiter.policies.evidence import AcceptanceDecision, Answer, MoreEvidence
from promptiter.runs.rejudgement import Divergence, DivergenceKind, Rejudgement
from promptiter.runs.summary_wording import shorten_reason
from promptiter.wording import plural

_DIVERGENCES: Mapping[DivergenceKind, str] = {
    "accepted": "a candidate would have been accepted",
    "rejected": "the candidate would have been rejected",
    "more_evidence": "more repeats would have been asked for, which were not run",
    "stopped": "the run would have ended",
    "continued": "the run would have gone on",
}


def print_rejudgement(screen: Console, found: Rejudgement) -> None:
    """Print the policies, a row for each candidate, and what differs."""
    for what, now, was in (
        ("acceptance", found.acceptance, found.was_acceptance),
        ("stop", found.stop, found.was_stop),
    ):
        note = "" if now == was else f"  (in the run: {was})"
        screen.print(Text.assemble((f"{what:12}", "dim"), now, (note, "dim")))
    screen.print()
    _print_decisions(screen, found)
    screen.print(Text(_conclude(found), "green" if found.divergence is None else "yellow"))


def _print_decisions(screen: Console, found: Rejudgement) -> None:
    if not found.candidates:
        return
    table = new_table(">round", "in the run", gap=3)
    table.add_column("now", overflow="fold")
    diverged = found.divergence.round if found.divergence is not None else None
    for each in found.candidates:
        is_other = isinstance(each.again, MoreEvidence) or (
            each.again is not None and each.again.accepted != each.recorded.accepted
        )
        style = "yellow" if is_other else "dim" if diverged is not None and each.round > diverged else ""
        table.add_row(str(each.round), _describe(each.recorded), Text(_describe_again(each.again), style))
    screen.print(table)
    screen.print()


def _describe(decision: AcceptanceDecision) -> str:
    gain = "" if decision.delta is None else f" ({decision.delta:+.3f})"
    return f"{'accepted' if decision.accepted else 'rejected'}{gain}"


def _describe_again(again: Answer | None) -> str:
    if again is None:
        return "rejected by the search, no policy saw it"
    if isinstance(again, MoreEvidence):
        return f"undecided: {shorten_reason(again.reason)}"
    return f"{_describe(again)}: {shorten_reason(again.reason)}"


def _conclude(found: Rejudgement) -> str:
    divergence = found.divergence
    if divergence is None:
        return f"The same: {plural(len(found.candidates), 'decision')} and {plural(len(found.stops), 'stop check')}."
    text = f"Round {divergence.round}: {_DIVERGENCES[divergence.kind]}: {shorten_reason(divergence.reason)}."
    return f"{text} {_explain_rest(divergence)}"


def _explain_rest(divergence: Divergence) -> str:
    if divergence.stop is None:
        return "How the run would have gone on was not run, so the record cannot tell."
    if divergence.kind in ("accepted", "rejected"):
        return f"The run would have ended with this round: {shorten_reason(divergence.stop.text)}."
    return "Later rounds would not have been run."
