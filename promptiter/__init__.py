"""Backpropagation for agents: find the step that failed, patch the text behind it, keep only what is proven better.

Every name here is loaded when it is first used: importing the package does no work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from traces.lazy import lazy_names

if TYPE_CHECKING:
    from promptiter.agents.base import Agent, AgentRun, CaseInput, RunContext
    from promptiter.agents.function import agent, ask, ask_sync, chain, node
    from promptiter.agents.graph import Choice, Edge, FanOut, GraphAgent, Join
    from promptiter.agents.in_place import InPlaceAgent
    from promptiter.agents.nodes import FunctionNode, ModelNode, Parameter, Tool, View, surface
    from promptiter.api import load_rerun, load_run, resume_run
    from promptiter.backprop.aggregate import LLMAggregator
    from promptiter.backprop.backward import LLMBackwarder
    from promptiter.backprop.cheapest import AttributionChoice, CheapestAttributor
    from promptiter.backprop.correct import LLMCorrector
    from promptiter.backprop.loss import CaseLoss, Loss, LossHint, LossTarget
    from promptiter.backprop.optimize import LLMOptimizer
    from promptiter.backprop.propagate import Stepwise, propagate
    from promptiter.backprop.stages import (
        AggregateRequest,
        AggregateResult,
        Aggregator,
        AttributeRequest,
        Attributor,
        Backwarder,
        BackwardRequest,
        BackwardResult,
        GradientPacket,
        Optimizer,
        OptimizeRequest,
        OptimizeResult,
        SurfaceGradient,
    )
    from promptiter.backprop.support import SupportAggregator
    from promptiter.backprop.whole_trace import LLMAttributor
    from promptiter.engine.acceptance import AcceptancePolicy, AnyGain, MinGain, NoRegression, Protected
    from promptiter.engine.conclusion import ClaimOnce, Conclusion
    from promptiter.engine.engine import Engine
    from promptiter.engine.events import Event, Observer
    from promptiter.engine.evidence import AcceptanceDecision, Evidence, MoreEvidence
    from promptiter.engine.figures import Constraint, TieBreak
    from promptiter.engine.fold import fold
    from promptiter.engine.goals import Goal
    from promptiter.engine.interrupts import Interrupt
    from promptiter.engine.journal import Journal
    from promptiter.engine.no_worse import NoWorse
    from promptiter.engine.noise import measure_noise
    from promptiter.engine.paired import PairedGain
    from promptiter.engine.records import RoundResult, RunRequest, RunResult
    from promptiter.engine.review import Review, Reviewer
    from promptiter.engine.run import RunFailedError
    from promptiter.engine.session import Session, Strategy
    from promptiter.engine.sigma import SigmaGain
    from promptiter.engine.stopping import (
        Deadline,
        MaxCalls,
        MaxEvaluations,
        MaxRounds,
        MaxTokens,
        MaxUsd,
        Patience,
        RequiredMetrics,
        StopDecision,
        StopFile,
        StopPolicy,
        TargetScore,
    )
    from promptiter.errors import (
        BudgetEndedError,
        ChangedInputsError,
        ModelError,
        PromptiterError,
        RequestError,
        SetupError,
    )
    from promptiter.evaluation.case import EvalCase, EvalSet, Turn
    from promptiter.evaluation.evalset import dump_eval_set, load_eval_set
    from promptiter.evaluation.evaluator import EvaluationOptions, Evaluator
    from promptiter.evaluation.metric import Metric
    from promptiter.evaluation.metric_config import load_eval_config
    from promptiter.evaluation.metrics import FunctionMetric, build_metrics
    from promptiter.evaluation.noise import NoiseReport
    from promptiter.evaluation.result import CaseRow, Evaluation
    from promptiter.evaluation.score import Finding, Score
    from promptiter.evaluation.splits import check_disjoint, split
    from promptiter.llm.budget import Budget
    from promptiter.llm.cache.cache import open_cache
    from promptiter.llm.gateway import Gateway
    from promptiter.llm.litellm import LiteLLMModel
    from promptiter.llm.messages import Message, ModelReply, ModelRequest
    from promptiter.llm.models import ScriptedModel
    from promptiter.llm.prices import Price, Prices
    from promptiter.llm.rate import RateLimit
    from promptiter.offline.attribution.attributor import EvidenceAttributor
    from promptiter.offline.attribution.corrector import ReferenceCorrector
    from promptiter.offline.model.simulated import SimulatedModel
    from promptiter.offline.rules.optimizer import RuleOptimizer
    from promptiter.profile import PatchSet, Profile, SurfacePatch
    from promptiter.runs.directory import RunDirectory
    from promptiter.runs.listing import list_runs
    from promptiter.search.cheaper import CheaperModel
    from promptiter.search.gradient_check import GradientCheck
    from promptiter.search.rounds import BackpropRounds
    from promptiter.search.shorter import Shorter
    from promptiter.structure import Limits, Node, StructureSnapshot, Surface
    from promptiter.targets import CallbackTarget, FileTarget, Target

__all__ = [
    "AcceptanceDecision",
    "AcceptancePolicy",
    "Agent",
    "AgentRun",
    "AggregateRequest",
    "AggregateResult",
    "Aggregator",
    "AnyGain",
    "AttributeRequest",
    "AttributionChoice",
    "Attributor",
    "BackpropRounds",
    "BackwardRequest",
    "BackwardResult",
    "Backwarder",
    "Budget",
    "BudgetEndedError",
    "CallbackTarget",
    "CaseInput",
    "CaseLoss",
    "CaseRow",
    "ChangedInputsError",
    "CheaperModel",
    "CheapestAttributor",
    "Choice",
    "ClaimOnce",
    "Conclusion",
    "Constraint",
    "Deadline",
    "Edge",
    "Engine",
    "EvalCase",
    "EvalSet",
    "Evaluation",
    "EvaluationOptions",
    "Evaluator",
    "Event",
    "Evidence",
    "EvidenceAttributor",
    "FanOut",
    "FileTarget",
    "Finding",
    "FunctionMetric",
    "FunctionNode",
    "Gateway",
    "Goal",
    "GradientCheck",
    "GradientPacket",
    "GraphAgent",
    "InPlaceAgent",
    "Interrupt",
    "Join",
    "Journal",
    "LLMAggregator",
    "LLMAttributor",
    "LLMBackwarder",
    "LLMCorrector",
    "LLMOptimizer",
    "Limits",
    "LiteLLMModel",
    "Loss",
    "LossHint",
    "LossTarget",
    "MaxCalls",
    "MaxEvaluations",
    "MaxRounds",
    "MaxTokens",
    "MaxUsd",
    "Message",
    "Metric",
    "MinGain",
    "ModelError",
    "ModelNode",
    "ModelReply",
    "ModelRequest",
    "MoreEvidence",
    "NoRegression",
    "NoWorse",
    "Node",
    "NoiseReport",
    "Observer",
    "OptimizeRequest",
    "OptimizeResult",
    "Optimizer",
    "PairedGain",
    "Parameter",
    "PatchSet",
    "Patience",
    "Price",
    "Prices",
    "Profile",
    "PromptiterError",
    "Protected",
    "RateLimit",
    "ReferenceCorrector",
    "RequestError",
    "RequiredMetrics",
    "Review",
    "Reviewer",
    "RoundResult",
    "RuleOptimizer",
    "RunContext",
    "RunDirectory",
    "RunFailedError",
    "RunRequest",
    "RunResult",
    "Score",
    "ScriptedModel",
    "Session",
    "SetupError",
    "Shorter",
    "SigmaGain",
    "SimulatedModel",
    "Stepwise",
    "StopDecision",
    "StopFile",
    "StopPolicy",
    "Strategy",
    "StructureSnapshot",
    "SupportAggregator",
    "Surface",
    "SurfaceGradient",
    "SurfacePatch",
    "Target",
    "TargetScore",
    "TieBreak",
    "Tool",
    "Turn",
    "View",
    "__version__",
    "agent",
    "ask",
    "ask_sync",
    "build_metrics",
    "chain",
    "check_disjoint",
    "dump_eval_set",
    "fold",
    "list_runs",
    "load_eval_config",
    "load_eval_set",
    "load_rerun",
    "load_run",
    "measure_noise",
    "node",
    "open_cache",
    "propagate",
    "resume_run",
    "split",
    "surface",
]

_MODULES = {
    "api": "load_rerun load_run resume_run",
    "agents.base": "Agent AgentRun CaseInput RunContext",
    "agents.function": "agent ask ask_sync chain node",
    "agents.graph": "Choice Edge FanOut GraphAgent Join",
    "agents.in_place": "InPlaceAgent",
    "agents.nodes": "FunctionNode ModelNode Parameter Tool View surface",
    "backprop.aggregate": "LLMAggregator",
    "backprop.backward": "LLMBackwarder",
    "backprop.cheapest": "AttributionChoice CheapestAttributor",
    "backprop.correct": "LLMCorrector",
    "offline.attribution.attributor": "EvidenceAttributor",
    "offline.attribution.corrector": "ReferenceCorrector",
    "backprop.loss": "CaseLoss Loss LossHint LossTarget",
    "backprop.optimize": "LLMOptimizer",
    "backprop.propagate": "Stepwise propagate",
    "offline.rules.optimizer": "RuleOptimizer",
    "backprop.stages": (
        "AggregateRequest AggregateResult Aggregator AttributeRequest Attributor BackwardRequest "
        "BackwardResult Backwarder GradientPacket OptimizeRequest OptimizeResult Optimizer SurfaceGradient"
    ),
    "backprop.support": "SupportAggregator",
    "backprop.whole_trace": "LLMAttributor",
    "engine.acceptance": "AcceptancePolicy AnyGain MinGain NoRegression Protected",
    "engine.conclusion": "ClaimOnce Conclusion",
    "engine.engine": "Engine",
    "engine.events": "Event Observer",
    "engine.evidence": "AcceptanceDecision Evidence MoreEvidence",
    "engine.figures": "Constraint TieBreak",
    "engine.fold": "fold",
    "engine.goals": "Goal",
    "engine.interrupts": "Interrupt",
    "engine.journal": "Journal",
    "engine.paired": "PairedGain",
    "engine.noise": "measure_noise",
    "engine.no_worse": "NoWorse",
    "engine.records": "RoundResult RunRequest RunResult",
    "engine.review": "Review Reviewer",
    "engine.session": "Session Strategy",
    "engine.run": "RunFailedError",
    "engine.sigma": "SigmaGain",
    "engine.stopping": (
        "Deadline MaxCalls MaxEvaluations MaxRounds MaxTokens MaxUsd Patience RequiredMetrics StopDecision "
        "StopFile StopPolicy TargetScore"
    ),
    "errors": "BudgetEndedError ChangedInputsError ModelError PromptiterError RequestError SetupError",
    "evaluation.case": "EvalCase EvalSet Turn",
    "evaluation.evalset": "dump_eval_set load_eval_set",
    "evaluation.evaluator": "EvaluationOptions Evaluator",
    "evaluation.metric": "Metric",
    "evaluation.metric_config": "load_eval_config",
    "evaluation.metrics": "FunctionMetric build_metrics",
    "evaluation.noise": "NoiseReport",
    "evaluation.result": "CaseRow Evaluation",
    "evaluation.score": "Finding Score",
    "evaluation.splits": "check_disjoint split",
    "llm.budget": "Budget",
    "llm.gateway": "Gateway",
    "llm.litellm": "LiteLLMModel",
    "llm.cache.cache": "open_cache",
    "llm.messages": "Message ModelReply ModelRequest",
    "llm.models": "ScriptedModel",
    "llm.prices": "Price Prices",
    "llm.rate": "RateLimit",
    "offline.model.simulated": "SimulatedModel",
    "profile": "PatchSet Profile SurfacePatch",
    "runs.directory": "RunDirectory",
    "runs.listing": "list_runs",
    "search.cheaper": "CheaperModel",
    "search.gradient_check": "GradientCheck",
    "search.rounds": "BackpropRounds",
    "search.shorter": "Shorter",
    "structure": "Limits Node StructureSnapshot Surface",
    "targets": "CallbackTarget FileTarget Target",
}
_load = lazy_names(__name__, _MODULES)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("promptiter")
    return _load(name)


def __dir__() -> list[str]:
    return __all__
