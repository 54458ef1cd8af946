"""Seeded agents with known faults, for the bars of the loop.

`make_scenario(name, seed)` builds a graph of ten simulated model nodes that pass a request on until the last one
answers it. Some nodes are faulty: their instructions lack a rule, or have a harmful one. A scenario knows which, and
how to fix them. References follow from the data of the cases, never from a run.

Blame is hard on purpose: in `join`, each branch correctly leaves out what the other one carries; in `loop`, a lookup
adds what is not in the request; if a fault is partial, a quarter of the cases pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random

from promptiter.agents.edges import AnyEdge, Choice, Edge, Join
from promptiter.agents.graph import GraphAgent
from promptiter.agents.node_context import NodeContext
from promptiter.agents.nodes import FunctionNode, ModelNode
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.metrics.metric import Metric
from promptiter.llm.gateway import Gateway
from promptiter.offline.model.simulated import SimulatedModel
from promptiter.profile import Profile
from tests.worlds.domains import (
    ANSWER_KINDS,
    REASONS,
    SPARED,
    Ending,
    Fault,
    Form,
    Kind,
    Row,
    World,
    make_carrying_rules,
    make_ending,
    make_questions,
    make_records,
    make_rows,
)

NAMES = ("one_fault", "two_visible", "two_masked", "join", "loop")
SEEDS = range(20)
TRAIN, VALIDATION = 24, 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """The correct instruction of a faulty surface, and what is wrong with the present one."""

    value: str
    reason: str
    kind: Kind
    field: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """An agent with known faults, and their fixes by surface. If a fault is partial, some cases pass."""

    name: str
    seed: int
    agent: GraphAgent
    metrics: tuple[Metric, ...]
    train: EvalSet
    validation: EvalSet
    fixes: Mapping[str, Fix]
    model: SimulatedModel
    is_partial: bool

    @property
    def faulty(self) -> frozenset[str]:
        return frozenset(self.fixes)

    @property
    def correct(self) -> Profile:
        """The profile in which all faults are fixed."""
        return self.fix(self.fixes)

    def fix(self, surface_ids: Iterable[str]) -> Profile:
        """The profile in which these surfaces are fixed."""
        return Profile.of(self.agent.describe(), {each: self.fixes[each].value for each in surface_ids})

    def evaluator(self) -> Evaluator:
        """A new evaluator with a cache of its own, over the scenario's model."""
        return Evaluator(self.metrics, gateway=Gateway(models={self.model.name: self.model}))


@dataclass(frozen=True, slots=True)
class Scores:
    """The mean scores on both sets."""

    train: float | None
    validation: float | None


async def measure_scores(
    subject: Scenario, profile: Profile | None = None, *, evaluator: Evaluator | None = None
) -> Scores:
    """The scores of the agent under a profile, by default its baseline."""
    judge = evaluator or subject.evaluator()
    train = await judge.evaluate(subject.agent, subject.train, profile)
    validation = await judge.evaluate(subject.agent, subject.validation, profile)
    return Scores(train.mean_score, validation.mean_score)


async def measure_ceiling(subject: Scenario, *, evaluator: Evaluator | None = None) -> Scores:
    """The scores with all faults fixed: the best that the simulated model can do."""
    return await measure_scores(subject, subject.correct, evaluator=evaluator)


def make_scenario(name: str, seed: int, *, compliance: float = 1.0) -> Scenario:
    """The scenario of a name and a seed. The same name and seed give the same scenario."""
    if name not in _PLANS:
        raise ValueError(f"there is no scenario {name!r}; choose one of {', '.join(NAMES)}")
    plan = _PLANS[name](seed, Random(f"{name} {seed}"))
    cases = tuple(
        EvalCase(
            id=f"{'train' if at < TRAIN else 'validation'}-{at:02}",
            turns=(Turn(user=plan.world.make_request(row), expected=plan.ending.expected(row)),),
        )
        for at, row in enumerate(plan.rows)
    )
    return Scenario(
        name=name,
        seed=seed,
        agent=GraphAgent(
            name=f"{name}_{seed}", nodes=(*(post.node() for post in plan.posts), *plan.functions), edges=plan.edges
        ),
        metrics=(plan.ending.metric,),
        train=EvalSet(id="train", cases=cases[:TRAIN]),
        validation=EvalSet(id="validation", cases=cases[TRAIN:]),
        fixes={
            f"{post.name}#instruction": Fix(
                value=post.right,
                reason=REASONS[post.fault.kind].format(post.fault.field),
                kind=post.fault.kind,
                field=post.fault.field,
            )
            for post in plan.posts
            if post.fault
        },
        model=SimulatedModel(seed=seed, compliance=compliance),
        is_partial=plan.is_partial,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """One model node: its correct instruction, and the one it has if it is faulty."""

    name: str
    right: str
    wrong: str
    fault: Fault | None
    prompt: str | None = None

    def node(self) -> ModelNode:
        return ModelNode(name=self.name, instruction=self.wrong if self.fault else self.right, prompt=self.prompt)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The parts of a scenario. The first post gets the request; the rows of train come first."""

    world: World
    posts: tuple[Post, ...]
    edges: tuple[AnyEdge, ...]
    ending: Ending
    rows: Sequence[Row]
    functions: tuple[FunctionNode, ...] = ()
    is_partial: bool = False


@dataclass(frozen=True, slots=True)
class Crew:
    """Makes the posts of one scenario; `faults` are those of the faulty nodes."""

    world: World
    faults: Mapping[str, Fault]
    rng: Random

    def make_carrier(self, name: str, fields: Sequence[str], *, prompt: str | None = None) -> Post:
        """A node that passes fields on."""
        rules = make_carrying_rules(fields, self.world, fault=self.faults.get(name), rng=self.rng)
        return self._make_post(name, rules, prompt)

    def make_answerer(self, name: str, ending: Ending, *, prompt: str | None = None) -> Post:
        """The node that answers."""
        return self._make_post(name, (ending.right, ending.wrong), prompt)

    def make_rows(self, *, is_partial: bool = False) -> list[Row]:
        faults = self.faults.values()
        return make_rows(self.world, faults, count=TRAIN + VALIDATION, rng=self.rng, is_partial=is_partial)

    def _make_post(self, name: str, rules: tuple[str, str], prompt: str | None) -> Post:
        right, wrong = (self.world.make_instruction(name, each) for each in rules)
        return Post(name=name, right=right, wrong=wrong, fault=self.faults.get(name), prompt=prompt)


def _plan_one_fault(seed: int, rng: Random) -> Plan:
    kind, manner = _SINGLE[seed % len(_SINGLE)]
    names = _choose_names(rng)
    world = make_questions(rng) if manner == "documents" else make_records(rng, has_wish=kind == "label")
    place = names[-1] if kind in ANSWER_KINDS else rng.choice(names[:-1])
    crew = Crew(world, {place: Fault(kind, world.choose_field(kind, rng=rng))}, rng)
    return _plan_chain(crew, names, is_partial=manner == "partly")


def _plan_two_visible(seed: int, rng: Random) -> Plan:
    """Two faults about two fields."""
    names, world = _choose_names(rng), make_records(rng)
    first, second = _VISIBLE[seed % len(_VISIBLE)]
    one = Fault(first, world.choose_field(first, rng=rng))
    other = Fault(second, world.choose_field(second, rng=rng, but=one.field))
    both = [one, other] if second in ANSWER_KINDS else rng.sample([one, other], 2)
    return _plan_chain(Crew(world, _place_faults(both, names, rng), rng), names)


def _plan_two_masked(seed: int, rng: Random) -> Plan:
    """Two faults about one field: the first node hides what the second one would do."""
    names = _choose_names(rng)
    first, second, manner = _MASKED[seed % len(_MASKED)]
    world = make_questions(rng) if manner == "documents" else make_records(rng)
    field = world.choose_field(first, second, rng=rng)
    return _plan_chain(Crew(world, _place_faults([Fault(first, field), Fault(second, field)], names, rng), rng), names)


def _plan_chain(crew: Crew, names: Sequence[str], *, is_partial: bool = False) -> Plan:
    """A chain. If its last node is not faulty, it answers with a record, one field, or a citation."""
    last, (first, *others) = crew.faults.get(names[-1]), crew.faults.values()
    forms: tuple[Form, ...] = ("json",) if others or is_partial else ("json", "value")
    if crew.world.has_documents:
        forms = ("citation",)
    form = crew.rng.choice(forms) if last is None else last.kind
    ending = make_ending(form, crew.world, field=(last or first).field, rng=crew.rng)
    carriers = (crew.make_carrier(name, crew.world.fields) for name in names[:-1])
    return Plan(
        world=crew.world,
        posts=(*carriers, crew.make_answerer(names[-1], ending)),
        edges=_make_edges(*names),
        ending=ending,
        rows=crew.make_rows(is_partial=is_partial),
        is_partial=is_partial,
    )


def _plan_join(seed: int, rng: Random) -> Plan:
    """The first node passes the whole request to two branches; each carries its share to the writer."""
    world = make_records(rng)
    kind, manner = _JOINED[seed % len(_JOINED)]
    start, *rest = rng.sample(_ROLES, 9)
    length = rng.choice((3, 4, 5))
    branches = (rest[:length], rest[length:])
    shares = rng.sample([{text, other} for text, other in zip(world.texts, (world.date, world.amount), strict=True)], 2)
    field = world.choose_field(kind, rng=rng)
    guilty = branches[0] if field in shares[0] else branches[1]
    crew = Crew(world, {rng.choice(guilty): Fault(kind, field)}, rng)
    ending = make_ending("json", world, field=field, rng=rng)
    posts = [crew.make_carrier(start, world.fields)]
    for branch, share in zip(branches, shares, strict=True):
        theirs = [name for name in world.fields if name in {world.number, *share}]
        posts += [crew.make_carrier(name, theirs) for name in branch]
    ends = (branches[0][-1], branches[1][-1])
    writer = crew.make_answerer("writer", ending, prompt=f"{{{ends[0]}}}\n\n{{{ends[1]}}}")
    return Plan(
        world=world,
        posts=(*posts, writer),
        edges=(*_make_edges(start, *branches[0]), *_make_edges(start, *branches[1]), Join(ends, "writer")),
        ending=ending,
        rows=crew.make_rows(is_partial=manner == "partly"),
        is_partial=manner == "partly",
    )


def _plan_loop(seed: int, rng: Random) -> Plan:
    """Plan, look up and compose in parallel, review, rewrite urgent cases once, finalize."""
    known = make_records(rng)
    found = rng.choice(list(known.texts))
    asked = tuple(name for name in known.fields if name != found)
    world = replace(known, fields=(*asked, "priority"), reported=(*asked, found))
    kind, place = _LOOPED[seed % len(_LOOPED)]
    field = found if place == "digest" else world.choose_field(kind, rng=rng, but=found)
    crew = Crew(world, {place: Fault(kind, field)}, rng)
    is_partial = place in ("rewrite", "sharpen")
    rows = crew.make_rows()
    for number, row in enumerate(rows):
        row["priority"] = "high" if number % (SPARED if is_partial else 2) else "normal"
    archive = {row[world.number]: f"{world.number}: {row[world.number]}\n{found}: {row[found]}" for row in rows}

    async def retrieve(text: str) -> str:
        return next((record for number, record in archive.items() if number in text), "no such record")

    def route(node_context: NodeContext) -> str:
        is_urgent = re.search(r"priority\W+high", str(node_context.outputs["reviewer"]))
        return "need_revision" if is_urgent and "rewrite" not in node_context.outputs else "finalize"

    ending = make_ending("json_keys" if kind == "json_keys" else "json", world, field=field, rng=rng)
    posts = (
        *(crew.make_carrier(name, world.fields) for name in ("planner", "search", "compose", "polish")),
        crew.make_carrier("digest", (world.number, found)),
        crew.make_carrier("reviewer", (*world.fields, found), prompt="{digest}\n\n{polish}"),
        *(crew.make_carrier(name, world.fields) for name in ("rewrite", "sharpen")),
        crew.make_carrier("finalize", world.reported),
        crew.make_answerer("deliver", ending),
    )
    return Plan(
        world=world,
        posts=posts,
        functions=(FunctionNode(name="retrieve", function=retrieve, kind="tool"),),
        edges=(
            *_make_edges("planner", "search", "retrieve", "digest"),
            *_make_edges("planner", "compose", "polish"),
            Join(("digest", "polish"), "reviewer"),
            Choice("reviewer", route, {"need_revision": "rewrite", "finalize": "finalize"}),
            *_make_edges("rewrite", "sharpen", "planner"),
            *_make_edges("finalize", "deliver"),
        ),
        ending=ending,
        rows=rows,
        is_partial=is_partial,
    )


def _choose_names(rng: Random) -> list[str]:
    return [*rng.sample(_ROLES, 9), "writer"]


def _make_edges(*names: str) -> tuple[Edge, ...]:
    return tuple(Edge(source, target) for source, target in pairwise(names))


def _place_faults(faults: Sequence[Fault], names: Sequence[str], rng: Random) -> dict[str, Fault]:
    """Two faults on nodes of a chain, in this order; a fault of answers is on the last node."""
    one, other = sorted(rng.sample(range(len(names) - 1), 2))
    if faults[1].kind in ANSWER_KINDS:
        other = len(names) - 1
    return {names[one]: faults[0], names[other]: faults[1]}


_PLANS: Mapping[str, Callable[[int, Random], Plan]] = {
    "one_fault": _plan_one_fault,
    "two_visible": _plan_two_visible,
    "two_masked": _plan_two_masked,
    "join": _plan_join,
    "loop": _plan_loop,
}
_ROLES = (
    *("clerk", "dispatcher", "checker", "planner", "editor", "auditor"),
    *("registrar", "coordinator", "scheduler", "reviewer", "archivist", "steward"),
)
_SINGLE: tuple[tuple[Kind, str], ...] = (
    *(("field", ""), ("json", ""), ("date", ""), ("prefix", ""), ("field", "partly"), ("round", ""), ("label", "")),
    *(("date_convert", ""), ("json_keys", ""), ("field", "documents"), ("length", "documents"), ("field", "")),
    *(("decimals", "partly"), ("date", "partly"), ("citation", "documents"), ("case", "partly"), ("round", "")),
    *(("language", "documents"), ("date_format", ""), ("date_convert", "partly")),
)
_VISIBLE: tuple[tuple[Kind, Kind], ...] = (
    *(("field", "field"), ("date", "field"), ("round", "field"), ("field", "json_keys"), ("date_convert", "field")),
    *(("field", "decimals"), ("date", "json_keys"), ("round", "json_keys"), ("date_convert", "json_keys")),
)
_MASKED: tuple[tuple[Kind, Kind, str], ...] = (
    *(("field", "field", ""), ("field", "date", ""), ("field", "round", ""), ("field", "json_keys", "")),
    *(("date", "field", ""), ("field", "field", "documents"), ("field", "date_convert", ""), ("round", "field", "")),
    *(("field", "citation", "documents"), ("field", "decimals", "")),
)
_JOINED: tuple[tuple[Kind, str], ...] = (
    *(("field", ""), ("date", ""), ("round", ""), ("field", "partly"), ("date_convert", ""), ("date", "partly")),
)
_LOOPED: tuple[tuple[Kind, str], ...] = (
    *(("field", "compose"), ("date", "planner"), ("field", "sharpen"), ("round", "reviewer"), ("field", "digest")),
    *(("date_convert", "polish"), ("json_keys", "deliver"), ("round", "rewrite"), ("field", "finalize")),
    *(("date", "sharpen"), ("field", "planner"), ("json", "deliver"), ("field", "rewrite"), ("field", "reviewer")),
)
"""The faults of the seeds: the kind, and how it appears or, in the loop, where."""
