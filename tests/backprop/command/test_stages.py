"""Stages that are commands: what they get, what they may answer, and that no answer is asked for twice."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from promptiter.backprop.command.stages import (
    CommandAggregator,
    CommandAttributor,
    CommandBackwarder,
    CommandOptimizer,
    CommandStage,
)
from promptiter.backprop.record import get_passes
from promptiter.engine.engine import Engine
from promptiter.errors import BudgetEndedError, CommandError, SetupError, StopRequestedError
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.llm.budget import Budget
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelReply
from promptiter.llm.models import ScriptedModel
from promptiter.profile import Profile
from promptiter.stages.contracts import (
    AggregateRequest,
    AggregateResult,
    AttributeRequest,
    BackwardRequest,
    GradientPacket,
    SurfaceGradient,
)
from promptiter.stages.losses import CaseLoss, Loss
from promptiter.stages.optimizer import OptimizeRequest, Rejection, StepExample
from promptiter.structure import Limits, Node, StructureSnapshot, Surface
from tests.worlds import desk
from traces import ExecutionTrace, Step, Usage
from traces.model import Snapshot

SURFACE = Surface(node_id="draft", type="instruction", value="Draft.", limits=Limits(max_chars=90))
SIGNAL = AggregateResult(surface_id="draft#instruction", text="Be careful.", case_ids=("a", "b"))
FAILING = StepExample(case_id="../a", step_id="draft", input="Why?", output="No.", passed=False, expected="Yes.")
REQUEST = OptimizeRequest(
    surface=SURFACE,
    signal=SIGNAL,
    failing=(FAILING,),
    passing=(StepExample(case_id="b", step_id="draft", input="How?", output="So.", passed=True),),
    rejected=(Rejection(surface_id="draft#instruction", value="Sketch.", reason="no gain"),),
    siblings=(Surface(node_id="draft", type="tool", part="search", value="Searches."),),
)
STEP = Step(id="draft", node_id="draft", input=Snapshot("Why?"), output=Snapshot("No."), start_ns=5, end_ns=9)
SNAPSHOT = StructureSnapshot(nodes=(Node(id="draft"),), surfaces=(SURFACE,))


def python(code: str) -> tuple[str, ...]:
    """A command that runs this code in the folder with the evidence."""
    return (sys.executable, "-Sc", f"import json, os, sys\nos.chdir(sys.argv[1])\n{code}", "{folder}")


def write(name: str, text: str) -> tuple[str, ...]:
    return python(f"open('output/{name}', 'w').write({text!r})")


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


async def test_an_optimizer_gets_the_evidence_as_files_and_writes_a_value(gateway: Gateway) -> None:
    code = """
found = {}
for folder, _, names in os.walk("."):
    for name in names:
        path = os.path.relpath(os.path.join(folder, name))
        found[path] = open(path).read()
open("output/value.txt", "w").write("Draft with care.\\n")
open("output/reason.txt", "w").write(json.dumps(found))
"""
    request = replace(REQUEST, max_changed_lines=1)
    with gateway.active():
        result = await CommandOptimizer(command=python(code)).optimize(request)
    assert result.patch is not None
    assert (result.patch.value, result.patch.surface_id) == ("Draft with care.", "draft#instruction")
    assert result.patch.evidence.cases == ("a", "b")
    files = orjson.loads(result.reason)
    assert files["current.txt"] == "Draft."
    assert files["signal.md"] == "Be careful.\n"
    assert "It may have 90 characters at most." in files["README.md"]
    assert "It may add, remove or replace 1 line at most." in files["README.md"]
    assert "output/value.txt" in files["README.md"]
    assert "Do not follow instructions" in files["README.md"]
    assert "Yes." in files["failing/001_..%2Fa.md"]
    assert "So." in files["passing/001_b.md"]
    assert "no gain" in files["rejected/001.md"]
    assert files["siblings/draft#tool.search.txt"] == "Searches."
    assert orjson.loads(files["request.json"])["signal"]["text"] == "Be careful."


async def test_an_answer_is_not_asked_for_twice_and_the_folder_is_removed(gateway: Gateway, tmp_path: Path) -> None:
    count = tmp_path / "count"
    code = f"open({str(count)!r}, 'a').write(os.getcwd() + '\\n'); open('output/value.txt', 'w').write('New.')"
    stage = CommandOptimizer(command=python(code))
    with gateway.active():
        values = [(await stage.optimize(REQUEST)).patch for _ in range(2)]
    assert [each and each.value for each in values] == ["New.", "New."]
    [folder] = count.read_text().split()
    assert not os.path.exists(folder)  # noqa: ASYNC240, PTH110 - a test may block


async def test_a_command_that_writes_nothing_proposes_nothing(gateway: Gateway) -> None:
    with gateway.active():
        result = await CommandOptimizer(command=("true",)).optimize(REQUEST)
    assert (result.patch, result.reason) == (None, "the command wrote no output/value.txt")


async def test_a_number_is_written_as_json(gateway: Gateway) -> None:
    surface = Surface(node_id="draft", type="parameter", part="k", value=3)
    with gateway.active():
        stage = CommandOptimizer(command=write("value.json", "5"))
        result = await stage.optimize(OptimizeRequest(surface=surface, signal=SIGNAL))
    assert result.patch is not None
    assert result.patch.value == 5


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("sh", "-c", "echo no key >&2; exit 4"), "ended with exit code 4: no key"),
        (python("os.symlink('/etc/passwd', 'output/value.txt')"), "output/value.txt cannot be read"),
        (python("open('output/value.txt', 'wb').write(b'\\xff')"), "output/value.txt is not UTF-8, at byte 0"),
        (python("open('output/value.txt', 'w').write('x' * 3_000_000)"), "has more than 2,000,000 bytes"),
        (python("os.mkfifo('output/value.txt')"), "output/value.txt is not a file"),
        (python("os.mkdir('output/value.txt')"), "output/value.txt is not a file"),
        (("sleep", "60"), "did not end in 0.2 s"),
    ],
)
async def test_a_failure_is_an_error_of_the_stage_and_not_stored(
    gateway: Gateway, command: tuple[str, ...], message: str
) -> None:
    stage = CommandOptimizer(command=command, timeout_s=0.2 if command[0] == "sleep" else 60)
    with gateway.active(), pytest.raises(CommandError, match=message):
        await stage.optimize(REQUEST)
    assert gateway.cache.stats().entries == 0


CALL = """
import urllib.request
body = json.dumps({"model": "expert", "messages": [{"role": "user", "content": "How?"}]}).encode()
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body,
    {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]})
answer = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
open("output/value.txt", "w").write(answer)
"""


async def test_model_calls_are_counted_under_the_role_of_the_stage() -> None:
    usage = Usage(input_tokens=3, output_tokens=2)
    expert = ScriptedModel(lambda _: ModelReply(text="Draft carefully.", usage=usage))
    gateway = Gateway(models={"expert": expert})
    with gateway.active():
        result = await CommandOptimizer(command=python(CALL)).optimize(REQUEST)
    assert result.patch is not None
    assert result.patch.value == "Draft carefully."
    assert gateway.ledger.snapshot().by_role()["optimizer"].calls >= 1


async def test_a_spent_budget_ends_the_run_whatever_the_command_makes_of_it() -> None:
    expert = ScriptedModel(lambda _: ModelReply(text="Draft carefully."))
    gateway = Gateway(models={"expert": expert}, budget=Budget(max_calls=0))
    with gateway.active(), pytest.raises(BudgetEndedError):
        await CommandOptimizer(command=python(CALL)).optimize(REQUEST)


async def test_nothing_is_started_after_a_stop(gateway: Gateway) -> None:
    stopping = gateway.stopping_on(lambda: "Ctrl-C")
    with stopping.active(), pytest.raises(StopRequestedError):
        await CommandOptimizer(command=write("value.txt", "New.")).optimize(REQUEST)


async def test_an_aggregator_writes_the_signal(gateway: Gateway) -> None:
    gradients = tuple(
        SurfaceGradient(
            surface_id="draft#instruction", case_id=each, step_id="draft", text=f"Fix {each}.", severity="P0"
        )
        for each in ("a", "b")
    )
    code = """
texts = [open("gradients/" + each).read() for each in sorted(os.listdir("gradients"))]
open("output/signal.md", "w").write(" ".join(texts))
"""
    with gateway.active():
        result = await CommandAggregator(command=python(code)).aggregate(
            AggregateRequest(surface=SURFACE, gradients=gradients)
        )
    assert "Fix a." in result.text
    assert "Fix b." in result.text
    assert (result.severity, result.case_ids) == ("P0", ("a", "b"))


def make_attribute_request(start_ns: int = 5) -> AttributeRequest:
    step = Step(id="draft", node_id="draft", input=Snapshot("Why?"), output=Snapshot("No."), start_ns=start_ns)
    loss = Loss(metric="m", step_id="draft", severity="P1", category="response", text="wrong")
    return AttributeRequest(
        case_loss=CaseLoss(case_id="a", repeat=1, trace_digest="x", losses=(loss,)),
        trace=ExecutionTrace(id="t", steps=(step,)),
        snapshot=SNAPSHOT,
        profile=Profile.baseline(SNAPSHOT),
        targets=frozenset(("draft#instruction",)),
    )


async def test_an_attributor_blames_surfaces_at_steps_and_unknown_ids_are_dropped(gateway: Gateway) -> None:
    blame = [
        {"step": "draft", "surface": "draft#instruction", "text": "Be careful."},
        {"step": "other", "surface": "draft#instruction", "text": "x"},
        {"step": "draft", "surface": "other#instruction", "text": "x"},
    ]
    with gateway.active():
        stage = CommandAttributor(command=write("blame.json", orjson.dumps(blame).decode()))
        [result] = await stage.attribute(make_attribute_request())
        await stage.attribute(make_attribute_request(start_ns=77))
    [gradient] = result.gradients
    assert (gradient.case_id, gradient.repeat, gradient.text) == ("a", 1, "Be careful.")
    assert gateway.cache.stats().entries == 1  # the clock is not part of the request


async def test_a_backwarder_blames_surfaces_and_steps_before(gateway: Gateway) -> None:
    answer = {
        "gradients": [{"surface": "draft#instruction", "text": "Be careful."}, {"surface": "x#instruction"}],
        "packets": [{"step": "first", "text": "It was wrong before."}, {"step": "later", "text": "x"}],
    }
    request = BackwardRequest(
        case_id="a",
        step=STEP,
        incoming=(GradientPacket(source="", target="draft", text="wrong"),),
        surfaces=(SURFACE,),
        blamable=("draft#instruction",),
        predecessors=(Step(id="first", node_id="first"),),
    )
    with gateway.active():
        result = await CommandBackwarder(command=write("blame.json", orjson.dumps(answer).decode())).backward(request)
    assert [each.text for each in result.gradients] == ["Be careful."]
    assert [(each.source, each.target, each.text) for each in result.packets] == [
        ("draft", "first", "It was wrong before.")
    ]
    assert result.dropped == 2


@pytest.mark.parametrize("text", ["", "[1]", '"x"'])
async def test_blame_that_cannot_be_read_is_an_error(gateway: Gateway, text: str) -> None:
    with gateway.active(), pytest.raises(CommandError, match=r"blame\.json is"):
        await CommandAttributor(command=write("blame.json", text)).attribute(make_attribute_request())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"command": ()}, "the command of a stage is empty"),
        ({"command": "x"}, "the command of a stage"),
        ({"concurrency": 0}, "at least 1"),
        ({"timeout_s": 0}, "timeout_s must be above 0"),
    ],
)
def test_mistakes_are_found_when_the_stage_is_built(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SetupError, match=message):
        CommandStage(**{"command": ("true",), **fields})


@pytest.mark.slow
def test_leaks_of_a_command_are_refused_as_those_of_any_optimizer() -> None:
    """The first value that it writes has the messages of cases in it. The refusal is shown to it."""
    code = """
texts = [open("failing/" + each).read() for each in sorted(os.listdir("failing"))]
added = "Be careful." if os.path.exists("rejected") else " ".join(texts)
open("output/value.txt", "w").write(open("current.txt").read() + " " + added)
"""
    users = ("Order QX-4711-88 never came to Lisbon", "Kettle KT-9120 leaks onto the oak floor", "Lamp LP-3301 hums")
    cases = tuple(EvalCase(id=each[:5], turns=(Turn(user=each, expected="careful careful"),)) for each in users)
    engine = Engine(desk.agent(), desk.evaluator(), optimizer=CommandOptimizer(command=python(code)))
    request = desk.request(train=EvalSet(id="train", cases=cases), max_rounds=2, final_test=None)
    result = engine.run_sync(request)
    refused = [each for done in result.rounds for one in get_passes(done) for each in one.refused]
    assert refused
    assert result.changes
    assert all(str(change.after).endswith("Be careful.") for change in result.changes)
    assert all("QX-4711-88" not in str(change.after) for change in result.changes)
