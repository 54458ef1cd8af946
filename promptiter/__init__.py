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
    from promptiter.agents.nodes import FunctionNode, ModelNode, Parameter, Tool, View, surface
    from promptiter.errors import BudgetEndedError, ModelError, PromptiterError, SetupError
    from promptiter.evaluation.case import EvalCase, EvalSet, Turn
    from promptiter.evaluation.evalset import dump_eval_set, load_eval_set
    from promptiter.evaluation.evaluator import EvaluationOptions, Evaluator
    from promptiter.evaluation.metric import Metric
    from promptiter.evaluation.metric_config import load_eval_config
    from promptiter.evaluation.metrics import FunctionMetric, build_metrics
    from promptiter.evaluation.result import CaseRow, Evaluation
    from promptiter.evaluation.score import Finding, Score
    from promptiter.evaluation.splits import check_disjoint, split
    from promptiter.llm.budget import Budget
    from promptiter.llm.gateway import Gateway
    from promptiter.llm.litellm import LiteLLMModel
    from promptiter.llm.memo import open_memo
    from promptiter.llm.messages import Message, ModelReply, ModelRequest
    from promptiter.llm.models import ScriptedModel
    from promptiter.llm.prices import Price, Prices
    from promptiter.llm.rate import RateLimit
    from promptiter.llm.simulated import SimulatedModel
    from promptiter.profile import PatchSet, Profile, SurfacePatch
    from promptiter.structure import Limits, Node, StructureSnapshot, Surface

__all__ = [
    "Agent",
    "AgentRun",
    "Budget",
    "BudgetEndedError",
    "CaseInput",
    "CaseRow",
    "Choice",
    "Edge",
    "EvalCase",
    "EvalSet",
    "Evaluation",
    "EvaluationOptions",
    "Evaluator",
    "FanOut",
    "Finding",
    "FunctionMetric",
    "FunctionNode",
    "Gateway",
    "GraphAgent",
    "Join",
    "Limits",
    "LiteLLMModel",
    "Message",
    "Metric",
    "ModelError",
    "ModelNode",
    "ModelReply",
    "ModelRequest",
    "Node",
    "Parameter",
    "PatchSet",
    "Price",
    "Prices",
    "Profile",
    "PromptiterError",
    "RateLimit",
    "RunContext",
    "Score",
    "ScriptedModel",
    "SetupError",
    "SimulatedModel",
    "StructureSnapshot",
    "Surface",
    "SurfacePatch",
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
    "load_eval_config",
    "load_eval_set",
    "node",
    "open_memo",
    "split",
    "surface",
]

_MODULES = {
    "agents.base": "Agent AgentRun CaseInput RunContext",
    "agents.function": "agent ask ask_sync chain node",
    "agents.graph": "Choice Edge FanOut GraphAgent Join",
    "agents.nodes": "FunctionNode ModelNode Parameter Tool View surface",
    "errors": "BudgetEndedError ModelError PromptiterError SetupError",
    "evaluation.case": "EvalCase EvalSet Turn",
    "evaluation.evalset": "dump_eval_set load_eval_set",
    "evaluation.evaluator": "EvaluationOptions Evaluator",
    "evaluation.metric": "Metric",
    "evaluation.metric_config": "load_eval_config",
    "evaluation.metrics": "FunctionMetric build_metrics",
    "evaluation.result": "CaseRow Evaluation",
    "evaluation.score": "Finding Score",
    "evaluation.splits": "check_disjoint split",
    "llm.budget": "Budget",
    "llm.gateway": "Gateway",
    "llm.litellm": "LiteLLMModel",
    "llm.memo": "open_memo",
    "llm.messages": "Message ModelReply ModelRequest",
    "llm.models": "ScriptedModel",
    "llm.prices": "Price Prices",
    "llm.rate": "RateLimit",
    "llm.simulated": "SimulatedModel",
    "profile": "PatchSet Profile SurfacePatch",
    "structure": "Limits Node StructureSnapshot Surface",
}
_load = lazy_names(__name__, _MODULES)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("promptiter")
    return _load(name)


def __dir__() -> list[str]:
    return __all__
