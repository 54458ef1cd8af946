"""RunServices: what one run owns and shares with no other run."""

from __future__ import annotations

from dataclasses import dataclass

from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.trace_store import FolderTraceStore, TraceStore
from promptiter.llm.cache.cache import Cache
from promptiter.llm.gateway import Gateway
from promptiter.llm.ledger import LedgerSnapshot
from promptiter.runlog.journal import Journal, MemoryJournal


@dataclass(frozen=True, slots=True, kw_only=True)
class RunServices:
    """The journal of a run, its traces, and its gateway, which has the run's cache, ledger, budget and seed.

    `spent_before` is what earlier processes spent on a resumed run; None means what the journal says.
    """

    journal: Journal
    gateway: Gateway
    trace_store: TraceStore
    spent_before: LedgerSnapshot | None = None


def make_services(
    evaluator: Evaluator,
    *,
    journal: Journal | None = None,
    cache: Cache | None = None,
    trace_store: TraceStore | None = None,
    spent_before: LedgerSnapshot | None = None,
    run_name: str = "",
) -> RunServices:
    """Make the services of a run with this evaluator. What is not given is in memory and ends with the run.

    A cache or a trace store that the user gave to the gateway or the evaluator is used by all runs. What was spent
    before is charged to the budget; `run_name` identifies the run, so that a shared budget is charged only once.
    """
    gateway = evaluator.gateway.for_run(cache=cache, seed=evaluator.seed)
    if spent_before is not None and gateway.budget is not None:
        gateway.budget.charge(spent_before.of_models, of=run_name)
    if trace_store is None:
        trace_store = evaluator.trace_store if evaluator.shares_trace_store else FolderTraceStore()
    return RunServices(
        journal=MemoryJournal() if journal is None else journal,
        gateway=gateway,
        trace_store=trace_store,
        spent_before=spent_before,
    )
