"""What earlier runs of an agent took, read from their folders; and forecast.json, what a run was expected to take.

Of the newest runs of the same structure the first evaluations are looked at, under the profile that the run started
with: their traces say what each node took, the receipts of calls how long a call took. How much is read is bounded, so
that it takes no longer however many runs there are.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from statistics import fmean

import orjson

from promptiter.engine.engine import Engine
from promptiter.engine.expectation import MOST_OWN_S, CallUse, CaseUse, NodeUse, Recorded
from promptiter.engine.forecast import Forecast, forecast_run
from promptiter.errors import PromptiterError
from promptiter.evaluation.result import CaseRow
from promptiter.evaluation.trace_store import TraceStore
from promptiter.llm.cache.call_log import read_paid_calls
from promptiter.llm.ledger import TOOL, LedgerEntry
from promptiter.llm.messages import Role
from promptiter.profile import Profile
from promptiter.runlog.codec import from_plain, to_plain
from promptiter.runlog.events import Phase
from promptiter.runlog.results import RunRequest
from promptiter.runs.file_journal import FILE_NAME as JOURNAL
from promptiter.runs.file_journal import FileJournal
from promptiter.runs.header import FILE_NAME as HEADER
from promptiter.runs.header import read_header
from traces import ExecutionTrace, Step, TraceError
from traces.files import write_atomically

FILE_NAME = "forecast.json"
CALLS, TRACES = "calls.jsonl", "traces"

MOST_HEADERS, MOST_RUNS = 40, 5
MOST_EVENTS, MOST_CASES, MOST_CALLS = 1_000, 100, 1_000
"""So many folders, runs of the structure, and of each run events, case runs and calls are looked at."""


def forecast_of(runs: str | os.PathLike[str], engine: Engine, request: RunRequest) -> Forecast:
    """The forecast of a run, from what the runs in a folder recorded. Asks no model and writes nothing."""
    return forecast_run(engine, request, recorded_in(runs, engine, request))


def recorded_in(runs: str | os.PathLike[str], engine: Engine, request: RunRequest) -> Recorded:
    """What the newest runs of the same structure took. A run that cannot be read is passed over."""
    snapshot = engine.describe()
    start = (request.initial_profile or Profile.baseline(snapshot)).digest
    found, at_once = _Found(), engine.evaluator_for(request).options.concurrency
    for path in _folders(runs, snapshot.structure_id):
        with suppress(PromptiterError, TraceError, OSError, ValueError):
            is_same = read_header(path).structure.baseline_id == snapshot.baseline_id
            _look_at(path, found, start=start if is_same else "", at_once=at_once)
    return found.recorded()


def write_forecast(folder: str | os.PathLike[str], forecast: Forecast) -> Path:
    """Write forecast.json into the folder of a run, whole or not at all."""
    path = Path(folder) / FILE_NAME
    with write_atomically(path) as file:
        file.write(orjson.dumps(to_plain(forecast), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    return path


def read_forecast(folder: str | os.PathLike[str]) -> Forecast | None:
    """The forecast that a run was begun with; None if it has none that can be read."""
    try:
        found: Forecast = from_plain(Forecast, orjson.loads((Path(folder) / FILE_NAME).read_bytes()))
    except (OSError, ValueError):
        return None
    return found


@dataclass(slots=True)
class _Found:
    runs: int = 0
    cases: list[CaseUse] = field(default_factory=list)
    calls: dict[tuple[Role, str], list[LedgerEntry]] = field(default_factory=dict)
    passed: int = 0
    failed: int = 0
    noise: list[float] = field(default_factory=list)
    patched: list[int] = field(default_factory=list)
    own_s: list[float] = field(default_factory=list)

    @property
    def has_judged(self) -> bool:
        """Whether cases also waited for models that are not the agent's."""
        return any(role in ("judge", "user") for role, _ in self.calls)

    def recorded(self) -> Recorded:
        by_role: dict[Role, list[LedgerEntry]] = {}
        by_model: dict[str, list[LedgerEntry]] = {}
        for (role, _), entries in self.calls.items():
            by_role.setdefault(role, []).extend(entries)
            for entry in entries:
                by_model.setdefault(entry.model, []).append(entry)
        return Recorded(
            runs=self.runs,
            cases=tuple(self.cases),
            calls={role: _mean_call(entries) for role, entries in sorted(by_role.items()) if role != "agent"},
            models={node: entries[-1].model for (role, node), entries in sorted(self.calls.items()) if role == "agent"},
            usd_per_token={model: rate for model, entries in sorted(by_model.items()) if (rate := _rate(entries))},
            passed=self.passed,
            failed=self.failed,
            noise=max(self.noise, default=None),
            patched=fmean(self.patched) if self.patched else None,
            own_s=fmean(self.own_s) if self.own_s else None,
        )


def _folders(runs: str | os.PathLike[str], structure_id: str) -> Iterator[Path]:
    """The newest runs of a structure; the name of a run begins with when it began."""
    headers = sorted(Path(runs).glob(f"*/{HEADER}"), reverse=True)[:MOST_HEADERS]
    found = 0
    for header in headers:
        with suppress(PromptiterError):
            if read_header(header.parent).structure.structure_id == structure_id:
                found += 1
                yield header.parent
        if found == MOST_RUNS:
            return


def _look_at(path: Path, found: _Found, *, start: str, at_once: int) -> None:
    call_s, share = _calls(path / CALLS, found)
    ran, took, patched = _ran(path)
    found.noise += _noise(ran)
    found.patched += patched
    first = list(islice(filter(_is_first, ran), MOST_CASES))
    for each in first:
        if each.profile_digest == start and each.row.scores:
            has_passed = each.row.error is None and all(score.passed for score in each.row.scores)
            found.passed += has_passed
            found.failed += not has_passed
    if not (path / TRACES).is_dir():
        return
    trace_store = TraceStore(path / TRACES)
    room = MOST_CASES - len(found.cases)
    uses: list[CaseUse] = []
    for row in (each.row for each in first):
        kept = [name for name in row.trace_digests if name in trace_store]
        if len(uses) < room and kept and len(kept) == len(row.trace_digests):
            uses.append(_case_use([trace_store.get(name) for name in kept], row, call_s))
    if uses and not found.has_judged:
        path_s = fmean(use.path_s for use in uses)
        case_calls = fmean(sum(node.calls for node in use.nodes.values()) for use in uses)
        took = [replace(each, runs=min(each.runs, each.calls / case_calls)) for each in took if case_calls]
        own_s, waited_s = _shared_out(took, share * path_s, at_once=at_once)
        found.own_s += [] if own_s is None else [own_s]
        uses = [_slower(use, waited_s / path_s) for use in uses] if path_s and waited_s else uses
    found.cases.extend(uses)
    found.runs += bool(uses)


@dataclass(frozen=True, slots=True)
class _Took:
    """What the clock said of an evaluation; runs that are paid in part count as that part."""

    seconds: float
    runs: float
    calls: int


def _slower(use: CaseUse, by: float) -> CaseUse:
    nodes = {node_id: replace(node, seconds=by * node.seconds) for node_id, node in use.nodes.items()}
    return CaseUse(nodes=nodes, path_s=by * use.path_s)


def _shared_out(took: Sequence[_Took], least_path_s: float, *, at_once: int) -> tuple[float | None, float]:
    """What promptiter itself took for a call, and how long a case run waited for models: together, what the clock said.

    A case run waits at least as long as if all calls were as fast as the fastest: others are slow because the machine
    is busy, or because a model is. What promptiter itself takes even on a busy machine is bounded.
    """
    calls = sum(each.calls for each in took)
    if not calls:
        return None, 0.0
    seconds = sum(each.seconds for each in took)
    waves = sum(max(min(1.0, each.runs), each.runs / at_once) for each in took)
    own_s = min(MOST_OWN_S, max(0.0, seconds - least_path_s * waves) / calls)
    return own_s, max(0.0, seconds - own_s * calls) / waves


@dataclass(frozen=True, slots=True)
class _Ran:
    """One run of a case: under which profile, and when."""

    row: CaseRow
    profile_digest: str
    phase: Phase
    round: int


def _ran(path: Path) -> tuple[list[_Ran], list[_Took], list[int]]:
    """The case runs of a run, what evaluations took on the clock, and how many surfaces candidates changed."""
    rows: list[_Ran] = []
    took: list[_Took] = []
    patched: list[int] = []
    profile, began_s, known = "", 0.0, 0
    for event in islice(FileJournal(path / JOURNAL).read(), MOST_EVENTS):
        elapsed_s = event.data.get("measured", {}).get("elapsed_s", 0.0)
        if event.type == "evaluation_started":
            profile, began_s, known = event.data["profile_digest"], elapsed_s, len(rows)
        elif event.type == "case" and event.data["row"]["measured"]["origin"] != "kept":
            rows.append(_Ran(from_plain(CaseRow, event.data["row"]), profile, event.phase, event.round))
        elif event.type == "evaluation_finished":
            calls = sum(each.row.measured.paid_calls for each in rows[known:])
            took += [_Took(elapsed_s - began_s, len(rows) - known, calls)] if calls else []
        elif event.type == "candidate":
            patched.append(len(event.data["patches"]))
    return rows, took, patched


def _is_first(ran: _Ran) -> bool:
    """Whether a case was run before anything was changed."""
    return ran.phase in ("baseline", "train") and ran.round <= 1


def _noise(rows: Iterable[_Ran]) -> Iterator[float]:
    """Of each profile the share of cases whose repeats differ in their scores, if some have more than one."""
    repeats: dict[tuple[str, str], dict[int, tuple[float | None, ...]]] = {}
    for ran in rows:
        if ran.row.is_scored:
            values = tuple(score.value for score in ran.row.scores)
            repeats.setdefault((ran.profile_digest, ran.row.case_id), {})[ran.row.repeat] = values
    differs: dict[str, list[bool]] = {}
    for (profile_digest, _), values_by_repeat in repeats.items():
        if len(values_by_repeat) > 1:
            differs.setdefault(profile_digest, []).append(len(set(values_by_repeat.values())) > 1)
    return map(fmean, differs.values())


def _calls(path: Path, found: _Found) -> tuple[dict[str, float], float]:
    """Keep what calls of models cost; gives the seconds of a call by node, and which share the fastest one took."""
    seconds: dict[str, list[float]] = {}
    fastest: dict[str, float] = {}
    for entry in islice(read_paid_calls(path), MOST_CALLS) if path.exists() else ():
        if entry.model.startswith(TOOL):
            continue
        found.calls.setdefault((entry.role, entry.node_id), []).append(entry)
        if entry.role == "agent":
            seconds.setdefault(entry.node_id, []).append(entry.spent.seconds)
            fastest[entry.model] = min(entry.spent.seconds, fastest.get(entry.model, math.inf))
    means = {node_id: fmean(each) for node_id, each in seconds.items()}
    total_s = sum(means.values())
    return means, fmean(fastest.values()) * len(means) / total_s if total_s else 1.0


def _case_use(traces: Sequence[ExecutionTrace], row: CaseRow, call_s: dict[str, float]) -> CaseUse:
    """What a run of a case took, over all its turns."""
    steps = [step for trace in traces for step in trace.steps]
    calls = _calls_of([step for step in steps if _asks(step)], row)
    sums: dict[str, list[float]] = {}
    for step, count in calls:
        held = sums.setdefault(step.node_id, [0.0, 0.0, 0.0])
        held[0] += count
        if step.usage is not None:
            held[1] += step.usage.input_tokens or 0
            held[2] += step.usage.output_tokens or 0
    by_step = {id(step): count * call_s.get(step.node_id, _duration_s(step) / count) for step, count in calls}
    return CaseUse(
        nodes={
            node_id: NodeUse(
                calls=held[0],
                input_tokens=held[1],
                output_tokens=held[2],
                seconds=held[0] * call_s.get(node_id, 0.0),
            )
            for node_id, held in sums.items()
        },
        path_s=sum(_longest(trace.steps, by_step) for trace in traces),
    )


def _asks(step: Step) -> bool:
    return step.kind == "llm" or step.usage is not None


def _calls_of(asking: Sequence[Step], row: CaseRow) -> list[tuple[Step, float]]:
    """How many calls each step made. A row knows their sum; what is more than one a step is that of tools and code."""
    known = row.measured.paid_calls + row.measured.cache_hits - sum(len(step.tool_calls) for step in asking)
    weights = [float(len(step.tool_calls)) if step.kind == "llm" else 1.0 for step in asking]
    more = max(0.0, float(known - len(asking)))
    each = more / sum(weights) if any(weights) else 0.0
    return [(step, 1.0 + each * weight) for step, weight in zip(asking, weights, strict=True)]


def _duration_s(step: Step) -> float:
    return (step.duration_ns or 0) / 1e9


def _longest(steps: Iterable[Step], seconds: dict[int, float]) -> float:
    """The time of the longest way through a trace; predecessors come first in it."""
    until: dict[str, float] = {}
    for step in steps:
        before = max((until[source] for source in step.predecessors), default=0.0)
        until[step.id] = before + seconds.get(id(step), 0.0)
    return max(until.values(), default=0.0)


def _mean_call(entries: Sequence[LedgerEntry]) -> CallUse:
    return CallUse(
        input_tokens=fmean(entry.spent.input_tokens for entry in entries),
        output_tokens=fmean(entry.spent.output_tokens for entry in entries),
        seconds=fmean(entry.spent.seconds for entry in entries),
    )


def _rate(entries: Sequence[LedgerEntry]) -> float | None:
    """Dollars for a token, if all calls had a price."""
    tokens = sum(entry.spent.tokens for entry in entries)
    if not tokens or any(entry.spent.cost_usd is None for entry in entries):
        return None
    return sum(entry.spent.cost_usd or 0.0 for entry in entries) / tokens
