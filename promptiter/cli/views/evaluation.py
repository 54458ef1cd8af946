"""Evaluations on a terminal, as JSON, and as JUnit XML."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import orjson
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from promptiter.agents.base import Agent, ExternalAgent
from promptiter.cli.junit import JUnitTest, suite_as_junit
from promptiter.cli.output import echo, json_text, new_table
from promptiter.cli.views.run import hanging_indent
from promptiter.engine.model_checks import find_uncounted_calls
from promptiter.evaluation.data.case import EvalCase, EvalSet
from promptiter.evaluation.failure_details import describe_failures
from promptiter.evaluation.result import CaseResult, CaseRow, Evaluation
from promptiter.llm.gateway import Gateway
from promptiter.llm.models import any_simulated
from promptiter.runs.cost_wording import describe_unknown_prices, spending_line
from promptiter.runs.summary import summarize_costs
from promptiter.terminal import SafeConsole
from promptiter.wording import format_score, join_names, plural
from traces.text import cut_at_word, one_line

MAX_FAILURES = 10


@contextmanager
def show_progress(total: int, title: str) -> Iterator[Callable[[CaseRow], None]]:
    """Show a progress bar on a terminal: cases done, the mean so far, the time left."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[mean]}"))
    bar = Progress(*columns, TimeRemainingColumn(), console=SafeConsole(stderr=True), transient=True)
    bar.disable = not sys.stderr.isatty()
    task = bar.add_task(one_line(title), total=total, mean="")
    total_value, scored = 0.0, 0

    def on_row(row: CaseRow) -> None:
        nonlocal total_value, scored
        values = [score.value for score in row.scores if score.value is not None]
        total_value, scored = total_value + sum(values), scored + len(values)
        bar.update(task, advance=1, mean=f"mean {total_value / scored:.3f}" if scored else "")

    with bar:
        yield on_row


def warn_of_uncounted_calls(evaluation: Evaluation, gateway: Gateway) -> None:
    """Print a warning to standard error if there is a budget that does not limit the agent."""
    if warning := find_uncounted_calls(evaluation, gateway):
        echo(f"warning: {warning}", err=True)


def show_notes(agent: Agent) -> None:
    """Print to standard error what a user should know about how the cases of an agent are run."""
    for note in agent.notes if isinstance(agent, ExternalAgent) else ():
        echo(f"note: {note}", color="yellow", err=True)


def reaches_thresholds(evaluation: Evaluation) -> bool:
    """Whether the mean of every metric is at or above its threshold."""
    means = evaluation.metric_means
    return all((mean := means[name]) is not None and mean >= limit for name, limit in evaluation.thresholds.items())


def print_evaluation(screen: Console, evaluation: Evaluation, cases: EvalSet, gateway: Gateway) -> None:
    """Print the figures, and the cases that did not pass, with the reasons."""
    passed = sum(case.passed for case in evaluation.cases)
    screen.print(
        Text.assemble(
            (one_line(evaluation.eval_set_id), "bold"),
            f"  {passed} of {len(evaluation.cases)} cases pass ({_share(evaluation.pass_rate)}), mean score ",
            (format_score(evaluation.mean_score), "bold"),
        )
    )
    costs = summarize_costs(gateway.ledger.snapshot())
    for line in (
        f"{plural(len(evaluation.rows), 'run')}, {spending_line(costs)}",
        *describe_unknown_prices(costs.unpriced),
    ):
        screen.print(Text(line, "dim"))
    if not evaluation.is_reliable:
        text = f"unreliable: {_share(evaluation.errored_fraction)} of the runs or scores failed"
        screen.print(Text(text, "bold red"))
    table = new_table("metric", ">mean", ">threshold")
    for name, mean in evaluation.metric_means.items():
        is_good = mean is not None and mean >= evaluation.thresholds[name]
        table.add_row(
            Text(one_line(name)),
            Text(format_score(mean), "green" if is_good else "red"),
            f"{evaluation.thresholds[name]:g}",
        )
    screen.print()
    screen.print(table)
    _print_failures(screen, evaluation, cases)


def print_unread(screen: Console, surface_ids: Sequence[str]) -> None:
    """Print the surfaces that no run has read, if there are any."""
    if surface_ids:
        text = f"Never read: {join_names(surface_ids, limit=12)}; a patch there cannot change anything"
        screen.print()
        screen.print(Text(one_line(text), "yellow"))


def evaluation_as_json(evaluation: Evaluation, gateway: Gateway) -> str:
    """The whole evaluation; what differs from run to run is under `measured`."""
    document = {
        "schema_version": 1,
        "eval_set_id": evaluation.eval_set_id,
        "profile_digest": evaluation.profile_digest,
        "mean_score": evaluation.mean_score,
        "pass_rate": evaluation.pass_rate,
        "weighted_loss": evaluation.weighted_loss,
        "metrics": {
            name: {"mean": mean, "threshold": evaluation.thresholds[name]}
            for name, mean in evaluation.metric_means.items()
        },
        "errored_fraction": evaluation.errored_fraction,
        "is_reliable": evaluation.is_reliable,
        "is_simulated": any_simulated(gateway.ledger.snapshot().by_model()),
        "usage": evaluation.usage,
        "rows": evaluation.rows,
        "measured": {"ledger": gateway.ledger.snapshot()},
    }
    return json_text(document)


def evaluation_as_junit(evaluation: Evaluation, cases: EvalSet) -> str:
    """A JUnit test suite with one test per case; the message of a failure is JSON with all details."""
    by_id = {case.id: case for case in cases.cases}
    return suite_as_junit(
        evaluation.eval_set_id,
        [_build_test(case, by_id[case.case_id], evaluation.rows_by_case[case.case_id]) for case in evaluation.cases],
    )


def _build_test(result: CaseResult, case: EvalCase, rows: Sequence[CaseRow]) -> JUnitTest:
    details = describe_failures(case, rows)
    return JUnitTest(
        name=result.case_id,
        seconds=sum(row.measured.duration_s for row in rows),
        message=None if result.passed else orjson.dumps(details, option=orjson.OPT_INDENT_2).decode(),
        kind="failure" if result.is_scored else "error",
    )


def _print_failures(screen: Console, evaluation: Evaluation, cases: EvalSet) -> None:
    by_id = {case.id: case for case in cases.cases}
    failing = {case.case_id for case in evaluation.cases if not case.passed}
    if not failing:
        return
    screen.print()
    shown = [row for row in evaluation.rows if row.case_id in failing and any(not score.passed for score in row.scores)]
    for row in shown[:MAX_FAILURES]:
        question = " / ".join(turn.user for turn in by_id[row.case_id].turns)
        asked = Text.assemble((one_line(row.case_id), "bold"), f"  {cut_at_word(one_line(question), 100)}")
        screen.print(hanging_indent(Text("✗", "bold red"), asked))
        if row.error:
            _print_detail(screen, "failed:", cut_at_word(one_line(str(row.error)), 300), "red")
            continue
        _print_detail(screen, "answer ", cut_at_word(one_line(row.output), 200), "dim")
        for score in row.scores:
            if not score.passed:
                label = f"{one_line(score.metric)} {format_score(score.value)}:"
                _print_detail(screen, label, cut_at_word(one_line(score.error or score.reason), 300), "red")
    if len(shown) > MAX_FAILURES:
        screen.print(Text(f"… {len(shown) - MAX_FAILURES} more; --json and --junit list all", "dim"))


def _print_detail(screen: Console, label: str, text: str, style: str) -> None:
    """Print a label and a text, whose wrapped lines begin below its first word."""
    screen.print(Padding(hanging_indent(Text(label, style), Text(text, style)), (0, 0, 0, 2), expand=False))


def _share(value: float | None) -> str:
    return "none" if value is None else f"{value:.0%}"
