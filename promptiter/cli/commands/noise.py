"""`promptiter noise`: measure the noise of an eval set, and which gains could be detected on it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from promptiter.cli.load import collect_settings
from promptiter.cli.options import Concurrency, Config, ConfiguredJson, InitialProfile, MaxUsd, Quiet, Seed
from promptiter.cli.output import console, divert_prints, print_error, print_stopping, write_text
from promptiter.errors import SetupError
from promptiter.llm.models import any_simulated

if TYPE_CHECKING:
    from promptiter.config.configured_run import ConfiguredRun
    from promptiter.evaluation.stats.noise import NoiseReport


def noise(
    config: Config = Path("promptiter.yaml"),
    repeats: Annotated[
        int, typer.Option(metavar="N", help="Runs of each case; the final test takes 6 for each profile.")
    ] = 6,
    gain: Annotated[
        float | None,
        typer.Option(metavar="GAIN", help="Exit with 4 if a gain of this size could not be detected."),
    ] = None,
    judge_repeats: Annotated[
        int,
        typer.Option(min=1, max=100, metavar="N", help="Judgements of each run; 1 leaves the judge's noise unknown."),
    ] = 2,
    stronger: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Also run each case once with this model, to see what it reaches."),
    ] = None,
    max_usd: MaxUsd = None,
    concurrency: Concurrency = None,
    seed: Seed = None,
    initial_profile: InitialProfile = None,
    as_json: ConfiguredJson = None,
    quiet: Quiet = None,
) -> None:
    """Measure noise, detectable gains and headroom.

    Runs the baseline several times on the validation cases (an A/A test), and judges each run several times. No
    candidate is tried. A teacher of CONFIG also answers each case once. Options override the keys of the same name in
    CONFIG.

    After Ctrl-C, or when the budget ends, reports what was measured so far. Exits 7 if too many runs or scores failed.
    """
    from promptiter.cli.views import noise as noise_view
    from promptiter.cli.views.evaluation import warn_of_uncounted_calls
    from promptiter.config.build import build_run
    from promptiter.config.file import read_config
    from promptiter.policies.final_test import FinalTest

    if gain is not None and not gain > 0:
        raise SetupError(f"--gain is {gain:g}; give a gain above 0, such as 0.1")
    settings = collect_settings(
        budget={"max_usd": max_usd},
        evaluation={"concurrency": concurrency},
        seed=seed,
        initial_profile=initial_profile,
        json=as_json,
        quiet=quiet,
    )
    with divert_prints():
        configured = build_run(read_config(config, settings=settings))
        try:
            report = _measure(configured, repeats, judge_repeats=judge_repeats, stronger=stronger)
        finally:
            configured.gateway.cache.close()
    is_simulated = any_simulated(configured.gateway.ledger.snapshot().by_model())
    wanted = gain or (configured.request.final_test or FinalTest()).min_detectable_gain
    required = None if report.problem else report.estimate_required_size(wanted)
    code = noise_view.choose_exit_code(report, None if gain is None else required)
    if problem := noise_view.describe_problem(report):
        print_error(problem)
    warn_of_uncounted_calls(report.evaluation, configured.gateway)
    if configured.config.as_json:
        write_text(noise_view.noise_as_json(report, required, is_simulated=is_simulated, code=code), None)
    elif required is not None and configured.config.quiet:
        noise_view.print_wanted(console(), report, required)
    elif required is not None:
        noise_view.print_noise(console(), report, required, is_simulated=is_simulated)
    raise typer.Exit(code)


def _measure(configured: ConfiguredRun, repeats: int, *, judge_repeats: int, stronger: str | None) -> NoiseReport:
    from promptiter.cli.views.evaluation import show_progress
    from promptiter.engine.request_checks import merge_eval_sets

    measure = partial(
        configured.noise, repeats=repeats, judge_repeats=judge_repeats, stronger=stronger, notify=print_stopping
    )
    if configured.config.quiet:
        return measure()
    cases = merge_eval_sets(configured.request.validation or configured.request.cases or (), name="validation")
    with show_progress(len(cases.cases) * repeats, cases.id) as on_row:
        return measure(on_row=on_row)
