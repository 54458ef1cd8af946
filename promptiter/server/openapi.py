"""The OpenAPI document of the HTTP API: what FastAPI finds, and what it cannot know."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from promptiter.runlog.events import SCHEMA_VERSION
from promptiter.server.bodies import ErrorBody, RunEnvelope
from promptiter.server.refine_bodies import RefineBody

Responses = dict[int | str, dict[str, Any]]

_REFERENCE = "#/components/schemas/{model}"
_SCHEME = "bearer"
OPEN_PATH = "/health"
"""Needs no token."""


def list_errors(**texts: str) -> Responses:
    """Descriptions of errors by status: `list_errors(_404="There is none.")`."""
    content = {"application/json": {"schema": {"$ref": _REFERENCE.format(model=ErrorBody.__name__)}}}
    return {int(name[1:]): {"description": text, "content": content} for name, text in texts.items()}


TOKEN_ERRORS = list_errors(
    _401="A valid token is missing.",
    _403="The token does not allow this, or the request comes from a web page of another site.",
    _429="Too many requests.",
    _503="The server cannot do this now.",
)
READ_ERRORS = TOKEN_ERRORS | list_errors(_404="There is no such app, run or trace.", _422="A parameter is wrong.")
CHANGE_ERRORS = READ_ERRORS | list_errors(
    _400="It cannot be done, and why.", _409="The run is not in a state for this."
)
RUN_ERRORS = READ_ERRORS | list_errors(
    _400="The run is wrong, with a list of all problems.",
    _408="The body did not arrive in time.",
    _413="The body is too large.",
    _415="The body is not JSON.",
)
REFINE_ERRORS = RUN_ERRORS | list_errors(_409="The run is in progress, or is being refined, or is not in a folder.")
WAIT_ERRORS = list_errors(_504="The run takes too long to wait for it, and continues in the background.")

KNOWN_RESULT: Responses = {304: {"description": "The run has not changed: `If-None-Match` names its current tag."}}
NO_RESULT = list_errors(_409="The run has not ended.")
NO_REPORT = list_errors(_409="The run has not begun.")
EVENTS: Responses = {
    200: {
        "description": "Events as `id: <number>`, `event: <type>` and `data: <JSON>`; the last one is `event: end`.",
        "content": {
            "text/event-stream": {
                "schema": {
                    "description": "One event.",
                    "type": "object",
                    "properties": {name: {"type": "string"} for name in ("id", "event", "data")},
                    "required": ["event", "data"],
                }
            }
        },
    }
}
METRICS: Responses = {
    200: {
        "description": "The text format of Prometheus.",
        "content": {"text/plain": {"schema": {"type": "string"}}},
    }
}
REPORT: Responses = {
    200: {"description": "A page without scripts.", "content": {"text/html": {"schema": {"type": "string"}}}}
}
ARCHIVE: Responses = {
    200: {
        "description": "A zip file with run.json, journal.jsonl and others.",
        "content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}},
    }
}
RUN_BODY = {
    "requestBody": {
        "required": False,
        "content": {"application/json": {"schema": {"$ref": _REFERENCE.format(model=RunEnvelope.__name__)}}},
    }
}

REFINE_BODY = {
    "requestBody": {
        "required": False,
        "content": {"application/json": {"schema": {"$ref": _REFERENCE.format(model=RefineBody.__name__)}}},
    }
}


OPERATIONS: Mapping[str, tuple[str, str]] = {
    "get_structure": ("Show what may change about the agent", "The structure of the agent."),
    "run": ("Start a run and wait for its result", "The result of the run."),
    "start_run": ("Start a run", "The run is queued; `Location` says where its state is."),
    "list_runs": ("List runs", "A page of runs, newest first."),
    "get_run": ("Show a run", "The state of the run, finished or in progress."),
    "get_result": ("Show the result of a run", "The result of the run, which has ended."),
    "delete_run": ("Delete a run", "The run is deleted."),
    "cancel_run": ("Cancel a run at once", "The run is cancelled."),
    "stop_run": ("Stop a run after its work in progress", "The run will stop."),
    "resume_run": ("Resume a run", "The run will be continued."),
    "refine_run": ("Refine the output of a case of a run", "The refinement has started."),
    "list_refinements": ("List the refinements of a run", "The refinements, oldest first."),
    "get_events": ("Stream the events of a run", ""),
    "get_trace": ("Show a trace of a run", "The trace."),
    "get_report": ("Show the report of a run", ""),
    "get_archive": ("Download a copy of a run", ""),
    "get_health": ("Check whether the server works", "The server works."),
    "get_metrics": ("Read the metrics of the server", ""),
}
"""What each operation does, and what its success means if its responses do not say it."""


def _describe_operations(paths: Mapping[str, dict[str, Any]]) -> None:
    for operations in paths.values():
        for operation in operations.values():
            operation["summary"], success = OPERATIONS[operation["operationId"]]
            for status, answer in operation["responses"].items():
                if status.startswith("2") and success:
                    answer["description"] = success


def complete_document(document: dict[str, Any], *, has_tokens: bool) -> None:
    """Complete the document that FastAPI has made."""
    document["info"]["description"] = 'Runs of promptiter. Every error is `{"error": "what happened"}`.'
    components: dict[str, Any] = document["components"]
    schemas: dict[str, Any] = components["schemas"]
    _add_body(schemas)
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    result = schemas["RunResult"]
    result["properties"]["schema_version"] = {"const": SCHEMA_VERSION, "description": "The version of result.json."}
    result["required"] = sorted(result["properties"])
    schemas["Surface"]["properties"]["id"] = {"type": "string", "description": "Its name, in the answer of /structure."}
    if has_tokens:
        components["securitySchemes"] = {_SCHEME: {"type": "http", "scheme": "bearer"}}
        for path, operations in document["paths"].items():
            for operation in operations.values():
                operation["security"] = [] if path == OPEN_PATH else [{_SCHEME: []}]
    _describe_operations(document["paths"])
    _add_links(document["paths"])


def find_methods(document: Mapping[str, Any], path: str) -> list[str]:
    """The methods of a path."""
    return sorted(
        method.upper()
        for template, operations in document["paths"].items()
        if re.fullmatch(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(template)), path)
        for method in operations
    )


def _add_body(schemas: dict[str, Any]) -> None:
    """The body of a run is read by hand, with limits, so FastAPI does not know it. Nor does it know errors."""
    models: list[tuple[type[BaseModel], JsonSchemaMode]] = [
        (RunEnvelope, "validation"),
        (RefineBody, "validation"),
        (ErrorBody, "serialization"),
    ]
    _, found = models_json_schema(models, ref_template=_REFERENCE)
    for name, schema in found["$defs"].items():
        assert schemas.setdefault(name, schema) == schema, f"two schemas are called {name!r}"


def _add_links(paths: Mapping[str, dict[str, Any]]) -> None:
    """What can be asked about a run that was started."""
    one = {
        operation["operationId"]: path
        for path, operations in paths.items()
        for operation in operations.values()
        if "{run_id}" in path and "{digest}" not in path
    }
    links = {
        name: {
            "operationId": name,
            "parameters": {"app": "$request.path.app", "run_id": "$response.body#/result/measured/run_id"},
        }
        for name in one
    }
    for path, operations in paths.items():
        if path.endswith("runs") and "post" in operations:
            for status, answer in operations["post"]["responses"].items():
                if status in ("200", "201"):
                    answer["links"] = links
