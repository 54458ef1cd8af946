"""The result of `promptiter try` on a terminal and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from promptiter.cli.exit_codes import EXIT_CODES, FAILED, choose_stop_code
from promptiter.cli.output import json_text, print_heading, print_indented
from promptiter.cli.views.diff import diff_table
from promptiter.config.edit_trial import EditTrial, RecordedRuns
from promptiter.engine.comparison_result import CaseChange, ProfileComparison
from promptiter.evaluation.result import Objective
from promptiter.evaluation.stats.final_test import plan_blocks
from promptiter.evaluation.stats.paired_difference import ComparisonAnswer
from promptiter.llm.models import any_simulated
from promptiter.policies.paired_runs import describe_failed_runs
from promptiter.runs.cost_wording import describe_uncertain_costs, describe_unknown_prices, spending_line
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
    cases, mean = plural(len(trial.built.cases.cases), "case"), found.objective(trial.config.objective)
    figure = "none could be scored" if mean is None else f"{_name(trial.config.objective)} {format_score(mean)}"
    what = Text.assemble(("Recorded the baseline", "bold"), f": {plural(len(found.rows), 'run')} of {cases}")
    screen.print(what.append(f", {figure}"))
    print_indented(screen, Text(spending_line(summarize_costs(runs.ledger)), "dim"))
    if runs.stop_reason is not None:
        stopped = _describe_stop(runs.stop_reason)
        print_indented(screen, Text(f"{stopped}; the next `promptiter try` makes the other runs"))
        return
    print_indented(screen, Text(_describe_repeats(trial, runs)))
    if not runs.ledger.total.calls and not runs.ledger.total.cache_hits:
        print_indented(screen, Text(_NOT_RECORDED))
    print_indented(screen, Text("Now edit a prompt and run `promptiter try` again, or pass --set or --edit."))


def print_comparison(screen: Console, trial: EditTrial, found: ProfileComparison, *, wanted_gain: float) -> None:
    """Print what was edited, the answer, the cases that changed, and what it took."""
    for change in found.differences:
        screen.print(Text(one_line(change.surface_id), "cyan"))
        screen.print(Padding(diff_table(change.before, change.after), (0, 0, 0, 2), expand=False))
    screen.print()
    print_line(screen, found, is_wrapped=True)
    for line in describe_evidence(trial, found, wanted_gain=wanted_gain):
        print_indented(screen, Text(one_line(line)))
    better = sorted((case for case in found.changed_cases if case.change > 0), key=lambda each: -each.change)
    worse = [case for case in found.changed_cases if case.change < 0]
    for name, cases in (("Better", better), ("Worse", worse)):
        if cases:
            means = f", means of {found.repeats} repeats" if found.repeats > 1 else ""
            _print_cases(screen, f"{name}: {plural(len(cases), 'case')}{means}", cases)
    screen.print()
    for line in describe_spending(trial, found):
        screen.print(Text(one_line(line), "dim"))
    if found.before.rows:
        screen.print(Text(f"profile: {path_from_here(trial.profile_file)}", "dim"), soft_wrap=True)


def print_line(screen: Console, found: ProfileComparison, *, is_wrapped: bool = False) -> None:
    """Print the answer on one line."""
    mark, style, what = _HEADLINES[found.answer]
    headline = Text(f"{mark} {what}", f"bold {style}")
    if not found.before.rows:
        screen.print(headline.append(f": {found.reason}"), soft_wrap=not is_wrapped)
        return
    count = len(found.before.rows_by_case)
    headline.append(" on one case" if count == 1 else f" on these {count:,} cases")
    before, after = (_format(mean, found.objective) for mean in (found.before_mean, found.after_mean))
    figures = f": {_name(found.objective)} {before} → {after}; {found.reason}"
    screen.print(Text.assemble(headline, figures), soft_wrap=not is_wrapped)


def describe_evidence(trial: EditTrial, found: ProfileComparison, *, wanted_gain: float) -> Iterator[str]:
    """What the answer rests on, and what it does not say, as sentences."""
    runs = found.runs
    texts = plural(len(found.surface_ids), "edited text").removeprefix("1 ")
    if _is_unread(found):
        yield f"no case read the {texts}, so these cases cannot show what the edit does; try it on cases that read it"
    elif runs.cases:
        same = "; the others had the same answers" if runs.unreached and not found.unexplained else ""
        yield f"{runs.cases - runs.unreached} of {plural(runs.cases, 'case')} read the {texts}{same}"
    if found.stop_reason is not None:
        yield f"{_describe_stop(found.stop_reason)}; the next call continues, and pays for nothing twice"
    if found.threshold is not None and found.gain:
        looks = [f"{number * trial.repeats}" for number in range(1, len(plan_blocks(found.alpha)) + 1)]
        yield (
            f"p must be at most {found.threshold:.3g} here: alpha {found.alpha:g}, half of it for each direction, is "
            f"shared by the tests after {', '.join(looks[:-1])} and {looks[-1]} repeats"
        )
    if found.answer == "within_noise" and not _is_unread(found):
        yield from _describe_power(found, wanted_gain)
    if found.unexplained:
        names = join_names(found.unexplained, limit=MAX_NAMES)
        yield (
            f"{plural(len(found.unexplained), 'case')} differed without reading the edit ({names}): the agent depends "
            "on something that is not recorded, such as the time"
        )
    yield from describe_failed_runs(found.runs, before="the baseline", after="the edit")
    yield from _describe_unscored(found)
    if found.before.rows:
        yield _count_tries(trial, found)
    if trial.is_old:
        yield (
            f"the baseline was recorded on {trial.recorded.shown_time}; a model that has changed since looks like "
            "a difference: record again with --record if in doubt"
        )
    if changed := trial.recorded.find_structure_changes(trial.snapshot):
        yield f"surfaces were added or removed since the recording: {join_names(changed, limit=MAX_NAMES)}"
    if found.answer in ("improved", "worse"):
        yield "other cases were not tested"
    if trial.is_first_use and found.before.rows:
        yield "results on these cases are known now: a later run cannot take them for new ones"


def describe_spending(trial: EditTrial, found: ProfileComparison) -> Iterator[str]:
    """What the comparison took, and what the recorded answers saved."""
    costs = summarize_costs(found.ledger)
    yield spending_line(costs)
    saved, whole = found.saved, found.saved.calls + found.spent.calls
    if saved.calls:
        tokens = "" if saved.tokens is None else f", {saved.tokens:,} tokens"
        usd = "" if not saved.cost_usd else f", {dollars(saved.cost_usd)}"
        yield (
            f"{found.spent.calls:,} of {whole:,} calls were paid; recorded answers saved {saved.calls:,} calls"
            f"{tokens}{usd}"
        )
    if found.first_profile_calls:
        what = "recorded the baseline" if trial.is_new else "extended the recording"
        yield f"{plural(found.first_profile_calls, 'call')} {what}; later edits do not pay them"
    if found.before.rows and not whole:
        yield _NOT_RECORDED
    yield from (*describe_unknown_prices(costs.unpriced), *describe_uncertain_costs(costs))


def comparison_as_json(trial: EditTrial, found: ProfileComparison, *, wanted_gain: float, code: int) -> str:
    """The whole comparison; what differs from run to run is under `measured`."""
    document: dict[str, Json] = {
        "schema_version": 1,
        "answer": found.answer,
        "scope": "these cases",
        "reason": found.reason,
        "objective": found.objective,
        "before": found.before_mean,
        "after": found.after_mean,
        "gain": found.gain,
        "interval": found.interval,
        "alpha": found.alpha,
        "p_value": found.p_value,
        "threshold": found.threshold,
        "repeats": found.repeats,
        "cases": found.runs.cases,
        "cases_reached": found.runs.cases - found.runs.unreached,
        "smallest_gain": found.smallest_gain,
        "smallest_loss": found.smallest_loss,
        "evidence": list(describe_evidence(trial, found, wanted_gain=wanted_gain)),
        "edits": list(found.differences),
        "changed_cases": found.changed_cases,
        "edits_tried": len(trial.recorded.tried),
        "trials": trial.recorded.trials,
        "recorded_at": trial.recorded.recorded_at,
        "stop_reason": found.stop_reason,
        "problem": found.problem,
        "is_simulated": any_simulated(found.ledger.by_model()),
        "measured": {
            "spent": found.spent,
            "first_profile_calls": found.first_profile_calls,
            "saved": found.saved,
            "ledger": found.ledger,
        },
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
        "is_noisy": runs.is_noisy,
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
        changes = [f"{one_line(each.metric)} {_show(each.before)} → {_show(each.after)}" for each in case.metrics]
        repeat = f"in repeat {case.repeat + 1}: {join_names(changes, limit=MAX_NAMES)}"
        print_indented(screen, Text(repeat if changes else repeat.removesuffix(": "), "dim"), by=4)
        for name, answer in (("before", case.before_output), ("after", case.after_output)):
            if answer:
                print_indented(screen, Text(f"{name:7} {cut(one_line(answer), MAX_ANSWER)}", "dim"), by=4)
    if len(cases) > MAX_CASES:
        print_indented(screen, Text(f"… {len(cases) - MAX_CASES} more; --json lists all", "dim"))


def _show(value: float | None) -> str:
    return "unscored" if value is None else f"{value:.3g}"


def _describe_stop(stop_reason: str) -> str:
    return "stopped on request" if stop_reason == "user_stop" else f"the budget ended ({stop_reason})"


def _describe_repeats(trial: EditTrial, runs: RecordedRuns) -> str:
    """How many repeats were recorded, and why not more or fewer."""
    made = plural(len({row.repeat for row in runs.evaluation.rows}), "repeat")
    if runs.is_noisy:
        return f"{made}, because scores vary between repeats: an edit then pays only for what follows its text"
    return f"{made}: every case scored the same in them" if trial.repeats > 1 else made


def _describe_unscored(found: ProfileComparison) -> Iterator[str]:
    """Which cases could not be scored, and why."""
    for name, evaluation in (("the baseline", found.before), ("the edit", found.after)):
        if cases := sorted({row.case_id for row in evaluation.rows if not row.is_scored}):
            yield f"not scored under {name}: {join_names(cases, limit=MAX_NAMES)}: {evaluation.commonest_errors}"


def _describe_power(found: ProfileComparison, wanted_gain: float) -> Iterator[str]:
    """Which gain and which loss these cases could have shown."""
    smallest, plan = found.smallest_gain, found.gain_plan
    if smallest == 0:
        yield "there is nothing left to gain: every case has the best score"
    elif smallest is not None and not _is_underpowered(found, wanted_gain):
        yield f"a gain of {smallest:.2f} or more would probably have been shown"
    else:
        needed = None if plan is None else plan.cases_needed(wanted_gain)
        more = "" if needed is None else f"; {wanted_gain:g} needs about {needed:,} cases"
        could = "no gain" if smallest is None else f"only a gain of {smallest:.2f} or more"
        yield f"underpowered: {could} would probably have been shown{more}; see `promptiter noise`"
    if plan is not None and not found.smallest_loss:
        mean = _format(found.before_mean, found.objective)
        yield f"a loss would probably not have been shown: the baseline has {mean} and little or nothing to lose"


def _is_underpowered(found: ProfileComparison, wanted_gain: float) -> bool:
    if _is_unread(found):
        return False
    return found.smallest_gain is None or found.smallest_gain > wanted_gain


def _is_unread(found: ProfileComparison) -> bool:
    """Whether no case read what was edited."""
    return 0 < found.runs.cases == found.runs.unreached


def _count_tries(trial: EditTrial, found: ProfileComparison) -> str:
    edits, trials = len(trial.recorded.tried), trial.recorded.trials
    if trials < 2:
        return "the first edit that was tried against this recording"
    tried = f"{edits} edits were tried"
    if trials > edits:
        tried = f"{plural(edits, 'edit')} in {trials} trials with new answers {'was' if edits == 1 else 'were'} tried"
    return (
        f"{tried} against this recording: if none had an effect, the chance that one looks different is up to "
        f"{min(1.0, trials * found.alpha):.0%}; --record starts again"
    )


def _format(value: float | None, objective: Objective) -> str:
    return format_score(None if value is None else abs(value) if objective == "weighted_loss" else value)


def _name(objective: Objective) -> str:
    return objective.replace("_", " ")
