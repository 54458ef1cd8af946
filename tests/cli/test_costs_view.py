"""Costs on the screen: what is unknown is said to be unknown, and never shown as 0."""

from __future__ import annotations

import re
from dataclasses import replace
from io import StringIO

from rich.console import Console

from promptiter.cli.views.costs import print_costs
from promptiter.cli.views.forecast import print_forecast, print_stages
from promptiter.llm.ledger import LedgerEntry, LedgerSnapshot, Spending
from promptiter.runs.cost_ranges import Cost, Range
from promptiter.runs.forecast_file import Forecast
from promptiter.runs.summary import RunSummary, summarize, summarize_costs
from tests.worlds import desk

SILENT = Cost(calls=Range.exactly(12), usd=None, unpriced=("own",), uncounted=("own",))
OPAQUE = Cost(usd=None, unpriced=("own",), uncounted=("own",))
COUNTED = Cost(calls=Range.exactly(3), tokens=Range.exactly(900), usd=None, unpriced=("other",))
FORECAST = Forecast(
    total=SILENT + COUNTED,
    rounds=Range.exactly(1),
    stages={"baseline": SILENT, "train": OPAQUE, "validation": SILENT + COUNTED, "final_test": COUNTED},
    nodes={"reader": SILENT},
)


def screen() -> tuple[Console, StringIO]:
    file = StringIO()
    return Console(file=file, width=120), file


def find_line(printed: str, name: str) -> list[str]:
    """The cells of the first line of a table that begins with a name."""
    line = next(line for line in printed.splitlines() if line.split()[:1] == [name])
    return re.split(r"\s{2,}", line.strip())


def test_a_forecast_does_not_show_unknown_tokens_as_0() -> None:
    console, file = screen()
    print_forecast(console, FORECAST)
    assert find_line(file.getvalue(), "baseline")[1:4] == ["12", "unknown", "unknown"]
    assert find_line(file.getvalue(), "train")[1:4] == ["unknown", "unknown", "unknown"]
    assert find_line(file.getvalue(), "validation")[1:3] == ["15", "900 + unknown"]
    assert find_line(file.getvalue(), "final_test")[1:3] == ["3", "900"]
    assert find_line(file.getvalue(), "reader")[1:3] == ["12", "unknown"]


def test_stages_do_not_show_unknown_tokens_as_0() -> None:
    console, file = screen()
    silent = Spending(calls=12, cost_usd=None, uncounted_calls=12, unpriced_calls=12)
    some = Spending(calls=15, input_tokens=900, cost_usd=None, uncounted_calls=12, unpriced_calls=15)
    print_stages(console, FORECAST, {"baseline": silent, "validation": some})
    assert find_line(file.getvalue(), "baseline") == ["baseline", "12", "12", "unknown", "unknown"]
    assert find_line(file.getvalue(), "validation") == ["validation", "15", "15", "900 + unknown", "900 + unknown"]


def test_unknown_tokens_and_an_unknown_cost_are_told_apart() -> None:
    silent = Spending(calls=12, cost_usd=None, uncounted_calls=12, unpriced_calls=12)
    unpriced = Spending(calls=2, input_tokens=40, cost_usd=None, unpriced_calls=2)
    entries = [
        LedgerEntry(role="agent", model="own", node_id="", spent=silent),
        LedgerEntry(role="judge", model="other", node_id="", spent=unpriced),
    ]
    console, file = screen()
    print_costs(console, build_summary(LedgerSnapshot(tuple(entries))))
    lines = [line.strip() for line in file.getvalue().splitlines()]
    assert "agent: 12 calls, tokens and cost unknown" in lines
    assert "judge: 2 calls, 40 tokens, cost unknown" in lines


def build_summary(spent: LedgerSnapshot) -> RunSummary:
    found = summarize(desk.engine().run_sync(desk.request(max_rounds=0)))
    return replace(found, costs=summarize_costs(spent))
