"""Control characters of names, keys, answers and errors never reach the terminal, whichever command prints them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from promptiter.cli import main
from tests.test_terminal import HOSTILE, find_controls
from traces import ExecutionTrace, Failure, Snapshot, Step, write_traces

Printed = Callable[..., str]


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Printed:
    """What a command prints to both streams, however it ends."""

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["promptiter", *arguments])
        with pytest.raises(SystemExit):
            main()
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return captured.out + captured.err

    return run


def write_hostile_files(folder: Path) -> None:
    def make_step(name: str) -> Step:
        return Step(id=name, node_id=name, kind="llm", output=Snapshot(HOSTILE), error=Failure(f"E{HOSTILE}", HOSTILE))

    names = [f"{number}{HOSTILE}" for number in range(2)]
    write_traces(folder / "traces.jsonl", [ExecutionTrace(id=name, steps=(make_step(name),)) for name in names])
    rows = [{"id": name, "input": f"{name} {HOSTILE}", "expected": HOSTILE} for name in names]
    (folder / "ids.jsonl").write_bytes(b"\n".join(map(orjson.dumps, rows)))
    (folder / "key.jsonl").write_bytes(orjson.dumps({**rows[0], f"key{HOSTILE}": 1}))
    quoted = orjson.dumps(HOSTILE).decode()
    (folder / "key.yaml").write_text(f"{quoted}: 1\n")
    (folder / "values.yaml").write_text(f"agent: {quoted}\nstop: {quoted}\nstages: {{{quoted}: 1}}\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["trace", "show", "traces.jsonl"],
        *(
            ["trace", "show", "traces.jsonl", "--trace", f"0{HOSTILE}", "--format", name]
            for name in ("text", "mermaid", "json", "svg")
        ),
        ["trace", "show", "traces.jsonl", "--format", "svg"],
        ["trace", "show", "traces.jsonl", "--trace", "nope"],
        ["trace", "stats", "traces.jsonl"],
        ["trace", "stats", "traces.jsonl", "--json"],
        ["trace", "show", f"{HOSTILE}.jsonl"],
        ["check", "key.jsonl"],
        ["check", "ids.jsonl"],
        ["run", "key.yaml"],
        ["run", "values.yaml"],
        ["show", HOSTILE],
        ["resume", HOSTILE],
        ["runs", HOSTILE],
        ["cache", "stats", f"{HOSTILE}.jsonl"],
        ["evaluate", f"agent:{HOSTILE}", "--eval-set", "ids.jsonl"],
        ["describe", f"{HOSTILE}:agent"],
        ["restore", HOSTILE],
        ["init", f"new {HOSTILE}"],
    ],
)
def test_commands_show_control_characters_of_names_and_keys(printed: Printed, desk: Path, arguments: list[str]) -> None:
    write_hostile_files(desk)
    shown = printed(*arguments)
    assert shown
    assert find_controls(shown) == []


AGENT = """
from promptiter.agents import agent, surface

HOSTILE = {hostile!r}

@agent(instruction="Say something.")
async def hostile(question: str) -> str:
    surface("instruction")
    if question.startswith("1"):
        raise ValueError("failed " + HOSTILE)
    return "answer " + HOSTILE
"""


@pytest.mark.slow
def test_runs_show_control_characters_of_answers_and_errors(printed: Printed, desk: Path) -> None:
    (desk / "hostile.py").write_text(AGENT.format(hostile=HOSTILE))
    for name in ("train", "validation"):
        rows = [{"id": f"{name} {n}{HOSTILE}", "input": f"{n} {name} {HOSTILE}", "expected": "x"} for n in range(5)]
        (desk / f"{name}.jsonl").write_bytes(b"\n".join(map(orjson.dumps, rows)))
    (desk / "exact.json").write_text('[{"metricName": "exact_match", "threshold": 1.0}]')
    (desk / "hostile.yaml").write_text(
        "agent: hostile:hostile\ntrain: train.jsonl\nvalidation: validation.jsonl\nmax_rounds: 1\nmetrics: exact.json\n"
    )
    for arguments in (
        ["run", "hostile.yaml"],
        ["show", "latest"],
        ["show", "latest", "--case", f"validation 1{HOSTILE}"],
        ["show", "latest", "--json"],
        ["runs"],
        ["evaluate", "hostile:hostile", "--eval-set", "train.jsonl", "--metrics", "exact.json"],
    ):
        shown = printed(*arguments)
        assert "the run cannot start" not in shown
        assert find_controls(shown) == [], arguments


@pytest.mark.parametrize(
    "arguments",
    [
        (HOSTILE,),
        (f"--{HOSTILE}",),
        ("run", f"--{HOSTILE}"),
        ("cache", HOSTILE),
        ("show", ".", HOSTILE, HOSTILE),
    ],
)
def test_usage_errors_show_control_characters(printed: Printed, arguments: tuple[str, ...]) -> None:
    text = printed(*arguments)
    assert "\\u202e" in text
    assert not find_controls(text)
