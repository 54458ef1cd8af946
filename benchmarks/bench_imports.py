"""How long the names of a script take to import: CPU time of new processes, beside what they cannot do without.

The names are those of the README and the docs: an engine, an evaluator, agents and nodes, eval sets, metrics, policies.
`built` also builds all of this, up to the run, so it pays for what is imported later: pydantic when a file is read, and
the default search when an engine is made. Goal: the names take at most 300 ms of CPU more than a process that does
nothing. A busy machine takes longer for everything, so the same figure is given in multiples of the libraries.

The programs take turns, and each counts with its best try. Compiled modules are in a temporary folder, so the figures
are those of every start but the first.

    python -m benchmarks.bench_imports [--quick]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.measure import format_goal

LARGEST_MS = 300
TRIES, QUICK_TRIES = 15, 5
SHOWN_MODULES = 15

NAMES = """
from promptiter import (
    Edge, Engine, Evaluator, Gateway, GraphAgent, ModelNode, Profile, RunRequest, Tool,
    build_eval_set, build_metrics, load_eval_config, load_eval_set,
)
from promptiter.agents import agent, ask, surface
from promptiter.policies import TargetScore
"""

PROGRAMS = {
    "nothing": "pass",
    "libraries": "import asyncio, orjson, pydantic",
    "names": NAMES,
    "built": f"""{NAMES}
writer = GraphAgent(name="writer", nodes=(ModelNode(name="write", instruction="Answer."),))
evaluator = Evaluator(build_metrics([{{"metric_name": "exact_match"}}]))
cases = build_eval_set("cases", [{{"input": "2 + 2?", "expected": "4"}}])
engine, request = Engine(writer, evaluator), RunRequest(cases=cases, stop=TargetScore(0.95))
""",
}

COUNT = """
import sys
own = [name for name in sys.modules if name.partition(".")[0] in ("promptiter", "traces")]
print(len(own))
"""

PROFILE = """
import json, time
from importlib.machinery import ExtensionFileLoader, SourceFileLoader

found, inside = {}, [0.0]

def measure(loader):
    execute = loader.exec_module
    def exec_module(self, module):
        inside.append(0.0)
        start = time.process_time()
        execute(self, module)
        taken = time.process_time() - start
        found[module.__name__] = taken - inside.pop()
        inside[-1] += taken
    loader.exec_module = exec_module

measure(SourceFileLoader)
measure(ExtensionFileLoader)
exec(%r, {})
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True)
class Start:
    """The best start of a program."""

    cpu_ms: float
    own_modules: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_TRIES} tries instead of {TRIES}")
    tries = QUICK_TRIES if parser.parse_args().quick else TRIES
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": folder, "PYTHONDONTWRITEBYTECODE": ""}
        report(start_in_turn(tries, environment), measure_modules(tries, environment))


def start_in_turn(tries: int, environment: Mapping[str, str]) -> dict[str, Start]:
    modules = {name: int(run(program + COUNT, environment)) for name, program in PROGRAMS.items()}  # compiles, too
    best: dict[str, float] = {}
    for _ in range(tries):
        for name, program in PROGRAMS.items():
            best[name] = min(measure_cpu_ms(program, environment), best.get(name, float("inf")))
    return {name: Start(best[name], modules[name]) for name in PROGRAMS}


def measure_modules(tries: int, environment: Mapping[str, str]) -> dict[str, float]:
    """The CPU milliseconds of each module of the names, without those that it imports."""
    found = [json.loads(run(PROFILE % NAMES, environment)) for _ in range(tries)]
    return {name: 1000 * min(each.get(name, float("inf")) for each in found) for name in found[0]}


def measure_cpu_ms(program: str, environment: Mapping[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run(program, environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def run(program: str, environment: Mapping[str, str]) -> str:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def report(starts: Mapping[str, Start], modules: Mapping[str, float]) -> None:
    nothing = starts["nothing"].cpu_ms
    print(f"{'':12}{'CPU ms':>9}{'more':>9}{'own modules':>14}")
    for name, start in starts.items():
        print(f"{name:12}{start.cpu_ms:9.0f}{start.cpu_ms - nothing:9.0f}{start.own_modules:14}")
    more = {name: start.cpu_ms - nothing for name, start in starts.items()}
    print(f"\nthe names take {more['names'] / more['libraries']:.2f} times the libraries")
    print(format_goal("ms of CPU for the names, more than for nothing", more["names"], LARGEST_MS))
    print("\nCPU ms of each module of the names, without what it imports:")
    for name, cpu_ms in sorted(modules.items(), key=lambda item: -item[1])[:SHOWN_MODULES]:
        print(f"{cpu_ms:8.1f}  {name}")


if __name__ == "__main__":
    main()
