"""The HTTP API is what its OpenAPI document says: schemathesis tries it, at a real server.

The server has runs that have ended and one in progress, whose ids schemathesis knows. A request that waits for a run of
the slow app gets the documented 504. To see what schemathesis has found, or to look for more, run
`schemathesis run URL --config-file FILE` with a configuration as below.
"""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from promptiter.server.tokens import add_token
from tests.server.served_project import serve_projects, write_project

pytestmark = pytest.mark.long

CONFIG = """
seed = 21
workers = 1
request-timeout = 30.0
max-stream-events = 1000
continue-on-failure = true

[dictionaries]
apps = {values = ["quick"]}
slow = {values = ["slow"]}
ended = {values = ENDED}
deleted = {values = DELETED}
running = {values = RUNNING}
traces = {values = TRACES}

[parameters]
"path.app" = {dictionary = "apps", probability = 0.9}
"path.run_id" = {dictionary = "ended", probability = 0.8}
"path.digest" = {dictionary = "traces", probability = 0.8}

[[operations]]
include-method = "DELETE"
parameters = {"path.run_id" = {dictionary = "deleted", probability = 0.8}}

[[operations]]
include-path-regex = "/(cancel|resume|result)$"
[operations.parameters]
"path.run_id" = {dictionary = "running", probability = 0.8}
"path.app" = {dictionary = "slow", probability = 0.8}

[[operations]]
include-name = "POST /promptiter/v1/apps/{app}/runs"
[operations.checks]
positive_data_acceptance.expected-statuses = ["2xx", "400", "401", "403", "404", "409", "429", "504"]
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "504"]

[generation]
deterministic = true
max-examples = EXAMPLES
no-shrink = true

[phases.stateful]
enabled = true
max-steps = 6

[checks]
max_response_time = 60.0
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "304", "400", "401", "403", "404", "409", "429"]
[checks.negative_data_rejection]
expected-statuses = ["400", "401", "403", "404", "405", "406", "409", "413", "415", "422"]
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx"]
"""


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("has_tokens", "examples"), [(True, 80), (False, 20)])
def test_the_api_is_as_described(tmp_path: Path, has_tokens: bool, examples: int) -> None:
    tokens = tmp_path / "tokens.yaml"
    expires = datetime.now(UTC) + timedelta(days=1)
    headers: dict[str, str] = {}
    options: tuple[str, ...] = ("--requests-per-minute", "1000000", "--max-runs", "50", "--run-timeout-s", "5")
    if has_tokens:
        token = add_token(tokens, name="boss", scope="admin", apps=None, expires=expires)
        headers, options = {"Authorization": f"Bearer {token}"}, (*options, "--tokens", str(tokens))
    quick, slow = write_project(tmp_path / "quick"), write_project(tmp_path / "slow", latency_s=600.0)
    with serve_projects(quick, slow, store=f"sqlite:///{tmp_path}/runs.db", options=options) as url:
        with httpx.Client(base_url=f"{url}/promptiter/v1/apps", headers=headers, timeout=60) as client:
            ended = [client.post("/quick/runs").json()["result"] for _ in range(3)]
            running = client.post("/slow/async-runs").json()["result"]
        ids = [result["measured"]["run_id"] for result in ended]
        known = {
            "ENDED": ids[:2],
            "DELETED": ids[2:],
            "RUNNING": [running["measured"]["run_id"]],
            "TRACES": ended[0]["baseline"]["rows"][0]["trace_digests"],
            "EXAMPLES": examples,
        }
        config = CONFIG
        for name, value in known.items():
            config = config.replace(name, str(value))
        file = tmp_path / "schemathesis.toml"
        file.write_text(config, encoding="utf-8")
        given = [word for name, value in headers.items() for word in ("--header", f"{name}: {value}")]
        command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(file), "run", "--no-color", *given]
        found = subprocess.run(
            [*command, "--checks", "all", "--phases", "coverage,fuzzing,stateful", f"{url}/promptiter/v1/openapi.json"],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            check=False,
        )
    assert found.returncode == 0, found.stdout[-20_000:] + found.stderr[-5_000:]
