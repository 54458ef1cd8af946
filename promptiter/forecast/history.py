"""What earlier runs of the same agent with the same models took, read from their folders.

Only the evaluations before the first change count: they show what a case run costs, how long it takes and how many
cases fail. Of the rest of a run, only the nodes that its candidates changed are used.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from promptiter.engine.engine import Engine
from promptiter.engine.outline import UNKNOWN_MODEL
from promptiter.errors import PromptiterError
from promptiter.evaluation.result import CaseRow
from promptiter.forecast.stage_costs import ModelStage, read_stage_calls
from promptiter.forecast.unit_costs import Cost, UnitCosts
from promptiter.forecast.workload import Workload
from promptiter.llm.ledger import LedgerEntry
from promptiter.runlog.codec import from_plain
from promptiter.runlog.events import Event
from promptiter.runs.file_journal import FILE_NAME as JOURNAL
from promptiter.runs.file_journal import FileJournal
from promptiter.runs.header import FILE_NAME as HEADER
from promptiter.runs.header import RunHeader, model_settings, read_header

MAX_FOLDERS, MAX_RUNS = 20, 5
"""How many of the newest folders are looked at, and how many matching runs are used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Matching earlier runs, newest first.

    `failing` is the share of cases that fail at first, None if unknown; `changed_nodes` are the nodes that candidates
    changed. Both come from runs that started with the same texts.
    """

    run_ids: tuple[str, ...] = ()
    has_same_sizes: bool = True
    costs: UnitCosts = field(default_factory=UnitCosts)
    failing: float | None = None
    changed_nodes: frozenset[str] = frozenset()


NO_HISTORY = History()


def read_history(runs: str | os.PathLike[str], engine: Engine, workload: Workload) -> History:
    """What the newest matching runs in a folder took: those with eval sets of the same sizes, else those of others.

    A run that cannot be read is skipped.
    """
    settings = model_settings(engine)
    found: list[_EarlierRun] = []
    for file in sorted(Path(runs).glob(f"*/{HEADER}"), reverse=True)[:MAX_FOLDERS]:
        with suppress(PromptiterError, OSError, ValueError):
            header = read_header(file.parent)
            is_same_agent = header.structure.structure_id == workload.snapshot.structure_id
            if is_same_agent and all(header.models.get(name, known) == known for name, known in settings.items()):
                run = _read_run(file.parent, header)
                found += [run] if run.evaluations and _asked_same_models(run.calls, workload) else []
    same_sizes = [run for run in found if _has_same_sizes(run.header, workload)]
    used = (same_sizes or found)[:MAX_RUNS]
    return _combine(used, workload, has_same_sizes=bool(same_sizes)) if used else NO_HISTORY


@dataclass(frozen=True, slots=True, kw_only=True)
class _Evaluation:
    seconds: float
    rows: tuple[CaseRow, ...]

    @property
    def paid_share(self) -> float:
        """The share of calls that no cache answered."""
        paid = sum(row.measured.paid_calls for row in self.rows)
        return paid / max(1, paid + sum(row.measured.cache_hits for row in self.rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class _EarlierRun:
    """The evaluations and paid calls of a run up to its first change, and the nodes that its candidates changed."""

    header: RunHeader
    evaluations: tuple[_Evaluation, ...]
    calls: tuple[LedgerEntry, ...]
    changed_nodes: frozenset[str]


def _read_run(path: Path, header: RunHeader) -> _EarlierRun:
    events = list(FileJournal(path / JOURNAL).read())
    patches = [event.data["patches"] for event in events if event.type == "candidate"]
    calls = takewhile(lambda call: call[0] not in ("rerun", "validation"), read_stage_calls(path, events))
    return _EarlierRun(
        header=header,
        evaluations=tuple(_first_evaluations(events)),
        calls=tuple(entry for _, entry in calls),
        changed_nodes=frozenset(surface_id.partition("#")[0] for each in patches for surface_id in each),
    )


def _first_evaluations(events: Iterable[Event]) -> Iterator[_Evaluation]:
    """The evaluations before anything was changed."""
    began_s, rows = 0.0, list[CaseRow]()
    for event in events:
        if event.type == "evaluation_started":
            if event.phase not in ("baseline", "train"):
                return
            began_s, rows = event.data["measured"]["elapsed_s"], []
        elif event.type == "case" and event.data["row"]["measured"]["origin"] != "kept":
            rows.append(from_plain(CaseRow, event.data["row"]))
        elif event.type == "evaluation_finished" and rows:
            yield _Evaluation(seconds=event.data["measured"]["elapsed_s"] - began_s, rows=tuple(rows))


def _asked_same_models(calls: Iterable[LedgerEntry], workload: Workload) -> bool:
    """Whether every model that was asked would be asked now, as far as that is known."""
    for entry in calls:
        if entry.role == "agent":
            now = {workload.models.get(entry.node_id, entry.model)} - {UNKNOWN_MODEL}
        else:
            now = {each.model for each in workload.asked_in(entry.role)}
        if now and entry.model not in now:
            return False
    return True


def _has_same_sizes(header: RunHeader, workload: Workload) -> bool:
    sizes = [0 if each is None else len(each.cases) for each in (header.train, header.validation, header.test)]
    return sizes == [workload.train, workload.validation, workload.test]


def _has_same_start(header: RunHeader, workload: Workload) -> bool:
    initial = workload.request.initial_profile
    is_same_profile = header.request.get("initial_profile") == (None if initial is None else initial.digest)
    return is_same_profile and header.structure.baseline_id == workload.snapshot.baseline_id


def _combine(runs: Sequence[_EarlierRun], workload: Workload, *, has_same_sizes: bool) -> History:
    evaluations = [each for run in runs for each in run.evaluations]
    case_runs = sum(len(each.rows) * each.paid_share for each in evaluations)
    waves = sum(max(1.0, len(each.rows) / workload.concurrency) * each.paid_share for each in evaluations)
    by_node: dict[str, list[LedgerEntry]] = {}
    by_stage: dict[tuple[ModelStage, str], list[LedgerEntry]] = {}
    for entry in (entry for run in runs for entry in run.calls):
        if entry.role == "agent":
            by_node.setdefault(entry.node_id, []).append(entry)
        else:
            by_stage.setdefault((entry.role, entry.model), []).append(entry)
    same_start = [run for run in runs if _has_same_start(run.header, workload)]
    return History(
        run_ids=tuple(run.header.run_id for run in runs),
        has_same_sizes=has_same_sizes,
        costs=UnitCosts(
            nodes={name: _mean(entries, per=case_runs) for name, entries in sorted(by_node.items()) if case_runs},
            case_s=sum(each.seconds for each in evaluations) / waves if waves else 0.0,
            calls={key: _mean(entries, per=len(entries)) for key, entries in sorted(by_stage.items())},
        ),
        failing=_failing(row for run in same_start for each in run.evaluations for row in each.rows),
        changed_nodes=frozenset[str]().union(*(run.changed_nodes for run in same_start)),
    )


def _failing(rows: Iterable[CaseRow]) -> float | None:
    """The share of case runs that did not pass every metric."""
    passed = [row.error is None and all(score.passed for score in row.scores) for row in rows if row.scores]
    return 1.0 - sum(passed) / len(passed) if passed else None


def _mean(entries: Sequence[LedgerEntry], *, per: float) -> Cost:
    """The cost of calls, per case run or per call."""
    return Cost(
        calls=len(entries) / per,
        tokens=sum(entry.spent.tokens for entry in entries) / per,
        usd=sum(entry.spent.cost_usd or 0.0 for entry in entries) / per,
        seconds=sum(entry.spent.seconds for entry in entries) / per,
        unpriced=frozenset(entry.model for entry in entries if entry.spent.cost_usd is None),
    )
