"""Reads the configuration of a command: its options, its subject, and the metrics beside an eval set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from promptiter.agents.base import Agent
from promptiter.config.file import FILE_NAME, ParsedConfig, read_config, read_document
from promptiter.engine.request import SETS
from promptiter.errors import RequestError, SetupError
from promptiter.references import is_reference
from traces.model import Json


def collect_settings(**options: Json | Path) -> dict[str, Json]:
    """The options that were given, under their keys in promptiter.yaml. Paths become absolute."""
    settings: dict[str, Json] = {}
    for key, value in options.items():
        if isinstance(value, Mapping):
            value = collect_settings(**value)
        elif isinstance(value, Path):
            value = str(value.absolute())
        if value not in (None, {}):
            settings[key] = value
    return settings


def read_agent(agent: str | None, sources: Iterable[str], *, is_agent_yaml: bool = False) -> dict[str, Json]:
    """The settings of `--agent` and of options such as `--source system_prompt=prompts/system.md`.

    A name that is not a surface id is that of a prompt: the agent is then a function that reads it itself. For an
    agent.yaml, the agent takes the place of the one in the file, and has its axes.
    """
    found = _read_places(sources)
    prompts: Json = {name: {"place": place} for name, place in found.items() if "#" not in name}
    if prompts and agent is None:
        raise SetupError(f"--source {next(iter(prompts))!r} is a prompt of a function; name the function with --agent")
    if is_agent_yaml and agent is not None and not prompts:
        return {"agent": {"python": agent}, "sources": dict(found)}
    return {
        "agent": {"call": agent, "prompts": prompts, "in_place": True} if prompts else agent,
        "sources": {name: place for name, place in found.items() if "#" in name},
    }


def _read_places(given: Iterable[str]) -> dict[str, str]:
    """The places of sources by name. Paths become absolute."""
    sources: dict[str, str] = {}
    for each in given:
        name, sign, place = each.partition("=")
        if not name or not sign or not place:
            raise SetupError(f"--source {each!r} must be NAME=PLACE, such as system_prompt=prompts/system.md")
        if name in sources:
            raise SetupError(f"--source names {name!r} twice; each prompt has one source")
        sources[name] = place if is_reference(place) else str(Path(place).absolute())
    return sources


def read_subject(
    subject: str | None, *, config: Path | None = None, settings: Mapping[str, Json] | None = None
) -> ParsedConfig:
    """Read the configuration that an argument names: an agent as module:attr, a configuration file, or its folder.

    For an agent, the models, metrics and other settings come from `config`, or from the promptiter.yaml of the current
    folder if there is one.
    """
    is_agent = subject is not None and is_reference(subject) and not Path(subject).exists()
    if is_agent:
        settings = {**(settings or {}), "agent": subject}
    if subject is not None and not is_agent:
        if config is not None:
            raise SetupError(f"{subject!r} and --config {str(config)!r} both name a configuration; give one of them")
        if not Path(subject).exists():
            raise SetupError(f"{subject!r} is neither an agent as module:attr nor a configuration file or its folder")
        config = Path(subject)
    if config is None and is_agent and not Path(FILE_NAME).exists():
        return read_document({}, file=Path(FILE_NAME), settings=settings)
    return read_config(config or Path(FILE_NAME), settings=settings)


def build_subject(parsed: ParsedConfig) -> Agent:
    """The agent of a configuration. SetupError if it has none, or one with problems. Other keys may have some."""
    from promptiter.config.agents import build_agent

    if "agent" in parsed.broken:
        raise RequestError(parsed.problems)
    if not parsed.config.agent:
        raise SetupError("the configuration has no agent; add `agent: module:attr`, or give one here")
    return build_agent(parsed.config.agent, folders=parsed.config.python_path)


def read_with_metrics(
    subject: str | None,
    eval_set: str,
    *,
    config: Path | None = None,
    metrics: Path | None = None,
    settings: Mapping[str, Json] | None = None,
) -> ParsedConfig:
    """`read_subject` with the given metrics; if there are none at all, with those beside the eval set file."""
    settings = dict(settings or {})
    if metrics is not None:
        settings["metrics"] = str(metrics.absolute())
    parsed = read_subject(subject, config=config, settings=settings)
    if parsed.config.metrics is not None or "metrics" in parsed.broken or eval_set in SETS:
        return parsed
    beside = str(_find_metrics_beside(eval_set).absolute())
    return read_subject(subject, config=config, settings={**settings, "metrics": beside})


def _find_metrics_beside(eval_set: str) -> Path:
    folder = Path(eval_set).parent
    for name in ("test_config.json", "optimizer.json"):
        if (folder / name).exists():
            return folder / name
    raise SetupError(f"no metrics: pass --metrics FILE, or put a test_config.json into {str(folder)!r}")
