"""What `promptiter test optimize` prints with --dry-run (axes, budget, loss) and --print-baseline (its figures)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from promptiter.backprop.trial_record import measure_loss
from promptiter.cli.output import echo
from promptiter.evaluation.result import Evaluation
from promptiter.wording import format_score, plural

if TYPE_CHECKING:
    from promptiter.config.configured_run import ConfiguredRun


def print_plan(configured: ConfiguredRun) -> None:
    """Print what a run would search, how it is scored, and when it ends."""
    from promptiter.config.agent_yaml.axes import describe_limits
    from promptiter.runs.layout_000.header import describe_cases
    from promptiter.runs.layout_000.layout import Layout000

    layout = configured.layout if isinstance(configured.layout, Layout000) else None
    names = {} if layout is None else layout.inputs.names
    config, checked = configured.config, configured.checked
    echo("Axes")
    for name in checked.targets:
        surface = checked.snapshot.surface(name)
        value = surface.value if surface.type in ("parameter", "model") else f"{len(str(surface.value))} characters"
        echo(f"  {names.get(name, name)}: {describe_limits(surface.limits)}; now {value}")
    echo("Loss")
    for name, weight in config.weights.items():
        echo(f"  {name}: {weight:g}")
    for name, amount in config.penalties.model_dump().items():
        if amount:
            echo(f"  {name}: {amount:g}")
    echo("Budget")
    options = {} if config.search is None else config.search.options
    for name in ("max_cycles", "numeric_max_trials", "numeric_patience", "textual_max_trials", "textual_patience"):
        echo(f"  {name}: {options.get(name)}")
    echo(f"  max_minutes: {None if config.stop is None else config.stop.minutes}")
    echo(f"  max_usd: {config.budget.max_usd}")
    sigma = config.acceptance.sigma_gain
    echo("Acceptance")
    if sigma is not None:
        echo(f"  repeats: {sigma.repeats}\n  accept_sigma: {sigma.accept_sigma:g}\n  hold-out: {sigma.holdout}")
    if layout is not None:
        echo(f"  cases: {describe_cases(layout.inputs.header)}")


def print_losses(name: str, evaluation: Evaluation) -> None:
    """Print the loss of an evaluation, with its spread, and the mean of each metric."""
    figures = measure_loss(evaluation, "weighted_loss")
    if figures is None:
        echo(f"{name}: no case could be scored: {evaluation.commonest_errors}")
        return
    echo(f"{name}: loss {figures.mean:.3f} ±{figures.std:.3f} in {plural(len(figures.runs), 'sweep')}")
    for metric, mean in figures.metrics.items():
        echo(f"  {metric}: {format_score(mean)}")
    if figures.errored:
        echo(f"  {plural(figures.errored, 'run')} failed and left out")
