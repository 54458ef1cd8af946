"""`promptiter.optimize`: a run with the arguments, the checks, the artifacts and the result of AgentOptimizer.

    result = await promptiter.optimize(
        config_path="optimizer.json",
        call_agent=call_agent,
        target_prompt=TargetPrompt().add_path("system_prompt", "prompts/system.md"),
        train_dataset_path="train.evalset.json",
        validation_dataset_path="val.evalset.json",
        output_dir="runs/2026-11-17T02-00-00",
    )

Candidates are written into the sources of the prompts while they run, and the baseline is restored. The run itself is
in `output_dir/run`. A call with the same `output_dir` resumes a run there that did not end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from promptiter.agents.black_box.call import CallAgent
from promptiter.agents.in_place.agent import InPlaceAgent
from promptiter.agents.in_place.saved_baseline import STATE_FOLDER
from promptiter.concurrency import is_async, run_in_thread
from promptiter.config.build import build_run
from promptiter.config.configured_run import ConfiguredRun
from promptiter.config.file import read_config
from promptiter.engine.interrupts import Interrupt, on_signals
from promptiter.engine.run import RunOutcome
from promptiter.errors import ArgumentTypeError, ChangedInputsError, InvalidArgumentError, SetupError
from promptiter.observers.evaluation_callbacks import as_observers
from promptiter.policies.callback_stop import CallbackStop
from promptiter.references import find_reference
from promptiter.runlog.events import Observer
from promptiter.runs.apply import NotAdoptedError, apply_result
from promptiter.runs.directory import RunDirectory, read_finished_run
from promptiter.runs.header import FILE_NAME as HEADER
from promptiter.runs.layout_001 import Layout001
from promptiter.runs.optimize_result import OptimizeResult
from promptiter.runs.place_search import Project
from promptiter.sources import FileSource, Source
from promptiter.target_prompt import TargetPrompt
from promptiter.wording import shorten
from traces.model import Json

RUN_FOLDER = "run"
GEPA_LOGS = ("promptiter.search.gepa_library", "promptiter.backprop.llm.reflector")
"""The loggers of gepa itself, and of the prompts that its reflection model gets."""


async def optimize(
    *,
    config_path: str | os.PathLike[str],
    call_agent: Callable[[str], Awaitable[str]],
    target_prompt: TargetPrompt,
    train_dataset_path: str | os.PathLike[str],
    validation_dataset_path: str | os.PathLike[str],
    output_dir: str | os.PathLike[str],
    callbacks: Any = None,
    update_source: bool = False,
    verbose: int = 1,
    extra_stop_callbacks: Sequence[Callable[[Any], object]] | None = None,
    extra_gepa_callbacks: Sequence[Any] | None = None,
) -> OptimizeResult:
    """Search for better prompts, and test the result. The arguments are those of AgentOptimizer.

    `call_agent` is an async function from a query to the answer, which reads the prompts again in each call.
    `update_source` writes an improvement to the sources. `verbose` is 0 (silent), 1 (progress) or 2 (gepa's log and the
    prompt of each reflection, too). A run that fails is returned with the status `FAILED`; one that is cancelled raises
    CancelledError, once its artifacts are written. ValueError or TypeError if an argument, or a file that it names,
    cannot be used.
    """
    _check_arguments(call_agent, target_prompt, train_dataset_path, validation_dataset_path, output_dir, verbose)
    observers = as_observers(callbacks)
    prompts = target_prompt.sources(loop=asyncio.get_running_loop())
    function = CallAgent(call_agent, prompts=prompts, is_in_place=True)
    agent = InPlaceAgent(function, function.sources, state_folder=_find_folder(config_path) / STATE_FOLDER)
    paths = {"train": train_dataset_path, "validation": validation_dataset_path, "output_dir": output_dir}
    settings = {**_collect_settings(paths), "apply": update_source, **_name_agent(call_agent, prompts)}
    try:
        stoppers = [CallbackStop.of(each) for each in extra_stop_callbacks or ()]
        parsed = await run_in_thread(partial(read_config, config_path, settings=settings))
        build = partial(
            build_run, parsed, agent=agent, stoppers=stoppers, search_callbacks=tuple(extra_gepa_callbacks or ())
        )
        configured = await run_in_thread(build)
    except SetupError as error:
        raise InvalidArgumentError(str(error)) from error
    _warn_about_merge(configured, target_prompt)
    try:
        directory = await run_in_thread(partial(_open_run, configured))
        outcome = await _execute(configured, directory, observers, verbose=verbose)
    finally:
        configured.gateway.cache.close()
    assert isinstance(configured.layout, Layout001), "the settings ask for it"
    result = await run_in_thread(partial(configured.layout.write, outcome.result))
    if verbose:
        _show_result(result, output_dir, update_source=update_source)
    if outcome.is_cancelled and outcome.error is not None:
        raise outcome.error
    if update_source and result.status == "SUCCEEDED":
        with contextlib.suppress(NotAdoptedError):
            project = Project(folder=_find_folder(config_path))
            apply = partial(apply_result, outcome.result, directory.path, project=project, sources=agent.sources)
            await run_in_thread(apply)
    return result


def _check_arguments(
    call_agent: object,
    target_prompt: object,
    train: str | os.PathLike[str],
    validation: str | os.PathLike[str],
    output_dir: str | os.PathLike[str],
    verbose: object,
) -> None:
    if not os.fspath(output_dir):
        raise InvalidArgumentError("output_dir is empty; name a folder for the artifacts, such as runs/2026-11-17")
    if not isinstance(target_prompt, TargetPrompt):
        raise ArgumentTypeError(f"target_prompt is {shorten(target_prompt)}; give a TargetPrompt")
    if not target_prompt.names():
        raise InvalidArgumentError("target_prompt has no prompts; add one with add_path or add_callback")
    if not callable(call_agent) or not _is_async(call_agent):
        raise ArgumentTypeError(
            f"call_agent is {shorten(call_agent)}, which is not async; define it as `async def call_agent(query: str) "
            "-> str`"
        )
    if os.path.normpath(Path(train).absolute()) == os.path.normpath(Path(validation).absolute()):
        raise InvalidArgumentError(
            f"train_dataset_path and validation_dataset_path are the same file, {os.fspath(train)!r}; candidates must "
            "be compared on cases that the search has not learned from"
        )
    if verbose not in (0, 1, 2):
        raise InvalidArgumentError(f"verbose is {verbose!r}; give 0, 1 or 2")


def _find_folder(file: str | os.PathLike[str]) -> Path:
    return Path(file).absolute().parent


def _collect_settings(paths: Mapping[str, str | os.PathLike[str]]) -> dict[str, Json]:
    """The settings of a run with these paths, which are relative to the current folder."""
    absolute = {name: str(Path(each).absolute()) for name, each in paths.items()}
    return {**absolute, "runs": str(Path(absolute["output_dir"]) / RUN_FOLDER), "layout": "001"}


def _is_async(function: Any) -> bool:
    """Whether a function is async, also one with some arguments filled in, or that another one wraps."""
    seen = []
    while function is not None and function not in seen:
        if is_async(function):
            return True
        seen.append(function)
        function = getattr(function, "func", None) or getattr(function, "__wrapped__", None)
    return False


def _name_agent(call_agent: Callable[..., Any], prompts: Mapping[str, Source]) -> dict[str, Json]:
    """The settings with which `promptiter resume` builds the agent again; none if a part of it has no name."""
    reference = find_reference(call_agent)
    places: dict[str, Json] = {
        name: {"place": str(each.path)} for name, each in prompts.items() if isinstance(each, FileSource)
    }
    module = sys.modules.get(getattr(call_agent, "__module__", ""))
    file = getattr(module, "__file__", None)
    if reference is None or len(places) < len(prompts) or file is None:
        return {}
    depth = reference.partition(":")[0].count(".") + (Path(file).stem == "__init__")
    agent: Json = {"call": reference, "prompts": places, "in_place": True}
    return {"agent": agent, "python_path": [str(Path(file).absolute().parents[depth])]}


def _warn_about_merge(configured: ConfiguredRun, target: TargetPrompt) -> None:
    search = configured.config.search
    if search is not None and search.options.get("use_merge") and len(target.names()) < 2:
        warnings.warn(
            "use_merge has no effect with one prompt: a merge takes the texts of different prompts from two candidates",
            UserWarning,
            stacklevel=3,
        )


def _open_run(configured: ConfiguredRun) -> RunDirectory:
    """Resume the last run of the folder if it did not end, and its inputs are the same; otherwise begin one."""
    folders = sorted(each.parent for each in configured.config.runs.glob(f"*/{HEADER}"))
    if folders and read_finished_run(folders[-1]) is None:
        with contextlib.suppress(ChangedInputsError):
            return configured.resume(folders[-1])
    return configured.begin()


async def _execute(
    configured: ConfiguredRun,
    directory: RunDirectory,
    observers: Sequence[Observer],
    *,
    verbose: int,
) -> RunOutcome:
    interrupt = Interrupt()
    configured.watch_output_dir(interrupt)
    task = asyncio.current_task()
    assert task is not None, "a coroutine runs in a task"
    with _show_progress(configured, directory, verbose) as shown, on_signals(interrupt, task.cancel):
        return await directory.execute(observers=(*observers, *shown), interrupt=interrupt)


@contextlib.contextmanager
def _show_progress(configured: ConfiguredRun, directory: RunDirectory, verbose: int) -> Iterator[tuple[Observer, ...]]:
    if not verbose:
        yield ()
        return
    from promptiter.observers.progress import RunProgress

    ledger = configured.gateway.ledger
    with contextlib.ExitStack() as stack:
        for name in GEPA_LOGS if verbose > 1 else ():
            stack.enter_context(_show_log(name))
        progress = stack.enter_context(RunProgress(spent=lambda: ledger.snapshot().of_models))
        progress.catch_up(directory.journal.read())
        yield (progress,)


def _show_result(result: OptimizeResult, output_dir: str | os.PathLike[str], *, update_source: bool) -> None:
    """Write the summary of a run to standard error, below its progress; of one that did not succeed, why."""
    text = f"{result.status}: {result.error_message or result.stop_reason}\n"
    if result.status == "SUCCEEDED":
        text = result.format_summary(output_dir=Path(output_dir).absolute(), update_source=update_source)
    sys.stderr.write(text)


@contextlib.contextmanager
def _show_log(name: str) -> Iterator[None]:
    """Print everything that a logger says to standard error."""
    logger, handler = logging.getLogger(name), logging.StreamHandler()
    handler.setFormatter(logging.Formatter("gepa: %(message)s"))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
