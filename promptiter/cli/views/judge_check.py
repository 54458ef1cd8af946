"""How a judge compares with people, on a terminal and as JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from promptiter.cli.output import json_text, print_rows
from promptiter.evaluation.judge_check import JudgeCheck, PositionBias
from promptiter.evaluation.stats.agreement import IntervalEstimate
from promptiter.terminal import SafeConsole
from promptiter.wording import plural
from traces.text import one_line

WIDTH = 32
WIDE = 0.4
"""An interval wider than this says little."""


@contextmanager
def show_judging(total: int, title: str) -> Iterator[Callable[[], None]]:
    """Show a progress bar on a terminal: judgements done, and the time left."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=SafeConsole(stderr=True), transient=True, disable=not sys.stderr.isatty())
    task = bar.add_task(one_line(title), total=total)
    with bar:
        yield lambda: bar.advance(task)


def judge_check_as_json(check: JudgeCheck, *, is_simulated: bool) -> str:
    return json_text({"schema_version": 1, "is_simulated": is_simulated, "judge": check})


def print_judge_check(screen: Console, check: JudgeCheck, *, is_simulated: bool) -> None:
    """Agreement, noise and bias of a judge, each with its interval."""
    offline = " (offline model)" if is_simulated else ""
    unscored = f", {check.unscored} could not be judged" if check.unscored else ""
    answers = f"{plural(check.answers, 'labelled answer')}, each judged {check.judgements} times{unscored}"
    screen.print(Text.assemble((one_line(check.metric), "bold"), f"  {answers}{offline}"))
    screen.print()
    print_rows(screen, _list_rows(check))


def _list_rows(check: JudgeCheck) -> Iterator[tuple[str, str]]:
    if check.repeated_labels:
        yield "Labels", f"{plural(check.repeated_labels, 'row')} with the answer and label of another one left out"
    if check.contradicted:
        yield "Labels", f"{plural(check.contradicted, 'answer')} labelled in two ways: no judge can agree with both"
    name = "quadratically weighted kappa" if check.is_graded else "Cohen's kappa"
    if check.kappa is None:
        yield "Agreement", f"{name} is undefined: the judge and people always say the same one thing"
    else:
        yield "Agreement", f"{_draw(check.kappa)}  {name} {_format(check.kappa)}: {_rate(check.kappa)}"
    if check.is_graded:
        yield "Agreement", f"the scores differ from the labels by {1 - check.agreement:.3f} on average"
    else:
        yield (
            "Agreement",
            f"it gives the verdict of people on {check.agreement:.0%}; kappa leaves out what chance gives",
        )
    yield "Leniency", _describe_leniency(check)
    differing = f"{check.inconsistent} of {plural(check.answers, 'answer')}"
    noise = f"standard deviation {check.noise_std:.3f} between judgements of one answer"
    yield "Judge noise", f"{noise}; its verdict differs from judgement to judgement on {differing}"
    yield "Length bias", _describe_length_bias(check.length_bias)
    yield "Position bias", _describe_position_bias(check.position)


def _draw(kappa: IntervalEstimate) -> str:
    """The interval on a line from 0, agreement by chance, to 1."""
    low, value, high = (round(max(0.0, min(1.0, each)) * (WIDTH - 1)) for each in (kappa.low, kappa.value, kappa.high))
    return "0 " + "".join("●" if at == value else "━" if low <= at <= high else "·" for at in range(WIDTH)) + " 1"


def _rate(kappa: IntervalEstimate) -> str:
    """The common words of Landis and Koch (1977), for the estimate and for the lower end of its interval."""
    value, low = _name_kappa(kappa.value), _name_kappa(kappa.low)
    more = "; label more answers to narrow the interval" if kappa.high - kappa.low > WIDE else ""
    return f"{value}{'' if value == low else f', at the lower end {low}'}{more}"


def _name_kappa(kappa: float) -> str:
    words = ((0.8, "almost perfect"), (0.6, "substantial"), (0.4, "moderate"), (0.2, "fair"), (0.0, "slight"))
    return next((word for least, word in words if kappa > least), "no better than chance")


def _describe_leniency(check: JudgeCheck) -> str:
    more = check.leniency
    if not more.excludes_zero:
        return f"no more lenient or strict than people, as far as these labels show: {_format(more)}"
    if check.is_graded:
        return f"it scores {'higher' if more.value > 0 else 'lower'} than people: {_format(more)}"
    return f"it passes {'more' if more.value > 0 else 'fewer'} answers than people: {_format(more)}"


def _describe_length_bias(bias: IntervalEstimate | None) -> str:
    if bias is None:
        return "none: its errors do not vary, or all answers are equally long"
    shown = f"rank correlation of its error with the length of the answer {_format(bias)}"
    if not bias.excludes_zero:
        return f"not shown; {shown}"
    return f"it favours {'long' if bias.value > 0 else 'short'} answers; {shown}"


def _describe_position_bias(position: PositionBias | None) -> str:
    if position is None:
        return "does not apply: the judge is shown one text and one rubric at most"
    noise = f"; {position.changed:.0%} of its verdicts differ, {position.changed_by_noise:.0%} by its noise alone"
    shift = f"in the other order of what it is shown, its score changes by {_format(position.shift)}{noise}"
    return f"it depends on the order; {shift}" if position.is_shown else f"not shown; {shift}"


def _format(estimate: IntervalEstimate) -> str:
    return f"{estimate.value:.2f} ({estimate.low:.2f} to {estimate.high:.2f})"
