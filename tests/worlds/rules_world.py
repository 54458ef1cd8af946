"""The rules world: ten nodes with a branch and a join, twelve rules, 24 train and 12 validation cases.

    intake ──▶ left1 ──▶ left2 ──▶ join ──▶ edit ──▶ check ──▶ format ──▶ final
       └─────▶ right1 ─▶ right2 ───┘

Each case is about one rule and carries two parts, a and b, which pass through the nodes; the branches carry one part
each. A faulty node spoils a part of a case unless its instruction names the rule of the case. To fix it, the missing
rules are added to its instruction and to no other. A slip spoils a part by accident, at any node.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Literal, TypeAlias, get_args

from promptiter.agents.base import AgentRun
from promptiter.agents.edges import Edge, Join
from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import ModelNode
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.metrics.builtin import FunctionMetric
from promptiter.llm.messages import ModelReply, ModelRequest
from tests.worlds.planted_world import Answer, PlantedWorld
from tests.worlds.prompt_reader import OptimizePrompt, ShownRun, ShownStep, ShownSurface
from tests.worlds.sighted_expert import Complaint, Faults

RulesScenario: TypeAlias = Literal["one", "coupled", "masked", "join", "rare", "rare-masked"]
SCENARIOS: tuple[RulesScenario, ...] = get_args(RulesScenario)
BRANCHES = (("left1", "left2"), ("right1", "right2"))
TRUNK = ("intake", "join", "edit", "check", "format", "final")
NODES = ("intake", *BRANCHES[0], *BRANCHES[1], *TRUNK[1:])
RULES = tuple(f"R{number:02d}" for number in range(12))
TRAIN, VALIDATION = 24, 12

TERSE = "Always follow {rule}."
LONG = "The instruction leaves open which rule applies, so it has to say that every such answer always follows {rule}."
"""What the expert says of a missing rule: three words, or 18 that differ only in the rule."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A part that a node spoils, for the cases of some rules."""

    part: str
    rules: tuple[str, ...] = RULES


def make_rules_world(scenario: RulesScenario, seed: int, *, slip: float = 0.0, wording: str = TERSE) -> PlantedWorld:
    """The world with the faults of a scenario. `slip` is the chance per case run that some node slips."""
    faults = plant_faults(scenario, Random(f"{scenario} {seed}"))
    agent = _make_agent()
    fixes = {
        f"{node}#instruction": add_rules(f"You are the {node}.", fault.rules, wording=TERSE)
        for node, fault in faults.items()
    }
    return PlantedWorld(
        name=scenario,
        agent=agent,
        answer=make_task_model(faults, slip=slip),
        metrics=(FunctionMetric(name="rules", function=_judge, needs_reference=True),),
        train=make_cases("train", TRAIN),
        validation=make_cases("validation", VALIDATION),
        fixes=fixes,
        knowledge=RulesKnowledge(wording),
        seed=seed,
    )


def plant_faults(scenario: RulesScenario, rng: Random) -> dict[str, Fault]:
    """The faulty nodes of a scenario.

    One: a single node. Coupled: two nodes that spoil one part each, so that no case passes until both are fixed.
    Masked: two nodes that spoil the same part, so that the second shows only once the first is fixed. Join: a node of
    one branch. Rare: one rule of one node, two of the 24 train cases. Rare-masked: one rule of two nodes that spoil the
    same part, so that two cases show the first fault, and the second only once the first is fixed.
    """
    match scenario:
        case "one":
            return {rng.choice(TRUNK): Fault("a")}
        case "coupled":
            return {node: Fault(part) for node, part in zip(rng.sample(TRUNK, 2), "ab", strict=True)}
        case "masked":
            return {TRUNK[number]: Fault("a") for number in sorted(rng.sample(range(len(TRUNK)), 2))}
        case "join":
            branch = rng.choice((0, 1))
            return {rng.choice(BRANCHES[branch]): Fault("ab"[branch])}
        case "rare":
            return {rng.choice(TRUNK): Fault("a", RULES[:1])}
        case "rare-masked":
            return {TRUNK[number]: Fault("a", RULES[:1]) for number in sorted(rng.sample(range(len(TRUNK)), 2))}


def make_cases(name: str, count: int) -> EvalSet:
    ids = [(f"{name[0]}{number:02d}", RULES[number % len(RULES)]) for number in range(count)]
    turns = {case: Turn(user=f"{case} asks for {rule}", expected=_write(case, rule, "ab", "")) for case, rule in ids}
    return EvalSet(id=name, cases=tuple(EvalCase(id=case, turns=(turn,)) for case, turn in turns.items()))


def make_task_model(faults: Mapping[str, Fault], *, slip: float) -> Answer:
    """The task model: passes on the parts of a case, spoils them as the faults say, and slips by chance."""

    def answer(request: ModelRequest, rng: Random) -> ModelReply:
        node, text = request.model, request.messages[-1].content
        instruction = "\n".join(each.content for each in request.messages if each.role == "system")
        [case, *_], [rule, *_] = _CASE.findall(text), _RULE.findall(text)
        parts = "a" if node in BRANCHES[0] else "b" if node in BRANCHES[1] else "ab"
        spoiled = _find_spoiled(text)
        fault = faults.get(node)
        if fault is not None and rule in fault.rules and rule not in instruction:
            spoiled.add(fault.part)
        if rng.random() < slip / len(NODES):
            spoiled.add(rng.choice(parts))
        return ModelReply(text=_write(case, rule, parts, spoiled))

    return answer


@dataclass(frozen=True, slots=True)
class RulesKnowledge:
    """What an expert knows: a step that spoiled a part should follow the rule of the case.

    `wording` is how it says so. It writes the rules that a signal names into an instruction, and nothing else.
    """

    wording: str = TERSE

    def find_faults(self, step: ShownStep, surfaces: Mapping[str, ShownSurface], run: ShownRun) -> Faults:  # noqa: ARG002 - the step shows it
        if not _find_spoiled(step.output) - _find_spoiled(step.input):
            return {}
        [rule, *_] = _RULE.findall(step.output)
        return dict.fromkeys(step.blamable, Complaint(self.wording.format(rule=rule)))

    def is_spoiled(self, output: str, run: ShownRun) -> bool:  # noqa: ARG002 - the output shows it
        return bool(_find_spoiled(output))

    def rewrite(self, prompt: OptimizePrompt) -> str:
        return add_rules(prompt.surface.value, _RULE.findall(prompt.signal), wording=TERSE)

    def correct(self, step: ShownStep, run: ShownRun) -> str | None:  # noqa: ARG002 - the step shows it
        lost = _find_spoiled(step.output) - _find_spoiled(step.input)
        return re.sub(f"([{''.join(lost)}])=bad", r"\1=good", step.output) if lost else None


def add_rules(instruction: str, rules: Iterable[str], *, wording: str) -> str:
    """The instruction with the rules that it lacks, one sentence each."""
    missing = sorted(set(rules) - set(_RULE.findall(instruction)))
    return "\n".join([instruction, *(wording.format(rule=rule) for rule in missing)])


def _make_agent() -> GraphAgent:
    return GraphAgent(
        name="rules",
        nodes=tuple(ModelNode(name=node, instruction=f"You are the {node}.", model=node) for node in NODES),
        edges=(
            *(Edge("intake", branch[0]) for branch in BRANCHES),
            *(Edge(*branch) for branch in BRANCHES),
            Join((BRANCHES[0][1], BRANCHES[1][1]), "join"),
            *(Edge(source, target) for source, target in pairwise(TRUNK[1:])),
        ),
    )


def _judge(case: EvalCase, run: AgentRun) -> tuple[float, str]:
    [turn] = case.turns
    if run.output == turn.expected:
        return 1.0, "every part is good"
    return 0.0, f"the answer violates {_RULE.findall(turn.user)[0]}"


def _write(case: str, rule: str, parts: str, spoiled: Iterable[str]) -> str:
    return " / ".join([case, rule, *(f"{part}={'bad' if part in spoiled else 'good'}" for part in parts)])


def _find_spoiled(text: str) -> set[str]:
    return set(re.findall(r"\b([ab])=bad", text))


_CASE = re.compile(r"\b[a-z]\d\d+\b")
_RULE = re.compile(r"\bR\d\d\b")
