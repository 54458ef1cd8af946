from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from promptiter.agents.base import Agent
from promptiter.agents.declarations import Tool
from promptiter.agents.edges import Choice, Edge
from promptiter.agents.function import agent as make_agent
from promptiter.agents.graph import GraphAgent
from promptiter.agents.node_context import NodeContext
from promptiter.agents.nodes import ModelNode
from promptiter.evaluation.data.case import EvalCase
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.metrics.builtin import FunctionMetric
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelReply, ModelRequest, ToolRequest
from promptiter.llm.models import ScriptedModel
from promptiter.tasks.refine.agent_runner import AgentRunner
from promptiter.tasks.refine.budget import BudgetFloors
from promptiter.tasks.refine.command_agent import IterationCommand
from promptiter.tasks.refine.iteration_guard import NodeRoles
from promptiter.tasks.refine.loop import IterationRequest, RefinementOptions, refine
from promptiter.tasks.refine.records import ModelPair, ObservedUse
from promptiter.tasks.refine.run_folder import read_run
from promptiter.tasks.refine.run_seeds import suggest_roles
from promptiter.tasks.refine.seeds import Seed, open_run_folder
from promptiter.tasks.refine.sessions import RefinementSession
from tests.tasks.refine.foreign_runs import NESTED, write_run
from traces import Usage

MARK = "[REFINEMENT: iteration"
ROLES = NodeRoles(managers=("plan",), prefix_node="plan")
FLOORS = BudgetFloors(tokens=100_000)


def team(*, rounds: int = 2, tools: tuple[Tool, ...] = ()) -> GraphAgent:
    """A manager that plans, a worker that writes, and the manager again, as often as wanted."""

    def route(context: NodeContext) -> str:
        return "end" if context.visits("plan") > rounds - 1 else "write"

    return GraphAgent(
        name="team",
        nodes=(
            ModelNode(name="plan", instruction="You plan.", model="m", prompt="Plan: {input}", tools=tools),
            ModelNode(name="write", instruction="You write.", model="m", prompt="Write: {plan}"),
            ModelNode(name="end", instruction="You end.", model="m", prompt="End: {plan}"),
        ),
        edges=(Choice("plan", route, {"write": "write", "end": "end"}), Edge("write", "plan")),
    )


def quality(_case: EvalCase, run: object) -> float:
    return 1.0 if "sources" in str(getattr(run, "output", "")) else 0.4


def model(answers: dict[str, str] | None = None) -> ScriptedModel:
    def answer(request: ModelRequest) -> ModelReply:
        text = (answers or {}).get(request.messages[0].content, "a report with sources")
        return ModelReply(text=text, usage=Usage(input_tokens=10, output_tokens=5))

    return ScriptedModel(answer)


def runner(agent: Agent, asked: ScriptedModel, *, roles: NodeRoles = ROLES, **models: ScriptedModel) -> AgentRunner:
    gateway = Gateway(models={"m": asked, **models}, max_output_tokens=100)
    evaluator = Evaluator([FunctionMetric(name="quality", function=quality)], gateway=gateway).for_run()
    return AgentRunner(build_agent=lambda _: agent, gateway=evaluator.gateway, evaluator=evaluator, roles=roles)


@pytest.fixture
def seed(tmp_path: Path) -> Seed:
    return replace(open_run_folder(write_run(tmp_path / "seed", text="a draft")), is_measured=False)


async def refine_once(seed: Seed, running: AgentRunner, **options: object) -> RefinementSession:
    given = {"iterations": 1, "floors": FLOORS, **options}
    return await refine(seed, running, RefinementOptions(**given))  # type: ignore[arg-type]


def list_prefixed(asked: ScriptedModel) -> list[str]:
    """The instruction and the last message of each call that had the prefix."""
    return [request.messages[0].content for request in asked.requests if MARK in request.text]


async def test_only_the_first_planning_step_of_the_manager_gets_the_prefix(seed: Seed) -> None:
    asked = model()
    session = await refine_once(seed, runner(team(), asked))
    assert session.error is None
    assert [request.messages[0].content for request in asked.requests] == [
        "You plan.",
        "You write.",
        "You plan.",
        "You end.",
    ]
    assert list_prefixed(asked) == ["You plan."]
    first = asked.requests[0].messages[-1].content
    assert first.startswith(MARK)
    assert first.endswith("[END OF REFINEMENT: the task follows]\n\nPlan: Write the report.")
    assert '<data name="report.md">\na draft\n</data>' in first
    assert "no sources" in first


async def test_each_iteration_shows_the_prefix_once(seed: Seed) -> None:
    asked = model({"You end.": "still wrong"})
    session = await refine_once(seed, runner(team(), asked), iterations=2)
    assert len(session.iterations) == 2
    assert list_prefixed(asked) == ["You plan.", "You plan."]
    assert "iteration 2 of 2" in asked.requests[4].text


async def test_all_calls_of_the_first_step_are_one_conversation(seed: Seed) -> None:
    def look(topic: str) -> str:
        """Look something up."""
        return f"known about {topic}"

    replies = iter(
        [
            ModelReply(tool_requests=(ToolRequest("1", "look", {"topic": "x"}),)),
            *[ModelReply(text="done with sources")] * 5,
        ]
    )
    asked = ScriptedModel(lambda _: next(replies))
    agent = team(tools=(Tool(name="look", description="Look.", function=look),))
    session = await refine_once(seed, runner(agent, asked))
    assert session.error is None
    shown = [MARK in request.text for request in asked.requests]
    assert shown == [True, True, False, False, False]
    assert asked.requests[1].messages[: len(asked.requests[0].messages)] == asked.requests[0].messages
    record = read_run(Path(seed.home / (session.iterations[0].run_dir or "")))
    assert (record.use.loops, record.use.workers, record.use.tool_calls) == (2, 2, 1)


async def test_manager_and_workers_get_the_models_of_the_iteration(seed: Seed) -> None:
    asked, manager, worker = model(), model(), model()
    running = runner(team(), asked, strong=manager, cheap=worker)
    session = await refine_once(seed, running, models=ModelPair(manager="strong", worker="cheap"))
    assert session.error is None
    assert (len(asked.requests), len(manager.requests), len(worker.requests)) == (0, 2, 2)
    assert (session.iterations[0].model_manager, session.iterations[0].model_worker) == ("strong", "cheap")


async def test_the_answer_is_the_deliverable(seed: Seed) -> None:
    session = await refine_once(seed, runner(team(), model()))
    assert session.seed_loss == pytest.approx(0.7)
    assert (session.best_iter, session.best_loss) == (1, 0.0)
    assert (seed.home / "BEST" / "report.md").read_text() == "a report with sources"
    record = read_run(seed.home / (session.iterations[0].run_dir or ""))
    assert (record.parent_run_id, record.task) == (seed.record.run_id, "Write the report.")
    assert record.metrics[0].value == 1.0


@pytest.mark.parametrize(
    ("use", "error"),
    [
        (ObservedUse(loops=2), "max_loops"),
        (ObservedUse(workers=2), "max_total_workers"),
        (ObservedUse(tokens=90), "max_tokens"),
    ],
)
async def test_the_budget_of_an_iteration_is_a_hard_cap(seed: Seed, use: ObservedUse, error: str) -> None:
    asked = model()
    tight = replace(seed, record=replace(seed.record, use=use))
    session = await refine_once(tight, runner(team(), asked), floors=BudgetFloors(), iterations=3)
    assert [each.status for each in session.iterations] == ["budget_ended"], error
    assert (session.stop_reason, session.best_iter) == ("no_prior_deliverable", 0)
    assert len(asked.requests) == {"max_loops": 2, "max_total_workers": 3, "max_tokens": 0}[error]


async def test_the_time_of_an_iteration_is_a_hard_cap(seed: Seed) -> None:
    @make_agent(instruction="Write.")
    async def sleeper(message: str) -> str:
        await asyncio.sleep(60)
        return message

    quick = replace(seed, record=replace(seed.record, use=ObservedUse(wall_time_s=0.01)))
    floors = BudgetFloors(wall_time_s=0)
    session = await refine_once(quick, runner(sleeper, model(), roles=NodeRoles()), floors=floors)
    assert [(each.status, each.problem) for each in session.iterations] == [
        ("timed_out", "it took longer than 0 seconds")
    ]


async def test_an_agent_without_models_gets_the_prefix_before_the_task(seed: Seed) -> None:
    seen: list[str] = []

    @make_agent(instruction="Write.")
    def writer(message: str) -> str:
        seen.append(message)
        return "with sources"

    roles = suggest_roles(writer.describe())
    assert roles == NodeRoles()
    session = await refine_once(seed, runner(writer, model(), roles=roles))
    assert session.best_iter == 1
    assert seen[0].startswith(MARK)
    assert seen[0].endswith("\n\nWrite the report.")


async def test_an_agent_that_fails_ends_the_session(seed: Seed) -> None:
    @make_agent(instruction="Write.")
    def broken(message: str) -> str:
        raise ValueError(f"cannot {message[:3]}")

    session = await refine_once(seed, runner(broken, model(), roles=NodeRoles()))
    assert session.stop_reason == "error:ValueError"
    assert "cannot [RE" in (session.error or "")


async def test_an_unexpected_call_is_not_swallowed(seed: Seed) -> None:
    session = await refine_once(seed, runner(team(), ScriptedModel([])))
    assert session.stop_reason == "error:UnexpectedCallError"


async def test_a_metric_without_a_score_ends_the_session(seed: Seed) -> None:
    running = runner(team(), model())
    assert running.evaluator is not None

    def fail(_case: EvalCase, run: object) -> float:
        if "draft" in str(getattr(run, "output", "")):
            return 0.5
        raise RuntimeError("no judge")

    broken = running.evaluator.with_metrics([FunctionMetric(name="quality", function=fail)])
    session = await refine_once(seed, replace(running, evaluator=broken))
    assert session.stop_reason == "error:MetricError"
    assert "no judge" in (session.error or "")


COMMAND = """
import json, os, pathlib, sys
env = {name.removeprefix("PROMPTITER_REFINE_").lower(): value for name, value in os.environ.items() if "REFINE" in name}
text = sys.stdin.read()
assert text.startswith("[REFINEMENT: iteration"), text
assert text == pathlib.Path(env["prefix"]).read_text() + "Write the report."
assert pathlib.Path.cwd() == pathlib.Path(env["input"]).parent
assert json.loads(pathlib.Path(env["gradient"]).read_text())["defects"]
assert env["max_loops"] == "3", env
before = pathlib.Path("input/report.md").read_text()
pathlib.Path(env["output"], "report.md").write_text(before + " with sources")
"""
REPORTING = """
import json, os, pathlib
place = pathlib.Path(os.environ["PROMPTITER_REFINE_RUN_DIR"]).parent / "own-id"
(place / "FINAL").mkdir(parents=True)
(place / "FINAL" / "report.md").write_text("its own")
(place / "iterations" / "1").mkdir(parents=True)
defects = [{"description": "one word is wrong", "severity": "low"}]
(place / "iterations" / "1" / "critique.json").write_text(json.dumps({"critiques": [{"defects": defects}]}))
(place / "run_completion.json").write_text(json.dumps({"run_id": "own-id", "status": "partial", "task": "t"}))
"""


def command(tmp_path: Path, code: str) -> Callable[[IterationRequest], Agent]:
    script = tmp_path / "step.py"
    script.write_text(code)
    return lambda request: IterationCommand(command=(sys.executable, str(script)), request=request)


async def test_a_command_runs_in_the_folder_of_its_iteration(seed: Seed, tmp_path: Path) -> None:
    running = replace(
        runner(team(), ScriptedModel([]), roles=NodeRoles()),
        build_agent=command(tmp_path, COMMAND),
        shows_deliverable=False,
    )
    assert seed.record.use.loops == 5, NESTED
    session = await refine_once(seed, running)
    assert (session.error, session.best_iter) == (None, 1)
    assert (seed.home / "BEST" / "report.md").read_text() == "a draft with sources"


async def test_a_command_may_record_its_own_run(seed: Seed, tmp_path: Path) -> None:
    running = AgentRunner(build_agent=command(tmp_path, REPORTING), gateway=Gateway(), shows_deliverable=False)
    session = await refine_once(replace(seed, is_measured=True), running)
    assert (session.error, session.best_iter, session.best_loss) == (None, 1, 0.01)
    assert [(each.run_id, each.status) for each in session.iterations] == [("own-id", "partial")]
    assert (seed.home / "BEST" / "report.md").read_text() == "its own"


async def test_a_command_that_nothing_measures_is_no_improvement(seed: Seed, tmp_path: Path) -> None:
    running = AgentRunner(build_agent=command(tmp_path, "print('done')"), gateway=Gateway(), shows_deliverable=False)
    session = await refine_once(replace(seed, is_measured=True), running)
    assert (session.stop_reason, session.best_iter) == ("error:NotMeasured", 0)


async def test_a_command_that_fails_ends_the_session(seed: Seed, tmp_path: Path) -> None:
    running = AgentRunner(build_agent=command(tmp_path, "raise SystemExit(3)"), gateway=Gateway())
    session = await refine_once(replace(seed, is_measured=True), running)
    assert session.stop_reason == "error:CommandError"
