"""RunReport: everything that the report of a run shows, as plain data: the summary of `promptiter show`, and more.

`read_report` needs only the folder of the run, so it works while the run is in progress and after a crash.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from promptiter.backprop.record import get_passes
from promptiter.errors import SetupError
from promptiter.evaluation.mean_usage import average_common_usage
from promptiter.evaluation.result import Evaluation
from promptiter.evaluation.trace_file import FILE_NAME as TRACES
from promptiter.evaluation.trace_file import TraceFile
from promptiter.llm.cache.call_log import FILE_NAME as CALLS
from promptiter.llm.ledger import TOOL
from promptiter.policies.figures import average_figures
from promptiter.runlog.results import Ablation, RoundResult, RunResult
from promptiter.runs.cost_wording import (
    describe_difference,
    describe_uncertain_costs,
    describe_unknown_prices,
    tabulate_stages,
)
from promptiter.runs.event_file import FILE_NAME as JOURNAL
from promptiter.runs.forecast_file import read_forecast
from promptiter.runs.header import RunHeader, read_header
from promptiter.runs.hunk_evidence import HunkEvidence, read_hunks
from promptiter.runs.iteration_rows import IterationRow, list_iterations
from promptiter.runs.next_commands import RunAddress
from promptiter.runs.report.blame_diagram import BlamedTraces, draw_blame
from promptiter.runs.report.candidate_tree import draw_candidates
from promptiter.runs.report.case_changes import TEST_SET, CaseChange, list_case_changes
from promptiter.runs.report.evidence_cases import EvidenceCase, collect_evidence
from promptiter.runs.report.trajectory import Trajectory, TrajectoryPoint
from promptiter.runs.round_summary import EvaluationSummary, find_candidate, summarize_evaluation
from promptiter.runs.stage_costs import spent_by_stage
from promptiter.runs.summary import FigureChange, RunSummary, read_result, summarize_stored
from promptiter.stages.losses import Category
from promptiter.wording import plural
from traces import ExecutionTrace, TraceError
from traces.draw.diagram import Diagram

LARGEST_IN_MEMORY = 32 << 20
"""Bytes of a journal whose rounds are held in memory; those of a larger one are read again each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureCategory:
    """A kind of failure on train cases: in how many cases and rounds it was found, with an example."""

    category: Category
    cases: tuple[str, ...]
    metrics: tuple[str, ...]
    example: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTable:
    """What the run took beside its forecast, and what each stage took, unless its calls were not kept."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    total: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """One run, finished or not, for its report.

    `figures` are objectives and metrics on the cases of the search before and after, `measured` what a scorer recorded
    in its own units, `sets` the mean score on each eval set if there are several, `usage` the tokens and dollars of a
    case run. `hunks` are the changes of each surface, and `evidence` the cases behind them. `diagrams` show how blame
    flowed along failing traces, `candidates` the tree of those that a search kept, if any, and `iterations` how it came
    to them. `stages` is None without a forecast; `unpriced` says how to set unknown prices. `inputs` are what the run
    was made from, and `caveats` what a reader should know about the method.
    """

    summary: RunSummary
    points: tuple[TrajectoryPoint, ...] = ()
    figures: tuple[FigureChange, ...] = ()
    measured: tuple[FigureChange, ...] = ()
    sets: tuple[FigureChange, ...] = ()
    cases: tuple[CaseChange, ...] = ()
    hunks: Mapping[str, tuple[HunkEvidence, ...]]
    evidence: tuple[EvidenceCase, ...] = ()
    diagrams: tuple[Diagram, ...] = ()
    candidates: Diagram | None = None
    iterations: tuple[IterationRow, ...] = ()
    categories: tuple[FailureCategory, ...] = ()
    ablation: Ablation | None = None
    usage: tuple[FigureChange, ...] = ()
    stages: StageTable | None = None
    lost: tuple[str, ...] = ()
    unpriced: tuple[str, ...] = ()
    inputs: Mapping[str, str]
    caveats: tuple[str, ...] = ()

    @property
    def effects(self) -> Mapping[str, int]:
        """How many cases changed in which way."""
        return Counter(each.effect for each in self.cases)

    @property
    def is_compared(self) -> bool:
        """Whether there is a candidate to compare the baseline with."""
        return any(each.after is not None for each in self.cases)

    @property
    def passed(self) -> tuple[int, int]:
        """How many cases of the search pass under the baseline and the candidate."""
        searched = [each for each in self.cases if each.eval_set != TEST_SET]
        before, after = ([each.before for each in searched], [each.after for each in searched])
        return sum(each is not None and each.passed for each in before), sum(
            each is not None and each.passed for each in after
        )


def read_report(folder: str | os.PathLike[str], *, address: RunAddress | None = None) -> RunReport:
    """Collect the report of the run in a folder; SetupError if it cannot be read or has not begun.

    With an `address`, the folder is a copy of a run that is elsewhere.
    """
    return collect_report(read_result(folder), Path(folder), address=address)


def collect_report(result: RunResult, folder: Path, *, address: RunAddress | None = None) -> RunReport:
    """Collect the report of a result that is stored in a folder."""
    if (folder / JOURNAL).stat().st_size <= LARGEST_IN_MEMORY:  # its rounds are needed several times
        result = replace(result, rounds=tuple(result.rounds))
    summary, header = summarize_stored(result, folder, address=address), read_header(folder)
    hunks = read_hunks(result)
    candidate, read_trace = find_candidate(result), _make_trace_reader(folder)
    changed = [each.surface_id for each in summary.changes] or [each.surface_id for each in summary.blame]
    trajectory, traces, categories = Trajectory(result), BlamedTraces(changed), _Categories()
    for each in result.rounds:
        trajectory.add(each)
        traces.add(each)
        categories.add(each)
    return RunReport(
        summary=summary,
        points=trajectory.points,
        figures=tuple(_list_figures(result.baseline, candidate)),
        measured=tuple(_list_measured(result.baseline, candidate)),
        sets=tuple(_list_sets(summary, summarize_evaluation(candidate))),
        cases=list_case_changes(result),
        hunks=hunks,
        evidence=collect_evidence((hunk for found in hunks.values() for hunk in found), result.rounds, read_trace),
        diagrams=tuple(draw_blame(each, result.structure, read_trace(each.trace_digest)) for each in traces.choose()),
        candidates=draw_candidates(summary.pool) if len(summary.pool.candidates) > 1 else None,
        iterations=tuple(list_iterations(summary)) if summary.pool.candidates else (),
        categories=categories.summarize(),
        ablation=result.ablation,
        usage=tuple(_list_usage(result.baseline, candidate)),
        stages=_compare_with_forecast(summary, folder),
        lost=tuple(describe_uncertain_costs(summary.costs)),
        unpriced=tuple(describe_unknown_prices(summary.costs.unpriced)),
        inputs=dict(_list_inputs(header, _list_models(result))),
        caveats=tuple(_list_caveats(result, summary)),
    )


def _make_trace_reader(folder: Path) -> Callable[[str], ExecutionTrace | None]:
    """A function that reads a trace by its digest; None if it was not kept or is damaged."""
    file = TraceFile(folder / TRACES)

    def read_trace(digest: str) -> ExecutionTrace | None:
        try:
            return file.get(digest)
        except (SetupError, TraceError):
            return None

    return read_trace


class _Categories:
    """Collects the categories of the losses of all passes."""

    def __init__(self) -> None:
        self._cases: dict[Category, dict[str, None]] = {}
        self._metrics: dict[Category, dict[str, None]] = {}
        self._examples: dict[Category, str] = {}

    def add(self, each: RoundResult) -> None:
        for found in (found for one in get_passes(each) for found in one.losses):
            for loss in found.losses:
                self._cases.setdefault(loss.category, {})[found.case_id] = None
                self._metrics.setdefault(loss.category, {})[loss.metric] = None
                self._examples.setdefault(loss.category, loss.report)

    def summarize(self) -> tuple[FailureCategory, ...]:
        """The category of the most cases first."""
        found = [
            FailureCategory(
                category=category,
                cases=tuple(cases),
                metrics=tuple(name for name in self._metrics[category] if name),
                example=self._examples[category],
            )
            for category, cases in self._cases.items()
        ]
        return tuple(sorted(found, key=lambda each: len(each.cases), reverse=True))


def _list_figures(before: Evaluation | None, after: Evaluation | None) -> Iterator[FigureChange]:
    """All three objectives, whichever of them is optimized, and the metrics, if there are several."""
    if before is None:
        return
    for objective in ("mean_score", "pass_rate", "weighted_loss"):
        old, new = (None if each is None else getattr(each, objective) for each in (before, after))
        yield FigureChange(name=objective.replace("_", " "), before=old, after=new)
    found = before.metric_means
    for name, mean in found.items() if len(found) > 1 else ():
        new = None if after is None else after.metric_means.get(name)
        yield FigureChange(name=name, before=mean, after=new, limit=before.thresholds[name])


def _list_measured(before: Evaluation | None, after: Evaluation | None) -> Iterator[FigureChange]:
    """What a scorer recorded in its own units."""
    old, new = (average_figures(each.rows) if each is not None else {} for each in (before, after))
    for name, figure in old.items():
        if after is None or name in new:
            yield FigureChange(name=name, before=figure, after=new.get(name))


def _list_sets(summary: RunSummary, candidate: EvaluationSummary | None) -> Iterator[FigureChange]:
    """The mean score on each eval set that the cases come from, and on the test set."""
    for name, before, after in (
        ("", summary.baseline, candidate),
        ("test set", summary.test_baseline, summary.test),
    ):
        if before is None or after is None:
            continue
        if name:
            yield FigureChange(name=f"mean score, {name}", before=before.score, after=after.score)
        for each, part in before.eval_sets.items():
            if each in after.eval_sets:
                yield FigureChange(name=f"mean score, {each}", before=part.score, after=after.eval_sets[each].score)


def _list_usage(before: Evaluation | None, after: Evaluation | None) -> Iterator[FigureChange]:
    """The mean usage of a case run under both profiles, over the case runs that succeeded under both."""
    if before is None or after is None:
        return
    old, new = average_common_usage(before, after)
    yield FigureChange(name="input tokens", before=old.input_tokens, after=new.input_tokens)
    yield FigureChange(name="output tokens", before=old.output_tokens, after=new.output_tokens)
    yield FigureChange(name="dollars", before=old.usd, after=new.usd)


def _compare_with_forecast(summary: RunSummary, folder: Path) -> StageTable | None:
    forecast = read_forecast(folder)
    if forecast is None:
        return None
    is_known = (folder / CALLS).exists()
    header, rows = tabulate_stages(forecast, spent_by_stage(folder)) if is_known else ((), [])
    total = describe_difference(forecast, summary.costs.models, seconds=summary.costs.duration_s)
    return StageTable(header=header, rows=tuple(rows), total=total)


def _list_inputs(header: RunHeader, models: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What the run was made from, by name. Hashes are cut: run.json has all of them."""
    request = header.request
    yield "started", header.created_at
    yield "seed", str(request["seed"])
    yield "structure id", header.structure.structure_id[:16]
    yield "baseline id", f"{header.structure.baseline_id[:16]} (the structure with the values of its surfaces)"
    for name, eval_set in (("train", header.train), ("validation", header.validation), ("test", header.test)):
        if eval_set is not None:
            yield f"{name} set", f"{eval_set.id}: {plural(len(eval_set.cases), 'case')}, {eval_set.content_digest[:16]}"
    for name in ("search", "acceptance", "final_test", "stop"):
        if request.get(name):
            yield name.replace("_", " "), str(request[name])
    if models:
        yield "models", ", ".join(models)
    versions = header.versions
    yield "versions", f"promptiter {versions.promptiter}, Python {versions.python}, litellm {versions.litellm}"


def _list_models(result: RunResult) -> list[str]:
    """The models that were called, with the roles that they had."""
    roles: dict[str, set[str]] = {}
    for entry in result.measured.spent.entries:
        if not entry.model.startswith(TOOL):
            roles.setdefault(entry.model, set()).add(entry.role)
    return [f"{model} ({', '.join(sorted(found))})" for model, found in sorted(roles.items())]


def _list_caveats(result: RunResult, summary: RunSummary) -> Iterator[str]:
    """What the method can and cannot show."""
    if result.conclusion is not None and result.conclusion.is_untested:
        yield "The run had no final test: the changes were accepted by the search, and nothing is shown."
    if summary.rounds:
        yield (
            "The search selects candidates by their scores, so these are optimistic. Only the final test, which runs "
            "both profiles again, is evidence."
        )
    if summary.blame:
        yield (
            "Blame is a hypothesis about which text caused a failure. Validation and the final test measure whether a "
            "change helps; the effect of a single hunk is rarely measured on its own."
        )
    if result.ablation is not None and result.ablation.losses:
        yield "The ablation decides what is kept. Its losses are too noisy to be estimates of single effects."
    if summary.costs.is_simulated:
        yield "An offline model simulated the answers. A real model behaves differently."
    yield from (f"{_capitalize(each)}." for each in (*summary.judges, *summary.case_history))


def _capitalize(text: str) -> str:
    return text[:1].upper() + text[1:].removesuffix(".")
