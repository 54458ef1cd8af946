"""What commands load: agents as `module:attr` from the folder they run in, and evaluators from metrics files."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from promptiter.agents.base import Agent
from promptiter.errors import SetupError

if TYPE_CHECKING:
    from promptiter.evaluation.evaluator import EvaluationOptions, Evaluator
    from promptiter.evaluation.metric_config import EvalConfig
    from promptiter.llm.gateway import Gateway


def load_object(reference: str) -> Any:
    """The object that `module:attr` names."""
    module_name, colon, attribute = reference.partition(":")
    if not colon or not module_name or not attribute:
        raise SetupError(f"{reference!r} must have the form module:attr, such as my_agent:agent")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        raise SetupError(f"cannot import {module_name!r}: {told}; run where the module is, or mend it") from error
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise SetupError(f"{module_name!r} has no {attribute!r}")
        found = getattr(found, name)
    return found


def load_agent(reference: str) -> Agent:
    """The agent that `module:attr` names: an agent, or a function without parameters that makes one."""
    found = load_object(reference)
    if not hasattr(found, "describe") and callable(found):
        try:
            found = found()
        except Exception as error:
            raise SetupError(f"{reference!r} made no agent: {type(error).__name__}: {error}") from error
    if not hasattr(found, "describe") or not hasattr(found, "run"):
        raise SetupError(f"{reference!r} is {type(found).__name__}, no agent: it needs describe() and run()")
    return cast("Agent", found)


def metrics_file(eval_set: str, metrics: Path | None) -> Path:
    """The metrics that were given, or those beside the eval set."""
    if metrics is not None:
        return metrics
    folder = Path(eval_set).parent
    for name in ("test_config.json", "optimizer.json"):
        if (folder / name).exists():
            return folder / name
    raise SetupError(f"no metrics: pass --metrics FILE, or put a test_config.json into {str(folder)!r}")


def build_evaluator(config: EvalConfig, gateway: Gateway, options: EvaluationOptions | None = None) -> Evaluator:
    """An evaluator with the metrics, judges and simulated user of a configuration."""
    from promptiter.evaluation.evaluator import Evaluator
    from promptiter.evaluation.judge import judge_builders
    from promptiter.evaluation.metrics import build_metrics
    from promptiter.evaluation.user_simulator import UserSimulator

    return Evaluator(
        build_metrics(config, builders=judge_builders(gateway)),
        gateway=gateway,
        options=options,
        user_simulator=UserSimulator.of_config(config.user_simulator, gateway),
    )
