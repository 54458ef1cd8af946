from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptiter.backprop.propagate import StepwiseAttributor, propagate
from promptiter.backprop.stage_calls import call_attributor
from promptiter.concurrency import Slots
from promptiter.errors import BudgetEndedError, ModelTimeoutError, SetupError, UnexpectedCallError
from promptiter.evaluation.score import Finding
from promptiter.profile import Profile
from promptiter.stages.contracts import (
    AttributeRequest,
    Attributor,
    Backwarder,
    BackwardRequest,
    BackwardResult,
    GradientPacket,
    SurfaceGradient,
)
from promptiter.stages.losses import CaseLoss, Loss
from promptiter.structure import Node, StructureSnapshot, Surface
from tests.traces.strategies import graphs
from traces import ExecutionTrace, Step

DIAMOND = {"plan": (), "left": ("plan",), "right": ("plan",), "join": ("left", "right")}
FINDING = Finding(kind="wrong", expected="hi", actual="ho")
CHAIN = {"first": (), "middle": ("first",), "last": ("middle",)}


def step(step_id: str, *sources: str, reads: Sequence[str] | None = None) -> Step:
    """A step of the node before the `~`. Without `reads` its reads are unknown."""
    surface_reads = None if reads is None else dict.fromkeys(reads, "digest")
    return Step(id=step_id, node_id=step_id.split("~")[0], predecessors=sources, surface_reads=surface_reads)


def request_of(
    steps: Sequence[Step] | Mapping[str, Sequence[str]],
    *,
    targets: Sequence[str] | None = None,
    losses: Sequence[str] | None = None,
    **values: str,
) -> AttributeRequest:
    """One failed trace. Each node has an instruction; all are targets, and all terminals have a loss, unless given."""
    if isinstance(steps, Mapping):
        steps = [step(step_id, *sources) for step_id, sources in steps.items()]
    trace = ExecutionTrace(id="t", steps=tuple(steps))
    nodes = sorted({each.node_id for each in trace.steps if "#" not in each.node_id} | {"spare"})
    snapshot = StructureSnapshot(
        nodes=tuple(Node(id=node) for node in nodes),
        surfaces=tuple(Surface(node_id=node, type="instruction", value=values.get(node, "do")) for node in nodes),
    )
    followed = {source for each in trace.steps for source in each.predecessors}
    placed = [each.id for each in trace.steps if each.id not in followed] if losses is None else losses
    return AttributeRequest(
        case_loss=CaseLoss(
            case_id="case",
            repeat=2,
            turn=1,
            input="hello",
            trace_digest="d",
            losses=tuple(
                Loss(
                    metric="exact",
                    step_id=name,
                    severity="P0",
                    category="format",
                    text="not equal",
                    expected="hi",
                    findings=(FINDING,),
                )
                for name in placed
            ),
        ),
        trace=trace,
        snapshot=snapshot,
        profile=Profile.baseline(snapshot),
        targets=frozenset(snapshot.surface_ids if targets is None else targets),
    )


def packet_of_loss(*, source: str, target: str) -> GradientPacket:
    return GradientPacket(
        source=source,
        target=target,
        text="exact: not equal",
        severity="P0",
        category="format",
        findings=(FINDING,),
        reasons=("exact: not equal",),
    )


def blame(request: BackwardRequest, *surface_ids: str, to: Sequence[str] = (), text: str = "change") -> BackwardResult:
    step_id = request.step.id
    return BackwardResult(
        step_id=step_id,
        gradients=tuple(
            SurfaceGradient(surface_id=name, case_id=request.case_id, step_id=step_id, text=text)
            for name in surface_ids
        ),
        packets=tuple(GradientPacket(source=step_id, target=target, text=text) for target in to),
    )


def blame_all(request: BackwardRequest) -> BackwardResult:
    return blame(request, *request.blamable, to=[source.id for source in request.predecessors])


@dataclass
class Scripted:
    """Blames everything, in the order it is asked. For some steps its answer or error is scripted.

    With `knows` any other step is an unexpected call.
    """

    says: Mapping[str, tuple[Sequence[str], Sequence[str]] | Exception] = field(default_factory=dict)
    knows: Sequence[str] | None = None
    asked: dict[str, BackwardRequest] = field(default_factory=dict)

    async def backward(self, request: BackwardRequest) -> BackwardResult:
        step_id = request.step.id
        if step_id in self.asked or (self.knows is not None and step_id not in self.knows):
            raise UnexpectedCallError(f"step {step_id!r} should not be asked")
        self.asked[step_id] = request
        said = self.says.get(step_id)
        if isinstance(said, Exception):
            raise said
        return blame_all(request) if said is None else blame(request, *said[0], to=said[1])


@dataclass
class Moody:
    """Answers by a seed, with delays: blames some, sends up to three packets each, makes up ids, or fails."""

    seed: int
    turns: int = 0
    times_s: Sequence[float] = (0.0,)
    failure_rate: float = 0.1
    log: list[tuple[str, str]] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0

    async def backward(self, request: BackwardRequest) -> BackwardResult:
        self.log.append(("asked", request.step.id))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        pace = Random(f"pace {self.seed} {request.step.id}")
        for _ in range(pace.randint(0, self.turns)):
            await asyncio.sleep(pace.choice(self.times_s))
        self.in_flight -= 1
        self.log.append(("answered", request.step.id))
        return self.answer(request)

    def answer(self, request: BackwardRequest) -> BackwardResult:
        """The text lists all packets, so that another order of packets is another answer."""
        rng = Random(f"{self.seed} {request.step.id}")
        if rng.random() < self.failure_rate:
            raise ModelTimeoutError("too slow")
        heard = ";".join(f"{packet.source}>{packet.text}" for packet in request.incoming)
        to = [source.id for source in request.predecessors for _ in range(rng.choice((0, 1, 1, 2)))]
        named = [name for name in request.blamable if rng.random() < 0.7]
        text = f"{request.step.id} {rng.random():.3f} {hash_of(heard)}"
        return blame(request, *named, *["made#up"][: rng.random() < 0.2], to=to, text=text)


def hash_of(text: str) -> str:
    return f"{Random(text).random():.9f}"


@st.composite
def requests(draw: st.DrawFn) -> AttributeRequest:
    """Random DAGs whose steps read their own surface, another's, none, or unknown ones; random losses and targets."""
    graph = draw(graphs())
    own = [f"{node}#instruction" for _, node, _ in graph if "#" not in node]
    some_reads = st.lists(st.sampled_from(["spare#instruction", *own]), max_size=2, unique=True)
    steps = [
        Step(
            id=step_id,
            node_id=node,
            predecessors=sources,
            surface_reads=draw(st.none() | some_reads.map(lambda names: dict.fromkeys(names, "digest"))),
        )
        for step_id, node, sources in graph
    ]
    targets = draw(st.lists(st.sampled_from(["spare#instruction", *own]), unique=True))
    losses = draw(st.none() | st.lists(st.sampled_from([each.id for each in steps]), min_size=1))
    return request_of(steps, targets=targets, losses=losses)


def digraph(request: AttributeRequest) -> nx.DiGraph[str]:
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(each.id for each in request.trace.steps)
    graph.add_edges_from((source, each.id) for each in request.trace.steps for source in each.predecessors)
    return graph


def may_be_blamed(request: AttributeRequest, each: Step) -> set[str]:
    read = {f"{each.node_id}#instruction"} if each.surface_reads is None else set(each.surface_reads)
    return read & request.targets


def between(request: AttributeRequest) -> set[str]:
    """The oracle's walk: what has a loss at or behind it, and a target at or before it."""
    graph = digraph(request)
    blamable = {each.id for each in request.trace.steps if may_be_blamed(request, each)}
    lost = {loss.step_id for loss in request.case_loss.losses}
    return {
        name
        for name in graph
        if blamable & (nx.ancestors(graph, name) | {name}) and lost & (nx.descendants(graph, name) | {name})
    }


def walk_sequentially(request: AttributeRequest, model: Moody) -> list[BackwardResult]:
    """The oracle's results: networkx orders, each step answers at once, no pruning but that of the oracle's walk."""
    graph, walk = digraph(request), between(request)
    steps = {each.id: each for each in request.trace.steps}
    packets: dict[str, list[GradientPacket]] = {name: [] for name in graph}
    for loss in request.case_loss.losses:
        packets[loss.step_id].append(packet_of_loss(source="", target=loss.step_id))
    results: dict[str, BackwardResult] = {}
    for name in nx.topological_sort(graph.reverse()):
        if name not in walk or not packets[name]:
            continue
        blamable = may_be_blamed(request, steps[name])
        sources = tuple(steps[source] for source in steps[name].predecessors if source in walk)
        incoming = tuple(sorted(packets[name], key=lambda packet: ["", *steps].index(packet.source)))
        if not blamable and len(sources) == 1:
            passed = tuple(replace(packet, source=name, target=sources[0].id) for packet in incoming)
            results[name] = BackwardResult(step_id=name, packets=passed)
        else:
            asked = BackwardRequest(
                case_id="case",
                step=steps[name],
                incoming=incoming,
                blamable=tuple(sorted(blamable)),
                predecessors=sources,
            )
            try:
                said = model.answer(asked)
            except ModelTimeoutError:
                said = BackwardResult(step_id=name, error="ModelTimeoutError: too slow")
            real = tuple(gradient for gradient in said.gradients if gradient.surface_id != "made#up")
            results[name] = replace(said, gradients=real, dropped=len(said.gradients) - len(real))
        for packet in results[name].packets:
            packets[packet.target].append(packet)
    return [results[each.id] for each in reversed(request.trace.steps) if each.id in results]


def walk_trace(request: AttributeRequest, backwarder: Backwarder, *, limit: int = 64) -> list[BackwardResult]:
    """The walk in a loop of its own, which must be empty afterwards."""

    async def walk() -> list[BackwardResult]:
        results = await propagate(request, backwarder, slots=Slots(limit))
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return results

    return asyncio.run(walk())


@given(requests(), st.integers(0, 9))
def test_a_step_is_asked_once_and_after_all_its_successors(request: AttributeRequest, seed: int) -> None:
    model = Moody(seed, turns=3)
    walk_trace(request, model)
    assert len(set(model.log)) == len(model.log)
    at = {entry: index for index, entry in enumerate(model.log)}
    graph, asked = digraph(request), [name for word, name in model.log if word == "asked"]
    for name in asked:
        assert all(at["answered", later] < at["asked", name] for later in nx.descendants(graph, name) & set(asked))


@given(requests())
def test_only_steps_between_losses_and_targets_are_visited(request: AttributeRequest) -> None:
    model, walk = Scripted(), between(request)
    results = walk_trace(request, model)
    assert {result.step_id for result in results} == walk
    steps = {each.id: each for each in request.trace.steps}
    assert set(model.asked) == {
        name
        for name in walk
        if may_be_blamed(request, steps[name]) or len(walk.intersection(steps[name].predecessors)) > 1
    }
    for name, asked in model.asked.items():
        assert set(asked.blamable) == may_be_blamed(request, steps[name])
        assert {source.id for source in asked.predecessors} == walk.intersection(steps[name].predecessors)
        assert set(asked.blamable) <= {surface.id for surface in asked.surfaces}


@given(requests(), st.integers(0, 99), st.sampled_from([1, 4, 64]))
def test_results_equal_those_of_a_sequential_walk(request: AttributeRequest, seed: int, limit: int) -> None:
    model = Moody(seed, turns=4)
    assert walk_trace(request, model, limit=limit) == walk_sequentially(request, model)
    assert model.most_in_flight <= limit


@given(graphs(max_steps=20), st.integers(1, 5))
def test_as_many_steps_are_in_flight_as_the_trace_and_the_limit_allow(
    graph: list[tuple[str, str, tuple[str, ...]]], limit: int
) -> None:
    """All take equally long, so what is ready together is a generation of the reversed graph."""
    steps = [
        Step(id=step_id, node_id=node, predecessors=sources, surface_reads={"spare#instruction": "digest"})
        for step_id, node, sources in graph
    ]
    request = request_of(steps)
    widest = max(len(wave) for wave in nx.topological_generations(digraph(request).reverse()))
    for most in (limit, 64):
        model = Paced()
        walk_trace(request, model, limit=most)
        assert model.most_in_flight == min(most, widest)


@dataclass
class Paced:
    """Takes the same time for each step, and counts."""

    in_flight: int = 0
    most_in_flight: int = 0

    async def backward(self, request: BackwardRequest) -> BackwardResult:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self.in_flight -= 1
        return blame_all(request)


@pytest.mark.slow
def test_timing_changes_nothing() -> None:
    """The clock decides which step answers first; 200 steps with several packets each make every order likely."""
    rng = Random(3)
    steps = {f"s{number}": [f"s{rng.randrange(number)}" for _ in range(min(number, 3))] for number in range(200)}
    request = request_of(steps)
    paces = [
        Moody(5, turns=2, times_s=(0.0, 0.0005, 0.002), failure_rate=0),
        Moody(5, turns=1, times_s=(0.001, 0.0), failure_rate=0),
        Moody(5, failure_rate=0),
    ]
    runs = [walk_trace(request, pace, limit=limit) for pace in paces for limit in (1, 4, 64)]
    assert all(results == runs[0] for results in runs)
    orders = {tuple(pace.log) for pace in paces}
    assert len(orders) == len(paces)
    assert len(runs[0]) > 100


def test_a_request_holds_everything_known_about_the_step() -> None:
    request = request_of(DIAMOND, plan="plan it")
    changed = Profile.of(request.snapshot, {"plan#instruction": "plan it well"})
    model = Scripted()
    walk_trace(replace(request, profile=changed), model)
    asked = model.asked["plan"]
    assert (asked.case_id, asked.repeat, asked.turn, asked.input) == ("case", 2, 1, "hello")
    assert (asked.expected, asked.reasons) == ("hi", ("not equal",))
    assert [surface.value for surface in asked.surfaces] == ["plan it well"]
    assert [(packet.source, packet.target) for packet in asked.incoming] == [("left", "plan"), ("right", "plan")]
    assert model.asked["join"].incoming == (packet_of_loss(source="", target="join"),)


def test_the_losses_of_a_step_come_before_the_packets_to_it() -> None:
    model = Scripted()
    walk_trace(request_of(CHAIN, losses=["last", "middle", "middle"]), model)
    assert [packet.source for packet in model.asked["middle"].incoming] == ["", "", "last"]


def test_results_come_last_step_first() -> None:
    results = walk_trace(request_of(DIAMOND), Scripted())
    assert [result.step_id for result in results] == ["join", "right", "left", "plan"]


def test_a_step_that_cannot_be_blamed_passes_its_packets_on_unasked() -> None:
    model = Scripted(knows=["last", "first"])
    results = walk_trace(request_of(CHAIN, targets=["first#instruction", "last#instruction"]), model)
    assert results[1] == BackwardResult(
        step_id="middle", packets=(GradientPacket(source="middle", target="first", text="change"),)
    )
    assert model.asked["first"].incoming == results[1].packets


def test_packets_keep_severity_category_and_text_when_they_are_passed_on() -> None:
    model = Scripted(knows=["first"])
    walk_trace(request_of(CHAIN, targets=["first#instruction"]), model)
    assert model.asked["first"].incoming == (packet_of_loss(source="middle", target="first"),)


def test_a_join_that_cannot_be_blamed_is_asked_which_predecessor_to_blame() -> None:
    model = Scripted({"join": ((), ("right",))}, knows=["join", "right", "plan"])
    walk_trace(request_of(DIAMOND, targets=["left#instruction", "right#instruction", "plan#instruction"]), model)
    assert list(model.asked) == ["join", "right", "plan"]


def test_predecessors_that_lead_to_no_target_are_not_offered() -> None:
    model = Scripted(knows=["right"])
    steps = [step("left"), step("right"), step("join", "left", "right", reads=())]
    walk_trace(request_of(steps, targets=["right#instruction"]), model)
    assert [packet.source for packet in model.asked["right"].incoming] == ["join"]


def test_a_step_without_packets_is_not_asked_and_delays_no_other() -> None:
    model = Scripted({"join": (("join#instruction",), ("left",))}, knows=["join", "left", "plan"])
    results = walk_trace(request_of(DIAMOND), model)
    assert [result.step_id for result in results] == ["join", "left", "plan"]


@pytest.mark.parametrize("targets", [(), ("spare#instruction",)])
def test_nothing_is_asked_where_no_target_was_read(targets: Sequence[str]) -> None:
    assert walk_trace(request_of(DIAMOND, targets=targets), Scripted(knows=[])) == []


def test_a_failing_step_affects_only_itself() -> None:
    model = Scripted({"left": ModelTimeoutError("no answer in 30 s")})
    results = {result.step_id: result for result in walk_trace(request_of(DIAMOND), model)}
    assert results["left"] == BackwardResult(step_id="left", error="ModelTimeoutError: no answer in 30 s")
    assert [packet.source for packet in model.asked["plan"].incoming] == ["right"]
    assert results["plan"].gradients


def test_steps_before_a_failing_step_get_no_packets_and_are_not_asked() -> None:
    results = walk_trace(request_of(CHAIN), Scripted({"last": ValueError()}, knows=["last"]))
    assert results == [BackwardResult(step_id="last", error="ValueError")]


def test_an_invalid_answer_of_the_backwarder_fails_only_that_step() -> None:
    class Forgetful:
        async def backward(self, request: BackwardRequest) -> BackwardResult:
            return None if request.step.id == "left" else blame_all(request)  # type: ignore[return-value]

    results = {result.step_id: result for result in walk_trace(request_of(DIAMOND), Forgetful())}
    error = "TypeError: Forgetful.backward() returned None; return a value of type BackwardResult"
    assert results["left"].error == error
    assert results["plan"].gradients


@pytest.mark.parametrize("error", [BudgetEndedError("no dollar left"), UnexpectedCallError("?"), SetupError("no key")])
async def test_some_errors_end_the_walk_and_nothing_is_left_running(error: Exception) -> None:
    started: set[str] = set()
    stopped: set[str] = set()

    class Ending:
        async def backward(self, request: BackwardRequest) -> BackwardResult:
            if len(started) == 3:
                await asyncio.sleep(0)
                raise error
            started.add(request.step.id)
            try:
                await asyncio.Event().wait()
            finally:
                stopped.add(request.step.id)
            raise AssertionError

    ending = StepwiseAttributor(Ending(), concurrency=6)
    with pytest.raises(type(error)) as caught:
        async with asyncio.timeout(10):
            await ending.attribute(request_of({f"s{number}": () for number in range(20)}))
    assert caught.value is error
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert started == stopped
    assert len(started) <= 6  # the place of the one that failed may have been taken before the news spread

    ending.backwarder = Scripted()
    assert len(await ending.attribute(request_of(DIAMOND))) == 4


async def test_of_the_steps_that_wait_for_a_place_the_last_of_the_trace_is_asked_first() -> None:
    backwarder = Scripted()
    request = request_of({"note": (), "plan": (), "left": ("plan",), "right": ("plan",), "join": ("left", "right")})
    await StepwiseAttributor(backwarder, concurrency=1).attribute(request)
    assert list(backwarder.asked) == [step.id for step in reversed(request.trace.steps)]


async def test_a_walk_that_is_cancelled_stops_its_steps() -> None:
    stopped = []

    class Slow:
        async def backward(self, request: BackwardRequest) -> BackwardResult:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                stopped.append(request.step.id)
                raise
            raise AssertionError

    walk = asyncio.create_task(propagate(request_of({"a": (), "b": ()}), Slow()))
    await asyncio.sleep(0.01)
    walk.cancel()
    with pytest.raises(asyncio.CancelledError):
        await walk
    assert sorted(stopped) == ["a", "b"]
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_unknown_ids_are_dropped_and_counted() -> None:
    model = Scripted({"join": (("plan#instruction", "join#instruction", "no#such", ""), ("plan", "left", "who", ""))})
    join = walk_trace(request_of(DIAMOND), model)[0]
    assert [gradient.surface_id for gradient in join.gradients] == ["join#instruction", "join#instruction"]
    assert [packet.target for packet in join.packets] == ["left"]
    assert join.dropped == 5


def test_drops_and_errors_that_a_backwarder_reports_are_kept() -> None:
    class Careful:
        async def backward(self, request: BackwardRequest) -> BackwardResult:
            return replace(blame(request, "no#such"), dropped=2, error="half of the answer was cut off")

    (result,) = walk_trace(request_of(CHAIN), Careful())
    assert (result.dropped, result.error) == (3, "half of the answer was cut off")


def test_an_empty_id_means_the_only_one_that_is_possible() -> None:
    model = Scripted({"last": (("",), ("",))})
    last = walk_trace(request_of(CHAIN), model)[0]
    assert [gradient.surface_id for gradient in last.gradients] == ["last#instruction"]
    assert [packet.target for packet in last.packets] == ["middle"]
    assert last.dropped == 0


def test_an_empty_id_is_dropped_where_none_or_several_are_possible() -> None:
    both = step("only", reads=["only#instruction", "spare#instruction"])
    results = walk_trace(request_of([both]), Scripted({"only": (("",), ("",))}))
    assert (results[0].gradients, results[0].packets, results[0].dropped) == ((), (), 2)


def test_packets_and_results_carry_the_id_of_the_step_that_was_asked() -> None:
    class Confused:
        async def backward(self, request: BackwardRequest) -> BackwardResult:
            packets = tuple(GradientPacket(source="who", target=each.id, text="x") for each in request.predecessors)
            return BackwardResult(step_id="who", packets=packets)

    results = walk_trace(request_of(CHAIN), Confused())
    assert [(result.step_id, [each.source for each in result.packets]) for result in results] == [
        ("last", ["last"]),
        ("middle", ["middle"]),
        ("first", []),
    ]


def test_unknown_reads_mean_all_targets_of_the_node() -> None:
    request = request_of([step("only", reads=None)])
    model = Scripted()
    walk_trace(request, model)
    assert model.asked["only"].blamable == ("only#instruction",)


def test_no_reads_mean_no_blame() -> None:
    assert walk_trace(request_of([step("only", reads=())]), Scripted(knows=[])) == []


def test_a_surface_of_another_node_may_be_blamed_by_the_step_that_read_it() -> None:
    """Two visits of one node read different surfaces; each is shown what it read."""
    steps = [step("chat", reads=["spare#instruction"]), step("chat~2", "chat", reads=["chat#instruction"])]
    model = Scripted()
    results = walk_trace(request_of(steps), model)
    assert model.asked["chat"].blamable == ("spare#instruction",)
    assert [surface.id for surface in model.asked["chat"].surfaces] == ["chat#instruction", "spare#instruction"]
    assert [surface.id for surface in model.asked["chat~2"].surfaces] == ["chat#instruction"]
    assert [gradient.surface_id for gradient in results[1].gradients] == ["spare#instruction"]


def test_a_read_of_an_unknown_surface_is_ignored() -> None:
    model = Scripted()
    walk_trace(request_of([step("only", reads=["gone#instruction", "only#instruction"])]), model)
    assert [surface.id for surface in model.asked["only"].surfaces] == ["only#instruction"]


def test_an_empty_text_can_be_blamed() -> None:
    results = walk_trace(request_of([step("only", reads=["only#instruction"])], only=""), Scripted())
    assert [gradient.surface_id for gradient in results[0].gradients] == ["only#instruction"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "reads", "asked"), [(20_000, None, 20_000), (5_000, (), 1)], ids=["asked", "passed on"]
)
def test_a_long_chain_is_walked(size: int, reads: Sequence[str] | None, asked: int) -> None:
    ids = [f"s{number % 10}~{number}" for number in range(size)]
    links = (step(after, before, reads=reads) for before, after in pairwise(ids))
    model = Scripted()
    results = walk_trace(request_of([step(ids[0], reads=["s0#instruction"]), *links]), model)
    assert [result.step_id for result in results] == ids[::-1]
    assert [gradient.surface_id for gradient in results[-1].gradients] == ["s0#instruction"]
    assert len(model.asked) == asked


async def test_one_limit_holds_over_several_traces() -> None:
    model = Paced()
    stepwise = StepwiseAttributor(model, concurrency=8)
    wide = {"root": (), **{f"s{number}": ("root",) for number in range(20)}}
    found = await asyncio.gather(*(stepwise.attribute(request_of(wide)) for _ in range(5)))
    assert [len(results) for results in found] == [21] * 5
    assert model.most_in_flight == 8


def test_a_stepwise_attributor_serves_one_event_loop_after_another() -> None:
    stepwise = StepwiseAttributor(Paced(), concurrency=1)
    for _ in range(2):
        assert len(asyncio.run(stepwise.attribute(request_of(DIAMOND)))) == 4


def test_a_stepwise_attributor_needs_a_concurrency_of_at_least_one() -> None:
    with pytest.raises(SetupError, match="at least 1, got 0"):
        StepwiseAttributor(Paced(), concurrency=0)


def test_a_class_with_one_method_is_enough() -> None:
    class Blunt:
        async def backward(self, request: BackwardRequest) -> BackwardResult:
            return blame(request, *request.blamable, text="be brief")

    attributor: Attributor = StepwiseAttributor(Blunt())
    results = asyncio.run(call_attributor(attributor, request_of(DIAMOND)))
    assert [(each.surface_id, each.text) for each in results[0].gradients] == [("join#instruction", "be brief")]
