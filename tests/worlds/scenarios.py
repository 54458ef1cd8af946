"""Seeded agents with known faults: what the bars of the loop run on.

`scenario(name, seed)` builds a graph of ten simulated model nodes that hand a request on until the last one answers it.
Some nodes are at fault: their instructions lack a rule, or hold a harmful one. A scenario knows which, and what mends
them. References follow from the data of the cases, never from a run.

What makes blame hard is meant: in `join` each branch rightly leaves out what the other one carries; in `loop` a look-up
adds what stands nowhere in the request; where a fault is partial, a fourth of the cases pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random

from promptiter.agents.edges import AnyEdge, Choice, Edge, Join
from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import FunctionNode, ModelNode, NodeContext
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
    handing_on,
    make_ending,
    make_rows,
    questions,
    records,
)

NAMES = ("one_fault", "two_visible", "two_masked", "join", "loop")
SEEDS = range(20)
TRAIN, VALIDATION = 24, 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """The instruction that mends a faulty surface, and what is wrong with the one that stands there."""

    value: str
    reason: str
    kind: Kind
    field: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """An agent with known faults; `fixes` has what mends them, by surface. Of a partial fault some cases pass."""

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
        """The profile in which all faults are mended."""
        return self.mended(self.fixes)

    def mended(self, surface_ids: Iterable[str]) -> Profile:
        """The profile in which these surfaces are mended."""
        return Profile.of(self.agent.describe(), {each: self.fixes[each].value for each in surface_ids})

    def evaluator(self) -> Evaluator:
        """A new evaluator with a cache of its own, over the scenario's model."""
        return Evaluator(self.metrics, gateway=Gateway(models={self.model.name: self.model}))


@dataclass(frozen=True, slots=True)
class Scores:
    """The mean scores on both sets."""

    train: float | None
    validation: float | None


async def scores(subject: Scenario, profile: Profile | None = None, *, evaluator: Evaluator | None = None) -> Scores:
    """How the agent does under a profile, by default its baseline."""
    judge = evaluator or subject.evaluator()
    train = await judge.evaluate(subject.agent, subject.train, profile)
    validation = await judge.evaluate(subject.agent, subject.validation, profile)
    return Scores(train.mean_score, validation.mean_score)


async def ceiling(subject: Scenario, *, evaluator: Evaluator | None = None) -> Scores:
    """How the agent does with all faults mended: the best that its simulated model can do."""
    return await scores(subject, subject.correct, evaluator=evaluator)


def scenario(name: str, seed: int, *, compliance: float = 1.0) -> Scenario:
    """The scenario of a name and a seed: always the same one."""
    if name not in _PLANS:
        raise ValueError(f"there is no scenario {name!r}; known are {', '.join(NAMES)}")
    plan = _PLANS[name](seed, Random(f"{name} {seed}"))
    cases = tuple(
        EvalCase(
            id=f"{'train' if at < TRAIN else 'validation'}-{at:02}",
            turns=(Turn(user=plan.world.request(row), expected=plan.ending.expected(row)),),
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
    """One model node: the instruction it should have, and the one it has if it is at fault."""

    name: str
    right: str
    wrong: str
    fault: Fault | None
    prompt: str | None = None

    def node(self) -> ModelNode:
        return ModelNode(name=self.name, instruction=self.wrong if self.fault else self.right, prompt=self.prompt)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All that a scenario is made of. The first post gets the request; the rows of train come first."""

    world: World
    posts: tuple[Post, ...]
    edges: tuple[AnyEdge, ...]
    ending: Ending
    rows: Sequence[Row]
    functions: tuple[FunctionNode, ...] = ()
    is_partial: bool = False


@dataclass(frozen=True, slots=True)
class Crew:
    """Makes the posts of one scenario; `faults` has what is wrong, by node."""

    world: World
    faults: Mapping[str, Fault]
    rng: Random

    def carrier(self, name: str, fields: Sequence[str], *, prompt: str | None = None) -> Post:
        """A node that hands fields on."""
        rules = handing_on(fields, self.world, fault=self.faults.get(name), rng=self.rng)
        return self._post(name, rules, prompt)

    def answerer(self, name: str, ending: Ending, *, prompt: str | None = None) -> Post:
        """The node that answers."""
        return self._post(name, (ending.right, ending.wrong), prompt)

    def rows(self, *, is_partial: bool = False) -> list[Row]:
        faults = self.faults.values()
        return make_rows(self.world, faults, count=TRAIN + VALIDATION, rng=self.rng, is_partial=is_partial)

    def _post(self, name: str, rules: tuple[str, str], prompt: str | None) -> Post:
        right, wrong = (self.world.instruction(name, each) for each in rules)
        return Post(name=name, right=right, wrong=wrong, fault=self.faults.get(name), prompt=prompt)


def _one_fault(seed: int, rng: Random) -> Plan:
    kind, manner = _SINGLE[seed % len(_SINGLE)]
    names = _chain_names(rng)
    world = questions(rng) if manner == "documents" else records(rng, has_wish=kind == "label")
    place = names[-1] if kind in ANSWER_KINDS else rng.choice(names[:-1])
    crew = Crew(world, {place: Fault(kind, world.field_for(kind, rng=rng))}, rng)
    return _chain(crew, names, is_partial=manner == "partly")


def _two_visible(seed: int, rng: Random) -> Plan:
    """Two faults about two fields."""
    names, world = _chain_names(rng), records(rng)
    first, second = _VISIBLE[seed % len(_VISIBLE)]
    one = Fault(first, world.field_for(first, rng=rng))
    other = Fault(second, world.field_for(second, rng=rng, but=one.field))
    both = [one, other] if second in ANSWER_KINDS else rng.sample([one, other], 2)
    return _chain(Crew(world, _placed(both, names, rng), rng), names)


def _two_masked(seed: int, rng: Random) -> Plan:
    """Two faults about one field: what the first node does to it hides what the second one would do."""
    names = _chain_names(rng)
    first, second, manner = _MASKED[seed % len(_MASKED)]
    world = questions(rng) if manner == "documents" else records(rng)
    field = world.field_for(first, second, rng=rng)
    return _chain(Crew(world, _placed([Fault(first, field), Fault(second, field)], names, rng), rng), names)


def _chain(crew: Crew, names: Sequence[str], *, is_partial: bool = False) -> Plan:
    """Nodes in a row. If the last one is sound, it answers with a record, with one field, or with a citation."""
    last, (first, *others) = crew.faults.get(names[-1]), crew.faults.values()
    forms: tuple[Form, ...] = ("json",) if others or is_partial else ("json", "value")
    if crew.world.has_documents:
        forms = ("citation",)
    form = crew.rng.choice(forms) if last is None else last.kind
    ending = make_ending(form, crew.world, field=(last or first).field, rng=crew.rng)
    carriers = (crew.carrier(name, crew.world.fields) for name in names[:-1])
    return Plan(
        world=crew.world,
        posts=(*carriers, crew.answerer(names[-1], ending)),
        edges=_edges(*names),
        ending=ending,
        rows=crew.rows(is_partial=is_partial),
        is_partial=is_partial,
    )


def _join(seed: int, rng: Random) -> Plan:
    """The first node hands the whole request to two branches; each carries its share to the writer."""
    world = records(rng)
    kind, manner = _JOINED[seed % len(_JOINED)]
    start, *rest = rng.sample(_ROLES, 9)
    length = rng.choice((3, 4, 5))
    branches = (rest[:length], rest[length:])
    shares = rng.sample([{text, other} for text, other in zip(world.texts, (world.date, world.amount), strict=True)], 2)
    field = world.field_for(kind, rng=rng)
    guilty = branches[0] if field in shares[0] else branches[1]
    crew = Crew(world, {rng.choice(guilty): Fault(kind, field)}, rng)
    ending = make_ending("json", world, field=field, rng=rng)
    posts = [crew.carrier(start, world.fields)]
    for branch, share in zip(branches, shares, strict=True):
        theirs = [name for name in world.fields if name in {world.number, *share}]
        posts += [crew.carrier(name, theirs) for name in branch]
    ends = (branches[0][-1], branches[1][-1])
    writer = crew.answerer("writer", ending, prompt=f"{{{ends[0]}}}\n\n{{{ends[1]}}}")
    return Plan(
        world=world,
        posts=(*posts, writer),
        edges=(*_edges(start, *branches[0]), *_edges(start, *branches[1]), Join(ends, "writer")),
        ending=ending,
        rows=crew.rows(is_partial=manner == "partly"),
        is_partial=manner == "partly",
    )


def _loop(seed: int, rng: Random) -> Plan:
    """Document 003's graph: plan, look up and compose side by side, review, rewrite urgent cases once, finalize."""
    known = records(rng)
    found = rng.choice(list(known.texts))
    asked = tuple(name for name in known.fields if name != found)
    world = replace(known, fields=(*asked, "priority"), reported=(*asked, found))
    kind, place = _LOOPED[seed % len(_LOOPED)]
    field = found if place == "digest" else world.field_for(kind, rng=rng, but=found)
    crew = Crew(world, {place: Fault(kind, field)}, rng)
    is_partial = place in ("rewrite", "sharpen")
    rows = crew.rows()
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
        *(crew.carrier(name, world.fields) for name in ("planner", "search", "compose", "polish")),
        crew.carrier("digest", (world.number, found)),
        crew.carrier("reviewer", (*world.fields, found), prompt="{digest}\n\n{polish}"),
        *(crew.carrier(name, world.fields) for name in ("rewrite", "sharpen")),
        crew.carrier("finalize", world.reported),
        crew.answerer("deliver", ending),
    )
    return Plan(
        world=world,
        posts=posts,
        functions=(FunctionNode(name="retrieve", function=retrieve, kind="tool"),),
        edges=(
            *_edges("planner", "search", "retrieve", "digest"),
            *_edges("planner", "compose", "polish"),
            Join(("digest", "polish"), "reviewer"),
            Choice("reviewer", route, {"need_revision": "rewrite", "finalize": "finalize"}),
            *_edges("rewrite", "sharpen", "planner"),
            *_edges("finalize", "deliver"),
        ),
        ending=ending,
        rows=rows,
        is_partial=is_partial,
    )


def _chain_names(rng: Random) -> list[str]:
    return [*rng.sample(_ROLES, 9), "writer"]


def _edges(*names: str) -> tuple[Edge, ...]:
    return tuple(Edge(source, target) for source, target in pairwise(names))


def _placed(faults: Sequence[Fault], names: Sequence[str], rng: Random) -> dict[str, Fault]:
    """Two faults on nodes of a chain, in this order; what is wrong with an answer stands at the end."""
    one, other = sorted(rng.sample(range(len(names) - 1), 2))
    if faults[1].kind in ANSWER_KINDS:
        other = len(names) - 1
    return {names[one]: faults[0], names[other]: faults[1]}


_PLANS: Mapping[str, Callable[[int, Random], Plan]] = {
    "one_fault": _one_fault,
    "two_visible": _two_visible,
    "two_masked": _two_masked,
    "join": _join,
    "loop": _loop,
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
"""Which faults the seeds have: the kind, and how it strikes or, in the loop, where."""
