"""What an A/A run found, for people and for machines: noise, its floor, the gains that show, what a gain needs."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from promptiter.cli.exit_codes import CANCELLED, EXIT_CODES
from promptiter.cli.output import json_text, print_rows
from promptiter.evaluation.stats.noise import CaseScores, NoiseReport, RequiredSize
from promptiter.evaluation.stats.power import POWER
from promptiter.wording import dollars
from traces.model import Json
from traces.text import one_line

TIMES = (1, 2, 4)
"""The smallest gain is also told for so many times the cases."""

NAMED = 3
POINTS, WIDTH = 10, 32


def exit_code(report: NoiseReport, reach: RequiredSize | None) -> int:
    """What the command exits with; `reach` is that of a gain that was asked for."""
    if report.stop_reason is not None:
        return CANCELLED if report.stop_reason == "user_stop" else EXIT_CODES["budget_ended"]
    if report.problem is not None:
        return EXIT_CODES["invalid_eval"]
    return EXIT_CODES["underpowered"] if reach is not None and not reach.is_within else 0


def problem_of(report: NoiseReport) -> str | None:
    """What a person must know first: why it was cut short, and why nothing can be said."""
    if report.stop_reason is None:
        return report.problem
    ended = f"the budget has ended: raise {report.stop_reason}, or measure fewer repeats or cases"
    why = "stopped by you" if report.stop_reason == "user_stop" else ended
    return f"{why}; {report.problem or f'these are the {report.repeats} repeats that all cases have'}"


def print_noise(screen: Console, report: NoiseReport, reach: RequiredSize, *, is_simulated: bool) -> None:
    """In the order of the questions: how noisy is it, what shows through it, what would it take."""
    found, cases = report.evaluation, report.cases
    runs = [passed for case in cases for passed in case.passed]
    screen.print(
        Text.assemble(
            (one_line(found.eval_set_id), "bold"),
            f"  {_counted(len(cases), 'case')}, {report.repeats} repeats of each{' (simulated)' * is_simulated}: "
            f"{_means(report)}, {sum(runs) / len(runs):.0%} of the runs pass",
        )
    )
    screen.print()
    print_rows(screen, noise_rows(report))
    screen.print()
    if report.noise.variance:
        _print_curve(screen, report)
    print_rows(screen, _reach_rows(report, reach))


def print_wanted(screen: Console, report: NoiseReport, reach: RequiredSize) -> None:
    """One line: whether the wanted gain would show."""
    name, told = next(_reach_rows(report, reach))
    screen.print(Text.assemble((f"{name}  ", "bold"), told))


def noise_rows(report: NoiseReport) -> list[tuple[str, str]]:
    """The noise in words, for every command that measured it."""
    if report.problem is not None:
        return [("Run noise", f"unknown: {report.problem}")]
    settled, flipping = len(report.settled), len(report.flipping)
    unscored = sum(case.unscored for case in report.cases)
    rows = []
    if not report.noise.variance:
        rows.append(("Run noise", f"none in {report.repeats} repeats of each case: repeats are no evidence"))
    else:
        told = f"{settled} of {_counted(len(report.cases), 'case')} {'is' if settled == 1 else 'are'} settled"
        told += f", {flipping} flip{'s' * (flipping == 1)} between pass and fail"
        rows.append(("Run noise", f"{report.noise.std:.3f} standard deviation between repeats of a case; {told}"))
        rows.append(("Run noise", f"noisiest: {', '.join(map(_drawn, report.noisiest[:NAMED]))}"))
    if unscored:
        rows.append(("Run noise", f"{_counted(unscored, 'repeat')} could not be scored and counted as the worst"))
    if report.noise.variance:
        half = report.repeats_in_half
        rows.append(
            (
                "A/A",
                f"gain {report.gain:+.3f} of the last {_counted(half, 'repeat')} over the first, by the same profile",
            )
        )
        most = report.final_test_repeats
        floor = f"{report.floor():.3f} with the {most} repeats of a final test, {report.floor(half):.3f} with {half}"
        rows.append(("Noise floor", f"{floor}: a profile compared with itself exceeds it in 5%"))
    rows.append(("Smallest gain", _smallest(report)))
    return rows


def curve(report: NoiseReport) -> list[tuple[float, float]]:
    """Gains in even steps, from little to nearly sure, each with its power."""
    top = min(report.noise.room, 2 * (report.smallest_gain() or report.noise.room))
    if top <= 0:
        return []
    size = 10 ** math.floor(math.log10(top / POINTS))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor * POINTS >= top * (1 - 1e-9))
    gains = [round(step * number, 9) for number in range(1, POINTS + 1)]
    return [(gain, report.power(gain)) for gain in gains if gain <= top + 1e-9]


def as_plain(report: NoiseReport) -> dict[str, Json]:
    """The noise as plain data, for every command that measured it; without what cannot be said."""
    plain: dict[str, Json] = {
        "objective": report.objective,
        "cases": len(report.cases),
        "repeats": report.repeats,
        "problem": report.problem,
    }
    if report.problem is not None:
        return plain
    return plain | {
        "mean": report.noise.mean,
        "best": report.noise.best,
        "std": report.noise.std,
        "settled": [case.case_id for case in report.settled],
        "flipping": [case.case_id for case in report.flipping],
        "gain": report.gain,
        "noise_floor": report.floor(),
        "smallest_gain": [
            {"cases": times * len(report.cases), "gain": report.smallest_gain(times=times)} for times in TIMES
        ],
    }


def noise_as_json(report: NoiseReport, reach: RequiredSize | None, *, is_simulated: bool, code: int) -> str:
    """Everything, for machines; what differs from run to run stands under `measured`."""
    found, cost = report.evaluation, report.case_run_cost
    can_tell = report.problem is None
    document: dict[str, Json] = {
        "schema_version": 1,
        "eval_set_id": found.eval_set_id,
        "profile_digest": found.profile_digest,
        "mean_score": found.mean_score,
        "pass_rate": found.pass_rate,
        "weighted_loss": found.weighted_loss,
        "is_reliable": found.is_reliable,
        "is_simulated": is_simulated,
        "stop_reason": report.stop_reason,
        "noise": as_plain(report),
        "power": [{"gain": gain, "power": power} for gain, power in curve(report)] if can_tell else [],
        "wanted": _wanted(report, reach) if reach is not None else None,
        "collect_case_scores": [
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
    screen.print(Text("gain    chance that a claim shows it", "dim"))
    for gain, power in curve(report):
        filled = round(WIDTH * power)
        bar = Text.assemble(("━" * filled, "green" if power >= POWER else "yellow"), ("·" * (WIDTH - filled), "dim"))
        screen.print(Text.assemble(f"{gain:<6.3g}  ", bar, f"  {power:>4.0%}"))
    screen.print()


def _wanted(report: NoiseReport, reach: RequiredSize) -> dict[str, Json]:
    new = report.estimate_required_size(reach.gain, scope="new cases")
    return {
        "gain": reach.gain,
        "power": reach.power,
        "is_within_reach": reach.is_within,
        "cases_needed": reach.cases,
        "repeats_needed": reach.repeats,
        "case_runs": report.final_test_runs(),
        "case_runs_with_cases_needed": None if reach.cases is None else report.final_test_runs(cases=reach.cases),
        "case_runs_with_repeats_needed": (
            None if reach.repeats is None else report.final_test_runs(repeats=reach.repeats)
        ),
        "test_cases_needed_for_new_cases": new.cases,
    }


def _reach_rows(report: NoiseReport, reach: RequiredSize) -> Iterator[tuple[str, str]]:
    gain, count = f"{reach.gain:g}", len(report.cases)
    if reach.gain > report.noise.room:
        least = f"only {report.noise.room:.3g} is left to gain, so no number of such cases shows {gain}"
        yield "Wanted gain", f"{least}; add harder cases"
        return
    if not report.noise.variance:
        yield "Wanted gain", f"{gain} would be plain on these cases, as any difference is"
    elif reach.is_within:
        yield "Wanted gain", f"{gain} is within reach: a claim shows it with a chance of {reach.power:.0%}"
        yield "Wanted gain", f"the claim takes at most {_price(report, report.final_test_runs(cases=count))}"
    else:
        yield (
            "Wanted gain",
            f"{gain} is out of reach: underpowered, a claim shows it with a chance of {reach.power:.0%}",
        )
        ways = [*_ways(report, reach)] or ["more than any number of cases or repeats"]
        yield "Wanted gain", f"it takes {ways[0]}"
        yield from (("Wanted gain", f"or {way}") for way in ways[1:])
    yield "New cases", _new_cases(report, reach)


def _ways(report: NoiseReport, reach: RequiredSize) -> Iterator[str]:
    if reach.cases is not None:
        price = _price(report, report.final_test_runs(cases=reach.cases))
        yield f"{reach.cases:,} cases with {report.final_test_repeats} repeats: at most {price}"
    if reach.repeats is not None:
        runs = report.final_test_runs(repeats=reach.repeats)
        yield f"{reach.repeats:,} repeats of these cases: at most {_price(report, runs)}"


def _new_cases(report: NoiseReport, reach: RequiredSize) -> str:
    """Repeats say nothing of other cases: only test cases do, which the search never saw."""
    least = report.smallest_gain(scope="new cases")
    needed = report.estimate_required_size(reach.gain, scope="new cases").cases
    told = "no gain" if least is None else f"a gain of {least:.3f}"
    wanted = "no number of them shows" if needed is None else f"it takes {needed:,} to show"
    return f"{_counted(len(report.cases), 'test case')} like these would show {told}; {wanted} {reach.gain:g}"


def _smallest(report: NoiseReport) -> str:
    count = len(report.cases)
    if not report.noise.room:
        return "there is none to find: every repeat has the best score; add harder cases"
    if not report.noise.variance:
        return "any difference is plain on these cases; more cases are the way to a claim about new ones"
    found = [(times * count, report.smallest_gain(times=times)) for times in TIMES]
    told = [f"{'none' if gain is None else f'{gain:.3f}'} on {cases:,}" for cases, gain in found]
    return f"{told[0]} cases, {', '.join(told[1:])}: what a claim shows with {POWER:.0%} power"


def _price(report: NoiseReport, runs: int) -> str:
    cost = report.case_run_cost
    usd = "cost unknown" if cost.usd is None else dollars(cost.usd * runs)
    spent = f", about {float(f'{cost.tokens * runs:.3g}'):,.0f} tokens, {usd}" if cost.tokens else ""
    return f"{_counted(runs, 'case run')}{spent}"


def _means(report: NoiseReport) -> str:
    found = report.evaluation
    if report.objective == "weighted_loss" and found.weighted_loss is not None:
        return f"weighted loss {found.weighted_loss:.3f}"
    return "unscored" if found.mean_score is None else f"mean score {found.mean_score:.3f}"


def _drawn(case: CaseScores) -> str:
    return f"{case.case_id} ({' '.join(f'{abs(figure):.3g}' for figure in case.figures)})"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"
