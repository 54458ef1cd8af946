"""The names that users import and type. Changing one is a change for them: CHANGELOG it."""

from __future__ import annotations

import subprocess
import sys

import typer.main

import promptiter
import traces
from promptiter.cli import app

TRACES = """
AmbiguousStepError Blob BrokenTraceError CycleError DuplicateStepError Edge EmptyTraceError ExecutionTrace Failure Loop
NoActiveRecordingError OpenStep Place Recording Snapshot Step ToolCall TraceError TraceGraph TraceProcessor
UnknownConventionError UnknownPredecessorError UnknownStepError UnreadableTraceError UnwritableTraceError Usage
current_step digest read read_otel read_surface read_traces record step write_otel write_traces
"""
PROMPTITER = """
AcceptanceDecision AcceptancePolicy Agent AgentRun AggregateRequest AggregateResult Aggregator AnyGain
AttributeRequest AttributionChoice Attributor BackpropRounds BackwardRequest BackwardResult Backwarder Budget
BudgetEndedError CallbackTarget CaseInput CaseLoss CaseRow ChangedInputsError CheaperModel CheapestAttributor Choice
ClaimOnce Conclusion Constraint Deadline Edge Engine EvalCase EvalSet Evaluation EvaluationOptions Evaluator Event
Evidence EvidenceAttributor FanOut FileTarget Finding FunctionMetric FunctionNode Gateway Goal GradientCheck
GradientPacket GraphAgent InPlaceAgent Interrupt Join Journal LLMAggregator LLMAttributor LLMBackwarder LLMCorrector
LLMOptimizer Limits LiteLLMModel Loss LossHint LossTarget MaxCalls MaxEvaluations MaxRounds MaxTokens MaxUsd Message
Metric MinGain ModelError ModelNode ModelReply ModelRequest MoreEvidence NoRegression NoWorse Node NoiseReport
Observer OptimizeRequest OptimizeResult Optimizer PairedGain Parameter PatchSet Patience Price Prices Profile
PromptiterError Protected RateLimit ReferenceCorrector RequestError RequiredMetrics Review Reviewer RoundResult
RuleOptimizer RunContext RunDirectory RunFailedError RunRequest RunResult Score ScriptedModel Session SetupError
Shorter SigmaGain SimulatedModel Stepwise StopDecision StopFile StopPolicy Strategy StructureSnapshot
SupportAggregator Surface SurfaceGradient SurfacePatch Target TargetScore TieBreak Tool Turn View __version__ agent
ask ask_sync build_metrics chain check_disjoint dump_eval_set fold list_runs load_eval_config load_eval_set load_rerun
load_run measure_noise node open_cache propagate resume_run split surface
"""
COMMANDS = (
    "cache clear, cache stats, check, describe, evaluate, init, noise, rerun, restore, resume, run, runs, show, "
    "trace export, trace show, trace stats"
)


def test_names_of_traces() -> None:
    assert traces.__all__ == sorted(TRACES.split())
    assert {name for name in traces.__all__ if getattr(traces, name) is None} == set()
    assert dir(traces) == traces.__all__


def test_names_of_promptiter() -> None:
    assert promptiter.__all__ == sorted(PROMPTITER.split())
    assert dir(promptiter) == promptiter.__all__
    assert all(getattr(promptiter, name) for name in promptiter.__all__)


def test_names_of_commands() -> None:
    found = []
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", {"": None})
        found += [f"{name} {sub}".strip() for sub in inner]
    assert ", ".join(sorted(found)) == COMMANDS


def test_importing_loads_nothing_heavy() -> None:
    heavy = ["networkx", "pydantic", "opentelemetry", "litellm", "rich", "typer", "orjson", "google", "asyncio"]
    code = f"import sys, promptiter, traces; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
