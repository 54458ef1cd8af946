"""Runs over HTTP: a server with the engine and a manager, and a client that makes the calls in the usual order."""

import asyncio
from contextlib import suppress
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import orjson
from commentary import APP, build_engine, build_request, make_parser, print_summary

from promptiter import RunResult
from promptiter.manager import EngineApp, Manager
from promptiter.runs import FolderStore
from promptiter.server.serving import ServerOptions, serve

PLACE = f"/promptiter/v1/apps/{APP}"


async def run_server(model: str | None, *, port: int, has_client: bool) -> None:
    """Serve until Ctrl-C, or until the client has made its calls."""
    end = asyncio.Event()
    clients: list[asyncio.Task[None]] = []

    def announce(url: str) -> None:
        if has_client:
            clients.append(asyncio.create_task(call_server(url)))
            clients[0].add_done_callback(lambda _: end.set())
        else:
            print(f"serving {url}{PLACE}; call it with: python examples/commentary/server.py --client {url}")

    with TemporaryDirectory() as folder:  # with a folder or a database of your own, runs outlive the server
        app = EngineApp(build_engine(model), APP, request=build_request())
        await serve(Manager(app, store=FolderStore(folder)), ServerOptions(port=port), on_start=announce, stop=end)
    await asyncio.gather(*clients)


async def call_server(url: str) -> None:
    async with httpx.AsyncClient(base_url=url + PLACE, timeout=3600) as http:
        structure = await call(http, "GET", "/structure")
        surfaces = [each["id"] for each in structure["structure"]["surfaces"]]
        print(f"GET /structure: {', '.join(surfaces)}")
        body = {
            "run": {
                "train_eval_set_ids": ["nba-commentary-train"],
                "validation_eval_set_ids": ["nba-commentary-validation"],
                "target_surface_ids": [each for each in surfaces if each.endswith("#instruction")],
                "acceptance_policy": {"min_score_gain": 0.005},
                "stop_policy": {"max_rounds_without_acceptance": 5, "target_score": 1.0},
                "evaluation_options": {"eval_case_parallelism": 8},
                "max_rounds": 4,
            }
        }
        result = read_result(await call(http, "POST", "/runs", body))
        print(f"POST /runs: {result.status}")
        print_summary(result)

        started = read_result(await call(http, "POST", "/async-runs", body))
        print(f"POST /async-runs: {started.status}")
        state = started
        while state.status in ("queued", "running"):
            await asyncio.sleep(0.1)
            state = read_result(await call(http, "GET", f"/async-runs/{started.run_id}"))
        print(f"GET /async-runs/ID: {state.status}, {state.verdict}")

        other = read_result(await call(http, "POST", "/async-runs", body))
        cancelled = read_result(await call(http, "POST", f"/async-runs/{other.run_id}/cancel"))
        print(f"POST /async-runs/ID/cancel: {cancelled.status}")


async def call(http: httpx.AsyncClient, method: str, path: str, body: Any = None) -> Any:
    answer = await http.request(method, path, json=body)
    if answer.is_error:
        raise SystemExit(f"{method} {path}: {answer.status_code} {answer.text}")
    return answer.json()


def read_result(answer: Any) -> RunResult:
    return RunResult.from_json(orjson.dumps(answer["result"]))


if __name__ == "__main__":
    parser = make_parser(__doc__)
    parser.add_argument("--serve", action="store_true", help="serve until Ctrl-C, without a client")
    parser.add_argument("--port", type=int, default=0, help="the port; by default a free one")
    parser.add_argument("--client", metavar="URL", help="be the client of a server that is running")
    arguments = parser.parse_args()
    with suppress(KeyboardInterrupt):
        if arguments.client:
            asyncio.run(call_server(arguments.client))
        else:
            asyncio.run(run_server(arguments.model, port=arguments.port, has_client=not arguments.serve))
