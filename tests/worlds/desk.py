"""A small agent whose instructions alone decide whether an answer is right, and a search that tries given patches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from promptiter.agents.edges import Edge
from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import ModelNode
from promptiter.engine.engine import Engine
from promptiter.engine.request import RunRequest
from promptiter.engine.session import Search, Session
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.evaluator import EvaluationOptions, Evaluator
from promptiter.evaluation.metrics.builtin import FunctionMetric
from promptiter.evaluation.trace_store import TraceStore
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.llm.models import ScriptedModel
from promptiter.profile import PatchSet, SurfacePatch
from promptiter.runlog.case_uses import CaseUses
from promptiter.runlog.events import Event
from traces import Usage

Hook = Callable[[ModelRequest], None]


def answer(request: ModelRequest) -> ModelReply:
    """Each node adds `careful` if its instruction has it, so an answer is right if both nodes do."""
    instruction, asked = request.messages[0].content, request.messages[-1].content
    text = f"{asked} careful" if "careful" in instruction else asked
    return ModelReply(text=text, usage=Usage(input_tokens=10, output_tokens=5, cost_usd=0.001))


def model(hook: Hook = lambda _: None) -> ScriptedModel:
    def script(request: ModelRequest) -> ModelReply:
        hook(request)
        return answer(request)

    return ScriptedModel(script)


def agent() -> GraphAgent:
    return GraphAgent(
        name="desk",
        nodes=(
            ModelNode(name="draft", instruction="Draft.", model="scripted"),
            ModelNode(name="polish", instruction="Polish.", model="scripted"),
        ),
        edges=(Edge("draft", "polish"),),
    )


def eval_set(name: str, count: int) -> EvalSet:
    turns = [Turn(user=f"{name} question {number}", expected="careful careful") for number in range(count)]
    return EvalSet(id=name, cases=tuple(EvalCase(id=f"{name}-{n}", turns=(turn,)) for n, turn in enumerate(turns)))


def score(_case: EvalCase, run: object) -> float:
    return str(getattr(run, "output", "")).count("careful") / 2


def evaluator(gateway: Gateway | None = None, *, trace_store: TraceStore | None = None, **options: int) -> Evaluator:
    return Evaluator(
        [FunctionMetric(name="careful", function=score)],
        gateway=gateway or Gateway(models={"scripted": model()}),
        options=EvaluationOptions(**options),
        trace_store=trace_store,
    )


def request(**changes: object) -> RunRequest:
    values: dict[str, object] = {"train": eval_set("train", 3), "validation": eval_set("validation", 2), "run_id": "r"}
    return RunRequest(**(values | changes))  # type: ignore[arg-type]


class Tries:
    """A search that validates the given patches, one set per round."""

    def __init__(self, *rounds: dict[str, str], at_round: Callable[[int], None] = lambda _: None) -> None:
        self.rounds = rounds
        self.at_round = at_round

    async def search(self, session: Session) -> None:
        for values in self.rounds:
            if await session.should_stop():
                return
            await session.begin_round()
            self.at_round(session.round)
            patches = [SurfacePatch(surface_id=key, value=value, reason="tried") for key, value in values.items()]
            await session.evaluate(session.train, session.accepted.profile, phase="train")
            await session.validate(PatchSet(tuple(patches)))
            await session.complete_round()
        await session.should_stop()


DRAFT = {"draft#instruction": "Draft with care: careful."}
POLISH = {"polish#instruction": "Polish: careful."}
WORSE = {"draft#instruction": "Draft badly."}


def engine(
    *rounds: dict[str, str],
    search: Search | None = None,
    gateway: Gateway | None = None,
    case_uses: CaseUses | None = None,
) -> Engine:
    return Engine(agent(), evaluator(gateway), search=search or Tries(*rounds), case_uses=case_uses)


class Watcher:
    """Keeps the events it observes."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    async def observe(self, event: Event) -> None:
        self.events.append(event)

    def types(self) -> Sequence[str]:
        return [event.type for event in self.events]
