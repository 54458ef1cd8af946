"""How the two profiles of a comparison are run: interleaved, on every case, whatever the service does."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import pytest

from promptiter.agents.base import Agent, AgentRun, CaseInput, RunContext
from promptiter.agents.in_place.agent import InPlaceAgent
from promptiter.engine.engine import Engine
from promptiter.engine.request import RunRequest
from promptiter.engine.run import RunFailedError
from promptiter.evaluation.data.case import EvalCase
from promptiter.evaluation.evaluator import EvaluationOptions, Evaluator
from promptiter.evaluation.metrics.builtin import FunctionMetric
from promptiter.llm.cache.cache import MemoryCache
from promptiter.llm.gateway import Gateway
from promptiter.policies.acceptance import AnyGain
from promptiter.policies.evidence import Answer, Evidence, MoreEvidence
from promptiter.policies.final_test import FinalTest
from promptiter.policies.paired_runs import describe_runs
from promptiter.policies.stopping import MaxRounds
from promptiter.profile import Profile
from promptiter.runlog.fold import fold
from promptiter.runlog.journal import MemoryJournal
from promptiter.runlog.results import RunResult
from promptiter.runs.summary import summarize
from promptiter.sources import FileSource
from promptiter.structure import StructureSnapshot
from tests.worlds import desk
from tests.worlds.desk import DRAFT, POLISH, Tries
from traces import Failure, record, step

SNAPSHOT = desk.agent().describe()
D, P = "draft#instruction", "polish#instruction"
RESTYLED = {D: "Draft, in other words."}


@dataclass(frozen=True)
class CaseRun:
    """A run of a case as the agent sees it. `number` counts all runs, `attempt` those of the same case run."""

    is_patched: bool
    case_id: str
    repeat: int
    number: int
    attempt: int

    def dice(self, *seed: object) -> float:
        return Random(f"{seed} {self.is_patched} {self.case_id} {self.repeat} {self.attempt}").random()


Behaviour = Callable[[CaseRun], float | Failure]


@dataclass
class WatchedAgent:
    """Scores what a function of the run says, or fails with its error. Keeps all runs, in the order of their starts."""

    behave: Behaviour
    runs: list[CaseRun] = field(default_factory=list)
    attempts: Counter[tuple[str, str, int]] = field(default_factory=Counter)

    def describe(self) -> StructureSnapshot:
        return SNAPSHOT

    async def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:  # noqa: ARG002
        key = profile.digest, context.case_id, context.repeat
        self.attempts[key] += 1
        is_patched = any(profile.value(each, SNAPSHOT) != SNAPSHOT.surface(each).value for each in (D, P))
        run = CaseRun(is_patched, context.case_id, context.repeat, len(self.runs), self.attempts[key])
        self.runs.append(run)
        found = self.behave(run)
        return AgentRun(error=found) if isinstance(found, Failure) else AgentRun(output=str(found))


class AcceptsAll:
    def decide(self, evidence: Evidence) -> Answer:
        return evidence.accept("kept")


async def read_score(_case: EvalCase, run: AgentRun) -> float:
    return float(run.output)


def make_engine(agent: Agent, *rounds: dict[str, str], **options: object) -> Engine:
    metrics = [FunctionMetric(name="own", function=read_score)]
    evaluator = Evaluator(metrics, options=EvaluationOptions(**options))  # type: ignore[arg-type]
    return Engine(agent, evaluator, search=Tries(*rounds))


def request(*, cases: int = 10, **changes: object) -> RunRequest:
    values: dict[str, object] = {
        "train": desk.eval_set("train", 4),
        "validation": desk.eval_set("validation", cases),
        "acceptance": AcceptsAll(),
        "max_rounds": 9,
        "stop": MaxRounds(9),
    }
    return desk.request(**(values | changes))


def is_claimed(result: RunResult) -> bool:
    """Whether the final test showed a gain, for these cases or for new ones."""
    assert result.conclusion is not None
    return result.conclusion.adopts


def list_pairs(runs: Sequence[CaseRun]) -> list[tuple[CaseRun, CaseRun]]:
    """The runs two by two; raises if two that follow each other are not the same run of both profiles."""
    pairs = list(zip(runs[::2], runs[1::2], strict=True))
    for one, other in pairs:
        assert (one.case_id, one.repeat) == (other.case_id, other.repeat)
        assert one.is_patched != other.is_patched
    return pairs


def find_final_runs(agent: WatchedAgent, cases: int) -> list[CaseRun]:
    """The runs after the baseline and the first validation of a run without ablation."""
    train = [run for run in agent.runs if run.case_id.startswith("train")]
    return [run for run in agent.runs if run not in train][2 * cases :]


# Interleaved


@pytest.mark.parametrize("test", [None, desk.eval_set("test", 8)], ids=["validation", "test set"])
async def test_the_final_test_runs_both_profiles_side_by_side(test: object) -> None:
    agent = WatchedAgent(lambda run: float(run.is_patched or run.case_id.startswith("train")))
    result = await make_engine(agent, DRAFT, concurrency=1).run(request(test=test))
    assert is_claimed(result)
    pairs = list_pairs(find_final_runs(agent, 10))
    assert 0.2 < sum(first.is_patched for first, _ in pairs) / len(pairs) < 0.8, "neither is always first"
    order = [first.case_id for first, _ in pairs if first.case_id.startswith("validation")]
    assert order != sorted(order)


async def test_the_order_of_the_final_test_depends_on_the_seed() -> None:
    orders = []
    for seed in (0, 0, 1):
        agent = WatchedAgent(lambda run: float(run.is_patched))
        await make_engine(agent, DRAFT, concurrency=1, seed=seed).run(request())
        orders.append(find_final_runs(agent, 10))
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]


class AsksTwice:
    """Accepts after more repeats under both profiles, of validation and train."""

    def decide(self, evidence: Evidence) -> Answer:
        if evidence.train is None:
            return MoreEvidence(repeats=2, on="train")
        if len(evidence.candidate.rows) <= 10:
            return MoreEvidence(repeats=2, on="validation")
        return AnyGain().decide(evidence)


async def test_comparisons_of_a_search_run_both_profiles_side_by_side() -> None:
    """The first candidate is compared with the record of the baseline, the second one with new runs of the accepted."""
    agent = WatchedAgent(lambda _: 0.5)
    journal = MemoryJournal()
    rounds = (RESTYLED, {D: "Draft, in yet other words."})
    await make_engine(agent, *rounds, concurrency=1).run(
        request(acceptance=AsksTwice(), final_test=None), journal=journal
    )
    fresh = [run for run in agent.runs if run.repeat > 0 and not (run.case_id.startswith("train") and run.repeat == 0)]
    pairs = list_pairs(fresh)
    assert Counter(first.case_id.partition("-")[0] for first, _ in pairs) == {"train": 16, "validation": 50}


async def test_a_step_in_quality_during_the_final_test_is_not_a_gain() -> None:
    """With one profile after the other, the second would have all runs of the better model."""
    for seed in range(5):
        agent = WatchedAgent(lambda run: float(run.number >= 64))  # 4 train, 2 * 10 in the search, half of a block
        result = await make_engine(agent, RESTYLED, seed=seed, concurrency=4).run(request())
        assert not is_claimed(result), result.conclusion


@pytest.mark.long
async def test_a_model_that_drifts_is_rarely_claimed_as_a_gain() -> None:
    claimed = 0
    for seed in range(20):
        agent = WatchedAgent(lambda run, seed=seed: float(run.dice(seed) < 0.3 + run.number / 250))  # type: ignore[misc]
        result = await make_engine(agent, RESTYLED, seed=seed).run(request(cases=12))
        claimed += is_claimed(result)
    assert claimed <= 3


@pytest.mark.slow
async def test_results_do_not_depend_on_the_concurrency() -> None:
    found = []
    for concurrency in (1, 3, 16):
        agent = WatchedAgent(lambda run: float(run.dice() < 0.4 + 0.4 * run.is_patched))
        found.append(await make_engine(agent, DRAFT, POLISH, concurrency=concurrency).run(request(cases=6)))
    assert found[0] == found[1] == found[2]


# In place


@pytest.mark.slow
async def test_an_agent_in_place_alternates_profiles_in_segments_at_full_concurrency(tmp_path: Path) -> None:
    prompt = tmp_path / "bot.md"
    prompt.write_text("Be brief.")
    held: list[str] = []
    running, most = Counter[str](), Counter[str]()

    async def answer(question: str) -> str:
        text = prompt.read_text()
        held.append(text)
        running[text] += 1
        most[text] = max(most[text], running[text])
        await asyncio.sleep(0.002)
        assert prompt.read_text() == text, "the profile stays while a run is in progress"
        running[text] -= 1
        return "1" if "careful" in text or question.startswith("train") else "0"

    agent = InPlaceAgent(answer, {"bot#instruction": FileSource(prompt)}, state_folder=tmp_path / "state")
    engine = make_engine(agent, {"bot#instruction": "Be careful."}, concurrency=4)
    result = await engine.run(request(cases=8, train=desk.eval_set("train", 1)))
    assert is_claimed(result)
    tested = held[1 + 8 + 8 :]  # after train, the baseline and the first validation
    assert len(tested) >= 2 * 2 * 8
    segments = [tested[start : start + 4] for start in range(0, len(tested), 4)]
    assert all(len(set(segment)) == 1 for segment in segments), "a segment has one profile"
    assert all(one[0] != other[0] for one, other in zip(segments[::2], segments[1::2], strict=True))
    assert most == {"Be brief.": 4, "Be careful.": 4}
    assert prompt.read_text() == "Be brief."


# Outages


def rate_limit(run: CaseRun) -> Failure:
    return Failure("RateLimitedError", f"429 for {run.case_id}")


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("cases", [12, 30])
async def test_rate_limits_of_one_profile_are_not_a_gain(cases: int) -> None:
    """Equal quality, and 429 for a fifth of the baseline's runs in the final test, at every attempt."""
    claimed = 0
    for seed in range(16):

        def behave(run: CaseRun, seed: int = seed) -> float | Failure:
            if run.repeat > 0 and not run.is_patched and run.dice(seed, "limit") < 0.2:
                return rate_limit(run)
            return float(run.dice(seed) < 0.6)

        agent = WatchedAgent(behave)
        result = await make_engine(agent, RESTYLED, seed=seed).run(request(cases=cases))
        assert result.conclusion is not None
        [runs] = result.conclusion.runs
        assert max(agent.attempts.values()) in (2, 3), "lost runs are made again, up to twice"
        assert runs.before.lost <= 0.05 * runs.before.runs
        assert (runs.after.lost, runs.before.failed) == (0, 0)
        claimed += is_claimed(result)
    assert claimed <= 3


async def test_lost_runs_are_made_again_after_the_others() -> None:
    def behave(run: CaseRun) -> float | Failure:
        is_lost = run.repeat > 0 and run.case_id in ("validation-1", "validation-7") and run.attempt == 1
        return rate_limit(run) if is_lost else float(run.is_patched)

    agent = WatchedAgent(behave)
    result = await make_engine(agent, DRAFT, concurrency=1).run(request())
    block = find_final_runs(agent, 10)[:48]
    assert {run.case_id for run in block[40:]} == {"validation-1", "validation-7"}
    assert [run.attempt for run in block] == [1] * 40 + [2] * 8
    assert result.conclusion is not None
    [runs] = result.conclusion.runs
    assert (runs.before.lost, runs.after.lost, runs.pairs) == (0, 0, runs.before.runs)


def lose(run: CaseRun) -> float | Failure:
    """The baseline loses two cases in the final test, and one repeat of a third under both profiles."""
    is_lost = not run.is_patched and run.case_id in ("validation-1", "validation-7")
    if run.repeat > 0 and (is_lost or (run.case_id, run.repeat) == ("validation-3", 2)):
        return rate_limit(run)
    return float(run.is_patched)


async def test_pairs_that_stay_lost_are_left_out_and_counted_for_each_profile() -> None:
    journal = MemoryJournal()
    agent = WatchedAgent(lose)
    result = await make_engine(agent, DRAFT).run(request(cases=14), journal=journal)
    assert max(agent.attempts.values()) == 3
    assert result.conclusion is not None
    [runs], [test, *_] = result.conclusion.runs, result.conclusion.results
    assert (runs.before.runs, runs.before.lost, runs.after.lost, runs.pairs) == (28, 5, 1, 23)
    assert (is_claimed(result), test.gain) == (True, 1.0), "a lost run is not a 0"
    assert (result.conclusion.before, result.conclusion.after) == (0.0, 1.0)
    assert result.baseline_score == 0.0
    *_, event = (each for each in journal.events if each.type == "final_test")
    assert event.data["runs"]["before"] == {"runs": 28, "lost": 5}
    sentence = (
        "these cases: 5 of 28 runs of the initial profile and 1 of 28 of the accepted one were lost to outages; 23 of "
        "28 pairs of runs were tested"
    )
    assert sentence in summarize(result).evidence


@pytest.mark.slow
async def test_profiles_that_differ_in_lost_runs_are_reported() -> None:
    def behave(run: CaseRun) -> float | Failure:
        is_lost = run.repeat > 0 and not run.is_patched and run.case_id < "validation-12"
        return rate_limit(run) if is_lost else float(run.is_patched)

    result = await make_engine(WatchedAgent(behave), DRAFT).run(request(cases=20))
    assert result.conclusion is not None
    assert result.conclusion.runs[0].before.lost == 2 * 4, "validation-0, -1, -10 and -11"
    assert any("outages hit one profile more often" in each for each in summarize(result).evidence)
    sentence = "8 of 40 runs of the initial profile and 0 of 40 of the accepted one were lost to outages"
    assert sentence in repr(result)
    assert sentence in result._repr_html_()


@pytest.mark.parametrize("lost", [True, False], ids=["outage", "crash"])
async def test_outages_of_the_accepted_profile_do_not_make_a_candidate_better(lost: bool) -> None:
    """The second candidate is compared with new runs of the accepted profile, one of which always fails."""
    failure = "RateLimitedError" if lost else "AgentError"

    def behave(run: CaseRun) -> float | Failure:
        fails = run.repeat > 0 and not run.is_patched and run.case_id == "validation-3"
        return Failure(failure, "failed") if fails else 0.5

    rounds = (RESTYLED, {D: "Draft, in yet other words."})
    result = await make_engine(WatchedAgent(behave), *rounds).run(request(acceptance=AnyGain(), final_test=None))
    decisions = [each.decision.accepted for each in result.rounds if each.decision is not None]
    assert decisions == [False, not lost]


@pytest.mark.slow
async def test_a_crash_of_the_agent_counts_against_its_profile() -> None:
    def behave(run: CaseRun) -> float | Failure:
        crashes = run.repeat > 0 and run.is_patched and run.dice("crash") < 0.2
        return Failure("AgentError", "broke") if crashes else 0.6

    result = await make_engine(WatchedAgent(behave), RESTYLED).run(request(cases=30))
    assert result.conclusion is not None
    [runs], [test, *_] = result.conclusion.runs, result.conclusion.results
    assert runs.after.failed > 0
    assert (runs.before.failed, runs.after.lost) == (0, 0)
    assert test.gain is not None
    assert test.gain < 0
    assert any("failed and count with the worst score" in each for each in describe_runs([runs]))


async def test_if_too_many_runs_are_lost_the_run_fails_and_resumes_with_them() -> None:
    is_down = True
    journal = MemoryJournal()

    def behave(run: CaseRun) -> float | Failure:
        is_lost = is_down and run.repeat > 0 and not run.is_patched and run.dice("down") < 0.9
        return rate_limit(run) if is_lost else float(run.is_patched)

    with pytest.raises(RunFailedError, match="case runs were lost to such errors"):
        await make_engine(WatchedAgent(behave), DRAFT).run(request(), journal=journal)
    known = sum(event.type == "case" for event in journal.events)
    is_down, agent = False, WatchedAgent(behave)
    result = await make_engine(agent, DRAFT).run(request(), journal=journal)
    assert is_claimed(result)
    assert len(agent.runs) == sum(event.type == "case" for event in journal.events) - known


# Every case


@dataclass
class RareNode(WatchedAgent):
    """Reads the polish instruction in every run of some cases; in the others only in repeats after the record."""

    async def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:
        found = await super().run(case, profile, context)
        with record(context.case_id, resolve=lambda surface: profile.value(surface, SNAPSHOT)) as recording:
            with step("draft") as draft:
                draft.read_surface(D)
            if visits(self.runs[-1]):
                with step("polish", after=("draft",)) as polish:
                    polish.read_surface(P)
        return replace(found, trace=recording.trace)


def visits(run: CaseRun) -> bool:
    return int(run.case_id.partition("-")[2]) < 10 or (run.repeat > 0 and run.dice("visits") < 0.1)


@pytest.mark.slow
async def test_harm_on_rarely_visited_nodes_is_seen() -> None:
    """The patch helps 10 cases by 0.2 and breaks 20 others when they visit its node, which none did on record."""
    gains = []
    for seed in range(4):

        def behave(run: CaseRun, seed: int = seed) -> float:
            helps = int(run.case_id.partition("-")[2]) < 10
            if run.is_patched and visits(run):
                return float(run.dice(seed) < 0.8) if helps else 0.0
            return float(run.dice(seed) < 0.6) if helps else 1.0

        agent = RareNode(behave)
        result = await make_engine(agent, POLISH, seed=seed).run(request(cases=30, final_test=FinalTest(repeats=4)))
        final = [run for run in agent.runs if run.repeat > 0]
        assert len({run.case_id for run in final}) == 30, "cases that did not visit the node on record are run, too"
        assert not is_claimed(result)
        assert result.conclusion is not None
        gains.append(result.conclusion.results[0].looks[0].gain)
    assert -0.06 < sum(gains) / len(gains) < 0.06


# Resume


def long_run(agent: WatchedAgent) -> tuple[Engine, RunRequest]:
    """A final test of several blocks with lost runs, and a test set."""
    return make_engine(agent, DRAFT, concurrency=3), request(cases=4, alpha=0.5, test=desk.eval_set("test", 8))


def flip(run: CaseRun) -> float | Failure:
    is_lost = (run.is_patched, run.case_id, run.repeat) == (True, "validation-2", 2)
    return rate_limit(run) if is_lost else float(run.dice() < 0.1 + 0.85 * run.is_patched)


@pytest.mark.slow
async def test_a_run_killed_at_any_event_of_its_final_test_resumes_to_the_same_result() -> None:
    whole = MemoryJournal()
    engine, asked = long_run(WatchedAgent(flip))
    result = await engine.run(asked, journal=whole)
    events = list(whole.events)
    assert {event.phase for event in events} >= {"final_test", "test"}
    assert result.conclusion is not None
    assert result.conclusion.runs[0].after.lost == 1
    first = next(event.seq for event in events if event.phase == "final_test")
    for cut in range(first, len(events), 5):
        agent, journal = WatchedAgent(flip), MemoryJournal()
        for event in events[:cut]:
            await journal.append(event)
        engine, _ = long_run(agent)
        assert await engine.run(asked, journal=journal) == result, f"cut before event {cut}"
        assert fold(journal.events) == fold(whole.events)
        known = {
            (event.data["evaluation"], event.data["row"]["case_id"], event.data["row"].get("repeat", 0))
            for event in events[:cut]
            if event.type == "case"
        }
        made = {(run.is_patched, run.case_id, run.repeat) for run in agent.runs}
        assert len(made) == sum(event.type == "case" for event in events) - len(known), "no recorded run is made again"


# Shared cache


@pytest.mark.slow
async def test_runs_that_a_shared_cache_answered_are_counted_and_reported() -> None:
    gateway = Gateway(models={"scripted": desk.model()}, cache=MemoryCache())
    found: list[RunResult] = []
    for _ in range(2):
        engine = desk.engine(DRAFT, gateway=gateway)
        found.append(await engine.run(request(test=desk.eval_set("test", 8))))
    assert found[0] == found[1]
    counts = [
        [(runs.before.measured.from_cache, runs.after.measured.from_cache) for runs in result.conclusion.runs]
        for result in found
        if result.conclusion is not None
    ]
    assert counts == [[(0, 0), (0, 0)], [(20, 20), (16, 16)]]
    sentence = (
        "these cases: 20 of 20 runs of the initial profile and 20 of 20 of the accepted one are not new: a shared "
        "cache had all their answers"
    )
    assert [sentence in summarize(result).evidence for result in found] == [False, True]
