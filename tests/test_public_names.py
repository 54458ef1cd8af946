"""The names that users import and type. A change of these belongs in the CHANGELOG."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest
import typer.main

import promptiter
import traces
from promptiter.cli import app

TRACES = """
AmbiguousStepError Blob BrokenTraceError CycleError DuplicateStepError Edge EmptyTraceError ExecutionTrace Failure Loop
NoActiveRecordingError OpenStep Place Recording Snapshot Step ToolCall TraceError TraceGraph TraceProcessor
UnknownConventionError UnknownPredecessorError UnknownStepError UnreadableTraceError UnwritableTraceError Usage
current_step digest read read_otel read_surface read_traces record step stream_otel to_structure write_otel write_traces
"""
PROMPTITER = """
AcceptancePolicy Agent AgentRun Aggregator Attributor Backwarder Budget BudgetEndedError CaseInput Edge Engine EvalCase
EvalSet Evaluation Evaluator Event FanOut FunctionNode Gateway GraphAgent InPlaceAgent Metric ModelError ModelNode
Observer Optimizer PatchSet Profile PromptiterError RequestError Reviewer RunContext RunFailedError RunProgress
RunRequest RunResult Score Session SetupError StopPolicy Search StructureSnapshot Surface SurfacePatch TargetPrompt
Tool build_eval_set build_metrics compare_profiles instrument list_runs load_agent load_eval_config load_eval_set
load_evaluation load_run optimize resume_run
"""
NAMESPACES = "agents backprop endpoint evaluation llm observers offline policies runs search server stages"
COMMANDS = (
    "agent serve, apply, cache clear, cache stats, check, compare, db sql, db upgrade, describe, evaluate, export, "
    "gate, gateway, init, learn, noise, refine, rejudge, report, rerun, restore, resume, run, runs, schema, serve, "
    "show, stop, task check, task init, task run, test optimize, test run, token, trace export, trace import, "
    "trace show, trace stats, trace structure, trace to-evalset, try"
)


def test_names_of_traces() -> None:
    assert dir(traces) == sorted(TRACES.split())
    assert all(getattr(traces, name) for name in dir(traces))


def test_names_of_promptiter() -> None:
    assert dir(promptiter) == sorted(PROMPTITER.split())
    assert all(getattr(promptiter, name) for name in dir(promptiter))
    assert promptiter.__version__


@pytest.mark.parametrize("name", NAMESPACES.split())
def test_names_of_each_namespace_exist_and_agree_with_the_top_level(name: str) -> None:
    space = import_module(f"promptiter.{name}")
    found = {each: getattr(space, each) for each in dir(space)}
    assert found
    assert {each for each in set(found) & set(dir(promptiter)) if found[each] is not getattr(promptiter, each)} == set()


def test_star_imports_give_the_public_names() -> None:
    names: dict[str, object] = {}
    exec("from promptiter.policies import *", names)
    assert {"SigmaGain", "Patience"} <= set(names)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'promptiter' has no attribute 'Enginee'"):
        promptiter.Enginee  # type: ignore[attr-defined]  # noqa: B018


def test_names_of_commands() -> None:
    found = []
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", {"": None})
        found += [f"{name} {sub}".strip() for sub in inner]
    assert ", ".join(sorted(found)) == COMMANDS


SCRIPT = """
from promptiter import (
    Edge, Engine, Evaluator, Gateway, GraphAgent, ModelNode, Profile, RunRequest, Tool,
    build_eval_set, build_metrics, load_eval_config, load_eval_set,
)
from promptiter.agents import agent, ask, surface
from promptiter.policies import Patience, TargetScore
"""


def find_loaded(code: str, modules: list[str]) -> list[str]:
    """Which of these modules and packages a new process has loaded after this code."""
    show = f"import sys; print(*(name for name in {modules!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{show}"], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_importing_loads_nothing_heavy() -> None:
    heavy = ["networkx", "pydantic", "opentelemetry", "litellm", "rich", "typer", "orjson", "google", "asyncio"]
    assert find_loaded("import promptiter, traces", heavy) == []


@pytest.mark.slow
def test_a_client_needs_no_package_of_servers() -> None:
    assert find_loaded("from promptiter.server import AsyncClient, Client", ["fastapi", "starlette", "uvicorn"]) == []


@pytest.mark.slow
def test_the_names_of_a_script_load_no_heavy_library() -> None:
    heavy = ["pydantic", "networkx", "jsonschema", "yaml", "litellm", "importlib.metadata", "urllib.request", "email"]
    assert find_loaded(SCRIPT, heavy) == []


@pytest.mark.slow
def test_the_names_of_a_script_load_nothing_that_only_a_run_needs() -> None:
    packages = ["runlog", "runs", "search", "backprop", "offline", "forecast", "config", "cli", "evaluation.stats"]
    modules = ["engine.run", "engine.session", "engine.request_checks", "stages.contracts", "evaluation.metrics.judge"]
    assert find_loaded(SCRIPT, [f"promptiter.{name}" for name in packages + modules]) == []


@pytest.mark.slow
def test_metrics_load_only_what_reads_them() -> None:
    code = f"{SCRIPT}\nbuild_metrics([{{'metric_name': 'exact_match'}}])"
    wanted = ["pydantic", "promptiter.evaluation.metrics.criterion_files"]
    assert find_loaded(code, [*wanted, "promptiter.evaluation.metrics.judge", "promptiter.runlog"]) == wanted
