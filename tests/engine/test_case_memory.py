"""A project remembers how often its cases were used."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from promptiter.engine.request import RunRequest
from promptiter.engine.run import RunFailedError
from promptiter.engine.session import Session
from promptiter.errors import ModelUnavailableError
from promptiter.llm.budget import Budget
from promptiter.llm.gateway import Gateway
from promptiter.policies.final_test import FinalTest
from promptiter.runlog.case_uses import CaseUse, MemoryCaseUses
from promptiter.runlog.events import Event
from promptiter.runlog.journal import MemoryJournal
from promptiter.runlog.results import RunResult
from promptiter.runs.directory import RunDirectory
from promptiter.runs.memory_store import MemoryStore
from promptiter.runs.stored_run import StoredRun
from promptiter.testing.store_hooks import Killed
from tests.worlds import desk
from tests.worlds.desk import DRAFT, POLISH


def request(**changes: object) -> RunRequest:
    return desk.request(**{"validation": desk.eval_set("validation", 10), "run_id": "", **changes})


def reasons(result: RunResult) -> tuple[str, ...]:
    assert result.conclusion is not None
    return result.conclusion.reasons


@pytest.mark.slow
async def test_an_engine_with_a_memory_knows_the_validation_cases_of_its_runs() -> None:
    engine = desk.engine(DRAFT, case_uses=MemoryCaseUses())
    first, second = [await engine.run(request()) for _ in range(2)]
    assert (first.case_history.earlier_runs, second.case_history.earlier_runs) == (0, 1)
    assert first.case_history.describe() == ()
    assert second.case_history.describe() == ("run 2 on these 10 validation cases",)


@pytest.mark.slow
async def test_sets_that_overlap_count() -> None:
    engine = desk.engine(DRAFT, case_uses=MemoryCaseUses())
    await engine.run(request(validation=desk.eval_set("validation", 4)))
    more = await engine.run(request())
    assert "run 2 on these 10 validation cases, 4 of which were used before" in more.case_history.describe()
    trained = await engine.run(request(train=desk.eval_set("other", 3), validation=desk.eval_set("train", 3)))
    assert (trained.case_history.earlier_runs, trained.case_history.seen_cases) == (0, 3)


@pytest.mark.slow
async def test_the_uses_of_cases_survive_their_runs(tmp_path: Path) -> None:
    first = RunDirectory.begin(tmp_path, desk.engine(DRAFT), request())
    await first.run()
    shutil.rmtree(first.path)
    second = await RunDirectory.begin(tmp_path, desk.engine(DRAFT), request()).run()
    assert second.case_history.earlier_runs == 1
    elsewhere = await RunDirectory.begin(tmp_path / "other", desk.engine(DRAFT), request()).run()
    assert elsewhere.case_history.earlier_runs == 0


@pytest.mark.slow
async def test_an_opened_test_set_is_remembered() -> None:
    engine = desk.engine({**DRAFT, **POLISH}, case_uses=MemoryCaseUses())
    held_out = desk.eval_set("held-out", 8)
    results = [await engine.run(request(test=held_out)) for _ in range(3)]
    assert [each.case_history.test_opened for each in results] == [0, 1, 2]
    assert "the test set was opened twice before" in results[2].case_history.describe()


@pytest.mark.slow
async def test_a_test_set_that_was_not_opened_is_not_counted() -> None:
    engine = desk.engine(DRAFT, case_uses=MemoryCaseUses())
    few = await engine.run(request(test=desk.eval_set("held-out", 7)))
    assert few.case_history.test_opened is None
    enough = await engine.run(request(test=desk.eval_set("held-out", 8)))
    assert enough.case_history.test_opened == 0


@pytest.mark.slow
async def test_test_cases_that_an_earlier_search_used_are_counted() -> None:
    engine = desk.engine(DRAFT, case_uses=MemoryCaseUses())
    await engine.run(request())
    later = request(validation=desk.eval_set("other", 10), test=desk.eval_set("validation", 10))
    found = (await engine.run(later)).case_history.describe()
    assert "used before in a search or with `promptiter try`: 10 test cases" in found


@pytest.mark.slow
async def test_a_run_that_only_evaluates_the_baseline_uses_nothing_up() -> None:
    engine = desk.engine(DRAFT, case_uses=MemoryCaseUses())
    await engine.run(request(max_rounds=0))
    assert (await engine.run(request())).case_history.seen_cases == 0


class FailsEarly:
    """A search that fails before it has a candidate, after it has read validation results if it `reads` them."""

    def __init__(self, *, reads: bool) -> None:
        self.reads = reads

    async def search(self, session: Session) -> None:
        await session.begin_round()
        await session.evaluate(session.train, session.accepted.profile, phase="train")
        if self.reads:
            await session.read_validation()
        raise ModelUnavailableError("the model of the stages is down")


@pytest.mark.slow
@pytest.mark.parametrize(("reads", "verdict"), [(False, "improved"), (True, "improved_on_validation")])
async def test_a_run_that_fails_before_validation_results_were_used_leaves_the_cases_new(
    reads: bool, verdict: str
) -> None:
    uses = MemoryCaseUses()
    with pytest.raises(RunFailedError):
        await desk.engine(search=FailsEarly(reads=reads), case_uses=uses).run(request())
    later = await desk.engine({**DRAFT, **POLISH}, case_uses=uses).run(request())
    assert (later.verdict, later.case_history.earlier_runs) == (verdict, int(reads))


@pytest.mark.slow
@pytest.mark.parametrize("max_calls", [24, 28])
async def test_a_budget_that_ends_before_a_candidate_is_compared_leaves_the_cases_new(max_calls: int) -> None:
    uses = MemoryCaseUses()
    gateway = Gateway(models={"scripted": desk.model()}, budget=Budget(max_calls=max_calls))
    stopped = await desk.engine(DRAFT, gateway=gateway, case_uses=uses).run(request(final_test=None))
    assert stopped.stop_reason == "max_calls"
    later = await desk.engine(DRAFT, case_uses=uses).run(request())
    assert later.case_history.earlier_runs == (max_calls == 28), "the second budget ends while a candidate is compared"


@pytest.mark.slow
async def test_a_run_whose_record_has_its_cases_before_the_search_is_resumed() -> None:
    whole, asked = MemoryJournal(), request(run_id="r", validation=desk.eval_set("validation", 2))
    expected = await desk.engine(DRAFT).run(asked, journal=whole)
    events = [event for event in whole.events if event.type != "cases_used"]
    used = next(event for event in whole.events if event.type == "cases_used")
    start = next(number for number, event in enumerate(events) if event.type == "round_started") - 1
    journal = MemoryJournal()
    for number, event in enumerate([*events[:start], used, *events[start:-4]]):
        await journal.append(event.model_copy(update={"seq": number}))
    again = await desk.engine(DRAFT).run(asked, journal=journal)
    assert (again, again.case_history) == (expected, expected.case_history)


@pytest.mark.slow
async def test_a_resumed_run_has_the_same_history_wherever_it_was_killed() -> None:
    whole = MemoryJournal()
    asked = request(run_id="r", validation=desk.eval_set("validation", 2), test=desk.eval_set("held-out", 8))
    expected = await desk.engine({**DRAFT, **POLISH}).run(asked, journal=whole)
    events = list(whole.events)
    about_cases = {"cases_used", "final_test_begun", "test_set_opened"}
    assert about_cases <= {event.type for event in events}
    for count in range(1, len(events)):
        if count % 9 and about_cases.isdisjoint(event.type for event in events[count - 1 : count + 1]):
            continue
        journal = MemoryJournal()
        for event in events[:count]:
            await journal.append(event)
        again = await desk.engine({**DRAFT, **POLISH}).run(asked, journal=journal)
        assert (again, again.case_history) == (expected, expected.case_history), (
            f"killed after {events[count - 1].type}"
        )


def cut_off_final_test(path: Path) -> None:
    """Remove the final test from the record of a run."""
    lines = (path / "journal.jsonl").read_bytes().splitlines(keepends=True)
    begun = next(number for number, line in enumerate(lines) if b'"final_test_begun"' in line)
    (path / "journal.jsonl").write_bytes(b"".join(lines[:begun]))


async def resume(path: Path) -> RunResult:
    return await RunDirectory.resume(path, desk.engine(DRAFT), request()).run()


@pytest.mark.slow
async def test_a_copied_run_is_not_tested_again_unnoticed(tmp_path: Path) -> None:
    path = RunDirectory.begin(tmp_path, desk.engine(DRAFT), request()).path
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    first, second = await resume(path), await resume(copy)
    assert not any("begun before" in each for each in reasons(first))
    warning = f"the final test of this run was begun before in {path.name!r}, so this is not the only result"
    assert warning in reasons(second)


@pytest.mark.slow
async def test_a_run_whose_final_test_was_cut_off_is_not_tested_again_unnoticed(tmp_path: Path) -> None:
    run = RunDirectory.begin(tmp_path, desk.engine(DRAFT), request())
    await run.run()
    cut_off_final_test(run.path)
    assert any("the final test of this run was begun before" in each for each in reasons(await resume(run.path)))
    another = await RunDirectory.begin(tmp_path, desk.engine(DRAFT), request()).run()
    assert another.case_history.earlier_runs == 1, "a resumed run counts once"


@pytest.mark.slow
async def test_a_run_that_was_copied_into_another_folder_is_noticed(tmp_path: Path) -> None:
    run = RunDirectory.begin(tmp_path, desk.engine(DRAFT), request())
    await run.run()
    copy = tmp_path / "other" / run.path.name
    shutil.copytree(run.path, copy)
    cut_off_final_test(copy)
    assert any("this run was begun elsewhere" in each for each in reasons(await resume(copy)))


UNABLATED = FinalTest(ablate=False)
WITHOUT_TEST_SET = request(run_id="r", validation=desk.eval_set("validation", 8), alpha=0.2, final_test=UNABLATED)
WITH_TEST_SET = request(
    run_id="r", validation=desk.eval_set("validation", 2), test=desk.eval_set("held-out", 8), final_test=UNABLATED
)


async def run_whole(asked: RunRequest, *, uses: MemoryCaseUses, journal: MemoryJournal) -> RunResult:
    return await desk.engine({**DRAFT, **POLISH}, case_uses=uses).run(asked, journal=journal)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "cut", "verdict"),
    [
        (WITHOUT_TEST_SET, ("final_test_begun", 1), "improved_on_validation"),
        (WITHOUT_TEST_SET, ("final_test", 1), "improved_on_validation"),
        (WITH_TEST_SET, ("final_test_begun", 1), "improved"),
        (WITH_TEST_SET, ("test_set_opened", 0), "improved"),
    ],
    ids=["after its begin", "after these cases", "with a test set", "before the test set"],
)
async def test_a_final_test_is_not_finished_again_unnoticed(
    asked: RunRequest, cut: tuple[str, int], verdict: str
) -> None:
    """The record was restored to a moment at which the test had begun."""
    uses, journal = MemoryCaseUses(), MemoryJournal()
    first = await run_whole(asked, uses=uses, journal=journal)
    assert first.verdict == "improved"
    warning = "the final test of this run was finished before, so this is not the only result"
    assert warning not in reasons(first)
    kind, offset = cut
    del journal.events[next(event.seq for event in journal.events if event.type == kind) + offset :]
    again = await run_whole(asked, uses=uses, journal=journal)
    assert again.verdict == verdict
    assert warning in reasons(again)
    assert again.case_history.test_opened == (None if asked.test is None else 1)
    if asked.test is None:
        assert any("not shown for new cases: this may not be the only final test" in each for each in reasons(again))


class KilledJournal(MemoryJournal):
    """Simulates a kill when the next event is written after a number of them."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    async def append(self, event: Event) -> None:
        if event.seq >= self.count:
            raise Killed
        await super().append(event)


async def check_kill(asked: RunRequest, expected: RunResult, count: int) -> None:
    """A run that was killed after a number of events resumes to the same result, with the uses that it had kept."""
    uses, journal = MemoryCaseUses(), KilledJournal(count)
    with pytest.raises(Killed):
        await run_whole(asked, uses=uses, journal=journal)
    assert len(journal.events) == count
    journal.count = sys.maxsize
    again = await run_whole(asked, uses=uses, journal=journal)
    assert (again, again.case_history) == (expected, expected.case_history), f"killed after {count} events"


@pytest.mark.slow
async def test_a_final_test_that_was_killed_after_a_result_is_finished_once() -> None:
    whole = MemoryJournal()
    expected = await run_whole(WITH_TEST_SET, uses=MemoryCaseUses(), journal=whole)
    for event in [event for event in whole.events if event.type == "final_test"]:
        await check_kill(WITH_TEST_SET, expected, event.seq + 1)


class KilledUses(MemoryCaseUses):
    """Simulates a kill when the first result of a final test is kept."""

    is_killed = False

    async def add(self, use: CaseUse) -> Sequence[CaseUse]:
        if use.kind == "test_result" and not self.is_killed:
            self.is_killed = True
            raise Killed
        return await super().add(use)


async def test_a_result_that_a_killed_run_did_not_keep_is_kept_when_it_is_resumed() -> None:
    uses, journal = KilledUses(), MemoryJournal()
    with pytest.raises(Killed):
        await run_whole(WITH_TEST_SET, uses=uses, journal=journal)
    assert journal.events[-1].type == "final_test"
    resumed = await run_whole(WITH_TEST_SET, uses=uses, journal=journal)
    assert (resumed.verdict, resumed.case_history.test_opened) == ("improved", 0)
    assert not any("finished before" in each for each in reasons(resumed))
    kept = await uses.add(CaseUse(id="last", run_id="", kind="try"))
    assert [use.kind for use in kept].count("test_result") == 2


@pytest.mark.slow
async def test_a_run_can_be_resumed_although_a_copy_was_tested_meanwhile() -> None:
    """The first test to begin is the one that counts, also if it ends later."""
    whole, uses = MemoryJournal(), MemoryCaseUses()
    expected = await run_whole(WITHOUT_TEST_SET, uses=MemoryCaseUses(), journal=whole)
    *_, last = [event.seq for event in whole.events if event.type == "final_test"]
    journal, copy = KilledJournal(last), MemoryJournal()
    with pytest.raises(Killed):
        await run_whole(WITHOUT_TEST_SET, uses=uses, journal=journal)
    begun = next(event.seq for event in journal.events if event.type == "final_test_begun")
    copy.events = journal.events[:begun]
    copied = await run_whole(WITHOUT_TEST_SET, uses=uses, journal=copy)
    assert any("the final test of this run was begun before" in each for each in reasons(copied))
    journal.count = sys.maxsize
    assert await run_whole(WITHOUT_TEST_SET, uses=uses, journal=journal) == expected


@pytest.mark.long
async def test_a_run_killed_anywhere_is_tested_once() -> None:
    whole = MemoryJournal()
    expected = await run_whole(WITH_TEST_SET, uses=MemoryCaseUses(), journal=whole)
    for event in whole.events[1:]:
        if event.type != "case":
            await check_kill(WITH_TEST_SET, expected, event.seq)


@pytest.mark.slow
async def test_a_store_in_memory_remembers_too() -> None:
    store = MemoryStore()
    runs = [await StoredRun.begin(store, desk.engine(DRAFT), request()) for _ in range(2)]
    assert [(await run.run()).case_history.earlier_runs for run in runs] == [0, 1]
