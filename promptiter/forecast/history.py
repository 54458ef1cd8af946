"""What a case run took in earlier runs of the same agent, with the same models and sizes, read from their folders.

The baseline shows what a case run costs, how long it takes and how many cases fail. The rest of a run shows which nodes
candidates changed, and what calls of other stages cost.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import fmean

from promptiter.engine.engine import Engine
from promptiter.engine.outline import UNKNOWN_MODEL
from promptiter.errors import PromptiterError
from promptiter.evaluation.result import CaseRow
from promptiter.forecast.unit_costs import UnitCosts
from promptiter.forecast.workload import Workload
from promptiter.llm.gateway import Gateway
from promptiter.llm.ledger import LedgerEntry
from promptiter.policies.combine import describe_policy
from promptiter.runlog.events import Event
from promptiter.runlog.payloads import CandidateProposed, CaseFinished, StopDecided
from promptiter.runs.cost_ranges import Cost, Range
from promptiter.runs.event_file import FILE_NAME as JOURNAL
from promptiter.runs.event_file import EventFile
from promptiter.runs.header import FILE_NAME as HEADER
from promptiter.runs.header import RunHeader, model_settings, read_header
from promptiter.runs.stage_costs import ModelStage, read_stage_calls
from traces import Usage

MAX_FOLDERS, MAX_RUNS = 20, 5
"""How many of the newest folders are looked at, and how many matching runs are used."""


TOKENS, USD, SECONDS = Range(0.98, 1.05, 1.08), Range(0.97, 1.05, 1.11), Range(1.1, 1.6, 2.0)
"""What later case runs take, compared with those of the baseline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _EarlierRun:
    """A run: the case runs of its baseline with their paid calls, the calls of other stages, and what it changed."""

    header: RunHeader
    rows: tuple[CaseRow, ...]
    calls: tuple[LedgerEntry, ...]
    changed_nodes: frozenset[str]
    rounds: Range | None


def measure_unit_costs(runs: str | os.PathLike[str], engine: Engine, workload: Workload) -> UnitCosts:
    """What case runs and calls cost in the newest matching runs of a folder. A run that cannot be read is skipped."""
    found = list(islice(_find_matching_runs(Path(runs), engine, workload), MAX_RUNS))
    rows = [row for run in found for row in run.rows]
    by_node: dict[str, list[LedgerEntry]] = {}
    by_stage: dict[tuple[ModelStage, str], list[LedgerEntry]] = {}
    gateway = engine.evaluator.gateway
    for entry in (_add_price(entry, gateway) for run in found for entry in run.calls):
        if entry.role == "agent":
            by_node.setdefault(entry.node_id, []).append(entry)
        else:
            by_stage.setdefault((entry.role, entry.model), []).append(entry)
    call_s = sum(row.measured.duration_s for row in rows) / max(1, sum(map(len, by_node.values())))
    same_start = [run for run in found if _has_same_start(run.header, workload)]
    scored = [row for run in same_start for row in run.rows if row.scores]
    nodes = {
        name: _mean_cost(entries, per=len(rows), seconds=call_s * len(entries))
        for name, entries in sorted(by_node.items())
    }
    if rows and not nodes:
        nodes = {workload.snapshot.entry: _uncounted_cost(fmean(row.measured.duration_s for row in rows))}
    return UnitCosts(
        nodes=nodes,
        calls={
            key: _mean_cost(entries, per=len(entries), seconds=sum(entry.spent.seconds for entry in entries))
            for key, entries in sorted(by_stage.items())
        },
        failing=fmean(not row.passed for row in scored) if scored else None,
        changed_nodes=frozenset[str]().union(*(run.changed_nodes for run in same_start)),
        rounds=next((run.rounds for run in same_start if run.rounds and _has_same_stop(run.header, workload)), None),
        runs=tuple(run.header.run_id for run in found),
    )


def _find_matching_runs(folder: Path, engine: Engine, workload: Workload) -> Iterator[_EarlierRun]:
    """The runs of the same agent with the same models and sizes that paid for their baseline, newest first."""
    settings, sizes = model_settings(engine), [workload.train, workload.validation, workload.test]
    for file in sorted(folder.glob(f"*/{HEADER}"), reverse=True)[:MAX_FOLDERS]:
        with suppress(PromptiterError, OSError, ValueError):
            header = read_header(file.parent)
            if (
                header.structure.structure_id == workload.snapshot.structure_id
                and [len(each.cases) if each else 0 for each in (header.train, header.validation, header.test)] == sizes
                and all(header.models.get(name, known) == known for name, known in settings.items())
            ):
                run = _read_run(file.parent, header)
                has_paid = run.rows and not any(row.measured.cache_hits for row in run.rows)
                if has_paid and _has_same_models(run.calls, workload):
                    yield run


def _read_run(path: Path, header: RunHeader) -> _EarlierRun:
    events = list(EventFile(path / JOURNAL).read())
    baseline = (event.payload for event in events if event.phase == "baseline")
    rows = tuple(payload.row for payload in baseline if isinstance(payload, CaseFinished))
    calls = [entry for stage, entry in read_stage_calls(path, events) if stage == "baseline" or entry.role != "agent"]
    candidates = (event.payload for event in events if event.type == CandidateProposed.event_type)
    patches = [each.patches for each in candidates if isinstance(each, CandidateProposed)]
    return _EarlierRun(
        header=header,
        rows=rows,
        calls=tuple(calls),
        changed_nodes=frozenset(surface_id.partition("#")[0] for each in patches for surface_id in each.surface_ids),
        rounds=_expect_rounds(events),
    )


def _expect_rounds(events: Sequence[Event]) -> Range | None:
    """How many rounds the next run takes: as many as this one if it reached its target score, or else more.

    None if this one had none.
    """
    taken = max((event.round for event in events), default=0)
    if not taken:
        return None
    stops = (event.payload for event in events if event.type == StopDecided.event_type)
    reasons = {reason.kind for stop in stops if isinstance(stop, StopDecided) for reason in stop.decision.reasons}
    return Range(taken, taken, taken + 1) if "target_score" in reasons else Range(taken, taken + 1, taken + 5)


def _has_same_models(calls: Iterable[LedgerEntry], workload: Workload) -> bool:
    """Whether the agent asked the models then that it would ask now, as far as that is known."""
    asked = {(entry.node_id, entry.model) for entry in calls if entry.role == "agent"}
    return all(workload.models.get(node_id, UNKNOWN_MODEL) in (model, UNKNOWN_MODEL) for node_id, model in asked)


def _has_same_start(header: RunHeader, workload: Workload) -> bool:
    """Whether a run started with the same texts."""
    initial = workload.request.initial_profile
    is_same_profile = header.request.get("initial_profile") == (None if initial is None else initial.digest)
    return is_same_profile and header.structure.baseline_id == workload.snapshot.baseline_id


def _has_same_stop(header: RunHeader, workload: Workload) -> bool:
    """Whether a run stopped by the same policy."""
    stop = workload.request.stop
    return header.request.get("stop") == (None if stop is None else describe_policy(stop))


def _uncounted_cost(seconds: float) -> Cost:
    """The cost of a case run of an agent that makes no call through the gateway: only the time is known."""
    none = Range.exactly(0)
    unknown = (UNKNOWN_MODEL,)
    return Cost(calls=none, tokens=none, usd=None, seconds=SECONDS * seconds, unpriced=unknown, uncounted=unknown)


def _add_price(entry: LedgerEntry, gateway: Gateway) -> LedgerEntry:
    """A call at its current price, if that was not known when it was made."""
    spent, price = entry.spent, None
    if spent.cost_usd is None and not spent.uncounted_calls:
        price = gateway.price(entry.model)
    if price is None:
        return entry
    usage = Usage(
        input_tokens=spent.input_tokens,
        output_tokens=spent.output_tokens,
        cached_input_tokens=spent.cached_input_tokens,
    )
    return replace(entry, spent=replace(spent, cost_usd=price.cost_usd(usage), unpriced_calls=0))


def _mean_cost(entries: Sequence[LedgerEntry], *, per: int, seconds: float) -> Cost:
    """The cost of calls per case run or per call."""
    unpriced = {entry.model for entry in entries if entry.spent.cost_usd is None}
    usd = sum(entry.spent.cost_usd or 0.0 for entry in entries) / per
    return Cost(
        calls=Range.exactly(len(entries) / per),
        tokens=TOKENS * (sum(entry.spent.tokens for entry in entries) / per),
        usd=None if unpriced and not usd else USD * usd,
        seconds=SECONDS * (seconds / per),
        unpriced=tuple(sorted(unpriced)),
        uncounted=tuple(sorted({entry.model for entry in entries if entry.spent.uncounted_calls})),
    )
