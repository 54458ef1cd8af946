"""Wrong parameters of addresses, in words."""

from __future__ import annotations

import pytest

from promptiter.errors import RequestError
from promptiter.manager import Manager
from promptiter.server.bodies import read_run_body
from promptiter.testing.small_run import SmallRun
from tests.server.conftest import DESK, SmallApp, serving
from traces.model import Json

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("query", "words"),
    [
        (
            "status=bogus",
            "status: 'bogus' is not one of queued, running, succeeded, failed, cancelled, interrupted, unreadable",
        ),
        ("verdict=improvd", "(did you mean 'improved'?)"),
        ("limit=0", "limit: must be at least 1, not '0'"),
        ("limit=x", "limit: must be a whole number, not 'x'"),
        ("cursor=zzz", "cursor: 'zzz' is wrong; give the next_cursor of a list, unchanged"),
        ("created_from=5", "created_from: '5' is wrong; give a time such as 2026-11-18T07:30:00Z"),
        ("created_from=1.5e-301", "created_from: '1.5e-301' is wrong; give a time such as 2026-11-18T07:30:00Z"),
        ("created_from=2026-99-01", "created_from: '2026-99-01' is not a time, such as 2026-11-18T07:30:00Z"),
        ("lmit=4", "the route has no parameter 'lmit' (did you mean 'limit'?)"),
        ("page=4", "the route has no parameter 'page'; it has status, verdict, created_from"),
    ],
)
async def test_a_wrong_parameter_is_named_with_what_is_allowed(query: str, words: str) -> None:
    async with serving(Manager([SmallApp(SmallRun())])) as client:
        refused = await client.get(f"{DESK}/async-runs?{query}")
        assert (refused.status_code, words in refused.json()["error"]) == (422, True), refused.text


@pytest.mark.parametrize("name", ["status", "x{}", "limit"])
async def test_thousands_of_wrong_parameters_get_a_short_answer(name: str) -> None:
    query = "&".join(f"{name.format(number)}=wrong{number}" for number in range(2_000))
    async with serving(Manager([SmallApp(SmallRun())])) as client:
        refused = await client.get(f"{DESK}/async-runs?{query}")
        assert (refused.status_code, len(refused.content) < 20_000) == (422, True)


@pytest.mark.parametrize(
    ("run", "problem"),
    [
        ({"train": {"id": "x", "cases": []}}, "run.train[0].cases: must not be empty"),
        ({"train": [5]}, "run.train[0]: must be a string or an object, not 5"),
        ({"train": {"cses": [{}]}}, "run.train[0]: unknown key 'cses' (did you mean 'cases'?)"),
        ({"targets": ["x"] * 1001}, "run.targets: must have at most 1,000 items, not 1001"),
        ({"stop": 3}, "run.stop: must be an object, not 3"),
    ],
)
def test_a_wrong_body_is_described_in_words(run: dict[str, Json], problem: str) -> None:
    with pytest.raises(RequestError) as refused:
        read_run_body({"run": run})
    assert refused.value.problems == (f"body: {problem}",)


def test_a_key_that_is_like_no_other_is_not_guessed() -> None:
    with pytest.raises(RequestError, match="unknown key 'agent'; known are"):
        read_run_body({"run": {"agent": "x"}})
