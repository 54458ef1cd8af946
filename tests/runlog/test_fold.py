from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from io import BytesIO
from itertools import groupby
from pathlib import Path
from typing import Any, overload

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptiter.backprop.record import (
    BackpropDetails,
    GradientsMerged,
    LossesAttributed,
    LossesExtracted,
    PatchesWritten,
    TraceBlame,
    get_passes,
)
from promptiter.engine.run import RunFailedError
from promptiter.engine.session import Session
from promptiter.errors import JournalError, NonDeterministicSearchError, SetupError
from promptiter.evaluation.result import CaseRow
from promptiter.policies.acceptance import MinGain
from promptiter.policies.evidence import AcceptanceDecision, Evidence, MoreEvidence
from promptiter.policies.stop_decision import StopDecision, StopReason
from promptiter.profile import PatchSet, Profile, SurfacePatch
from promptiter.runlog.candidates import build_candidate
from promptiter.runlog.codec import to_plain
from promptiter.runlog.events import BUILT_IN, Event, Payload, Phase, UnknownPayload, event_type
from promptiter.runlog.fold import LazyRounds, fold, fold_lazily
from promptiter.runlog.journal import MemoryJournal
from promptiter.runlog.payloads import (
    CandidateDecided,
    CandidateProposed,
    CaseFinished,
    EvalSetSummary,
    EvaluationFinished,
    EvaluationStarted,
    RoundCompleted,
    RoundStarted,
    RunCompleted,
    RunStarted,
    StartMeasured,
    StopDecided,
)
from promptiter.runlog.results import RoundResult, RunResult
from promptiter.runs.file_journal import FileJournal
from promptiter.stages.contracts import AggregateResult
from promptiter.stages.losses import CaseLoss
from promptiter.stages.optimizer import Rejection
from tests.worlds import desk
from tests.worlds.desk import DRAFT, POLISH, WORSE, Tries
from tests.worlds.desk_stages import Writes
from tests.worlds.desk_stages import engine as backprop

STRUCTURE = desk.agent().describe()
SURFACES = ["draft#instruction", "polish#instruction"]


@event_type("remark")
@dataclass(frozen=True, slots=True, kw_only=True)
class Remark(Payload):
    """An event of a search of one's own."""

    text: str


class CountingReader:
    """Counts the events that are read."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.events = list(events)
        self.events_read = 0

    def read(self, start: int = 0) -> Iterator[Event]:
        for event in self.events[start:]:
            self.events_read += 1
            yield event


class Writer:
    """Writes what a run might: valid events in any order, each with unique data."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.round = 0
        self.evaluations = 0
        self.accepted = Profile.baseline(STRUCTURE)
        self.candidate: Profile | None = None
        size = EvalSetSummary(id="cases", digest="", cases=1)
        self.write(
            RunStarted(
                structure=STRUCTURE.to_json(),
                profile=self.accepted,
                targets=tuple(SURFACES),
                train=size,
                validation=size,
                measured=StartMeasured(started_at="now"),
            )
        )

    def write(self, payload: Payload, *, phase: Phase = "train") -> None:
        self.events.append(
            Event(
                seq=len(self.events),
                run_id="r",
                round=self.round,
                phase=phase,
                type=payload.event_type,
                data=to_plain(payload),
            )
        )

    @property
    def new(self) -> str:
        return f"at event {len(self.events)}"

    def evaluation(self, phase: Phase, profile: Profile) -> None:
        self.begin(phase, profile)
        self.finish(phase)

    def begin(self, phase: Phase, profile: Profile) -> None:
        self.evaluations += 1
        self.write(
            EvaluationStarted(
                evaluation=self.evaluations, eval_set_id=self.new, profile_digest=profile.digest, cases=1, runs=1
            ),
            phase=phase,
        )
        row = CaseRow(case_id=self.new, output=self.new)
        self.write(CaseFinished(evaluation=self.evaluations, row=row), phase=phase)

    def finish(self, phase: Phase) -> None:
        self.write(EvaluationFinished(evaluation=self.evaluations, thresholds={}), phase=phase)

    def do(self, what: str) -> None:
        match what:
            case "round":
                self.round += 1
                self.candidate = None
                self.write(RoundStarted(profile_digest=self.accepted.digest))
            case "baseline" | "train" | "rerun" | "validation_of_accepted":
                self.evaluation("validation" if "_" in what else what, self.accepted)
            case "train_begins":
                self.begin("train", self.accepted)
            case "train_ends":
                self.finish("train")
            case "losses":
                self.write(LossesExtracted(losses=(CaseLoss(case_id=self.new, trace_digest="", losses=()),)))
            case "backward":
                self.write(LossesAttributed(blames=(TraceBlame(case_id=self.new),)))
            case "aggregation":
                self.write(GradientsMerged(signals=(AggregateResult(surface_id=SURFACES[0], text=self.new),)))
            case "patches":
                refused = (Rejection(surface_id=SURFACES[0], value=self.new, reason="no"),)
                self.write(PatchesWritten(refused=refused, notes=(self.new,), blamed_in=self.round))
            case "note":
                self.write(Remark(text=self.new))
            case "candidate" | "reset":
                surface_id = SURFACES[len(self.events) % 2]
                value = self.new if what == "candidate" else STRUCTURE.surface(surface_id).value
                patches = PatchSet((SurfacePatch(surface_id=surface_id, value=value, reason=self.new),))
                self.candidate = self.accepted.apply(patches, STRUCTURE)
                self.write(
                    CandidateProposed(
                        profile_digest=self.candidate.digest,
                        parents=(self.accepted.digest,),
                        patches=patches,
                        other_values={k: v for k, v in self.candidate.overrides.items() if k != surface_id},
                    )
                )
            case "validation" if self.candidate is not None:
                self.evaluation("validation", self.candidate)
            case "accept" | "reject":
                decision = AcceptanceDecision(accepted=what == "accept", delta=None, reason=self.new)
                name = None if self.candidate is None else self.candidate.digest
                self.write(CandidateDecided(candidate=name, decision=decision))
                if decision.accepted and self.round and self.candidate is not None:
                    self.accepted = self.candidate
            case "stop":
                reasons = (StopReason("max_rounds", self.new),) if len(self.events) % 2 else ()
                self.write(StopDecided(decision=StopDecision(stop=bool(reasons), reasons=reasons)))
            case "end":
                self.write(RunCompleted(status="failed", verdict="no_evidence", error=self.new), phase="end")
            case _:
                self.write(RoundCompleted())


WHOLE_ROUND = ("round", "train", "losses", "backward", "aggregation", "patches", "candidate", "validation")
AGAIN = ("round", "patches", "rerun", "losses", "candidate", "validation", "reject", "completed")
ANYTHING = st.sampled_from(
    [
        *[("round",)] * 6,
        *[
            (each,)
            for each in (*WHOLE_ROUND, *AGAIN, "note", "accept", "stop", "end", "baseline", "validation_of_accepted")
        ],
        ("reset", "accept"),
        ("train_begins",),
        ("train_ends",),
        (*WHOLE_ROUND, "accept"),
        (*WHOLE_ROUND, "reject"),
        AGAIN,
    ]
)


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    writer = Writer()
    for steps in draw(st.lists(ANYTHING, max_size=25)):
        for step in steps:
            writer.do(step)
    return writer.events


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(events=histories(), data=st.data())
def test_lazy_rounds_equal_rounds_in_memory(events: list[Event], data: st.DataObject) -> None:
    eager, lazy = fold(events), fold_lazily(CountingReader(events))
    count = len(eager.rounds)
    assert isinstance(lazy.rounds, LazyRounds)
    assert len(lazy.rounds) == count
    for place in data.draw(st.lists(st.integers(-count, count - 1), max_size=6)) if count else []:
        assert lazy.rounds[place] == eager.rounds[place]
    part = data.draw(st.slices(count))
    assert lazy.rounds[part] == eager.rounds[part]
    assert list(lazy.rounds) == list(eager.rounds)
    assert [fold_lazily(CountingReader(events)).rounds[place] for place in range(count)] == list(eager.rounds)
    assert lazy == eager
    assert lazy.to_json() == eager.to_json()


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(events=histories())
def test_result_json_is_the_same_with_lazy_rounds(events: list[Event]) -> None:
    result = fold(events)
    options = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE
    document = {"schema_version": 2, **to_plain(result)}
    assert result.to_json() == orjson.dumps(document, option=options)
    lazy = fold_lazily(CountingReader(events))
    assert to_plain(lazy) == to_plain(result)
    again = RunResult.from_json(lazy.to_json())
    assert (again, type(again.rounds), again.measured) == (result, tuple, result.measured)


def careful(request: Any) -> str | None:
    if "Attempt" in request.surface.value:
        return None
    return f"Attempt {len(request.rejected) + 1}." if len(request.rejected) < 3 else f"{request.surface.value} careful"


@pytest.mark.parametrize(
    "execute",
    [
        lambda journal: desk.engine(DRAFT, WORSE, POLISH).run_sync(desk.request(max_rounds=9), journal=journal),
        lambda journal: desk.engine(WORSE, WORSE, WORSE).run_sync(desk.request(), journal=journal),
        lambda journal: backprop(optimizer=Writes(careful)).run_sync(desk.request(max_rounds=9), journal=journal),
        lambda journal: desk.engine().run_sync(desk.request(max_rounds=0), journal=journal),
    ],
)
def test_the_rounds_of_a_real_run_are_read_back_one_by_one(execute: Callable[[MemoryJournal], RunResult]) -> None:
    journal = MemoryJournal()
    result = execute(journal)
    eager = fold(journal.events)
    assert isinstance(result.rounds, LazyRounds)
    assert result == eager
    for place in reversed(range(-len(eager.rounds), len(eager.rounds))):
        assert fold_lazily(journal.reader()).rounds[place] == result.rounds[place] == eager.rounds[place]


def test_a_round_after_a_rejection_names_the_round_whose_blame_it_uses() -> None:
    result = backprop(optimizer=Writes(careful)).run_sync(desk.request(max_rounds=9))
    first, _, third = result.rounds[:3]
    assert isinstance(first.details, BackpropDetails)
    assert isinstance(third.details, BackpropDetails)
    assert (first.details.blamed_in, third.details.blamed_in) == (1, 1)
    assert get_passes(first)[0].losses
    assert (third.train, get_passes(third)[0].losses) == (None, ())
    assert third.patches != first.patches


def test_a_round_is_read_without_the_others() -> None:
    writer = Writer()
    for _ in range(200):
        for step in (*AGAIN, "stop"):
            writer.do(step)
    journal = CountingReader(writer.events)
    result = fold_lazily(journal)
    assert journal.events_read == len(writer.events)
    journal.events_read = 0
    assert result.rounds[150].round == 151
    assert result.rounds[-50] is result.rounds[150]
    assert journal.events_read <= 40
    journal.events_read = 0
    assert [each.round for each in result.rounds] == list(range(1, 201))
    assert journal.events_read == len(writer.events) - 1


def test_a_round_with_its_own_train_results_is_read_without_those_before() -> None:
    writer = Writer()
    for _ in range(50):
        for step in (*WHOLE_ROUND, "reject"):
            writer.do(step)
    journal = CountingReader(writer.events)
    rounds = fold_lazily(journal).rounds
    journal.events_read = 0
    assert rounds[40].round == 41
    assert journal.events_read <= 14


def test_rounds_are_a_sequence() -> None:
    writer = Writer()
    for step in (*AGAIN, *AGAIN):
        writer.do(step)
    rounds = fold_lazily(CountingReader(writer.events)).rounds
    assert bool(rounds)
    assert rounds[1] in rounds
    assert rounds.index(rounds[1]) == 1
    assert [each.round for each in reversed(rounds)] == [2, 1]
    assert rounds == tuple(rounds) == rounds
    assert rounds != tuple(rounds)[:1]
    other: object = list(rounds)
    assert rounds != other
    assert repr(rounds) == "<2 rounds in a journal>"
    for place in (2, -3):
        with pytest.raises(IndexError):
            rounds[place]


@pytest.mark.parametrize("kept", [0, 5])
def test_a_removed_journal_is_an_error(kept: int, tmp_path: Path) -> None:
    with FileJournal(tmp_path / "journal.jsonl") as journal:
        result = desk.engine(DRAFT, POLISH).run_sync(desk.request(), journal=journal)
    alone = RunResult.from_json(result.to_json())
    lines = journal.path.read_bytes().splitlines(keepends=True)
    journal.path.write_bytes(b"".join(lines[:kept]))
    for look in (lambda: list(result.rounds), lambda: result.rounds[1], lambda: result.rounds[0]):
        with pytest.raises(JournalError, match=r"rounds of run 'r' are read from its journal, which ends before event"):
            look()
    assert len(alone.rounds) == 2


async def test_later_events_do_not_change_a_result() -> None:
    journal = MemoryJournal()
    writer = Writer()
    for step in WHOLE_ROUND:
        writer.do(step)
    for event in writer.events:
        await journal.append(event)
    result, eager = fold_lazily(journal.reader()), fold(writer.events)
    writer.do("accept")
    writer.do("round")
    for event in writer.events[-2:]:
        await journal.append(event)
    assert result == eager
    assert result.rounds[-1].decision is None
    assert len(fold_lazily(journal.reader()).rounds) == 2


@pytest.mark.parametrize("accepted", [True, False])
@pytest.mark.parametrize("reason", ["max_rounds", "user_stop"])
def test_an_event_after_the_end_means_that_the_run_was_resumed(accepted: bool, reason: str) -> None:
    writer = Writer()
    for step in (*WHOLE_ROUND, "accept" if accepted else "reject"):
        writer.do(step)
    stop = StopDecision(stop=True, reasons=(StopReason(reason, "enough"),))
    writer.write(StopDecided(decision=stop))
    writer.do("end")
    ended = fold(writer.events)
    assert (ended.status, ended.verdict, ended.stop is not None) == ("failed", "no_evidence", True)
    assert ended.error is not None
    writer.do("completed")
    running = fold(writer.events)
    assert (running.status, running.verdict, running.error) == ("running", "no_evidence", None)
    assert running.stop == (None if reason == "user_stop" else stop)
    assert running.rounds == ended.rounds


def test_what_a_search_does_before_its_first_round_is_kept_with_the_run() -> None:
    class Early(Tries):
        async def search(self, session: Session) -> None:
            await session.note(Remark(text="early"))
            await session.evaluate(session.train, session.accepted.profile, phase="survey")
            await super().search(session)

    result = desk.engine(search=Early(DRAFT)).run_sync(desk.request())
    again = RunResult.from_json(result.to_json())
    assert (result.verdict, [each.round for each in result.rounds]) == ("improved_on_validation", [1])
    assert [(each.type, each.data) for each in again.notes] == [("remark", {"text": "early"})]
    phases = [each.phase for each in again.evaluations]
    assert phases[:2] == ["baseline", "survey"]
    assert set(phases[2:]) == {"final_test"}
    assert [each.number for each in again.evaluations] == sorted(each.number or 0 for each in again.evaluations)


class OneByOne(Sequence[RoundResult]):
    """Rounds and a file that check that each round is written before the next is read."""

    def __init__(self, rounds: Sequence[RoundResult]) -> None:
        self.rounds = rounds
        self.taken = 0
        self.most_unwritten = 0
        self.written = b""

    def __len__(self) -> int:
        return len(self.rounds)

    def __iter__(self) -> Iterator[RoundResult]:
        for each in self.rounds:
            self.taken += 1
            unwritten = self.taken - self.written.count(b'"input_profile"')
            self.most_unwritten = max(self.most_unwritten, unwritten)
            yield each

    @overload
    def __getitem__(self, index: int) -> RoundResult: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[RoundResult]: ...
    def __getitem__(self, index: int | slice) -> RoundResult | Sequence[RoundResult]:
        raise AssertionError(index)

    def write(self, raw: bytes) -> int:
        self.written += raw
        return len(raw)


def test_a_result_is_written_one_round_at_a_time() -> None:
    result = desk.engine(DRAFT, WORSE, POLISH).run_sync(desk.request())
    rounds = OneByOne(result.rounds)
    replace(result, rounds=rounds).write_json(rounds)  # type: ignore[arg-type]
    assert (rounds.taken, rounds.most_unwritten) == (3, 1)
    assert rounds.written == result.to_json()
    file = BytesIO()
    result.write_json(file)
    assert file.getvalue() == result.to_json()


def test_a_candidate_is_stored_with_all_its_values_and_its_parents() -> None:
    journal = MemoryJournal()
    desk.engine(DRAFT, POLISH).run_sync(desk.request(), journal=journal)
    payloads = [event.payload for event in journal.events]
    first, second = (each for each in payloads if isinstance(each, CandidateProposed))
    rounds = [each.profile_digest for each in payloads if isinstance(each, RoundStarted)]
    assert (first.values, second.values) == (DRAFT, DRAFT | POLISH)
    assert (second.other_values, second.patches.values) == (DRAFT, POLISH)
    assert second.parents == (first.profile_digest,)
    assert rounds == [*first.parents, *second.parents]
    assert build_candidate(second, STRUCTURE) == Profile.of(STRUCTURE, DRAFT | POLISH)


values = st.sampled_from(["Draft.", "Polish.", "else", "other"])


@pytest.mark.slow
@settings(max_examples=20)
@given(values=st.dictionaries(st.sampled_from(SURFACES), values))
def test_a_candidate_is_decoded_as_it_ran_even_if_it_overrides_with_the_same_value(values: dict[str, str]) -> None:
    wanted = replace(Profile.baseline(STRUCTURE), overrides=values)
    journal = MemoryJournal()

    class Proposes:
        async def search(self, session: Session) -> None:
            await session.begin_round()
            await session.reject(wanted, "no")

    result = desk.engine(search=Proposes()).run_sync(desk.request(), journal=journal)
    [candidate] = result.rounds[0].candidates
    assert candidate.profile.changes(wanted, STRUCTURE) == ()
    assert fold(journal.events) == result


def test_an_invalid_value_of_a_candidate_is_an_error_before_it_runs() -> None:
    class Proposes:
        async def search(self, session: Session) -> None:
            await session.begin_round()
            await session.validate(replace(session.accepted.profile, overrides={"draft#instruction": 7}))

    with pytest.raises(RunFailedError, match="draft#instruction"):
        desk.engine(search=Proposes()).run_sync(desk.request())


def changed(events: list[Event], kind: str, **fields: Any) -> list[Event]:
    return [
        Event(**{**event.model_dump(), "data": event.data | fields}) if event.type == kind else event
        for event in events
    ]


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        ("candidate", {"patches": {"patches": []}}, "the values of the candidate .* make"),
        (
            "candidate",
            {"other_values": {"gone#instruction": ""}},
            "does not fit the structure of its run: unknown surface",
        ),
        ("round_started", {"profile_digest": "f" * 64}, "starts a round from the profile ffffffffffff…, but"),
    ],
)
def test_a_journal_with_mismatched_profiles_is_an_error(kind: str, fields: dict[str, Any], message: str) -> None:
    journal = MemoryJournal()
    desk.engine(DRAFT).run_sync(desk.request(), journal=journal)
    with pytest.raises(JournalError, match=message):
        fold(changed(list(journal.events), kind, **fields))


class Pool:
    """Three children a round, from the accepted profile and from one another, each validated."""

    async def search(self, session: Session) -> None:
        while not await session.should_stop():
            await session.begin_round()
            parent, texts = session.accepted.profile, [f"Draft {session.round}.{number}." for number in range(3)]
            children = [Profile.of(STRUCTURE, {**parent.overrides, "draft#instruction": text}) for text in texts]
            await session.note(Remark(text=f"pool of {len(children)}"))
            for number, child in enumerate(children):
                await session.propose(child, parents=[parent, *children[:number]])
            await session.evaluate_many([(session.train, child) for child in children], phase="screening")
            for child in children:
                await session.validate(child)
            await session.complete_round()


@pytest.mark.slow
def test_every_candidate_of_a_pool_is_in_the_record() -> None:
    journal = MemoryJournal()
    result = desk.engine(search=Pool()).run_sync(desk.request(max_rounds=2), journal=journal)
    again = RunResult.from_json(result.to_json())
    assert len(result.rounds) == 2
    for each in (*fold(journal.events).rounds, *again.rounds):
        assert [len(candidate.parents) for candidate in each.candidates] == [1, 2, 3]
        assert [[one.phase for one in candidate.evaluations] for candidate in each.candidates] == [
            ["screening", "validation"]
        ] * 3
        assert all(candidate.decision is not None and candidate.decision.reason for candidate in each.candidates)
        assert [patch.surface_id for candidate in each.candidates for patch in candidate.patches] == [SURFACES[0]] * 3
        assert [(note.type, note.data["text"]) for note in each.notes] == [("remark", "pool of 3")]


def test_the_order_in_which_evaluations_of_a_batch_finish_changes_nothing() -> None:
    class Screens:
        async def search(self, session: Session) -> None:
            await session.evaluate_many([(session.train, session.accepted.profile)] * 2, phase="look")
            await session.begin_round()
            await session.evaluate_many([(session.train, session.accepted.profile)] * 2, phase="screening")
            child = Profile.of(STRUCTURE, DRAFT)
            for parent in (session.accepted.profile, child):
                await session.propose(child, parents=[parent])
            await session.evaluate_many([(session.train, child)] * 2, phase="comparing")
            await session.complete_round()

    journal = MemoryJournal()
    desk.engine(search=Screens()).run_sync(desk.request(), journal=journal)
    events: list[Event] = []
    for _, batch in groupby(journal.events, key=lambda event: (event.phase, event.type.startswith(("eval", "case")))):
        each = list(batch)
        finished = [event for event in each if event.type == "evaluation_finished"]
        events += [*(event for event in each if event not in finished), *reversed(finished)]
    assert events != journal.events
    result = fold(event.model_copy(update={"seq": seq}) for seq, event in enumerate(events))
    [only] = result.rounds
    assert [each.number for each in result.evaluations] == [0, 1, 2]
    assert [each.number for each in only.evaluations] == [3, 4]
    assert [[each.number for each in one.evaluations] for one in only.candidates] == [[5, 6], [5, 6]]
    assert [each.number for each in only.all_evaluations] == [3, 4, 5, 6]


def test_an_event_of_an_unknown_type_or_version_is_kept_with_its_data() -> None:
    writer = Writer()
    for step in ("round", "note"):
        writer.do(step)
    note = writer.events.pop()
    for changes in ({"type": "of.another.search"}, {"version": 2}):
        writer.events.append(Event(**{**note.model_dump(), **changes, "seq": len(writer.events)}))
    writer.events.append(Event(**{**note.model_dump(), "data": {"words": 7}, "seq": len(writer.events)}))
    [only] = RunResult.from_json(fold(writer.events).to_json()).rounds
    assert [(each.type, each.data) for each in only.notes] == [
        ("of.another.search", note.data),
        ("remark", note.data),
        ("remark", {"words": 7}),
    ]
    problems = [each.payload.problem for each in writer.events if isinstance(each.payload, UnknownPayload)]
    assert problems == [
        "the event type 'of.another.search' is not known here",
        "it is 'remark' in version 2, and 1 is known here; update the package of its search",
        "it is 'remark' in version 1, and does not fit Remark: text: Field required",
    ]


@pytest.mark.parametrize("kind", ["run_started", "case", "round_started", "candidate", "decision", "run_completed"])
def test_an_event_of_the_engine_in_a_newer_version_is_an_error(kind: str) -> None:
    journal = MemoryJournal()
    desk.engine(DRAFT).run_sync(desk.request(), journal=journal)
    newer = [Event(**{**event.model_dump(), "version": 2 if event.type == kind else 1}) for event in journal.events]
    with pytest.raises(JournalError, match=f"cannot be read: it is '{kind}' in version 2, and 1 .*; update promptiter"):
        fold(newer)


def test_every_event_type_of_promptiter_is_reserved() -> None:
    classes = [each for module in set(BUILT_IN.values()) for each in vars(import_module(module)).values()]
    payloads = [each for each in classes if isinstance(each, type) and issubclass(each, Payload) and each.event_type]
    assert {each.event_type: each.__module__ for each in payloads} == BUILT_IN
    for name in BUILT_IN:
        with pytest.raises(SetupError, match=f"the event type '{name}' is one of promptiter's own"):
            event_type(name)(Remark)


@pytest.mark.parametrize("given_up", [True, False])
async def test_a_resumed_search_with_another_candidate_is_noticed_before_it_runs(given_up: bool) -> None:
    class Proposes:
        def __init__(self, values: dict[str, str]) -> None:
            self.values = values

        async def search(self, session: Session) -> None:
            await session.begin_round()
            patches = [SurfacePatch(surface_id=key, value=value, reason="") for key, value in self.values.items()]
            candidate = PatchSet(tuple(patches))
            await (session.reject(candidate, "no") if given_up else session.validate(candidate))

    whole, journal = MemoryJournal(), MemoryJournal()
    await desk.engine(search=Proposes(DRAFT)).run(desk.request(acceptance=MinGain(0.1)), journal=whole)
    for event in whole.events:
        await journal.append(event)
        if event.type == "candidate":
            break
    with pytest.raises(RunFailedError, match="'candidate' with another request") as caught:
        await desk.engine(search=Proposes(POLISH)).run(desk.request(acceptance=MinGain(0.1)), journal=journal)
    assert isinstance(caught.value.__cause__, NonDeterministicSearchError)


class AsksTwice:
    """Asks for one more repeat of each candidate, and accepts none."""

    def decide(self, evidence: Evidence) -> AcceptanceDecision | MoreEvidence:
        if all(row.repeat == 0 for row in evidence.candidate.rows):
            return MoreEvidence(repeats=1, reason="once more")
        return AcceptanceDecision(accepted=False, delta=evidence.gain, reason="no")


def test_repeats_of_the_accepted_profile_belong_to_the_round_of_the_candidate() -> None:
    result = desk.engine(DRAFT, POLISH).run_sync(desk.request(acceptance=AsksTwice()))
    assert result.accepted is not None
    assert {row.repeat for row in result.accepted.rows} == {0}
    compared = [each.compared for each in result.rounds]
    assert [sorted({row.repeat for row in each.rows}) for each in compared if each is not None] == [[1], [2, 3]]
    assert [sorted({row.repeat for row in each.validation.rows}) for each in result.rounds if each.validation] == [
        [0, 1],
        [2, 3],
    ]
