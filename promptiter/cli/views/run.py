"""What came of a run, for people and for machines: scores, blame, diffs, what was left alone, what it cost.

The exit code of a run is its verdict, unless it failed or was cancelled.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import orjson
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from promptiter.cli.views.forecast import compared, print_compared, stages_as_json
from promptiter.cli.views.search import (
    heading,
    in_a_line,
    print_blame,
    print_changes,
    print_left_alone,
    print_never_read,
    print_rejections,
)
from promptiter.evaluation.mean_usage import MeanUsage, average_usage
from promptiter.evaluation.result import Evaluation
from promptiter.llm.ledger import Spending
from promptiter.policies.final_test import Verdict
from promptiter.policies.goals import GoalKind
from promptiter.runlog.codec import to_plain
from promptiter.runlog.results import RunResult, Status
from promptiter.runs.recorded import read_forecast
from promptiter.runs.stages import spent_by_stage
from traces.text import cut, one_line

EXIT_CODES: Mapping[Verdict, int] = {
    "improved": 0,
    "no_evidence": 3,
    "underpowered": 4,
    "overfit_risk": 5,
    "budget_ended": 6,
    "invalid_eval": 7,
}
FAILED, CANCELLED = 1, 130

IN_WORDS: Mapping[Verdict, str] = {
    "improved": "improved",
    "no_evidence": "no evidence of an improvement, so nothing was changed",
    "underpowered": "these cases could not show an improvement, so nothing was changed",
    "overfit_risk": "better on the cases it was made with but not beyond, so nothing was changed",
    "budget_ended": "the budget ended before anything could be claimed",
    "invalid_eval": "too many runs or scores failed for any figure to mean something",
}
SAVED: Mapping[GoalKind, str] = {"cheaper": "dollars", "fewer_tokens": "tokens"}
"""What goals besides the score save."""

ENDED: Mapping[Status, str] = {"failed": "failed", "cancelled": "cancelled"}


def exit_code(result: RunResult) -> int:
    """What the command exits with. A run that had nothing to mend did what it says; one that was stopped did not."""
    if result.status == "failed":
        return FAILED
    if result.status == "cancelled" or _is_stopped(result):
        return CANCELLED
    return 0 if _had_nothing_to_do(result) else EXIT_CODES[result.verdict]


def _had_nothing_to_do(result: RunResult) -> bool:
    return not result.rounds and result.stop_reason in ("target_score", "required_metrics", "max_rounds")


def _is_stopped(result: RunResult) -> bool:
    """Whether the user stopped it before it could conclude."""
    return result.stop_reason == "user_stop" and not result.is_final


def _said(result: RunResult) -> str:
    """How it ended, in words."""
    if _had_nothing_to_do(result):
        wanted = result.stop_reason == "max_rounds"
        return "the baseline was validated" if wanted else "nothing to mend: the baseline reaches the target"
    words = _in_words(result)
    if _is_stopped(result):
        return f"stopped by you; so far: {words}"
    ended = ENDED.get(result.status)
    return f"{ended}; so far: {words}" if ended else words


def _in_words(result: RunResult) -> str:
    """The verdict, with the cases that it holds for; goals besides the score have words of their own."""
    found, saved = result.conclusion, SAVED.get(result.goal.kind)
    if found is None and result.changes:
        return "what was kept is not claimed yet"
    if saved is not None and result.verdict in ("no_evidence", "underpowered"):
        if result.working_profile != result.initial_profile:
            return "what was kept is not shown to be no worse, so nothing was changed"
        return f"no {saved} could be saved without a loss, so nothing was changed"
    if result.verdict != "improved" or found is None:
        return IN_WORDS[result.verdict]
    what = "improved" if saved is None else f"fewer {saved} and no worse"
    return f"{what} by the rule of the search, untested" if found.scope is None else f"{what} on {found.scope}"


def as_json(result: RunResult, path: Path | None) -> str:
    """The result, with where it was written, what it was expected to take, by stage too, and the exit code."""
    forecast = None if path is None else read_forecast(path)
    stages = None if path is None or forecast is None else stages_as_json(forecast, spent_by_stage(path))
    document = {
        **orjson.loads(result.to_json()),
        "forecast": None if forecast is None else to_plain(forecast.total),
        "stages": stages,
        "path": None if path is None else str(path),
        "exit_code": exit_code(result),
    }
    return orjson.dumps(
        document, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE
    ).decode()


def print_verdict(screen: Console, result: RunResult) -> None:
    """One line: how it ended, and the figure that was optimized."""
    style = "bold green" if exit_code(result) == 0 else "bold red" if result.status == "failed" else "bold yellow"
    name = one_line(result.structure.name) or "agent"
    screen.print(Text.assemble((f"{name}  ", "bold"), (_said(result), style), _objective(result)))


def print_run(screen: Console, result: RunResult, path: Path | None) -> None:
    """All that a person wants to know, in the order of the questions."""
    print_verdict(screen, result)
    if result.error is not None:
        screen.print(Text(cut(one_line(result.error), 1000), "red"))
    _print_scores(screen, result)
    _print_evidence(screen, result)
    print_blame(screen, result)
    print_changes(screen, result)
    print_left_alone(screen, result)
    print_never_read(screen, result.unread_surfaces)
    print_rejections(screen, result)
    _print_end(screen, result, path)


def _objective(result: RunResult) -> str:
    before, after = result.baseline_score, result.accepted_score
    if before is None or after is None:
        return ""
    sign = -1 if result.objective == "weighted_loss" else 1  # as a figure to optimize it counts negative
    change = f" to {sign * after:.3f}" if after != before else ""
    where = " on validation" if result.conclusion is not None and result.conclusion.scope == "new cases" else ""
    return f", {result.objective.replace('_', ' ')} {sign * before:.3f}{change}{where}"


def _print_scores(screen: Console, result: RunResult) -> None:
    before, after, found = result.baseline, result.accepted, result.conclusion
    if before is None or after is None:
        return
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("validation, fresh repeats" if found is not None and found.results else "validation")
    for name in ("baseline", "best"):
        table.add_column(name, justify="right")
    table.add_column("")
    table.add_row(
        "mean score", _figure(before.mean_score), Text(_figure(after.mean_score), "bold"), _gain(before, after)
    )
    passed = sum(case.passed for case in after.cases)
    told = f"{passed} of {len(after.cases)} cases pass"
    table.add_row("pass rate", _share(before.pass_rate), Text(_share(after.pass_rate), "bold"), Text(told, "dim"))
    if len(after.thresholds) > 1:
        for name, mean in after.metric_means.items():
            limit = Text(f"threshold {after.thresholds[name]:g}", "dim")
            table.add_row(Text(one_line(name)), _figure(before.metric_means.get(name)), _figure(mean), limit)
    screen.print()
    screen.print(table)


def _print_evidence(screen: Console, result: RunResult) -> None:
    """What the verdict rests on, and which parts of what was kept do the work."""
    found, parts = result.conclusion, result.ablation
    if found is None or not found.reasons or not found.tried:
        return
    heading(screen, "Evidence")
    for reason in found.reasons:
        screen.print(Padding(Text(in_a_line(reason)), (0, 0, 0, 2), expand=False))
    if parts is None:
        return
    for surface_id, loss in parts.losses.items():
        gone = surface_id in parts.dropped
        told = "taken out: no worse without it" if gone else f"without it {-loss:+.3f}"
        screen.print(Text.assemble((f"  {one_line(surface_id)}", "cyan"), f"  {told}"))


def _print_end(screen: Console, result: RunResult, path: Path | None) -> None:
    measured = result.measured
    rows = Table.grid(padding=(0, 2))
    rows.add_column(no_wrap=True, style="bold")
    rows.add_column(overflow="fold")
    count = len(result.rounds)
    if result.stop is not None and result.stop.stop:
        rows.add_row("Stopped", Text(f"after {count} round{'s' * (count != 1)}: {one_line(result.stop.text)}"))
    if result.goal.kind != "score" and result.baseline is not None and result.accepted is not None:
        rows.add_row("Per run", _per_run(average_usage(result.baseline), average_usage(result.accepted)))
    spent = measured.spent.total
    simulated = ", simulated" if "simulated" in measured.spent.by_model() else ""
    rows.add_row(
        "Cost",
        f"{cost_of(spent)}{simulated}, {measured.duration_s:.1f} s, {measured.case_runs} case runs"
        + (f", {known} of them known already" if (known := measured.case_runs - measured.paid_case_runs) else ""),
    )
    if spent.lost_calls:
        told = f"{spent.lost_calls} in flight when the run was killed; they may have been paid, and were made again"
        rows.add_row("", Text(told, "yellow"))
    for role, part in measured.spent.by_role().items():
        rows.add_row("", Text(f"{role}: {_calls(part)}", "dim"))
    forecast = None if path is None else read_forecast(path)
    if forecast is not None:
        rows.add_row("Forecast", compared(forecast, result))
    if measured.problems:
        rows.add_row("Problems", Text(one_line("; ".join(measured.problems)), "yellow"))
    if path is not None:
        rows.add_row("Files", Text(f"{from_here(path)}/", overflow="fold"))
    if path is not None and not result.is_final:
        kept = " (with --final-test: end the search, and test what it kept)" if result.changes else ""
        rows.add_row("Go on", Text(f"promptiter resume {from_here(path)}{kept}", overflow="fold"))
    if path is not None and result.changes and result.conclusion is not None:
        rows.add_row("Use it", "run your agent with Profile.load(…/profiles/best.json), or copy surfaces/*.best.md")
    word = result.status if result.status in ENDED else "stopped" if _is_stopped(result) else result.verdict
    rows.add_row("Verdict", f"{word}, exit code {exit_code(result)}")
    screen.print()
    if path is not None and forecast is not None:
        print_compared(screen, forecast, spent_by_stage(path))
        screen.print()
    screen.print(rows)


def _per_run(before: MeanUsage, after: MeanUsage) -> str:
    """What a run of a case takes before and after, as far as it is known."""
    told = [
        f"{_tokens(before.tokens)} to {_tokens(after.tokens)} tokens",
        f"{_tokens(before.input_tokens)} to {_tokens(after.input_tokens)} of them input",
    ]
    if before.usd is None or after.usd is None:
        return ", ".join((*told, "dollars unknown"))
    return ", ".join((*told, f"${before.usd:.3g} to ${after.usd:.3g}"))


def _tokens(figure: float | None) -> str:
    return "unknown" if figure is None else f"{figure:,.0f}"


def _calls(spent: Spending) -> str:
    known = f", {spent.cache_hits:,} known answers" if spent.cache_hits else ""
    calls = f"{spent.calls:,} call{'s' * (spent.calls != 1)}"
    return f"{calls}{known}, {spent.tokens:,} tokens, {cost_of(spent)}"


def cost_of(spent: Spending) -> str:
    """Dollars, as far as they are known."""
    if spent.cost_usd is None:
        return "cost unknown"
    unknown = f" and {spent.unpriced_calls:,} calls of unknown price" if spent.unpriced_calls else ""
    return f"${spent.cost_usd:.4f}{unknown}"


def from_here(path: Path) -> Path:
    """A path as a person in the current folder writes it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _gain(before: Evaluation, after: Evaluation) -> Text:
    if before.mean_score is None or after.mean_score is None:
        return Text("")
    gain = after.mean_score - before.mean_score
    return Text(f"{gain:+.3f}", "green" if gain > 0 else "dim" if gain == 0 else "red")


def _figure(value: float | None) -> str:
    return "unscored" if value is None else f"{value:.3f}"


def _share(value: float | None) -> str:
    return "none" if value is None else f"{value:.0%}"
