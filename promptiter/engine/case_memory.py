"""What a run remembers of its cases for later runs, and what it finds about earlier ones.

The uses are kept outside of the run (see `CaseUses`); what the run finds there is in its record, so that a resumed run
finds the same.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from promptiter.engine.active_run import ActiveRun
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.stats.final_test import Scope
from promptiter.runlog.case_uses import (
    CaseUse,
    count_overlapping,
    count_seen_cases,
    list_case_digests,
    list_earlier_uses,
)
from promptiter.runlog.payloads import BegunMeasured, CasesUsed, FinalTestBegun, FinalTestFinished, OpenedTestSet
from promptiter.wording import join_names


async def remember_search(run: ActiveRun) -> None:
    """Keep the train and validation cases of a run, once, and record how often they were used before.

    It is called before the first candidate is compared on validation and before a search reads validation results. A
    run that ends earlier has chosen nothing by them, so it leaves the cases as new as they were.
    """
    is_known = run.shape == "scorer" or run.state.run.case_history.validation_cases > 0
    if is_known or await run.log.take(CasesUsed) is not None:
        return
    train, validation = list_case_digests(run.checked.train), list_case_digests(run.checked.validation)
    use = CaseUse(
        id=run.state.use_id,
        run_id=run.log.run_id,
        kind="search",
        place=run.place,
        train=train if run.shape == "two_sets" else (),
        validation=validation,
    )
    earlier = list_earlier_uses(await run.case_uses.add(use), use.id)
    found = CasesUsed(
        validation_cases=len(validation),
        earlier_runs=count_overlapping(validation, [each.validation for each in earlier if each.kind == "search"]),
        seen_cases=count_seen_cases(validation, earlier),
    )
    await run.log.append(found)


async def remember_final_test(run: ActiveRun) -> str | None:
    """Keep that the final test of a run begins, and return a warning if it was begun before, in a copy of the run.

    The record of a run names its final test. A copy that was made before the test names another one, and a copy that
    was made later has another place.
    """
    begun = await run.note(FinalTestBegun(measured=BegunMeasured(id=secrets.token_hex(8))))
    use = CaseUse(id=begun.measured.id, run_id=run.log.run_id, kind="final_test", place=run.place)
    uses = await run.case_uses.add(use)
    own = [each for each in uses if each.kind == "final_test" and each.run_id == use.run_id]
    until = own[: len(list_earlier_uses(own, use.id)) + 1]  # later ones could change what a resumed run concludes
    places = sorted({each.place for each in until if (each.id, each.place) != (use.id, use.place)})
    if places:
        where = f" in {join_names([repr(place) for place in places])}" if any(places) else ""
        return f"the final test of this run was begun before{where}, so this is not the only result"
    if run.place and run.shape != "scorer" and run.state.use_id not in {each.id for each in uses}:
        return "this run was begun elsewhere: the uses of cases in its folder do not include it, so it may be a copy"
    return None


async def remember_result(run: ActiveRun, finished: FinalTestFinished) -> str | None:
    """Keep a result of the final test, and return a warning if the test had a result for the same scope before.

    The result has its own id, which its event names, so one that is replayed is the same. The event comes first: a run
    that was killed after it keeps the result when it is resumed.
    """
    scope = finished.result.scope
    result_id = f"{_name_results(run, scope)}{finished.measured.id}"
    use = CaseUse(id=result_id, run_id=run.log.run_id, kind="test_result", place=run.place)
    if _list_results(run, list_earlier_uses(await run.case_uses.add(use), use.id), scope):
        return "the final test of this run was finished before, so this is not the only result"
    return None


def _name_results(run: ActiveRun, scope: Scope) -> str:
    """What the ids of the results for a scope begin with."""
    return f"{run.state.use_id}:{scope}:"


def _list_results(run: ActiveRun, uses: Iterable[CaseUse], scope: Scope) -> list[CaseUse]:
    """The results that the final test of a run had for a scope."""
    return [use for use in uses if use.kind == "test_result" and use.id.startswith(_name_results(run, scope))]


async def remember_test_set(run: ActiveRun, test: EvalSet) -> None:
    """Keep the test cases before they run, and record how often they were used before.

    A result of this run itself is one of a record that was cut off later.
    """
    if await run.log.take(OpenedTestSet) is not None:
        return
    cases = list_case_digests(test)
    use = CaseUse(id=f"{run.state.use_id}:test", run_id=run.log.run_id, kind="test_set", place=run.place, test=cases)
    uses = await run.case_uses.add(use)
    earlier = list_earlier_uses(uses, use.id)
    searches = [each for each in earlier if each.kind in ("search", "try")]
    found = OpenedTestSet(
        opened_before=count_overlapping(cases, [each.test for each in earlier])
        + len(_list_results(run, uses, "new cases")),
        seen_cases=count_seen_cases(cases, searches),
    )
    await run.log.append(found)
