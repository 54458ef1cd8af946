"""The result of `promptiter try` on a terminal and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from promptiter.cli.exit_codes import EXIT_CODES, FAILED, choose_stop_code
from promptiter.cli.output import json_text, print_heading, print_indented
from promptiter.cli.views.costs import describe_uncertain_costs, spending_line
from promptiter.cli.views.diff import diff_table
from promptiter.config.edit_trial import EditTrial, RecordedRuns
from promptiter.engine.comparison_result import CaseChange, ProfileComparison
from promptiter.evaluation.result import Objective
from promptiter.evaluation.stats.paired_difference import ComparisonAnswer
from promptiter.llm.models import any_simulated
from promptiter.policies.paired_runs import describe_failed_runs
from promptiter.runs.summary import summarize_costs
from promptiter.wording import dollars, format_score, join_names, path_from_here, plural
from traces.model import Json
from traces.text import cut, one_line

MAX_CASES = 5
"""Maximum number of changed cases that are shown in each direction."""

MAX_ANSWER = 200

MAX_NAMES = 5

_NOT_RECORDED = "the agent made no call through promptiter: there is nothing to record, and each try runs everything"

_HEADLINES: Mapping[ComparisonAnswer, tuple[str, str, str]] = {
    "improved": ("✓", "green", "Improved"),
    "worse": ("✗", "red", "Worse"),
    "within_noise": ("·", "yellow", "Within noise"),
    "undecided": ("·", "yellow", "Undecided"),
}


def choose_exit_code(found: ProfileComparison, wanted_gain: float) -> int:
    """0 improved, 1 worse, 3 within noise, 4 if these cases could not have shown the wanted gain."""
    if found.stop_reason is not None:
        return choose_stop_code(found.stop_reason)
    if found.problem is not None or found.answer == "undecided":
        return EXIT_CODES["invalid_eval"]
    if found.answer == "within_noise":
        return EXIT_CODES["underpowered" if _is_underpowered(found, wanted_gain) else "no_evidence"]
    return FAILED if found.answer == "worse" else 0


def choose_record_code(runs: RecordedRuns) -> int:
    """0, or why the recording ended early or cannot be relied on."""
    if runs.stop_reason is not None:
        return choose_stop_code(runs.stop_reason)
    return 0 if runs.evaluation.is_reliable else EXIT_CODES["invalid_eval"]


def print_recorded(screen: Console, trial: EditTrial, runs: RecordedRuns) -> None:
    """Print what was recorded, and what to do next."""
    found = runs.evaluation
    cases, mean = plural(len(trial.built.cases.cases), "case"), format_score(found.objective(trial.config.objective))
    what = Text.assemble(("Recorded the baseline", "bold"), f": {plural(len(found.rows), 'run')} of {cases}")
    screen.print(what.append(f", {_name(trial.config.objective)} {mean}"))
    print_indented(screen, Text(spending_line(summarize_costs(runs.ledger)), "dim"))
    if runs.stop_reason is not None:
        print_indented(
            screen, Text(f"stopped early ({runs.stop_reason}); the next `promptiter try` makes the other runs")
        )
        return
    if not runs.ledger.total.calls and not runs.ledger.total.cache_hits:
        print_indented(screen, Text(_NOT_RECORDED))
    print_indented(screen, Text("Now edit a prompt and run `promptiter try` again, or pass --set or --edit."))


def print_comparison(screen: Console, trial: EditTrial, found: ProfileComparison, *, wanted_gain: float) -> None:
    """Print what was edited, the answer, the cases that changed, and what it took."""
    for change in found.differences:
        screen.print(Text(one_line(change.surface_id), "cyan"))
        screen.print(Padding(diff_table(change.before, change.after), (0, 0, 0, 2), expand=False))
    screen.print()
    print_line(screen, found)
    for line in describe_evidence(trial, found, wanted_gain=wanted_gain):
        print_indented(screen, Text(one_line(line)))
    better = sorted((case for case in found.changed_cases if case.change > 0), key=lambda each: -each.change)
    worse = [case for case in found.changed_cases if case.change < 0]
    for name, cases in (("Better", better), ("Worse", worse)):
        if cases:
            _print_cases(screen, f"{name}: {plural(len(cases), 'case')}", cases)
    screen.print()
    for line in describe_spending(found):
        screen.print(Text(one_line(line), "dim"))
    screen.print(Text(f"profile: {path_from_here(trial.profile_file)}", "dim"), soft_wrap=True)


def print_line(screen: Console, found: ProfileComparison) -> None:
    """Print the answer on one line."""
    mark, style, what = _HEADLINES[found.answer]
    count = len(found.before.rows_by_case)
    cases = "on one case" if count == 1 else f"on these {count:,} cases"
    before, after = (_format(each.objective(found.objective), found.objective) for each in (found.before, found.after))
    figures = f": {_name(found.objective)} {before} → {after}" if found.before.rows else ""
    screen.print(Text.assemble((f"{mark} {what} {cases}", f"bold {style}"), f"{figures}; {found.reason}"))


def describe_evidence(trial: EditTrial, found: ProfileComparison, *, wanted_gain: float) -> Iterator[str]:
    """What the answer rests on, and what it does not say, as sentences."""
    runs = found.runs
    if runs.cases:
        reached = runs.cases - runs.unreached
        same = "; the others had the same answers" if runs.unreached and not found.unexplained else ""
        read = plural(len(found.surface_ids), "edited text")
        yield f"{reached} of {plural(runs.cases, 'case')} read the {read.removeprefix('1 ')}{same}"
    if found.stop_reason is not None:
        yield f"stopped early: {found.stop_reason}"
    if found.answer == "within_noise":
        yield _describe_power(found, wanted_gain)
    if found.unexplained:
        names = join_names(found.unexplained, limit=MAX_NAMES)
        yield (
            f"{plural(len(found.unexplained), 'case')} differed without reading the edit ({names}): the agent depends "
            "on something that is not recorded, such as the time"
        )
    yield from describe_failed_runs(found.runs, before="the baseline", after="the edit")
    yield _count_tries(trial, found)
    if trial.is_old:
        yield (
            f"the baseline was recorded at {trial.recorded.recorded_at}; a model that has changed since looks like "
            "a difference: record again with --record if in doubt"
        )
    if changed := trial.recorded.find_structure_changes(trial.snapshot):
        yield f"surfaces were added or removed since the recording: {join_names(changed, limit=MAX_NAMES)}"
    if found.answer in ("improved", "worse"):
        yield "other cases were not tested"


def describe_spending(found: ProfileComparison) -> Iterator[str]:
    """What the comparison took, and what the recorded answers saved."""
    costs = summarize_costs(found.ledger)
    yield spending_line(costs)
    saved, whole = found.saved, found.saved.calls + found.spent.calls
    if saved.calls:
        usd = "" if not saved.cost_usd else f", {dollars(saved.cost_usd)}"
        yield (
            f"{found.spent.calls:,} of {whole:,} calls were paid; recorded answers saved {saved.calls:,} calls, "
            f"{saved.tokens:,} tokens{usd}"
        )
    elif found.before.rows and not found.spent.calls:
        yield _NOT_RECORDED
    yield from describe_uncertain_costs(costs)


def comparison_as_json(trial: EditTrial, found: ProfileComparison, *, wanted_gain: float, code: int) -> str:
    """The whole comparison; what differs from run to run is under `measured`."""
    document: dict[str, Json] = {
        "schema_version": 1,
        "answer": found.answer,
        "scope": "these cases",
        "reason": found.reason,
        "objective": found.objective,
        "before": found.before.objective(found.objective),
        "after": found.after.objective(found.objective),
        "gain": found.gain,
        "interval": found.interval,
        "alpha": found.alpha,
        "p_value": found.p_value,
        "repeats": found.repeats,
        "cases": found.runs.cases,
        "cases_reached": found.runs.cases - found.runs.unreached,
        "smallest_gain": found.smallest_gain,
        "evidence": list(describe_evidence(trial, found, wanted_gain=wanted_gain)),
        "edits": list(found.differences),
        "changed_cases": found.changed_cases,
        "edits_tried": len(trial.recorded.tried),
        "recorded_at": trial.recorded.recorded_at,
        "stop_reason": found.stop_reason,
        "problem": found.problem,
        "is_simulated": any_simulated(found.ledger.by_model()),
        "measured": {"spent": found.spent, "saved": found.saved, "ledger": found.ledger},
        "exit_code": code,
    }
    return json_text(document)


def recorded_as_json(trial: EditTrial, runs: RecordedRuns, *, code: int) -> str:
    """What was recorded, as JSON."""
    found = runs.evaluation
    document: dict[str, Json] = {
        "schema_version": 1,
        "answer": "recorded",
        "objective": trial.config.objective,
        "before": found.objective(trial.config.objective),
        "cases": len(trial.built.cases.cases),
        "runs": len(found.rows),
        "recorded_at": trial.recorded.recorded_at,
        "stop_reason": runs.stop_reason,
        "measured": {"spent": runs.ledger.of_models, "ledger": runs.ledger},
        "exit_code": code,
    }
    return json_text(document)


def _print_cases(screen: Console, title: str, cases: Sequence[CaseChange]) -> None:
    print_heading(screen, title)
    for case in cases[:MAX_CASES]:
        scores = f"{abs(case.before):.3f} → {abs(case.after):.3f}"
        print_indented(screen, Text.assemble((one_line(case.case_id), "bold"), f"  {scores}"))
        for name, answer in (("before", case.before_output), ("after", case.after_output)):
            if answer:
                print_indented(screen, Text(f"{name:7} {cut(one_line(answer), MAX_ANSWER)}", "dim"), by=4)
    if len(cases) > MAX_CASES:
        print_indented(screen, Text(f"… {len(cases) - MAX_CASES} more; --json lists all", "dim"))


def _describe_power(found: ProfileComparison, wanted_gain: float) -> str:
    smallest = found.smallest_gain
    if smallest is None:
        return "these cases are too few or too noisy to show any gain; add cases, or see `promptiter noise`"
    if not smallest:
        return "every case scored the same in each repeat, or there is nothing left to gain"
    could = f"a gain of {smallest:.2f} or more would probably have been shown"
    return f"{could}; {wanted_gain:g} needs more cases" if _is_underpowered(found, wanted_gain) else could


def _is_underpowered(found: ProfileComparison, wanted_gain: float) -> bool:
    return found.smallest_gain is None or found.smallest_gain > wanted_gain


def _count_tries(trial: EditTrial, found: ProfileComparison) -> str:
    count = len(trial.recorded.tried)
    if count < 2:
        return "the first edit that was tried against this recording"
    chance = min(1.0, count * found.alpha)
    return (
        f"{count} edits were tried against this recording: if none of them had an effect, the chance that one looks "
        f"different is up to {chance:.0%}; --record starts again"
    )


def _format(value: float | None, objective: Objective) -> str:
    return format_score(None if value is None else abs(value) if objective == "weighted_loss" else value)


def _name(objective: Objective) -> str:
    return objective.replace("_", " ")
