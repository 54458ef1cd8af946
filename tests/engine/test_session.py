"""What a search may ask of its session, and how a request that it may not make is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import pytest

from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import ModelNode
from promptiter.engine.request import RunRequest
from promptiter.engine.run import RunFailedError
from promptiter.engine.session import Session
from promptiter.evaluation.data.case import EvalCase, EvalSet, Scenario
from promptiter.policies.evidence import AcceptanceDecision
from promptiter.profile import PatchSet, Profile, SurfacePatch
from promptiter.runlog.events import Payload, event_type
from promptiter.runlog.fold import fold, fold_lazily
from promptiter.runlog.journal import MemoryJournal
from promptiter.runlog.payloads import CandidateDecided
from promptiter.runlog.results import RunResult
from promptiter.runlog.run_state import ENGINE_PHASES
from tests.worlds import desk
from tests.worlds.desk import DRAFT, POLISH, WORSE

STRUCTURE = desk.agent().describe()
BEST = Profile.of(STRUCTURE, {**DRAFT, **POLISH})
ACCEPTED = AcceptanceDecision(accepted=True, delta=1.0, reason="it is better")


@event_type("tests.guess")
@dataclass(frozen=True, slots=True, kw_only=True)
class Guess(Payload):
    text: str


class Does:
    """A search of one round that does what it is given."""

    def __init__(self, ask: Callable[[Session], Awaitable[object]]) -> None:
        self.ask = ask

    async def search(self, session: Session) -> None:
        await session.begin_round()
        await self.ask(session)
        await session.complete_round()


def run(ask: Callable[[Session], Awaitable[object]], journal: MemoryJournal | None = None) -> RunResult:
    return desk.engine(search=Does(ask)).run_sync(desk.request(), journal=journal)


async def evaluate(session: Session) -> object:
    return await session.evaluate(session.train, session.accepted.profile, phase="train")


async def record(session: Session) -> Guess:
    async def work() -> Guess:
        await asyncio.sleep(0)
        return Guess(text="one")

    return await session.record(Guess, work)


async def validate(session: Session) -> object:
    return await session.validate(BEST)


@pytest.mark.parametrize("second", [evaluate, record, validate, Session.should_stop, Session.begin_round])
@pytest.mark.parametrize("first", [evaluate, record, validate])
def test_requests_at_the_same_time_are_an_error(
    first: Callable[[Session], Awaitable[object]], second: Callable[[Session], Awaitable[object]]
) -> None:
    """They would be recorded in the order in which they end, and a resumed run could not ask in that order."""

    async def ask(session: Session) -> None:
        await asyncio.gather(first(session), second(session))

    with pytest.raises(RunFailedError, match=r"await it before the next. Several .* session.evaluate_many"):
        run(ask)


def test_a_request_that_a_search_leaves_behind_is_an_error() -> None:
    """It would write events after the end of the search."""
    left: list[asyncio.Task[object]] = []

    async def start(session: Session) -> object:
        return await evaluate(session)

    class Leaves:
        async def search(self, session: Session) -> None:
            await session.begin_round()
            left.append(asyncio.create_task(start(session)))
            await asyncio.sleep(0)

    journal = MemoryJournal()
    with pytest.raises(RunFailedError, match="await every request"):
        desk.engine(search=Leaves()).run_sync(desk.request(), journal=journal)
    assert left[0].cancelled()
    assert [event.seq for event in journal.events] == list(range(len(journal.events)))
    assert journal.events[-1].type == "run_completed"


def test_recorded_work_makes_no_requests() -> None:
    async def ask(session: Session) -> None:
        async def work() -> Guess:
            await evaluate(session)
            return Guess(text="never")

        await session.record(Guess, work)

    with pytest.raises(RunFailedError, match="make requests before it or after it"):
        run(ask)


def test_a_session_takes_requests_again_after_one_that_failed() -> None:
    async def ask(session: Session) -> None:
        async def work() -> Guess:
            raise ValueError("no guess")

        with pytest.raises(ValueError, match="no guess"):
            await session.record(Guess, work)
        await record(session)

    assert [note.type for note in run(ask).rounds[0].notes] == ["tests.guess"]


OUTSIDE: dict[str, Callable[[Session], Awaitable[object]]] = {
    "propose": lambda session: session.propose(BEST),
    "validate": validate,
    "reject": lambda session: session.reject(BEST, "no"),
    "skip_round": lambda session: session.skip_round("no"),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_candidate_outside_of_a_round_is_an_error(name: str) -> None:
    class Early:
        async def search(self, session: Session) -> None:
            await OUTSIDE[name](session)

    with pytest.raises(RunFailedError, match=r"call session\.begin_round first"):
        desk.engine(search=Early()).run_sync(desk.request())


@pytest.mark.parametrize("phase", sorted(ENGINE_PHASES))
def test_a_search_does_not_evaluate_in_the_name_of_the_engine(phase: str) -> None:
    with pytest.raises(RunFailedError, match="is the engine's own; name another"):
        run(lambda session: session.evaluate(session.train, BEST, phase=phase))


def test_fields_of_a_session_and_its_state_are_read_only() -> None:
    async def ask(session: Session) -> None:
        fields = [name for name in (*vars(session), *dir(type(session))) if not name.startswith("_")]
        assert {"request", "rng", "targets", "evaluator", "accepted", "train", "round"} <= set(fields)
        state = (await session.read_validation()).state
        for name in (*fields, "something_new"):
            with pytest.raises(AttributeError):
                setattr(session, name, None)
        properties = [name for name, value in vars(type(state)).items() if isinstance(value, property)]
        assert {"run", "round", "accepted", "candidates_tried"} <= set(properties)
        for name in properties:
            with pytest.raises(AttributeError):
                setattr(state, name, None)
        assert not [name for name in vars(state) if not name.startswith("_")]

    assert run(ask).status == "succeeded"


HIDDEN: list[Callable[[Session], object]] = [
    lambda session: session.validation,
    lambda session: session.state,
    lambda session: session.accepted.validation,
    lambda session: session.baseline.validation,
]


@pytest.mark.parametrize("read", HIDDEN)
def test_a_search_does_not_see_validation_results_by_the_way(read: Callable[[Session], object]) -> None:
    async def ask(session: Session) -> None:
        read(session)

    with pytest.raises(RunFailedError, match=r"calls `await session\.read_validation\(\)`"):
        run(ask)


def test_the_request_of_a_session_has_no_validation_and_no_test_cases() -> None:
    async def ask(session: Session) -> None:
        assert (session.request.validation, session.request.test) == (None, None)
        assert session.request.max_rounds == desk.request().max_rounds

    assert run(ask).status == "succeeded"


def test_a_search_learns_only_whether_validation_accepts_a_candidate() -> None:
    seen: list[AcceptanceDecision] = []

    async def ask(session: Session) -> None:
        seen.extend([await session.validate(BEST), await session.validate(session.baseline.profile)])

    result = run(ask)
    assert seen == [
        AcceptanceDecision(accepted=True, delta=None, reason="accepted on validation"),
        AcceptanceDecision(accepted=False, delta=None, reason="not accepted on validation"),
    ]
    recorded = [each.decision.delta for each in result.rounds[0].candidates if each.decision is not None]
    assert recorded == [1.0, -1.0], "the record has the figures"


async def evaluate_validation(session: Session) -> None:
    await session.evaluate(desk.eval_set("validation", 2), session.accepted.profile, phase="screening")


def change_references(eval_set: EvalSet) -> EvalSet:
    """The same inputs under other names, with other references."""
    cases = (
        replace(case, id=f"other-{case.id}", turns=tuple(replace(turn, expected="anything") for turn in case.turns))
        for case in eval_set.cases
    )
    return EvalSet(id="other", cases=tuple(cases))


async def evaluate_validation_inputs(session: Session) -> None:
    inputs = change_references(desk.eval_set("validation", 2))
    await session.evaluate(inputs, session.accepted.profile, phase="screening")


@pytest.mark.parametrize("read", [Session.read_validation, evaluate_validation, evaluate_validation_inputs])
def test_a_search_that_reads_validation_is_recorded_once(read: Callable[[Session], Awaitable[object]]) -> None:
    async def ask(session: Session) -> None:
        await read(session)
        await read(session)

    journal = MemoryJournal()
    assert run(ask, journal).status == "succeeded"
    assert [event.type for event in journal.events].count("validation_read") == 1


def test_evaluating_train_cases_reads_nothing_of_validation() -> None:
    journal = MemoryJournal()
    assert run(evaluate, journal).status == "succeeded"
    assert "validation_read" not in {event.type for event in journal.events}


@pytest.mark.parametrize("change", [lambda held_out: held_out, change_references], ids=["same", "other references"])
def test_a_search_may_not_run_test_cases(change: Callable[[EvalSet], EvalSet]) -> None:
    held_out = desk.eval_set("held-out", 8)

    async def ask(session: Session) -> None:
        await session.evaluate(change(held_out), session.accepted.profile, phase="screening")

    with pytest.raises(RunFailedError, match="a search may not run test cases"):
        desk.engine(search=Does(ask)).run_sync(desk.request(test=held_out))


def test_eval_sets_of_one_batch_may_differ() -> None:
    async def ask(session: Session) -> None:
        first, rest = (
            EvalSet(id=name, cases=cases)
            for name, cases in (("first", session.train.cases[:1]), ("rest", session.train.cases[1:]))
        )
        child = await session.propose(BEST)
        found = await session.evaluate_many([(rest, child), (first, session.accepted.profile)], phase="screening")
        assert [(each.eval_set_id, each.mean_score, len(each.rows)) for each in found] == [
            ("rest", 1, 2),
            ("first", 0, 1),
        ]
        assert {row.eval_set_id for each in found for row in each.rows} == {"first", "rest"}

    [only] = run(ask).rounds
    assert [each.eval_set_id for each in only.evaluations] == ["first"]
    assert [each.eval_set_id for one in only.candidates for each in one.evaluations] == ["rest"]


def test_two_children_of_a_round_are_accepted_one_after_the_other() -> None:
    """The second is compared with the first, and the next round starts from it, also when it is read on its own."""
    child = Profile.of(STRUCTURE, DRAFT)

    class Search:
        async def search(self, session: Session) -> None:
            await session.begin_round()
            for each in (BEST, child):  # proposed in the opposite order
                await session.propose(each)
            assert (await session.validate(child)).accepted
            assert session.accepted.profile == child
            assert (await session.validate(BEST)).accepted
            await session.complete_round()
            await session.begin_round()
            assert session.accepted.profile == BEST
            await session.skip_round("enough")
            await session.complete_round()

    journal = MemoryJournal()
    result = desk.engine(search=Search()).run_sync(desk.request(), journal=journal)
    first, second = fold(journal.reader().read()).rounds
    assert [(each.profile, each.decision is not None and each.decision.delta) for each in first.candidates] == [
        (BEST, 0.5),
        (child, 0.5),
    ]
    assert (first.candidate, second.input_profile, second.skipped) == (first.candidates[0], BEST, "enough")
    assert fold_lazily(journal.reader()).rounds[1] == second
    assert result.accepted_profile == BEST


def test_a_child_of_a_rejected_parent_is_validated_against_the_accepted_profile() -> None:
    rejected = Profile.of(STRUCTURE, WORSE)

    async def ask(session: Session) -> None:
        assert not (await session.validate(rejected)).accepted
        assert (await session.validate(BEST, parents=[rejected])).accepted

    [only] = run(ask).rounds
    parent, child = only.candidates
    assert child.parents == (rejected.digest,) == (parent.profile.digest,)
    assert [patch.surface_id for patch in child.patches] == ["draft#instruction", "polish#instruction"]
    assert child.decision is not None
    assert child.decision.delta == 1.0


def test_a_candidate_that_is_proposed_again_has_a_record_in_each_round() -> None:
    again = Profile.of(STRUCTURE, WORSE)

    class Search:
        async def search(self, session: Session) -> None:
            for _ in range(2):
                await session.begin_round()
                await session.validate(again)
                await session.reject(again, "it was rejected a moment ago")
                await session.complete_round()

    result = desk.engine(search=Search()).run_sync(desk.request())
    for each in result.rounds:
        validated, repeated = each.candidates
        assert (validated.profile, repeated.profile) == (again, again)
        assert validated.validation is not None
        assert repeated.decision is not None
        assert (repeated.evaluations, repeated.decision.reason) == ((), "it was rejected a moment ago")


@pytest.mark.slow
def test_rows_name_the_eval_set_that_their_case_came_from() -> None:
    names = ["north", "south"]
    request = desk.request(
        train=[desk.eval_set(f"train-{name}", 2) for name in names],
        validation=[desk.eval_set(name, 6) for name in names],
        test=desk.eval_set("held-out", 8),
    )
    result = RunResult.from_json(desk.engine(DRAFT, POLISH).run_sync(request).to_json())
    found = {each.phase: each.by_eval_set for each in result.evaluations}
    assert set(found) == {"baseline", "ablation", "final_test", "test"}
    for phase in ("baseline", "final_test"):
        assert {name: len(part.cases) for name, part in found[phase].items()} == {"north": 6, "south": 6}
    assert {name: part.metric_means for name, part in found["test"].items()} == {"held-out": {"careful": 1.0}}
    assert result.rounds[0].train is not None
    assert list(result.rounds[0].train.by_eval_set) == ["train-north", "train-south"]
    assert result.rounds[0].validation is not None
    assert result.rounds[0].validation.by_eval_set["north"].metric_means == {"careful": 0.5}


async def guess_nothing() -> Guess:
    return None  # type: ignore[return-value]


@event_type("tests.other_guess")
@dataclass(frozen=True, slots=True, kw_only=True)
class OtherGuess(Payload):
    text: str


async def guess_otherwise() -> Guess:
    return OtherGuess(text="one")  # type: ignore[return-value]


CLERK = ModelNode(name="clerk", instruction="Answer.", model="scripted")
FOREIGN = Profile.baseline(GraphAgent(name="desk", nodes=(CLERK,)).describe())
SCENARIOS = EvalSet(id="scenarios", cases=(EvalCase(id="talk", scenario=Scenario(starting_prompt="hi", plan="ask")),))

MISTAKES: dict[str, tuple[Callable[[Session], Awaitable[object]], str]] = {
    "a pair in the wrong order": (
        lambda session: session.evaluate_many([(BEST, session.train)], phase="screening"),  # type: ignore[list-item]
        r"evaluation 0 is a pair \(profile, eval set\); give the eval set first",
    ),
    "no pair": (
        lambda session: session.evaluate_many([BEST], phase="screening"),  # type: ignore[list-item]
        r"evaluation 0 is Profile\(.*; give a pair \(eval set, profile\)",
    ),
    "patches for a profile": (
        lambda session: session.evaluate_many([(session.train, PatchSet(()))], phase="x"),  # type: ignore[list-item]
        r"the profile of evaluation 0 is a PatchSet; give the profile that session.candidate\(patches\)",
    ),
    "a name for an eval set": (
        lambda session: session.evaluate_many([("train", BEST)], phase="screening"),  # type: ignore[list-item]
        "the eval set of evaluation 0 is 'train'; give an EvalSet",
    ),
    "a number of repeats": (
        lambda session: session.evaluate(session.train, BEST, phase="screening", repeats=2),  # type: ignore[arg-type]
        r"repeats is 2; give a range: range\(2\) are the first two repeats",
    ),
    "a parent of another agent": (
        lambda session: session.propose(BEST, parents=[FOREIGN]),
        "the profile is of another structure: the agent has no clerk#",
    ),
    "a note that is a dict": (
        lambda session: session.note({"text": "one"}),  # type: ignore[type-var]
        "an event has a payload, and dict is not one; record a dataclass registered with @event_type",
    ),
    "a decision of its own": (
        lambda session: session.note(CandidateDecided(candidate=BEST.digest, decision=ACCEPTED)),
        "CandidateDecided is an event of the engine's own; call session.propose, validate or reject",
    ),
    "work of the engine": (
        lambda session: session.record(CandidateDecided, guess_nothing),  # type: ignore[arg-type]
        "CandidateDecided is an event of the engine's own",
    ),
    "work without a result": (
        lambda session: session.record(Guess, guess_nothing),
        "the work of a record returned None; return a Guess",
    ),
    "work with another result": (
        lambda session: session.record(Guess, guess_otherwise),
        r"the work of a record returned OtherGuess\(text='one'\); return a Guess",
    ),
    "one parent": (
        lambda session: session.propose(BEST, parents=BEST),  # type: ignore[arg-type]
        r"parents is one profile; give a list: \[profile\]",
    ),
    "a parent by its digest": (
        lambda session: session.validate(BEST, parents=[BEST.digest]),  # type: ignore[list-item]
        r"a parent is '\w+'; give the profile itself",
    ),
    "a candidate by its digest": (
        lambda session: session.reject(BEST.digest, "no"),  # type: ignore[arg-type]
        r"a candidate is '\w+'; give a Profile or a PatchSet",
    ),
    "a profile of another agent": (
        lambda session: session.evaluate_many([(session.train, BEST), (session.train, FOREIGN)], phase="screening"),
        "the profile is of another structure: the agent has no clerk#",
    ),
    "duplicate case ids": (
        lambda session: session.evaluate_many([(session.train, BEST), (_repeat_a_case(session), BEST)], phase="x"),
        "eval set 'train' has duplicate case ids",
    ),
    "a scenario without a simulated user": (
        lambda session: session.evaluate_many([(session.train, BEST), (SCENARIOS, BEST)], phase="screening"),
        "case 'talk' is a scenario and needs a simulated user",
    ),
}


def _repeat_a_case(session: Session) -> EvalSet:
    return replace(session.train, cases=(*session.train.cases, session.train.cases[0]))


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_of_a_search_is_reported_before_anything_is_recorded(name: str) -> None:
    """The run can be resumed once the search is fixed."""
    journal = MemoryJournal()
    mistake, message = MISTAKES[name]
    with pytest.raises(RunFailedError, match=f"Error: {message}"):
        run(mistake, journal)
    assert [event.type for event in journal.events[-2:]] == ["round_started", "run_completed"]
    assert run(validate, journal).status == "succeeded"


async def test_known_rows_of_a_candidate_are_compared_with_the_record_and_nothing_is_run() -> None:
    class Knows:
        async def search(self, session: Session) -> None:
            validation = (await session.read_validation()).eval_set
            for values in (desk.DRAFT, desk.POLISH):
                await session.begin_round()
                patches = [SurfacePatch(surface_id=key, value=value, reason="") for key, value in values.items()]
                child = await session.propose(PatchSet(tuple(patches)))
                found = await session.evaluate(validation, child, phase="frontier")
                await session.validate(child, known=found.rows)

    result = await desk.engine(search=Knows()).run(desk.request(final_test=None))
    assert [each.decision.accepted for each in result.rounds if each.decision] == [True, True]
    assert result.measured.case_runs == 2 * 3  # the baseline and two candidates, each once
    assert (result.baseline_score, result.accepted_score) == (0.0, 1.0)


async def test_known_rows_are_run_again_if_the_search_learns_from_the_same_cases() -> None:
    class Knows:
        async def search(self, session: Session) -> None:
            await session.begin_round()
            patches = [SurfacePatch(surface_id=key, value=value, reason="") for key, value in desk.DRAFT.items()]
            child = await session.propose(PatchSet(tuple(patches)))
            found = await session.evaluate(session.train, child, phase="frontier")
            await session.validate(child, known=found.rows)

    request = RunRequest(cases=desk.eval_set("cases", 2), final_test=None, run_id="r")
    result = await desk.engine(search=Knows()).run(request)
    assert result.measured.case_runs == 2 + 2 + 4
