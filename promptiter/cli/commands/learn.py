"""`promptiter learn`: turn failed runs of production into patches, from their traces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from promptiter.cli.exit_codes import EXIT_CODES, choose_stop_code
from promptiter.cli.load import collect_settings
from promptiter.cli.options import AsJson, MaxUsd
from promptiter.cli.output import SteadyConsole, console, divert_prints, echo, write_text

if TYPE_CHECKING:
    from promptiter.config.configured_run import ConfiguredLearning
    from promptiter.config.file import ParsedConfig
    from promptiter.engine.interrupts import Interrupt
    from promptiter.evaluation.metrics.metric import Metric
    from promptiter.tasks.feedback import FeedbackFile
    from promptiter.tasks.lessons import Lessons
    from promptiter.tasks.production_runs import ProductionRuns


def learn(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRACES...",
            help="Files of traces, or exports of spans as `promptiter trace import` reads them.",
        ),
    ],
    feedback: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="What users said, as CSV or JSON lines: trace_id or conversation_id, and rating, score, comment or "
            "expected.",
        ),
    ] = None,
    good_from: Annotated[
        float | None,
        typer.Option("--good-from", metavar="SCORE", help="The least score of the feedback that counts as good."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", metavar="CONFIG", help="The configuration file; by default promptiter.yaml, if there is one."
        ),
    ] = None,
    agent: Annotated[
        str | None, typer.Option("--agent", metavar="AGENT", help="The live agent as module:attr, instead of CONFIG's.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="NAME", help="The model that finds causes and writes patches."),
    ] = None,
    metrics: Annotated[
        bool, typer.Option("--metrics", help="Judge the runs by the metrics of CONFIG, also those with feedback.")
    ] = False,
    most: Annotated[
        int, typer.Option("--most", min=1, metavar="N", help="Failed runs to look into; of more, a sample.")
    ] = 100,
    max_usd: MaxUsd = None,
    validate: Annotated[
        bool,
        typer.Option("--validate/--no-validate", help="Validate the patches with the live agent.", show_default=True),
    ] = True,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what fails and what learning would cost, and spend nothing.")
    ] = False,
    folder: Annotated[
        Path, typer.Option("--folder", metavar="FOLDER", help="Where lessons, patches and cases are written.")
    ] = Path("lessons"),
    as_json: AsJson = False,
) -> None:
    """Learn from traces of production.

    Failed runs are found by feedback, by metrics, or by their errors. The cause of each failure is followed back over
    the recorded steps to the text behind it, and a patch is written for each text that enough failures come from.
    Nothing is run again: the traces say what happened, and nothing else is evidence.

    With a live agent the patches are validated as in `promptiter run`, on your eval sets and on cases from the traces.
    """
    from functools import partial

    from promptiter.cli.run_execution import execute, prepare_run
    from promptiter.cli.views import learn as view
    from promptiter.cli.views.lessons_diagram import lessons_as_svg
    from promptiter.config.build import build_learning
    from promptiter.config.learned_run import choose_metrics, find_budget_left, list_own_cases, read_learned_run
    from promptiter.engine.interrupts import Interrupt
    from promptiter.tasks.learning import MOST_PASSING
    from promptiter.tasks.lesson_files import write_lesson_files
    from promptiter.tasks.production_runs import MOST_KEPT, read_production
    from promptiter.tasks.trace_files import read_trace_files
    from promptiter.wording import join_names

    parsed = _read_config(config, agent=agent, model=model, max_usd=max_usd)
    said, interrupt = _load_feedback(feedback, good_from), Interrupt()
    with divert_prints():
        built = build_learning(parsed)
    try:
        has_metrics = metrics or (said is None and any(not each.needs_reference for each in built.evaluator.metrics))
        most_unjudged = MOST_KEPT if has_metrics else MOST_PASSING if said is None else 0
        production = read_production(read_trace_files(files), said, most_unjudged=most_unjudged)
        lessons = _learn(built, production, interrupt, metrics=metrics, most=most, dry_run=dry_run)
    finally:
        built.gateway.cache.close()
    if lessons is None:
        return
    is_compared = any(metric.needs_reference for metric in built.evaluator.metrics)
    is_compared |= built.live is not None and built.config.metrics is None
    files = write_lesson_files(
        folder,
        lessons,
        production.runs,
        said,
        own=list_own_cases(built.config),
        need_references=is_compared,
    )
    texts = {
        "lessons.json": view.lessons_as_json(lessons),
        "lessons.md": view.lessons_as_markdown(lessons),
        view.PICTURE: lessons_as_svg(lessons),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    if as_json:
        write_text(texts["lessons.json"], None)
    else:
        view.print_lessons(console(), lessons, [folder / "lessons.md", *files])
    if lessons.stop_reason is not None:
        raise typer.Exit(choose_stop_code(lessons.stop_reason))
    if not lessons.patches or built.live is None or not validate:
        return
    if not all(find_budget_left(built.gateway.budget).values()):
        echo("The patches are not validated: the budget is spent.", err=True)
        raise typer.Exit(EXIT_CODES["budget_ended"])
    chosen = [] if built.config.metrics is not None else choose_metrics(built.config, folder)
    if (problem := _find_obstacle(built, folder, has_metrics=bool(chosen))) is not None:
        echo(f"The patches are not validated: {problem}.", err=True)
        if agent is not None:
            raise typer.Exit(2)
        return
    if chosen:
        names = join_names([str(each["metric_name"]) for each in chosen])
        echo(f"No metrics are configured: {names} validates the patches, by the references of the cases.", err=True)
    validation = read_learned_run(parsed, folder, metrics=chosen or None, budget=built.gateway.budget)
    execute(partial(prepare_run, validation))


def _find_obstacle(built: ConfiguredLearning, folder: Path, *, has_metrics: bool) -> str | None:
    """Why the patches cannot be validated with the live agent; None if they can."""
    from promptiter.config.file import FILE_NAME
    from promptiter.config.learned_run import has_cases_to_show

    if built.config.metrics is None and not has_metrics:
        return (
            f"there are no metrics to judge the live agent by; list them in {FILE_NAME} (see `promptiter init`). If "
            "feedback says what was `expected`, as JSON, or as text and a model is given, that is compared"
        )
    if not has_cases_to_show(built.config, folder):
        return (
            "the metrics compare with a reference, and no failed run has one; give eval sets, or `expected` in the "
            "feedback"
        )
    return None


def _read_config(config: Path | None, **options: object) -> ParsedConfig:
    from promptiter.config.file import FILE_NAME, read_config, read_document

    settings = collect_settings(agent=options["agent"], stages=options["model"], budget={"max_usd": options["max_usd"]})
    if config is None and not Path(FILE_NAME).exists():
        return read_document({}, file=Path(FILE_NAME), settings=settings)
    return read_config(config or Path(FILE_NAME), settings=settings)


def _load_feedback(file: Path | None, good_from: float | None) -> FeedbackFile | None:
    from promptiter.tasks.feedback import load_feedback

    return None if file is None else load_feedback(file, good_from=good_from)


def _learn(
    built: ConfiguredLearning,
    production: ProductionRuns,
    interrupt: Interrupt,
    *,
    metrics: bool,
    most: int,
    dry_run: bool,
) -> Lessons | None:
    import asyncio
    from functools import partial

    from promptiter.cli.views import learn as view
    from promptiter.cli.views.judge_check import show_judging
    from promptiter.engine.interrupts import run_blocking
    from promptiter.evaluation.metrics.judge import JudgeMetric
    from promptiter.tasks.failed_runs import find_failures, select_runs
    from promptiter.tasks.learning import learn
    from promptiter.tasks.learning_forecast import forecast_blame, forecast_judging, forecast_learning
    from promptiter.wording import join_names

    evaluator, stages, gateway = built.evaluator, built.stages, built.gateway
    select = partial(
        select_runs,
        production.runs,
        live=built.live,
        recorded=production.structure,
        tally=production.tally,
        notes=production.notes,
    )
    chosen = _choose_metrics(built, production, metrics=metrics)
    selected = select(metrics=chosen)
    screen = console() if dry_run else SteadyConsole()
    judges = [each.name for each in chosen if isinstance(each, JudgeMetric)]
    if judges:
        blame = forecast_blame(selected, stages, gateway, most=most)
        view.print_judging_forecast(screen, selected, forecast_judging(selected, gateway), blame)

    async def work() -> Lessons:
        with show_judging(len(selected.runs), "judging runs") as advance:
            found = await find_failures(selected, evaluator=evaluator, most=most, notify=advance, interrupt=interrupt)
        view.print_forecast(screen, found, forecast_learning(found, stages, gateway))
        with show_judging(len(found.sample), "looking for causes") as advance:
            return await learn(
                found, evaluator=evaluator, live=built.live, notify=advance, interrupt=interrupt, **stages
            )

    if not dry_run:
        with divert_prints():
            return run_blocking(work, interrupt, notify=partial(echo, err=True))
    if judges:
        echo(f"A dry run asks no judge, so these metrics are not applied: {join_names(judges)}.", err=True)
        selected = select(metrics=[each for each in chosen if not isinstance(each, JudgeMetric)])
    with divert_prints():
        found = asyncio.run(find_failures(selected, evaluator=evaluator, most=most))
    view.print_forecast(screen, found, forecast_learning(found, stages, gateway))
    view.print_groups(screen, found.groups)
    view.print_notes(screen, found)
    return None


def _choose_metrics(built: ConfiguredLearning, production: ProductionRuns, *, metrics: bool) -> Sequence[Metric]:
    """The metrics that judge the runs: all, or without feedback those that need no reference, or none."""
    chosen = built.evaluator.metrics if metrics or not production.has_feedback else ()
    return [each for each in chosen if metrics or not each.needs_reference]
