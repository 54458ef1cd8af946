from __future__ import annotations

import asyncio
from pathlib import Path

from promptiter.runs.sql.store import SqlStore
from promptiter.testing.list_contract import end_run
from promptiter.testing.store_hooks import make_header
from tests.cli.conftest import Run


def test_runs_of_a_database_are_listed(tmp_path: Path, run: Run) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"

    async def make_runs() -> None:
        store = SqlStore(url)
        for place, run_id in ((store, "first"), (store, "second"), (store.for_app("desk"), "of the desk")):
            await place.create(make_header(run_id))
            await end_run(place, run_id, "failed", error="no luck")
        await store.close()

    asyncio.run(make_runs())
    shown = run("runs", url)
    assert shown.index("first") < shown.index("second")
    assert "failed" in shown
    assert "second: no luck" in shown
    assert "of the desk" not in shown
    assert "of the desk" in run("runs", url, "--app", "desk")
    assert "no runs in" in run("runs", url, "--app", "shop")
