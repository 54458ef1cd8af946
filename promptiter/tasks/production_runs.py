"""The runs of production that can teach something, read from traces one after the other.

Of many runs a random sample of each outcome is kept, and all are counted: memory does not grow with their number.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import get_args

from promptiter.errors import SetupError
from promptiter.tasks.feedback import Feedback, FeedbackFile, join_rows, list_trace_ids, read_judgements
from promptiter.tasks.recorded_agent import JudgedRun, RunOutcome
from promptiter.tasks.recorded_run import read_run, split_turns
from promptiter.tasks.recorded_structure import RecordedStructure, recover_structure
from promptiter.tasks.run_tally import RunTally
from promptiter.wording import plural
from traces import ExecutionTrace
from traces.structure import StructureReader

MOST_KEPT = 2_000
"""Maximum number of runs of each outcome that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductionRuns:
    """Recorded runs, what was said about them, and the structure that all traces show.

    `tally` counts all runs, also those that were not kept. `notes` say which feedback contradicts itself, or is about
    other traces.
    """

    runs: tuple[JudgedRun, ...]
    structure: RecordedStructure
    tally: RunTally
    notes: tuple[str, ...] = ()

    @property
    def has_feedback(self) -> bool:
        return any(run.feedback is not None for run in self.runs)


def read_production(
    traces: Iterable[ExecutionTrace],
    feedback: FeedbackFile | None = None,
    *,
    most: int = MOST_KEPT,
    most_unjudged: int | None = None,
    seed: int = 0,
) -> ProductionRuns:
    """Read the runs of traces, and find what was said about each. Turns of a conversation are runs of their own.

    At most `most` runs of each outcome are kept, and at most `most_unjudged` of those that nobody judged, which is the
    same number by default.
    Raises SetupError if there are no traces, or if the feedback is about others.
    """
    reader, tally = StructureReader(), RunTally()
    rng = Random(seed)
    samples = {outcome: _Sample(most, rng) for outcome in get_args(RunOutcome)}
    if most_unjudged is not None:
        samples["unknown"] = _Sample(most_unjudged, rng)
    contradictory = 0
    used: set[int] = set()
    last_id = ""
    for trace in traces:
        reader.add(trace)
        last_id = trace.id
        for each, said in _list_runs(trace, feedback):
            used |= set(map(id, said))
            contradictory += len({row.is_good for row in said if row.is_good is not None}) > 1
            run = JudgedRun(trace=each, run=read_run(each), feedback=join_rows(said) if said else read_judgements(each))
            samples[run.outcome].add(run, at=sum(sample.seen for sample in samples.values()))
            tally.add(each, run.outcome)
    structure = recover_structure(reader.finish())
    seen = sum(sample.seen for sample in samples.values())
    notes = []
    if feedback is not None:
        if not used:
            row = feedback.rows[0]
            raise SetupError(
                f"no row of {feedback.source} is about one of the {plural(seen, 'run')}: it has "
                f"{(row.trace_id or row.conversation_id)!r}, the traces {last_id!r}"
            )
        if len(used) < len(feedback.rows):
            others = len(feedback.rows) - len(used)
            notes.append(f"{others:,} of {plural(len(feedback.rows), 'row')} of feedback are about other traces")
    if contradictory:
        notes.append(f"{plural(contradictory, 'run')} got both good and bad ratings, which counts as bad")
    kept = sorted((pair for sample in samples.values() for pair in sample.kept), key=lambda pair: pair[0])
    return ProductionRuns(runs=tuple(run for _, run in kept), structure=structure, tally=tally, notes=tuple(notes))


@dataclass(slots=True)
class _Sample:
    """A random sample of the runs that were added, each with its place among all runs; the others are only counted."""

    most: int
    rng: Random
    seen: int = 0
    kept: list[tuple[int, JudgedRun]] = field(default_factory=list)

    def add(self, run: JudgedRun, *, at: int) -> None:
        self.seen += 1
        if len(self.kept) < self.most:
            self.kept.append((at, run))
        elif (place := self.rng.randrange(self.seen)) < self.most:
            self.kept[place] = at, run


def _list_runs(trace: ExecutionTrace, feedback: FeedbackFile | None) -> Iterable[tuple[ExecutionTrace, list[Feedback]]]:
    """The runs of a trace with the rows about them. What was said about a conversation is about all of it."""
    if feedback is None:
        return [(turn, []) for turn in split_turns(trace)]
    if not feedback.list_rows(list_trace_ids(trace)):
        return [(trace, feedback.list_rows((), trace.conversation_id))]
    return [(turn, feedback.list_rows(list_trace_ids(turn))) for turn in split_turns(trace)]
