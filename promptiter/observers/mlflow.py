"""MlflowObserver: a run in MLflow, with its rounds as nested runs and its accepted prompts in the prompt registry.

A run is found again by its tag. A metric that is logged twice at the same time with the same value is one point, and a
prompt with the same text is one version, so a resumed run can send everything again.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson

from promptiter.observers.points import Fact, Point
from promptiter.observers.tracker import TrackedRun, Tracker, find_report, list_files
from traces.model import Json

RUN_ID = "promptiter.run_id"
ROUND = "promptiter.round"
LINKED_PROMPTS = "mlflow.linkedPrompts"
EXPERIMENTS_OF_PROMPT = "_mlflow_experiment_ids"
"""MLflow's pages find prompts by these tags."""

MOST_RUNS = 50_000
"""The most runs that MLflow returns at once."""

LONGEST_TAG = 5000
LONGEST_PARAMETER = 6000
LONGEST_PROMPT = 100_000
LONGEST_NAME = 250
STATUS = {"succeeded": "FINISHED", "cancelled": "KILLED", "failed": "FAILED"}
UNLESS_SET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
}
"""Environment variables of MLflow that are set if they are not: no telemetry, and no minutes of retries."""


class MlflowObserver(Tracker):
    """Logs runs to MLflow. By default the tracking URI is that of the environment, as MLflow itself reads it."""

    name = package = "mlflow"
    noisy_loggers = ("urllib3.connectionpool",)

    def __init__(
        self,
        *,
        tracking_uri: str | None = None,
        experiment: str = "promptiter",
        prompts: bool = True,
        timeout_s: float = 30.0,
    ) -> None:
        self.tracking_uri = tracking_uri
        self.experiment = experiment
        self.prompts = prompts
        super().__init__(timeout_s=timeout_s)

    def open_run(self, start: Point, folder: Path | None) -> TrackedRun:
        for name, value in UNLESS_SET.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient

        client = MlflowClient(self.tracking_uri, registry_uri=self.tracking_uri)
        return _MlflowRun(client, start, folder=folder, experiment=self.experiment, with_prompts=self.prompts)


class _MlflowRun:
    def __init__(self, client: Any, start: Point, *, folder: Path | None, experiment: str, with_prompts: bool) -> None:
        self._client = client
        self._folder = folder
        self._start = start
        self._agent = str(start.facts["agent"])
        self._with_prompts = with_prompts
        found = client.get_experiment_by_name(experiment)
        self._experiment_id = client.create_experiment(experiment) if found is None else found.experiment_id
        self._key = re.sub(r"""['"`\\]""", "_", start.run_id)  # a search cannot quote these
        tags = {RUN_ID: self._key, "promptiter.agent": self._agent}
        known = self._find_runs(f"tags.`{RUN_ID}` = '{self._key}'")
        self._run_id = known.get(self._key) or self._create(tags, name=f"{self._agent} {start.run_id}", at=start.at)
        client.update_run(self._run_id, status="RUNNING")  # also one that ended and was resumed
        self._known_rounds = self._find_runs(f"tags.`mlflow.parentRunId` = '{self._run_id}'") if known else {}
        self._rounds: dict[int, str] = {}
        self._names: dict[str, str] = {}
        self._values: dict[str, Json] = {}
        self._versions: dict[str, dict[str, int]] = {}
        self._prompts: dict[str, int] = {}

    def write(self, point: Point) -> None:
        self._log(self._run_id, point, figures=point.figures)
        match point.type:
            case "run_started":
                where = {} if self._folder is None else {"report": find_report(self._folder)}
                self._log(self._run_id, point, parameters=point.facts, tags=where)
            case "round_started":
                self._open_round(point)
            case "round_completed":
                self._log(self._open_round(point), point, figures=point.figures, tags=point.facts)
                self._client.set_terminated(self._rounds.pop(point.round), end_time=_milliseconds(point.at))
            case "conclusion":
                self._log(self._run_id, point, tags=point.facts)
        if point.profile is not None:
            self._register_prompts(point)

    def close(self, end: Point | None) -> None:
        for run_id in self._rounds.values():
            self._client.set_terminated(run_id, status="KILLED")
        for path in list_files(self._folder):
            assert self._folder is not None
            inside = path.parent.relative_to(self._folder).as_posix()
            self._client.log_artifact(self._run_id, str(path), None if inside == "." else inside)
        if end is None:
            self._client.set_terminated(self._run_id, status="KILLED")
            return
        self._log(self._run_id, end, figures=end.figures, tags=end.facts)
        note = f"**{end.facts['verdict']}**\n\n{find_report(self._folder)}"
        self._client.set_tag(self._run_id, "mlflow.note.content", note)
        if end.profile is not None:
            self._client.log_text(self._run_id, orjson.dumps(end.profile, option=2).decode(), "accepted_profile.json")
            if end.facts["is_final"] and "changed" in end.facts:
                self._mark_adopted(end.profile)
        self._show_prompts()
        status = STATUS.get(str(end.facts["status"]), "FINISHED")
        self._client.set_terminated(self._run_id, status=status, end_time=_milliseconds(end.at))

    def _open_round(self, point: Point) -> str:
        if point.round not in self._rounds:
            tags = {RUN_ID: f"{self._key}/{point.round}", "mlflow.parentRunId": self._run_id}
            tags[ROUND] = str(point.round)
            known = self._known_rounds.get(tags[RUN_ID])
            self._rounds[point.round] = known or self._create(tags, name=f"round {point.round}", at=point.at)
        return self._rounds[point.round]

    def _find_runs(self, query: str) -> dict[str, str]:
        """The ids of runs in MLflow by the ids that they have here."""
        found = self._client.search_runs([self._experiment_id], filter_string=query, max_results=MOST_RUNS)
        return {run.data.tags[RUN_ID]: str(run.info.run_id) for run in found}

    def _create(self, tags: Mapping[str, str], *, name: str, at: float) -> str:
        return str(self._client.create_run(self._experiment_id, _milliseconds(at), dict(tags), name).info.run_id)

    def _log(
        self,
        run_id: str,
        point: Point,
        *,
        figures: Mapping[str, float] | None = None,
        parameters: Mapping[str, Fact] | None = None,
        tags: Mapping[str, Fact] | None = None,
    ) -> None:
        from mlflow.entities import Metric, Param, RunTag

        at, step = _milliseconds(point.at), point.round
        metrics = [Metric(self._name(name), value, at, step) for name, value in (figures or {}).items()]
        params = [Param(self._name(name), str(value)[:LONGEST_PARAMETER]) for name, value in (parameters or {}).items()]
        run_tags = [RunTag(f"promptiter.{name}", str(value)[:LONGEST_TAG]) for name, value in (tags or {}).items()]
        if metrics or params or run_tags:
            self._client.log_batch(run_id, metrics, params, run_tags)

    def _register_prompts(self, point: Point) -> None:
        """Register the texts that changed since the last profile, those of the baseline first."""
        changed = {name: value for name, value in (point.profile or {}).items() if self._values.get(name) != value}
        self._values |= changed
        texts = {name: value for name, value in changed.items() if isinstance(value, str) and value.strip()}
        texts = {name: text for name, text in texts.items() if len(text) <= LONGEST_PROMPT}
        if not self._with_prompts or not texts:
            return
        message = f"round {point.round} of {point.run_id}" if point.round else f"baseline of {point.run_id}"
        for surface_id, text in texts.items():
            self._prompts[surface_id] = self._register(surface_id, text, message=message)
        linked = [{"name": self._prompt_name(each), "version": str(n)} for each, n in sorted(self._prompts.items())]
        tag = orjson.dumps(linked).decode()
        if len(tag) <= LONGEST_TAG:
            self._client.set_tag(self._run_id, LINKED_PROMPTS, tag)

    def _register(self, surface_id: str, text: str, *, message: str) -> int:
        name = self._prompt_name(surface_id)
        if name not in self._versions:
            is_known = self._client.get_prompt(name) is not None
            found = self._client.search_prompt_versions(name) if is_known else []
            self._versions[name] = {each.template: int(each.version) for each in found}
        versions = self._versions[name]
        if text not in versions:
            tags = {RUN_ID: self._start.run_id, "promptiter.surface": surface_id}
            versions[text] = int(self._client.register_prompt(name, text, commit_message=message, tags=tags).version)
        return versions[text]

    def _mark_adopted(self, profile: Mapping[str, Json]) -> None:
        """Give the adopted versions the alias `adopted`."""
        for surface_id, version in self._prompts.items():
            if self._values.get(surface_id) == profile.get(surface_id):
                self._client.set_prompt_alias(self._prompt_name(surface_id), "adopted", version)

    def _show_prompts(self) -> None:
        """Show the prompts on the page of the experiment. MLflow's own threads show them on that of another first."""
        for surface_id in self._prompts:
            name = self._prompt_name(surface_id)
            known = str(self._client.get_prompt(name).tags.get(EXPERIMENTS_OF_PROMPT, "")).strip(",").split(",")
            ids = ",".join(sorted({self._experiment_id, *known} - {""}))
            self._client.set_prompt_tag(name, EXPERIMENTS_OF_PROMPT, f",{ids},")

    def _prompt_name(self, surface_id: str) -> str:
        text = f"{self._agent}.{surface_id}"
        name = re.sub(r"[^A-Za-z0-9_.-]", "-", text)
        return name if text.isascii() and len(name) <= LONGEST_NAME else _shorten(name, text)

    def _name(self, text: str) -> str:
        """A name of a metric or parameter that MLflow takes, different for each text."""
        name = posixpath.normpath(re.sub(r"[^\w./ -]|\.\.", "_", text))
        is_free = self._names.setdefault(name, text) == text
        return name if is_free and len(name) <= LONGEST_NAME else _shorten(name, text)


def _shorten(name: str, text: str) -> str:
    """A name that cannot hold the whole text, made different from that of other texts."""
    return f"{name[: LONGEST_NAME - 9]}-{sha256(text.encode()).hexdigest()[:8]}"


def _milliseconds(at: float) -> int:
    return round(at * 1000)
