"""`promptiter try`: edit a prompt, and see whether the agent gets better, worse, or neither."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from promptiter.cli.load import collect_settings
from promptiter.cli.options import Concurrency, Config, ConfiguredJson, MaxUsd, Quiet, Seed
from promptiter.cli.output import console, divert_prints, echo, print_stopping, write_text
from promptiter.errors import SetupError
from promptiter.wording import join_names, plural

if TYPE_CHECKING:
    from promptiter.config.edit_trial import EditTrial
    from promptiter.evaluation.result import CaseRow


def try_edit(
    config: Config = Path("promptiter.yaml"),
    values: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="SURFACE=VALUE", help="Try this value; @FILE reads it from a file. May be repeated."
        ),
    ] = None,
    edit: Annotated[
        list[str] | None,
        typer.Option("--edit", metavar="SURFACE", help="Open its text in $VISUAL or $EDITOR, and try what you save."),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Try again whenever a file of the project is saved.")] = False,
    record: Annotated[
        bool, typer.Option("--record", help="Record the agent as it is now as the new baseline, with new runs.")
    ] = False,
    eval_set: Annotated[
        str,
        typer.Option("--eval-set", "-e", metavar="SET", help="train, validation, cases or test of CONFIG, or a file."),
    ] = "validation",
    max_usd: MaxUsd = None,
    concurrency: Concurrency = None,
    seed: Seed = None,
    as_json: ConfiguredJson = None,
    quiet: Quiet = None,
) -> None:
    """Edit a prompt, and see whether it helps.

    The first call records the baseline: it runs the agent on the validation cases and remembers its texts. After that,
    edit a prompt in your files, or with --set or --edit, and call it again. Recorded runs are forked at the first step
    that reads the edited text, so only what follows is paid. The answer is improved, worse or within noise, for these
    cases, by the rules of the final test.

    Exits 0 if improved, 1 if worse, 3 if within noise, 4 if these cases could not have shown a gain.
    """
    if watch:
        from promptiter.cli.watch import watch_project

        if edit:
            raise SetupError("--watch tries what you save in your files; leave --edit out, or --watch")
        watch_project(config, files=[Path(each.partition("=@")[2]) for each in values or () if "=@" in each])
        return
    from promptiter.config.edit_trial import build_trial
    from promptiter.config.file import read_config

    settings = collect_settings(
        budget={"max_usd": max_usd}, evaluation={"concurrency": concurrency}, seed=seed, json=as_json, quiet=quiet
    )
    with divert_prints():
        trial = build_trial(read_config(config, settings=settings), eval_set, record=record)
    try:
        code = _try(trial, values or [], edit or [])
    finally:
        trial.built.gateway.cache.close()
    raise typer.Exit(code)


def _try(trial: EditTrial, values: list[str], edit: list[str]) -> int:
    """Compare the edit with the baseline, or record the baseline if nothing was edited yet; returns the exit code."""
    from promptiter.cli.surface_values import edit_value, parse_settings

    trial.set_values(parse_settings(values, trial.snapshot))
    for name in edit:
        surface = trial.snapshot.surface(name)
        trial.set_values({name: edit_value(surface, trial.after.value(name, trial.snapshot))})
    if trial.differences:
        return _compare(trial)
    if changed := trial.recorded.find_structure_changes(trial.snapshot):
        raise SetupError(
            f"surfaces were added or removed since the baseline was recorded ({join_names(changed, limit=5)}), and no "
            "other text has changed; pass --record to record the agent as it is now"
        )
    if trial.is_new or not trial.recorded.is_complete:
        return _record(trial)
    raise SetupError(
        f"nothing has changed since the baseline was recorded on {trial.recorded.shown_time}: edit a prompt, or pass "
        "--set or --edit; --record records the baseline again"
    )


def _compare(trial: EditTrial) -> int:
    from promptiter.cli.views import edit_trial as view
    from promptiter.cli.views.evaluation import warn_of_uncounted_calls
    from promptiter.policies.final_test import FinalTest

    config, wanted = trial.config, (trial.config.final_test or FinalTest()).min_detectable_gain
    with divert_prints(), _show_progress(trial, "trying the edit", runs=2 * trial.most_repeats) as on_row:
        found = trial.compare(on_row=on_row, notify=print_stopping)
    warn_of_uncounted_calls(found.after, trial.built.gateway)
    code = view.choose_exit_code(found, wanted)
    if config.as_json:
        write_text(view.comparison_as_json(trial, found, wanted_gain=wanted, code=code), None)
    elif config.quiet:
        view.print_line(console(), found)
    else:
        view.print_comparison(console(), trial, found, wanted_gain=wanted)
    return code


def _record(trial: EditTrial) -> int:
    from promptiter.cli.views import edit_trial as view
    from promptiter.cli.views.evaluation import warn_of_uncounted_calls

    def announce(text: str) -> None:
        if not trial.config.quiet:
            echo(text, err=True)

    cases = plural(len(trial.built.cases.cases), "case")
    announce(
        f"recording the baseline: {plural(trial.repeats, 'repeat')} of {cases}, or {trial.most_repeats} if scores vary "
        "between repeats"
    )
    with divert_prints(), _show_progress(trial, "recording the baseline", runs=trial.repeats) as on_row:
        found = trial.record(on_row=on_row, notify=print_stopping, announce=announce)
    warn_of_uncounted_calls(found.evaluation, trial.built.gateway)
    code = view.choose_record_code(found)
    if trial.config.as_json:
        write_text(view.recorded_as_json(trial, found, code=code), None)
    else:
        view.print_recorded(console(), trial, found)
    return code


def _show_progress(
    trial: EditTrial, title: str, *, runs: int
) -> AbstractContextManager[Callable[[CaseRow], None] | None]:
    from promptiter.cli.views.evaluation import show_progress

    return nullcontext() if trial.config.quiet else show_progress(len(trial.built.cases.cases) * runs, title)
