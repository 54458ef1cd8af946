"""Every decision of a run can be made again from its record, exactly, by every policy."""

from __future__ import annotations

from random import Random

import pytest

from promptiter import policies
from promptiter.agents.edges import Choice, Edge
from promptiter.agents.graph import GraphAgent
from promptiter.agents.node_context import NodeContext
from promptiter.agents.nodes import FunctionNode, ModelNode
from promptiter.engine.engine import Engine
from promptiter.engine.request import RunRequest
from promptiter.engine.session import Session
from promptiter.errors import SetupError
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.evaluator import EvaluationOptions, Evaluator
from promptiter.evaluation.metrics.builtin import FunctionMetric
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.policies.acceptance import AcceptancePolicy, AnyGain, ComposablePolicy, MinGain, NoRegression, Protected
from promptiter.policies.combine import CombinedPolicy, describe_policy, iter_policies
from promptiter.policies.constraints import Constraint, TieBreak
from promptiter.policies.evidence import AcceptanceDecision, Answer, Evidence, MoreEvidence
from promptiter.policies.figure_gain import Bound, FigureGain
from promptiter.policies.goals import Goal
from promptiter.policies.non_inferiority import NonInferior
from promptiter.policies.policy_code import parse_acceptance
from promptiter.policies.sigma_gain import SigmaGain
from promptiter.policies.stopping import MaxRounds, Patience, StopFile
from promptiter.profile import PatchSet, SurfacePatch
from promptiter.runlog.events import Event
from promptiter.runlog.journal import MemoryJournal
from promptiter.runs.decisions import decide_again
from promptiter.runs.rejudgement import rejudge
from traces import Usage

NAMES = ("reader", "left", "right")

POLICIES: tuple[AcceptancePolicy, ...] = (
    AnyGain(),
    MinGain(0.02),
    NoRegression(),
    AnyGain() & NoRegression(),
    MinGain(0.2) | NoRegression(),
    AnyGain() & Protected(("validation-1", "validation-2")),
    AnyGain() & (Protected() | NoRegression()),
    AnyGain() & Constraint("tokens", at_most_times=1.1),
    AnyGain() & Constraint("cost_usd", at_most=0.02) & Constraint("length", at_least=0.1),
    Constraint("characters", at_most_times=1.02) | Constraint("latency_s", at_most=60, measured=True),
    TieBreak(("tokens", "characters"), min_gain=0.1),
    Bound("length", ">=", 0.1) & FigureGain("length", "maximize", 0.01, (("lower", "tokens"),)),
    SigmaGain(),
    SigmaGain(0.5, 2, "every_trial"),
    SigmaGain(0.1, 2, "skip"),
    SigmaGain(0.1, 2, "k_fold", 3, 7),
    SigmaGain(0.1, 2) & AnyGain() & NoRegression(),
    NonInferior(0.2, "tokens"),
)


class Noisy:
    """A model whose answer is a number that depends on everything it is asked and on the repeat. Some calls fail."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    async def __call__(self, request: ModelRequest, *, repeat: int = 0) -> ModelReply:
        dice = Random(f"{self.seed} {repeat} {[message.content for message in request.messages]}")
        if dice.random() < 0.03:
            raise ValueError("the model is out of paper")
        usage = Usage(input_tokens=dice.randrange(40, 60), output_tokens=5, cost_usd=dice.uniform(0.001, 0.02))
        return ModelReply(text=f"{dice.random() ** 0.5:.2f}", usage=usage)


def route(context: NodeContext) -> str:
    """Half of the cases read the texts of one side, so patches of the other side cannot reach them."""
    return "left" if str(context.input).endswith(("0", "2", "4")) else "right"


def pass_on(number: str) -> str:
    return number


class Breeds:
    """Three children a round with random texts: one is validated, one screened and validated, one rejected at once."""

    async def search(self, session: Session) -> None:
        while not await session.should_stop():
            await session.begin_round()
            children = []
            for _ in range(3):
                names = session.rng.sample(sorted(session.targets), session.rng.choice((1, 1, 2)))
                text = f"Answer with care {session.rng.randrange(1000)}."
                patches = [SurfacePatch(surface_id=name, value=text, reason="") for name in names]
                children.append(await session.propose(PatchSet(tuple(patches))))
            await session.evaluate_many([(session.train, each) for each in children[1:]], phase="screening")
            for child in children[:2]:
                await session.validate(child)
            await session.reject(children[2], "the worst of its litter")
            await session.complete_round()


def eval_set(name: str, count: int) -> EvalSet:
    turns = [Turn(user=f"{name} {number}", expected="1") for number in range(count)]
    return EvalSet(id=name, cases=tuple(EvalCase(id=f"{name}-{n}", turns=(turn,)) for n, turn in enumerate(turns)))


def read_number(_case: EvalCase, run: object) -> float:
    return float(str(getattr(run, "output", "")))


def measure_length(_case: EvalCase, run: object) -> float:
    return len(str(getattr(run, "output", ""))) / 10


async def run(policy: AcceptancePolicy, seed: int) -> list[Event]:
    agent = GraphAgent(
        name="noisy",
        nodes=(
            *(ModelNode(name=name, instruction="Answer.", model="noisy") for name in NAMES),
            FunctionNode(name="last", function=pass_on),
        ),
        edges=(
            Choice("reader", route, {"left": "left", "right": "right"}),
            Edge("left", "last"),
            Edge("right", "last"),
        ),
    )
    options = EvaluationOptions(seed=seed, repeats=1 + seed % 2, max_errored_fraction=0.3)
    evaluator = Evaluator(
        [
            FunctionMetric(name="number", function=read_number, threshold=0.5),
            FunctionMetric(name="length", function=measure_length, threshold=0.3),
        ],
        gateway=Gateway(models={"noisy": Noisy(seed)}),
        options=options,
    )
    saves = isinstance(policy, NonInferior)
    request = RunRequest(
        train=eval_set("train", 2),
        validation=eval_set("validation", 5),
        acceptance=policy,
        final_test=None,
        stop=Patience(9),
        max_rounds=2,
        alpha=0.1,
        objective=("mean_score", "pass_rate", "weighted_loss")[seed % 3],
        goal=Goal(kind="fewer_tokens", margin=0.2) if saves else Goal(),
        protected=frozenset(["validation-0"] if seed % 3 == 2 else []),
        targets=[f"{name}#instruction" for name in NAMES],
    )
    journal = MemoryJournal()
    await Engine(agent, evaluator, search=Breeds()).run(request, journal=journal)
    return journal.events


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES, ids=repr)
async def test_the_same_policy_decides_the_same_again(policy: AcceptancePolicy) -> None:
    number = POLICIES.index(policy)
    for seed in (number % 6, (number + 3) % 6):  # all six kinds of runs, but not with every policy
        events = await run(policy, seed)
        assert rejudge(events).divergence is None
        found = list(decide_again(events))
        assert [each.round for each in found] == [1, 1, 1, 2, 2, 2]
        assert [each.again for each in found] == [
            None if place % 3 == 2 else each.recorded for place, each in enumerate(found)
        ]


class NeverDecides:
    """A policy of one's own that always asks for more."""

    def decide(self, evidence: Evidence) -> Answer:
        return MoreEvidence(reason=f"{len(evidence.candidate.rows)} rows are not enough")


@pytest.mark.slow
async def test_a_policy_of_ones_own_is_passed_to_decide_again() -> None:
    events = await run(NeverDecides(), 0)
    with pytest.raises(SetupError, match=r"NeverDecides\(\)' cannot be created from its description; give one of"):
        list(decide_again(events))
    found = [each for each in decide_again(events, NeverDecides()) if each.again is not None]
    assert [each.again for each in found] == [each.recorded for each in found]
    assert any("still undecided after 8 looks: " in each.recorded.reason for each in found)


@pytest.mark.slow
async def test_another_policy_decides_on_what_the_first_one_saw() -> None:
    """It asks for more where the record has not enough, and needs neither the agent nor a model."""
    events = await run(AnyGain(), 1)
    recorded = [each.recorded for each in decide_again(events)]
    accepted = [each.again for each in decide_again(events, MinGain(0.0) | NoRegression() | MinGain(1.0))]
    assert [each is None for each in accepted] == [False, False, True, False, False, True]
    assert {each.delta for each in recorded if each.delta is not None} == {
        each.delta for each in accepted if isinstance(each, AcceptanceDecision)
    }
    strict = [each.again for each in decide_again(events, MinGain(1.0)) if each.again is not None]
    assert all(isinstance(each, AcceptanceDecision) and not each.accepted for each in strict)
    wants_train = [each.again for each in decide_again(events, SigmaGain()) if each.again is not None]
    assert [each.on for each in wants_train if isinstance(each, MoreEvidence)] == ["train"] * 4


def test_every_policy_can_be_created_from_its_description() -> None:
    for policy in POLICIES:
        assert parse_acceptance(describe_policy(policy)) == policy
    known = {type(part) for policy in POLICIES for part in iter_policies(policy)}
    built_in = {
        value
        for name in dir(policies)
        if isinstance(value := getattr(policies, name), type)
        and issubclass(value, ComposablePolicy)
        and not issubclass(value, CombinedPolicy)
    }
    assert built_in - {ComposablePolicy} <= known


@pytest.mark.slow
async def test_a_run_is_told_until_a_decision_comes_out_differently() -> None:
    events = await run(AnyGain(), 1)
    accepted = [each for each in rejudge(events).candidates if each.recorded.accepted]
    assert accepted, "the run has something to reject"
    strict = rejudge(events, acceptance=MinGain(1.0))
    assert strict.divergence is not None
    assert (strict.divergence.round, strict.divergence.kind) == (accepted[0].round, "rejected")
    assert [each.again is None for each in strict.stops] == [
        each.round > strict.divergence.round or (each.round == strict.divergence.round and each.again is None)
        for each in strict.stops
    ]
    wants_train = rejudge(events, acceptance=SigmaGain()).divergence
    assert wants_train is not None
    assert (wants_train.kind, wants_train.stop) == ("more_evidence", None)


@pytest.mark.slow
async def test_other_stop_policies_end_a_run_earlier_or_not_at_all() -> None:
    events = await run(AnyGain(), 1)
    early = rejudge(events, stop=MaxRounds(1)).divergence
    assert early is not None
    assert (early.round, early.kind, early.reason) == (1, "stopped", "1 round finished, of at most 1")
    assert rejudge(events, stop=Patience(20)).divergence is None  # the maximum number of rounds is kept
    assert rejudge(events, stop=StopFile(__file__)).divergence is None  # files are not looked for again
