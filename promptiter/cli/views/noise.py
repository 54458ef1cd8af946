"""A noise report, for people and for machines: the noise, the gains that can be detected, and what a gain needs."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from promptiter.cli.exit_codes import EXIT_CODES, choose_stop_code
from promptiter.cli.output import json_text, print_rows
from promptiter.cli.views.headroom import headroom_as_plain, headroom_rows, print_metrics
from promptiter.evaluation.stats.noise import CaseScores, NoiseReport, RequiredSize
from promptiter.evaluation.stats.power import POWER
from promptiter.wording import dollars, plural
from traces.model import Json
from traces.text import one_line

TIMES = (1, 2, 4)
"""Multiples of the number of cases for which the smallest detectable gain is shown."""

MAX_NAMED = 3
POINTS, WIDTH = 10, 32


def choose_exit_code(report: NoiseReport, required: RequiredSize | None) -> int:
    """The exit code of the command; `required` is None unless the user asked for a gain."""
    if report.stop_reason is not None:
        return choose_stop_code(report.stop_reason)
    if report.problem is not None:
        return EXIT_CODES["invalid_eval"]
    if required is None or required.is_within:
        return 0
    is_unknown = report.bound is not None and required.gain <= report.noise.room
    return 0 if is_unknown else EXIT_CODES["underpowered"]


def describe_problem(report: NoiseReport) -> str | None:
    """Why the measurement ended early, and why it says nothing; None if neither applies."""
    if report.stop_reason is None:
        return report.problem
    ended = f"the budget is spent: raise {report.stop_reason}, or measure fewer repeats or cases"
    why = "stopped on request" if report.stop_reason == "user_stop" else ended
    return f"{why}; {report.problem or f'reporting the {report.repeats} repeats that all cases have'}"


def print_noise(screen: Console, report: NoiseReport, required: RequiredSize, *, is_simulated: bool) -> None:
    """The noise, the gains that can be detected, and what the wanted gain needs."""
    evaluation, cases = report.evaluation, report.cases
    runs = [passed for case in cases for passed in case.passed]
    offline = " (offline model)" if is_simulated else ""
    screen.print(
        Text.assemble(
            (one_line(evaluation.eval_set_id), "bold"),
            f"  {plural(len(cases), 'case')}, {report.repeats} repeats of each{offline}: "
            f"{_mean(report)}, {sum(runs) / len(runs):.0%} of the runs pass",
        )
    )
    screen.print()
    print_metrics(screen, report)
    screen.print()
    print_rows(screen, [*headroom_rows(report), *noise_rows(report)])
    screen.print()
    if report.noise.variance:
        _print_curve(screen, report)
    print_rows(screen, _required_rows(report, required))


def print_wanted(screen: Console, report: NoiseReport, required: RequiredSize) -> None:
    """One line: whether the wanted gain could be detected."""
    name, text = next(_required_rows(report, required))
    screen.print(Text.assemble((f"{name}  ", "bold"), text))


def noise_rows(report: NoiseReport) -> list[tuple[str, str]]:
    """The noise as labelled rows, for every command that measures it."""
    if report.problem is not None:
        return [("Run noise", f"unknown: {report.problem}")]
    unscored = sum(case.unscored for case in report.cases)
    rows = [("Run noise", text) for text in _describe_noise(report)]
    if unscored:
        rows.append(("Run noise", f"{plural(unscored, 'repeat')} could not be scored and got the worst score"))
    if report.noise.variance:
        half, most = report.repeats_in_half, report.final_test_repeats
        halves = "the last repeat over the first" if half == 1 else f"the last {half} repeats over the first {half}"
        rows.append(("A/A", f"the same profile gained {report.gain:+.3f} in {halves}"))
        floor = f"{report.floor():.3f} with the {most} repeats of a final test, {report.floor(half):.3f} with {half}"
        rows.append(("Noise floor", f"{floor}; the same profile exceeds it by chance in 5% of comparisons"))
    rows.append(("Smallest gain", _describe_smallest_gain(report)))
    return rows


def _describe_noise(report: NoiseReport) -> Iterator[str]:
    if report.bound is not None:
        known = "and noise shows in between" if report.bound == "either" else "which says nothing about noise"
        advice = {"floor": "add easier cases", "ceiling": "add harder cases", "either": "add cases in between"}
        yield f"unknown: {_describe_bound(report)}, {known}; {advice[report.bound]}, and measure again"
        return
    if not report.noise.variance:
        runs = len(report.cases) * report.repeats
        seen = f"every case scored the same in all {report.repeats} repeats"
        yield f"none seen: {seen}; what happens in fewer than about 3 of {plural(runs, 'run')} may not have been seen"
        return
    settled, flipping = len(report.settled), len(report.flipping)
    yield (
        f"standard deviation {report.noise.std:.3f} between repeats of a case; {settled} of "
        f"{plural(len(report.cases), 'case')} scored the same in every repeat, {flipping} flipped between pass and fail"
    )
    if (share := report.split.judge_share) is not None:
        yield f"the agent's share of the variance is {1 - share:.0%}, the judge's {share:.0%}"
    yield f"noisiest: {', '.join(map(_list_scores, report.noisiest[:MAX_NAMED]))}"


def _describe_bound(report: NoiseReport) -> str:
    if report.bound == "either":
        return f"each score of each case is either the worst or the best one in all {report.repeats} repeats"
    return f"every case has the {'worst' if report.bound == 'floor' else 'best'} score in all {report.repeats} repeats"


def compute_curve(report: NoiseReport) -> list[tuple[float, float]]:
    """Gains in even steps, from small to almost certain, each with its power."""
    top = min(report.noise.room, 2 * (report.smallest_gain() or report.noise.room))
    if top <= 0:
        return []
    size = 10 ** math.floor(math.log10(top / POINTS))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor * POINTS >= top * (1 - 1e-9))
    gains = [round(step * number, 9) for number in range(1, POINTS + 1)]
    return [(gain, report.power(gain)) for gain in gains if gain <= top + 1e-9]


def noise_as_plain(report: NoiseReport) -> dict[str, Json]:
    """The noise as plain data, for every command that measures it."""
    plain: dict[str, Json] = {
        "objective": report.objective,
        "cases": len(report.cases),
        "repeats": report.repeats,
        "judge_repeats": len(report.judgements),
        "metrics": report.metrics,
        "problem": report.problem,
    }
    if report.problem is not None:
        return plain
    return plain | {
        "mean": report.noise.mean,
        "best": report.noise.best,
        "std": None if report.bound else report.noise.std,
        "bound": report.bound,
        "agent_variance": report.split.agent_variance,
        "judge_variance": report.split.judge_variance,
        "settled": [case.case_id for case in report.settled],
        "flipping": [case.case_id for case in report.flipping],
        "gain": report.gain,
        "noise_floor": None if report.bound else report.floor(),
        "smallest_gain": [
            {"cases": times * len(report.cases), "gain": report.smallest_gain(times=times)}
            for times in (() if report.bound else TIMES)
        ],
        "headroom": headroom_as_plain(report),
    }


def noise_as_json(report: NoiseReport, required: RequiredSize | None, *, is_simulated: bool, code: int) -> str:
    """The whole report; what differs from run to run is under `measured`."""
    evaluation, cost = report.evaluation, report.case_run_cost
    can_tell = report.problem is None and report.bound is None
    document: dict[str, Json] = {
        "schema_version": 1,
        "eval_set_id": evaluation.eval_set_id,
        "profile_digest": evaluation.profile_digest,
        "mean_score": evaluation.mean_score,
        "pass_rate": evaluation.pass_rate,
        "weighted_loss": evaluation.weighted_loss,
        "is_reliable": evaluation.is_reliable,
        "is_simulated": is_simulated,
        "stop_reason": report.stop_reason,
        "noise": noise_as_plain(report),
        "power": [{"gain": gain, "power": power} for gain, power in compute_curve(report)] if can_tell else [],
        "wanted": _wanted_as_plain(report, required) if required is not None and can_tell else None,
        "case_scores": [
            {"case_id": case.case_id, "figures": list(case.figures), "unscored": case.unscored, "std": case.std}
            for case in report.cases
        ],
        "measured": {
            "paid_runs": report.paid_runs,
            "spent": report.spent,
            "tokens_per_case_run": cost.tokens,
            "usd_per_case_run": cost.usd,
        },
        "exit_code": code,
    }
    return json_text(document)


def _print_curve(screen: Console, report: NoiseReport) -> None:
    screen.print(Text("gain    probability that the final test detects it", "dim"))
    for gain, power in compute_curve(report):
        filled = round(WIDTH * power)
        bar = Text.assemble(("━" * filled, "green" if power >= POWER else "yellow"), ("·" * (WIDTH - filled), "dim"))
        screen.print(Text.assemble(f"{gain:<6.3g}  ", bar, f"  {power:>4.0%}"))
    screen.print()


def _wanted_as_plain(report: NoiseReport, required: RequiredSize) -> dict[str, Json]:
    new = report.estimate_required_size(required.gain, scope="new cases")
    return {
        "gain": required.gain,
        "power": required.power,
        "is_within_reach": required.is_within,
        "cases_needed": required.cases,
        "repeats_needed": required.repeats,
        "case_runs": report.final_test_runs(),
        "case_runs_with_cases_needed": None if required.cases is None else report.final_test_runs(cases=required.cases),
        "case_runs_with_repeats_needed": (
            None if required.repeats is None else report.final_test_runs(repeats=required.repeats)
        ),
        "test_cases_needed_for_new_cases": new.cases,
    }


def _required_rows(report: NoiseReport, required: RequiredSize) -> Iterator[tuple[str, str]]:
    gain = f"{required.gain:g}"
    if required.gain > report.noise.room:
        why = f"{gain} is impossible: these cases leave room for a gain of {report.noise.room:.3g}"
        yield "Wanted gain", f"{why}; add harder cases"
        return
    if report.bound is not None:
        yield "Wanted gain", f"whether {gain} can be detected is unknown: {_describe_bound(report)}"
        return
    if required.is_within:
        yield (
            "Wanted gain",
            f"{gain} can be detected: the final test shows it with probability {required.power:.0%}",
        )
        yield "Wanted gain", f"the final test takes at most {_estimate_cost(report, report.final_test_runs())}"
    else:
        yield (
            "Wanted gain",
            f"{gain} is underpowered: the final test shows it with probability {required.power:.0%}",
        )
        ways = [*_list_ways(report, required)] or ["more than any number of cases or repeats"]
        yield "Wanted gain", f"it needs {ways[0]}"
        yield from (("Wanted gain", f"or {way}") for way in ways[1:])
    yield "New cases", _describe_new_cases(report, required)


def _list_ways(report: NoiseReport, required: RequiredSize) -> Iterator[str]:
    if required.cases is not None:
        cost = _estimate_cost(report, report.final_test_runs(cases=required.cases))
        yield f"{required.cases:,} cases with {_describe_repeats(report, cases=required.cases)}: at most {cost}"
    if required.repeats is not None:
        cost = _estimate_cost(report, report.final_test_runs(repeats=required.repeats))
        key = f"final_test.repeats: {required.repeats * report.blocks[0].repeats // report.final_test_repeats}"
        yield f"{_describe_repeats(report, repeats=required.repeats)} of these cases ({key}): at most {cost}"


def _describe_repeats(report: NoiseReport, *, cases: int | None = None, repeats: int | None = None) -> str:
    """`6 repeats`, or `6 to 16 repeats` if a promising test has an extra block."""
    least, most = repeats or report.final_test_repeats, report.most_repeats(cases=cases, repeats=repeats)
    return plural(least, "repeat") if least == most else f"{least:,} to {most:,} repeats"


def _describe_new_cases(report: NoiseReport, required: RequiredSize) -> str:
    """Repeats say nothing about other cases; only a test set does, which the search never sees."""
    smallest = report.smallest_gain(scope="new cases")
    needed = report.estimate_required_size(required.gain, scope="new cases").cases
    shown = "no gain" if smallest is None else f"a gain of {smallest:.3f}"
    wanted = (
        f"no number of cases shows {required.gain:g}" if needed is None else f"{required.gain:g} needs {needed:,} cases"
    )
    return f"a test set of {plural(len(report.cases), 'case')} like these shows {shown}; {wanted}"


def _describe_smallest_gain(report: NoiseReport) -> str:
    if report.bound == "ceiling":
        return "none: every repeat already has the best score; add harder cases"
    if report.bound is not None:
        return "unknown, as the noise is"
    gains = [(times * len(report.cases), report.smallest_gain(times=times)) for times in TIMES]
    texts = [f"{'none' if gain is None else f'{gain:.3f}'} on {cases:,}" for cases, gain in gains]
    return f"{texts[0]} cases, {', '.join(texts[1:])}: detected by the final test with {POWER:.0%} power"


def _estimate_cost(report: NoiseReport, runs: int) -> str:
    cost = report.case_run_cost
    tokens = "tokens unknown" if cost.tokens is None else f"about {float(f'{cost.tokens * runs:.3g}'):,.0f} tokens"
    usd = "cost unknown" if cost.usd is None else dollars(cost.usd * runs)
    spent = "" if cost.tokens == 0 else f", {tokens}, {usd}"
    return f"{plural(runs, 'case run')}{spent}"


def _mean(report: NoiseReport) -> str:
    evaluation = report.evaluation
    if report.objective == "weighted_loss" and evaluation.weighted_loss is not None:
        return f"weighted loss {evaluation.weighted_loss:.3f}"
    return "unscored" if evaluation.mean_score is None else f"mean score {evaluation.mean_score:.3f}"


def _list_scores(case: CaseScores) -> str:
    return f"{case.case_id} ({' '.join(f'{abs(figure):.3g}' for figure in case.figures)})"
