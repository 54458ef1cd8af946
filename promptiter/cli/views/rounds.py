"""`promptiter show --rounds`: every candidate with its decision, and the texts of rejected patches.

If a round has several candidates, each has a paragraph. The iterations of GEPA and the trials of
coordinate descent have columns of their own.
"""

from __future__ import annotations

import json
import re

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from promptiter.cli.output import new_table, print_heading, print_indented
from promptiter.cli.views.diff import diff_table
from promptiter.cli.views.phases import print_trials
from promptiter.cli.views.run import hanging_indent
from promptiter.runlog.results import SearchNote
from promptiter.runs.iteration_rows import IterationRow, list_iterations
from promptiter.runs.round_summary import CandidateSummary, EvaluationSummary, RoundSummary
from promptiter.runs.summary import RunSummary
from promptiter.runs.summary_wording import shorten_reason
from promptiter.wording import format_figures, format_score, join_names
from traces.model import Json
from traces.text import one_line

MAX_NAMES = 12
MAX_ITEM = 150
MUTATIONS = "mutations"
DIGEST_LENGTH = 8
_DIGEST = re.compile(r"\b[0-9a-f]{64}\b")


def print_rounds(screen: Console, summary: RunSummary) -> None:
    """Print all rounds: as a table, or, if a round has several candidates, one by one."""
    print_heading(screen, "Rounds")
    if summary.pool.candidates:
        _print_iterations(screen, summary)
    elif summary.descent.phases:
        print_trials(screen, summary)
    elif any(len(each.candidates) > 1 for each in summary.rounds):
        _print_pool(screen, summary)
    else:
        _print_table(screen, summary)
    if summary.stopped:
        screen.print(f"\nstopped: {shorten_reason(summary.stopped)}", markup=False)
    _print_rejected(screen, summary)


def _print_table(screen: Console, summary: RunSummary) -> None:
    table = new_table(">round", "train", "validation", gap=3)
    table.add_column("decision", overflow="fold")
    table.add_row("0", "", _format_figures(summary.baseline), Text("baseline", "dim"))
    for note in summary.notes:
        table.add_row("", "", "", _format_note(note))
    for each in summary.rounds:
        lines = [(_format_figures(one.validation), _format_decision(one)) for one in each.candidates]
        if each.skipped or not lines:
            lines.append(("", Text(shorten_reason(each.skipped), "dim")))
        for number, line in enumerate(lines):
            table.add_row("" if number else str(each.round), "" if number else _format_figures(each.train), *line)
        for text in (*_list_passes(each), *_list_notes(each)):
            table.add_row("", "", "", text)
    screen.print(table)


def _print_iterations(screen: Console, summary: RunSummary) -> None:
    table = new_table(">round", "kind", "from", "mini-batch", ">validation", gap=2)
    table.add_column("decision", overflow="fold")
    table.add_row("0", "", "", "", format_score(summary.pool.candidates[0].score), Text("#0 baseline", "dim"))
    for note in summary.notes:
        table.add_row("", "", "", "", "", _format_note(note))
    for row, each in zip(list_iterations(summary), summary.rounds, strict=True):
        score = "" if row.validation is None else format_score(row.validation)
        table.add_row(str(row.round), row.kind, row.parents, row.minibatch, score, _format_iteration(row))
        for text in _list_notes(each):
            table.add_row("", "", "", "", "", text)
    screen.print(table)


def _format_iteration(row: IterationRow) -> Text:
    """`#1 best draft#instruction: gain +0.125`."""
    style = {"best": "green", "kept": "cyan", "rejected": "yellow"}.get(row.outcome, "dim")
    if row.kind == "none":
        return Text(f"{row.outcome}: {shorten_reason(row.reason)}", style)
    reason = f"{one_line(join_names(row.components, limit=MAX_NAMES))}: {shorten_reason(row.reason)}"
    parts = [(row.number, "bold"), (row.outcome, style), (reason, "")]
    return Text(" ").join(Text(text, look) for text, look in parts if text)


def _print_rejected(screen: Console, summary: RunSummary) -> None:
    """Print what the rejected patches would have changed."""
    rejected = [(each.round, change) for each in summary.rejections for change in each.changes]
    if not rejected:
        return
    print_heading(screen, "Rejected patches")
    for number, change in rejected:
        screen.print(Text.assemble(f"  round {number}  ", (one_line(change.surface_id), "cyan")))
        screen.print(Padding(diff_table(change.before, change.after), (0, 0, 0, 4), expand=False))


def _format_decision(candidate: CandidateSummary) -> Text:
    word, style = _name_decision(candidate)
    patched = f"{join_names(candidate.patched, limit=MAX_NAMES)}: " if candidate.patched else ""
    reason = shorten_reason(f"{patched}{candidate.reason}")
    return Text.assemble((word, style), " " if word and reason else "", reason)


def _name_decision(candidate: CandidateSummary) -> tuple[str, str]:
    return {True: ("accepted", "green"), False: ("rejected", "yellow"), None: ("", "dim")}[candidate.accepted]


def _print_pool(screen: Console, summary: RunSummary) -> None:
    baseline = Text.assemble(f"validation {_format_figures(summary.baseline)}\n", ("baseline", "dim"))
    screen.print("round 0")
    _print_profile(screen, summary.initial_digest, baseline)
    for note in summary.notes:
        print_indented(screen, _format_note(note))
    for each in summary.rounds:
        _print_pool_round(screen, each)


def _print_pool_round(screen: Console, each: RoundSummary) -> None:
    train = "" if each.train is None else f"  train {_format_figures(each.train)}"
    screen.print()
    screen.print(f"round {each.round}{train}")
    for candidate in each.candidates:
        _print_profile(screen, candidate.digest, _describe_candidate(candidate))
    if each.skipped or not each.candidates:
        print_indented(screen, Text(shorten_reason(each.skipped), "dim"))
    for text in (*_list_passes(each), *_list_notes(each)):
        print_indented(screen, text)


def _print_profile(screen: Console, digest: str, text: Text) -> None:
    screen.print(Padding(hanging_indent(Text(f"{_shorten_digest(digest)} "), text), (0, 0, 0, 2), expand=False))


def _describe_candidate(candidate: CandidateSummary) -> Text:
    """Its scores, the decision, the origin, and what it changes about its first parent."""
    evaluations = [(one_line(phase), figures) for phase, figures in candidate.evaluations.items()]
    if candidate.validation is not None:
        evaluations.append(("validation", candidate.validation))
    word, style = _name_decision(candidate)
    accepted = _shorten_digest(candidate.compared_with)
    other = f" (compared with the accepted {accepted})" if accepted else ""
    parents = ", ".join(map(_shorten_digest, candidate.parents))
    origin = f"from {parents}{': ' if candidate.proposal else ''}{candidate.proposal}"
    lines = [
        Text("; ".join(f"{phase} {_format_figures(figures)}" for phase, figures in evaluations)),
        Text.assemble((f"{word}: " if word else "", style), shorten_reason(candidate.reason), other),
        Text(shorten_reason(origin), "dim"),
    ]
    if candidate.patched:
        lines.append(Text(f"changes {join_names(candidate.patched, limit=MAX_NAMES)}", "dim"))
    return Text("\n").join(line for line in lines if line)


def _list_passes(each: RoundSummary) -> list[Text]:
    """What each pass of a round with several patched, and how the failed train cases did then."""
    if len(each.passes) < 2:
        return []
    lines = []
    for number, one in enumerate(each.passes, start=1):
        rerun = "" if one.rerun is None else f"; failed train cases: {_format_figures(one.rerun)}"
        lines.append(Text(f"pass {number}: {one_line(join_names(one.patched, limit=MAX_NAMES))}{rerun}", "dim"))
    return lines


def _list_notes(each: RoundSummary) -> list[Text]:
    """What the search recorded of a round. Of mutations, only what was refused beside the candidates is new."""
    others = [_format_note(note) for note in each.notes if note.type != MUTATIONS]
    if each.skipped:
        return others
    written = [note.data for note in each.notes if note.type == MUTATIONS and isinstance(note.data, dict)]
    refused = [one.get("refused", ()) for data in written for one in data.get("mutations", ())]
    return [Text(f"refused: {shorten_reason('; '.join(one))}", "dim") for one in refused if one] + others


def _format_note(note: SearchNote) -> Text:
    """An event of a search's own: its type and its data, with profiles by the start of their digests."""
    data = note.data if isinstance(note.data, dict) else {"": note.data}
    parts = (f"{one_line(name)} {_format_item(item)}".strip() for name, item in data.items())
    return Text(f"{one_line(note.type)}: {'; '.join(parts)}", "dim")


def _format_item(item: Json) -> str:
    if isinstance(item, list) and item and not any(isinstance(each, list | dict) for each in item):
        return join_names([_format_item(each) for each in item], limit=MAX_NAMES)
    text = item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)
    return shorten_reason(_DIGEST.sub(lambda found: _shorten_digest(found[0]), text), limit=MAX_ITEM)


def _shorten_digest(digest: str) -> str:
    return digest[:DIGEST_LENGTH]


def _format_figures(figures: EvaluationSummary | None) -> str:
    if figures is None:
        return ""
    return format_figures(figures.figures) or f"{format_score(figures.score)}, {figures.passed}/{figures.cases} pass"
