"""RunServices: what one run owns and shares with no other run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.trace_store import TraceStore
from promptiter.llm.cache.cache import Cache
from promptiter.llm.ledger import LedgerSnapshot
from promptiter.runlog.case_uses import CaseUses, MemoryCaseUses
from promptiter.runlog.journal import Journal, MemoryJournal


@dataclass(frozen=True, slots=True, kw_only=True)
class RunServices:
    """The journal of a run, and its evaluator, which has the run's traces, cache, ledger, budget and seed.

    `spent_before` is what earlier processes spent on a resumed run; None means what the journal says. `case_uses` are
    those of the project, where the run is known as `place`. `folder` has the files of the run, if it has any.
    """

    journal: Journal
    evaluator: Evaluator
    spent_before: LedgerSnapshot | None = None
    case_uses: CaseUses = field(default_factory=MemoryCaseUses)
    place: str = ""
    folder: Path | None = None


def make_services(
    evaluator: Evaluator,
    *,
    journal: Journal | None = None,
    cache: Cache | None = None,
    trace_store: TraceStore | None = None,
    spent_before: LedgerSnapshot | None = None,
    run_name: str = "",
    case_uses: CaseUses | None = None,
    place: str = "",
    folder: Path | None = None,
) -> RunServices:
    """Make the services of a run with this evaluator. What is not given is in memory and ends with the run.

    A cache or a trace store that the user gave to the gateway or the evaluator is used by all runs. What was spent
    before is charged to the budget; `run_name` identifies the run, so that a shared budget is charged only once.
    """
    evaluator = evaluator.for_run(cache=cache, trace_store=trace_store)
    if spent_before is not None and evaluator.gateway.budget is not None:
        evaluator.gateway.budget.charge(spent_before.of_models, of=run_name)
    journal = MemoryJournal() if journal is None else journal
    return RunServices(
        journal=journal,
        evaluator=evaluator,
        spent_before=spent_before,
        case_uses=MemoryCaseUses() if case_uses is None else case_uses,
        place=place,
        folder=folder,
    )
