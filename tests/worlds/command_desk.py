"""A support desk that is a script: it reads its own prompt files, in place, and asks models through the endpoint.

    python -m tests.worlds.command_desk FOLDER [--kill-at SEQ] [--how before|after|torn] [--optimizer] [--pause SECONDS]

starts a run in FOLDER/runs, or resumes the existing one. With --kill-at it kills itself at an event; with --optimizer
the optimizer is a command, too, which waits after its model call with --pause. If the endpoint is gone, both commands
wait and try again, as many clients do.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

import orjson

from promptiter.agents.black_box.command import CommandAgent
from promptiter.agents.in_place.agent import InPlaceAgent
from promptiter.backprop.command.stages import CommandOptimizer
from promptiter.engine.engine import Engine
from promptiter.engine.request import RunRequest
from promptiter.policies.final_test import FinalTest
from promptiter.starter.agent import agent as starter
from tests.worlds.starter import Shop, cases, kill_runs_at

PROMPTS = ("reception", "filing")
ASK = """
import http.client, json, os, sys, time
from urllib.parse import urlsplit

with open(os.environ["PIDS"], "a") as file:
    file.write(f"{os.getpid()}\\n")

def ask(prompt, text):
    messages = [{"role": "system", "content": prompt}, {"role": "user", "content": text}]
    body = json.dumps({"model": "simulated", "messages": messages})
    url = urlsplit(os.environ["OPENAI_BASE_URL"])
    while True:
        try:
            connection = http.client.HTTPConnection(url.netloc)
            connection.request("POST", url.path + "/chat/completions", body)
            return json.load(connection.getresponse())["choices"][0]["message"]["content"]
        except OSError:
            time.sleep(600)
"""
DESK = f"""{ASK}
reception, filing = (open(path).read() for path in sys.argv[1:])
print(ask(filing, ask(reception, sys.stdin.read())))
"""
REWRITE = f"""{ASK}
os.chdir(sys.argv[1])
value, signal = open("current.txt").read(), open("signal.md").read()
ask(value, signal)
open(os.environ["PIDS"] + ".asked", "a").write("asked\\n")
time.sleep(float(os.environ["PAUSE_S"]))
if "purchase date" in signal and "purchase date" not in value:
    value = value.replace("the amount,", "the purchase date, the amount,")
    open("output/value.txt", "w").write(value.replace("product, amount,", "product, purchase date, amount,"))
"""


class CommandDesk(Shop):
    """What each process creates: the agent with its files, the engine, a model that counts its calls."""

    def __init__(self, folder: Path, *, has_optimizer: bool = False, pause_s: float = 0.0) -> None:
        super().__init__()
        files = write_prompts(folder)
        given = {"PIDS": str(folder / "pids"), "PAUSE_S": str(pause_s)}
        inner = CommandAgent(
            command=(sys.executable, "-Sc", DESK, *map(str, files.values())),
            prompts=files,
            environment=given,
            grace_s=0.2,
            is_in_place=True,
        )
        agent = InPlaceAgent(inner, inner.sources, state_folder=folder / "state")
        command = (sys.executable, "-Sc", REWRITE, "{folder}")
        optimizer = CommandOptimizer(command=command, environment=given) if has_optimizer else None
        self.engine = Engine(agent, self.engine.evaluator, optimizer=optimizer)

    @property
    def request(self) -> RunRequest:
        final_test = FinalTest(repeats=2, ablate=False)
        return RunRequest(
            train=cases("train", 3), validation=cases("validation", 2), final_test=final_test, max_rounds=1
        )


def write_prompts(folder: Path) -> dict[str, Path]:
    """The files of the prompts, written unless they exist."""
    (folder / "prompts").mkdir(parents=True, exist_ok=True)
    files = {name: folder / "prompts" / f"{name}.md" for name in PROMPTS}
    for name, file in files.items():
        if not file.exists():
            file.write_text(read_baseline(name))
    return files


def read_baseline(name: str) -> str:
    return str(starter.describe().surface(f"{name}#instruction").value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kill-at", type=int, default=-1)
    parser.add_argument("--how", default="before")
    parser.add_argument("--optimizer", action="store_true")
    parser.add_argument("--pause", type=float, default=0.0)
    given = parser.parse_args()
    desk = CommandDesk(given.folder, has_optimizer=given.optimizer, pause_s=given.pause)
    with kill_runs_at(given.kill_at, given.how, die=lambda: os.kill(os.getpid(), signal.SIGKILL)):
        result = desk.run(given.folder / "runs")
    sys.stdout.write(orjson.dumps({"verdict": result.verdict, "asked": desk.model.asked}).decode())


if __name__ == "__main__":
    main()
