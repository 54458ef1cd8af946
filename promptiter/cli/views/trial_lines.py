"""One line per trial of coordinate descent, under a header for each phase: `promptiter test optimize`."""

from __future__ import annotations

from promptiter.cli.output import echo
from promptiter.runlog.events import Event
from promptiter.runs.layout_000.layout import Layout000
from promptiter.runs.layout_000.rows import TrialRow

WIDTH = 24
"""Characters of an axis that are shown."""

OUTCOMES = {
    "accepted": "accept ✓",
    "noise": "noise ✗",
    "no_gain": "no gain ✗",
    "holdout": "hold-out ✗",
    "unreliable": "unreliable ✗",
    "failed": "failed ✗",
    "low_confidence": "crit ✗",
    "no_edit": "no edit ✗",
    "repeated": "repeated ✗",
    "baseline": "baseline",
}


class TrialLines:
    """An observer that prints the rows of a layout as they are written. Give it after the layout."""

    def __init__(self, layout: Layout000, *, verbose: bool = False) -> None:
        self._layout = layout
        self._verbose = verbose
        self._shown = 0
        self._phase: tuple[int, str] | None = None
        self._studies = 0
        self._has_new_text = False

    async def observe(self, event: Event) -> None:
        if event.type == "round_completed":
            self.show()

    def show(self) -> None:
        """Print the rows that were not printed yet."""
        for row in self._layout.rows[self._shown :]:
            if row.phase != "baseline" and (row.cycle, row.phase) != self._phase:
                self._phase = row.cycle, row.phase
                self._studies += row.phase == "numeric"
                echo(_format_header(row, self._studies, has_new_text=self._has_new_text))
            self._has_new_text |= row.phase == "textual" and row.decision.accepted
            echo(format_line(row))
            for name, text in row.rationales if self._verbose else ():
                echo(f"    {name}: {text}")
        self._shown = len(self._layout.rows)


def format_line(row: TrialRow) -> str:
    """The line of a trial: its place, axis, train loss with its change and bar, hold-out loss, outcome and cost."""
    decision = row.decision
    place = "[baseline]" if row.phase == "baseline" else f"[c{row.cycle}/{row.phase[0]} {row.phase_trial:>2}]"
    axis = _shorten_axes(row.axis_target)
    loss = decision.best_train_mean_before if row.train.loss is None else row.train.loss
    spread = "" if row.train.loss_std is None else f" ±{row.train.loss_std:.3f}"
    train = "train ——" if loss is None else f"train {loss:.3f}{spread}"
    held = "——" if row.holdout is None or row.holdout.loss is None else f"hold {row.holdout.loss:.3f}"
    cost = "$?" if row.trial_usd is None else f"${row.trial_usd:.4g}"
    note = f"  ({decision.reason})" if decision.outcome in ("low_confidence", "no_edit", "repeated", "failed") else ""
    cells = (f"{place} {axis:<{WIDTH}} {train}", _format_change(row), held, OUTCOMES[decision.outcome])
    return "  ".join((*cells, cost, f"{row.duration_sec:.0f}s")) + note


def _shorten_axes(target: str) -> str:
    """The axis of a trial; of several, the last parts of their paths."""
    names = target.split(", ")
    shown = target if len(names) == 1 else ", ".join(name.rpartition(".")[2] for name in names)
    return shown if len(shown) <= WIDTH else f"{shown[: WIDTH - 1]}…"


def _format_change(row: TrialRow) -> str:
    gain, bar = row.decision.train_improvement, row.decision.noise_bar
    if gain is None:
        return "(—)"
    arrow = "▼" if gain > 0 else "▲"
    compared = "" if bar is None else f" {'>' if gain > bar else '=' if gain == bar else '<'} bar {bar:.3f}"
    return f"({arrow}{abs(gain):.3f}{compared})"


def _format_header(row: TrialRow, studies: int, *, has_new_text: bool) -> str:
    what = f"cycle {row.cycle} · {row.phase} phase"
    if row.phase == "numeric":
        what += f" (fresh TPE study #{studies}{', vs improved prompt' if has_new_text else ''})"
    return f"── {what} ".ljust(76, "─")
