from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest

from promptiter.engine.engine import Engine
from promptiter.errors import RequestError, SetupError
from promptiter.llm.gateway import Gateway
from promptiter.llm.redaction import Redactor
from promptiter.llm.secret import Secret
from promptiter.policies.acceptance import MinGain, NoRegression
from promptiter.policies.stop_limits import MaxUsd
from promptiter.policies.stopping import Patience
from promptiter.runs.header import Configuration, RunHeader, build_header, read_header, write_header
from tests.worlds import desk

WHEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
CONFIG: dict[str, Any] = {
    "agent": "desk:agent",
    "max_rounds": 4,
    "stop": {"minutes": 30},
    "evaluation": {"concurrency": 4, "repeats": 2},
    "models": {"gpt-4.1": {"api_base": "https://example.org", "api_key": "${KEY}", "timeout_s": 3}},
}


def header(engine: Engine | None = None, *, config: dict[str, Any] | None = None, **changes: Any) -> RunHeader:
    chosen = engine or desk.engine(desk.DRAFT)
    configuration = Configuration(file="promptiter.yaml", document=CONFIG if config is None else config)
    return build_header(
        chosen, chosen.check(desk.request(**changes)), run_id="r", created_at=WHEN, configuration=configuration
    )


def test_a_header_survives_a_round_trip(tmp_path: Path) -> None:
    written = header(acceptance=MinGain(0.01) & NoRegression(), stop=Patience(2) | MaxUsd(3.0))
    assert write_header(tmp_path, written) == tmp_path / "run.json"
    assert read_header(tmp_path) == written
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_a_header_holds_the_inputs_of_a_run() -> None:
    snapshot, found = desk.agent().describe(), header(max_rounds=7, seed=5, acceptance=MinGain(0.01) & NoRegression())
    assert list(found.model_dump()) == [
        *("schema_version", "run_id", "created_at", "versions", "request", "app", "configuration"),
        *("overlay", "parts", "structure", "models", "train", "validation", "test", "judges"),
    ]
    assert found.created_at == "2026-01-02T03:04:05+00:00"
    assert found.structure.structure_id == snapshot.structure_id
    assert found.structure.baseline_id == snapshot.baseline_id
    assert found.train.content_digest == desk.eval_set("train", 3).content_digest
    assert list(found.train.cases) == ["train-0", "train-1", "train-2"]
    assert found.request["seed"] == 5
    assert found.request["acceptance"] == "MinGain(0.01) & NoRegression()"
    assert found.request["targets"] == ["draft#instruction", "polish#instruction"]
    assert found.versions.python.startswith("3.")
    assert found.versions.litellm
    assert found.configuration is not None
    assert found.configuration.document == CONFIG


def test_an_invalid_request_has_no_header() -> None:
    with pytest.raises(RequestError, match="max_rounds is -1"):
        header(max_rounds=-1)


def test_a_header_is_written_once(tmp_path: Path) -> None:
    write_header(tmp_path, header())
    raw = (tmp_path / "run.json").read_bytes()
    with pytest.raises(SetupError, match=r"run.json' already exists, .* never changes"):
        write_header(tmp_path, header(seed=3))
    assert (tmp_path / "run.json").read_bytes() == raw


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (None, "is not a run: it has no run.json"),
        (b'{"schema_version": 2', "cannot be read: .*; restore it from a copy"),
        (b'{"schema_version": 1}', "has schema_version 1, and this release reads 2; use the release"),
        (b"[]", "has schema_version None, and this release reads 2"),
        (b'{"schema_version": 2, "run_id": "r"}', "is not a valid run header: created_at: Field required"),
    ],
)
def test_an_unusable_header_is_reported(tmp_path: Path, raw: bytes | None, expected: str) -> None:
    if raw is not None:
        (tmp_path / "run.json").write_bytes(raw)
    with pytest.raises(SetupError, match=expected):
        read_header(tmp_path)


def test_a_header_holds_no_secrets(tmp_path: Path) -> None:
    canary = "canary-4711-bird"
    gateway = Gateway(models={"scripted": desk.model()}, redactor=Redactor([canary]))
    config = {
        "teacher": canary,
        "models": {
            "literal": {"api_key": "plain-old-words", "headers": {"X-Any": "of the header", "X-Var": "${TOKEN}"}},
            "by_name": {"api_key": "${OPENAI_API_KEY}", "headers": {"Authorization": "Bearer ${A}${B}"}},
            "half": {"api_key": "half-literal-${A}", "api_base": "https://me:pass4711@example.org"},
            "read": {"api_key": Secret("revealed", source="${KEY}"), "headers": {"X": Secret("revealed")}},
        },
        "metrics": [{"name": "judge", "options": [{"password": "open sesame"}], "threshold": 0.5}],
        "more": [{"extra_headers": {"X": ["of the header"]}, "secret": {"pin": 471100}, "max_tokens": 7}],
    }
    found = header(desk.engine(desk.DRAFT, gateway=gateway), config=config, teacher=canary)
    raw = write_header(tmp_path, found).read_bytes()
    for secret in (canary, "plain-old", "of the header", "half-literal", "pass4711", "revealed", "sesame", "471100"):
        assert secret.encode() not in raw
    models = orjson.loads(raw)["configuration"]["document"]["models"]
    assert models["literal"] == {"api_key": "***", "headers": {"X-Any": "***", "X-Var": "${TOKEN}"}}
    assert models["by_name"] == {"api_key": "${OPENAI_API_KEY}", "headers": {"Authorization": "Bearer ${A}${B}"}}
    assert models["half"] == {"api_key": "***", "api_base": "https://me:***@example.org"}
    assert models["read"] == {"api_key": "${KEY}", "headers": {"X": "***"}}
    assert found.configuration is not None
    document = found.configuration.document
    assert document["more"] == [{"extra_headers": {"X": ["***"]}, "secret": {"pin": "***"}, "max_tokens": 7}]
    assert document["metrics"] == [{"name": "judge", "options": [{"password": "***"}], "threshold": 0.5}]


def test_a_header_ends_with_a_line_break(tmp_path: Path) -> None:
    write_header(tmp_path, header())
    assert (tmp_path / "run.json").read_bytes().endswith(b"}\n")
    assert orjson.loads((tmp_path / "run.json").read_bytes())["schema_version"] == 2
