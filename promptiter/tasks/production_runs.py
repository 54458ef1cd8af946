"""The runs of production that can teach something, read from traces one after the other.

Of runs that nobody judged only the structure and their number are kept, so that many traces take little memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from promptiter.errors import SetupError
from promptiter.tasks.feedback import Feedback, FeedbackFile, join_rows, list_trace_ids, read_judgements
from promptiter.tasks.recorded_agent import JudgedRun
from promptiter.tasks.recorded_run import read_run, split_turns
from promptiter.tasks.recorded_structure import RecordedStructure, recover_structure
from promptiter.wording import plural
from traces import ExecutionTrace
from traces.structure import StructureReader


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductionRuns:
    """Recorded runs, what was said about them, and the structure that all traces show.

    `unjudged` runs were read and not kept. `notes` say which feedback contradicts itself, or is about other traces.
    """

    runs: tuple[JudgedRun, ...]
    structure: RecordedStructure
    unjudged: int = 0
    notes: tuple[str, ...] = ()

    @property
    def has_feedback(self) -> bool:
        return any(run.feedback is not None for run in self.runs)


def read_production(
    traces: Iterable[ExecutionTrace], feedback: FeedbackFile | None = None, *, keep_unjudged: bool = True
) -> ProductionRuns:
    """Read the runs of traces, and find what was said about each. Turns of a conversation are runs of their own.

    Raises SetupError if there are no traces, or if the feedback is about others.
    """
    reader = StructureReader()
    runs: list[JudgedRun] = []
    unjudged = contradictory = 0
    used: set[int] = set()
    last_id = ""
    for trace in traces:
        reader.add(trace)
        last_id = trace.id
        for each, said in _list_runs(trace, feedback):
            used |= set(map(id, said))
            contradictory += len({row.is_good for row in said if row.is_good is not None}) > 1
            run = JudgedRun(trace=each, run=read_run(each), feedback=join_rows(said) if said else read_judgements(each))
            if keep_unjudged or run.is_judged:
                runs.append(run)
            else:
                unjudged += 1
    structure = recover_structure(reader.finish())
    notes = []
    if feedback is not None:
        if not used:
            row = feedback.rows[0]
            raise SetupError(
                f"no row of {feedback.source} is about one of the {plural(len(runs) + unjudged, 'run')}: it has "
                f"{(row.trace_id or row.conversation_id)!r}, the traces {last_id!r}"
            )
        if len(used) < len(feedback.rows):
            others = len(feedback.rows) - len(used)
            notes.append(f"{others:,} of {plural(len(feedback.rows), 'row')} of feedback are about other traces")
    if contradictory:
        notes.append(f"{plural(contradictory, 'run')} got both good and bad ratings, which counts as bad")
    return ProductionRuns(runs=tuple(runs), structure=structure, unjudged=unjudged, notes=tuple(notes))


def _list_runs(trace: ExecutionTrace, feedback: FeedbackFile | None) -> Iterable[tuple[ExecutionTrace, list[Feedback]]]:
    """The runs of a trace with the rows about them. What was said about a conversation is about all of it."""
    if feedback is None:
        return [(turn, []) for turn in split_turns(trace)]
    if not feedback.list_rows(list_trace_ids(trace)):
        return [(trace, feedback.list_rows((), trace.conversation_id))]
    return [(turn, feedback.list_rows(list_trace_ids(turn))) for turn in split_turns(trace)]
