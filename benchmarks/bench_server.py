"""A server under load: clients that poll and stream while runs are in progress.

`promptiter serve` runs in a process of its own, with the simulated model. Half of the clients poll a run or the list of
runs, the others stream events and begin again when a run ends. Another client asks for /health all the time, which
takes no work: its times are how late the event loop is. With --two-servers, a second server on the same database does
the streaming and polling, and the first one the runs.

Goals: no errors, and the memory of the server at the end is at most 1.3 times that at half time.

    python -m benchmarks.bench_server [--clients 200] [--runs 8] [--seconds 30] [--two-servers] [--store URL]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import aiohttp

from benchmarks.measure import format_goal, format_reached

API = "/promptiter/v1/apps/desk/async-runs"
MAX_GROWTH = 1.3
LATENCY_S = 0.5
"""How long the simulated model takes for a call."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--pause", type=float, default=0.5, help="seconds between two requests of a client")
    parser.add_argument("--two-servers", action="store_true", help="another server works on the runs")
    parser.add_argument("--store", help="the URL of an empty database; by default a file of SQLite")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        project = make_project(Path(folder) / "desk")
        store = options.store or f"sqlite:///{folder}/runs.db"
        working = stack.enter_context(start_server(project, store, options.runs))
        asked = stack.enter_context(start_server(project, store, 1)) if options.two_servers else working
        load = Load(options.clients, options.runs, options.seconds, options.pause)
        asyncio.run(load.run(working, asked))


@dataclass(frozen=True, slots=True)
class Server:
    """A server in a process of its own."""

    url: str
    pid: int

    @property
    def memory_mb(self) -> float:
        fields = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii").split()
        return int(fields[fields.index("VmRSS:") + 1]) / 1024

    @property
    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100


def make_project(folder: Path) -> Path:
    """The starter, with a model that takes its time and a search that does not end soon."""
    subprocess.run([sys.executable, "-m", "promptiter", "init", folder], check=True, stdout=subprocess.DEVNULL)
    file = folder / "promptiter.yaml"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("compliance: 1.0", f"latency_s: {LATENCY_S}\n    compliance: 0.7"), encoding="utf-8")
    return folder


@contextmanager
def start_server(project: Path, store: str, max_runs: int) -> Iterator[Server]:
    limits = ["--requests-per-minute", "1000000", "--max-runs", str(max_runs)]
    command = [sys.executable, "-m", "promptiter", "serve", str(project), "--port", "0", "--store", store, *limits]
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            yield Server(read_address(process.stdout), process.pid)
        finally:
            process.terminate()
            process.wait()
            log.seek(0)
            if logged := log.read():
                print(f"the log of the server:\n{logged[-2000:]}")


def read_address(output: IO[str]) -> str:
    """The address in the first line: `Serving desk on http://127.0.0.1:8788. Press ...`."""
    return next(word.rstrip(".") for word in output.readline().split() if word.startswith("http://"))


@dataclass
class Load:
    """Clients of a server, and what they measure."""

    clients: int
    runs: int
    seconds: float
    pause_s: float
    times: dict[str, list[float]] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)
    events: int = 0
    received: int = 0
    ended: int = 0
    ids: list[str] = field(default_factory=list)

    async def run(self, working: Server, asked: Server) -> None:
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            for _ in range(self.runs):
                await self.start_run(session, working)
            await asyncio.sleep(1)
            start = asked.memory_mb
            pollers = self.clients // 2
            tasks = [asyncio.create_task(self.poll(session, asked, number)) for number in range(pollers)]
            tasks += [
                asyncio.create_task(self.stream(session, asked, number)) for number in range(self.clients - pollers)
            ]
            tasks.append(asyncio.create_task(self.look(session, asked)))
            tasks.append(asyncio.create_task(self.keep_running(session, working)))
            cpu, began, memory = asked.cpu_s, time.perf_counter(), []
            while (passed := time.perf_counter() - began) < self.seconds:
                memory.append(asked.memory_mb)
                await asyncio.sleep(min(1.0, self.seconds - passed))
            cpu = asked.cpu_s - cpu
            for task in tasks:
                task.cancel()
            for found in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(found, Exception):
                    self.errors[repr(found)] += 1
        self.report(passed, cpu, start, memory)

    def report(self, passed: float, cpu: float, start: float, memory: list[float]) -> None:
        requests = sum(map(len, self.times.values()))
        print(f"\n{self.clients} clients, {self.runs} runs at a time, {passed:.0f} s; {self.ended} runs ended")
        print(f"{requests / passed:.0f} requests/s, {self.events / passed:.0f} events/s to all streams,", end=" ")
        print(f"{self.received / passed / 1e6:.1f} MB/s; the server used {cpu / passed:.0%} of a core\n")
        print(f"{'ms':24}{'requests':>9}{'p50':>8}{'p99':>8}{'max':>8}")
        for name, times in self.times.items():
            print(f"{name:24}{len(times):>9,}" + "".join(f"{each * 1e3:>8.0f}" for each in find_quantiles(times)))
        middle, end = memory[len(memory) // 2], memory[-1]
        print(f"\nmemory of the server: {start:.0f} MB before, {middle:.0f} at half time, {end:.0f} at the end")
        print(format_goal("times the memory at half time", end / middle, MAX_GROWTH))
        print(f"{self.errors.total()} errors; goal: 0: {format_reached(not self.errors)}")
        for text, count in self.errors.most_common(5):
            print(f"  {count}x {text}")

    async def start_run(self, session: aiohttp.ClientSession, server: Server) -> None:
        body = {"run": {"seed": len(self.ids), "evaluation": {"concurrency": 4}}}
        async with session.post(server.url + API, json=body) as answer:
            found = await answer.json()
        assert answer.status == 201, found
        self.ids.append(found["result"]["measured"]["run_id"])

    async def keep_running(self, session: aiohttp.ClientSession, server: Server) -> None:
        """Start a run for each that ends."""
        while True:
            await asyncio.sleep(1)
            async with session.get(server.url + API, params={"status": ["succeeded", "failed"]}) as answer:
                ended = len((await answer.json())["runs"])
            for _ in range(ended - self.ended):
                await self.start_run(session, server)
            self.ended = ended

    async def get(self, session: aiohttp.ClientSession, name: str, url: str) -> None:
        began = time.perf_counter()
        async with session.get(url) as answer:
            body = await answer.read()
        self.times.setdefault(name, []).append(time.perf_counter() - began)
        self.received += len(body)
        if answer.status != 200:
            self.errors[f"{answer.status} {body[:200]!r}"] += 1

    async def poll(self, session: aiohttp.ClientSession, server: Server, number: int) -> None:
        chance = random.Random(number)
        await asyncio.sleep(chance.random() * self.pause_s)
        while True:
            if chance.random() < 0.2:
                await self.get(session, "list of runs", server.url + API)
            else:
                run_id = chance.choice(self.ids[-self.runs :])
                await self.get(session, "run in progress", f"{server.url}{API}/{run_id}")
            await asyncio.sleep(self.pause_s)

    async def stream(self, session: aiohttp.ClientSession, server: Server, number: int) -> None:
        chance = random.Random(-number - 1)
        while True:
            run_id = chance.choice(self.ids[-self.runs :])
            expected, is_over = 0, False
            async with session.get(f"{server.url}{API}/{run_id}/events", read_bufsize=2**22) as answer:
                if answer.status != 200:
                    self.errors[f"{answer.status} of a stream"] += 1
                async for line in answer.content:
                    self.received += len(line)
                    if line.startswith(b"id: "):
                        self.events += 1
                        if int(line[4:]) != expected:
                            self.errors["an event is missing"] += 1
                        expected += 1
                    is_over = is_over or line.startswith(b"event: end")
            if not is_over:
                self.errors["a stream broke off"] += 1
            await asyncio.sleep(self.pause_s)

    async def look(self, session: aiohttp.ClientSession, server: Server) -> None:
        while True:
            await self.get(session, "health (loop lag)", f"{server.url}/health")
            await asyncio.sleep(0.05)


def find_quantiles(times: list[float]) -> tuple[float, float, float]:
    """The median, the 99th percentile and the maximum."""
    ordered = sorted(times) or [0.0]
    return ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)], ordered[-1]


if __name__ == "__main__":
    main()
