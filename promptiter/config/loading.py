"""Loads what a configuration refers to: agents as `module:attr`, and evaluators."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from promptiter.agents.base import Agent, check_agent
from promptiter.config.namesakes import claim_modules
from promptiter.errors import SetupError
from promptiter.references import call_factory, load_reference
from promptiter.registry import AGENTS
from promptiter.signatures import find_misfit

if TYPE_CHECKING:
    from promptiter.agents.runner import Runner
    from promptiter.evaluation.evaluator import EvaluationOptions, Evaluator
    from promptiter.evaluation.executor import Executor
    from promptiter.evaluation.metrics.eval_config import EvalConfig
    from promptiter.llm.gateway import Gateway


def load_agent(reference: str, *, folders: Iterable[Path] = ()) -> Agent:
    """Load the agent that `module:attr` names: an agent, or a function without parameters that returns one.

    A name without a colon is that of a registered function; see `AGENTS`.
    """
    folders = tuple(folders)
    make_importable([*folders, Path.cwd()])
    claim_modules(reference.partition(":")[0], folders)
    agent: Any = AGENTS.get(reference) if reference in AGENTS else load_reference(reference)
    if not hasattr(agent, "describe") and callable(agent):
        if find_misfit(agent):
            raise SetupError(
                f"{reference!r} is a plain function, not an agent; decorate it with @agent(instruction=...) from "
                "promptiter.agents, or name a function without parameters that returns an agent"
            )
        agent = call_factory(agent, what=f"the agent {reference!r}")
    try:
        check_agent(agent)
    except SetupError as error:
        raise SetupError(f"{reference!r}: {error}") from None
    return cast("Agent", agent)


def make_importable(folders: Iterable[Path]) -> None:
    """Put folders at the front of sys.path, in this order."""
    for folder in reversed([str(folder.absolute()) for folder in folders]):
        if folder not in sys.path:
            sys.path.insert(0, folder)


def build_evaluator(
    config: EvalConfig,
    gateway: Gateway,
    options: EvaluationOptions | None = None,
    *,
    judge: Runner | str | None = None,
    executor: Executor | None = None,
) -> Evaluator:
    """Build an evaluator with the metrics, judges and user simulator of a configuration. Its secrets are redacted.

    `judge`, a model, an agent or a function, judges for metrics that name no judge.
    """
    from promptiter.evaluation.evaluator import Evaluator
    from promptiter.evaluation.metrics.builtin import build_metrics
    from promptiter.evaluation.user_simulator import UserSimulator
    from promptiter.llm.secret import secrets_in

    gateway.redactor.learn(secrets_in(config))
    return Evaluator(
        build_metrics(config, gateway=gateway, judge=judge),
        gateway=gateway,
        options=options,
        executor=executor,
        user_simulator=UserSimulator.from_config(config.user_simulator, gateway),
    )
