from __future__ import annotations

import os
import re
import threading
from pathlib import Path
from xml.etree import ElementTree

import orjson
import pytest
from typer.testing import CliRunner

from promptiter.cli import app
from tests.cli.conftest import Run
from traces import ExecutionTrace, Failure, Snapshot, Step, read, read_otel, read_traces, write_otel, write_traces

BUNDLED = Path(__file__).parents[2] / "examples" / "record_a_run" / "research_desk.jsonl"


@pytest.fixture
def several(tmp_path: Path) -> Path:
    path = tmp_path / "several.jsonl"
    runs = [
        ExecutionTrace(
            id=f"run-{number}",
            steps=(Step(id="a", node_id="a", error=Failure("Oops", "[x]") if number == 1 else None),),
        )
        for number in range(3)
    ]
    write_traces(path, runs)
    return path


def test_show_draws_the_bundled_run(run: Run) -> None:
    shown = run("trace", "show", BUNDLED)
    for expected in (
        "refund-window  failed  conversation desk-42",
        "10 steps of 6 nodes",
        "loop ×2: planner, compose, retrieve, reviewer",
        "├─╮",
        "✗    finalize    function",
        "failing path: planner → compose → reviewer → rewrite → planner~2 → compose~2 → reviewer~2 → finalize",
        "ValueError: the answer cites no source: expected a mark like [1]",
        "tools: search",
    ):
        assert expected in shown


def test_show_marks_the_failing_path_in_red() -> None:
    shown = CliRunner(env={"FORCE_COLOR": "1", "COLUMNS": "120"}).invoke(app, ["trace", "show", str(BUNDLED)])
    assert "\x1b[31m" in shown.stdout or "\x1b[1;31m" in shown.stdout


def test_show_draws_pictures(run: Run, tmp_path: Path) -> None:
    run("trace", "show", BUNDLED, "--format", "svg", "-o", tmp_path / "run.svg")
    picture = (tmp_path / "run.svg").read_text(encoding="utf-8")
    assert ElementTree.fromstring(picture).tag == "{http://www.w3.org/2000/svg}svg"
    assert picture.count("data-id=") == 10
    assert run("trace", "show", BUNDLED, "--format", "svg", "--by-node").count("data-id=") == 6
    assert run("trace", "show", BUNDLED, "--format", "mermaid").startswith("flowchart TD\n")


def test_show_prints_json_that_can_be_read_again(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "again.json"
    path.write_text(run("trace", "show", BUNDLED, "--format", "json"), encoding="utf-8")
    assert list(read_traces(path)) == list(read_traces(BUNDLED))


def test_show_lists_several_traces_and_shows_one(run: Run, several: Path) -> None:
    listed = run("trace", "show", several)
    assert "run-0" in listed
    assert "a: Oops: [x]" in listed
    assert "3 traces; show one with --trace ID" in listed
    assert "1 step of 1 node" in run("trace", "show", several, "--trace", "run-1")
    assert "… 2 more" in run("trace", "show", several, "--limit", "1")


def test_show_reads_otlp_too(run: Run, tmp_path: Path) -> None:
    for name in ("spans.jsonl", "spans.pb"):
        write_otel(tmp_path / name, read(BUNDLED))
        assert run("trace", "show", tmp_path / name) == run("trace", "show", BUNDLED)


@pytest.mark.slow
def test_long_traces_are_cut_but_keep_the_failure(run: Run, tmp_path: Path) -> None:
    size = 1_000
    steps = [
        Step(
            id=f"n{number}",
            node_id=f"node{number % 3}",
            predecessors=(f"n{number - 1}",) if number else (),
            error=Failure("Oops") if number == size - 1 else None,
        )
        for number in range(size)
    ]
    path = tmp_path / "long.jsonl"
    write_traces(path, [ExecutionTrace(id="long", steps=tuple(steps))])
    shown = run("trace", "show", path, "--limit", "50")
    assert "… 950 more steps" in shown
    assert "n999" in shown
    assert len(shown.splitlines()) < 80
    assert len(run("trace", "show", path, "--limit", "0").splitlines()) > size


@pytest.mark.slow
def test_pictures_of_long_traces_show_nodes_unless_steps_are_requested(run: Run, tmp_path: Path) -> None:
    steps = [Step(id=f"n{at}", node_id=f"node{at % 3}", predecessors=(f"n{at - 1}",) if at else ()) for at in range(60)]
    steps += [Step(id=f"work[{at}]", node_id="work", predecessors=("n59",)) for at in range(40)]
    write_traces(tmp_path / "long.jsonl", [ExecutionTrace(id="long", steps=tuple(steps))])
    picture = tmp_path / "long.svg"
    for options, boxes in (([], 4), (["--by-node"], 4), (["--by-step"], 61), (["--unfold"], 100)):
        output = run("trace", "show", tmp_path / "long.jsonl", *options, "-o", picture, stream="err")
        assert picture.read_text(encoding="utf-8").count("data-id=") == boxes
        assert ("100 steps: shown with one box per node; use --by-step for steps" in output) is (options == [])
    assert "work ×40" in run("trace", "show", tmp_path / "long.jsonl", "--format", "svg", "--by-step")
    refused = run("trace", "show", tmp_path / "long.jsonl", "-o", picture, "--by-node", "--unfold", code=2)
    assert "--unfold shows every step" in refused


def test_a_long_error_does_not_hide_the_ids_of_the_list(run: Run, tmp_path: Path) -> None:
    error = Failure("BadRequestError", "there is no such model; " * 8)
    steps = (Step(id="a", node_id="a", error=error),)
    write_traces(tmp_path / "two.jsonl", [ExecutionTrace(id=f"conversation-{n}", steps=steps) for n in range(2)])
    listed = run("trace", "show", tmp_path / "two.jsonl", width=80)
    assert re.findall(r"^conversation-\d  completed ", listed, re.MULTILINE) == [
        "conversation-0  completed ",
        "conversation-1  completed ",
    ]


def test_stats_summarize_a_file(run: Run, several: Path, tmp_path: Path) -> None:
    assert "3 traces (3 completed), 3 steps" in run("trace", "stats", several)
    found = orjson.loads(run("trace", "stats", BUNDLED, "--json"))
    assert found["by_status"] == {"failed": 1}
    assert found["nodes"][0]["visits"] == 2
    run("trace", "stats", BUNDLED, "--json", "-o", tmp_path / "stats.json")
    assert orjson.loads((tmp_path / "stats.json").read_bytes()) == found


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("out.pb", []),
        ("out.pb.gz", []),
        ("out.otlp.jsonl", []),
        ("out.spans", ["--to", "otlp-json"]),
        ("out.bin", ["--to", "otlp-protobuf"]),
    ],
)
def test_export_writes_spans(run: Run, tmp_path: Path, name: str, options: list[str]) -> None:
    output = run("trace", "export", BUNDLED, "-o", tmp_path / name, *options)
    assert output == f"13 spans written to {tmp_path / name}\n"
    assert read_otel(tmp_path / name) == list(read(BUNDLED))


def test_export_writes_our_format_and_a_single_trace(run: Run, several: Path, tmp_path: Path) -> None:
    write_otel(tmp_path / "in.pb", read(several))
    run("trace", "export", tmp_path / "in.pb", "-o", tmp_path / "out.jsonl", "--trace", "run-1")
    assert [trace.id for trace in read_traces(tmp_path / "out.jsonl")] == ["run-1"]


def test_errors_are_one_line_with_advice(run: Run, several: Path, tmp_path: Path) -> None:
    assert "did you mean 'run-1'?" in run("trace", "show", several, "--trace", "run-11", code=2)
    assert "has 3 traces: choose one with --trace ID" in run("trace", "show", several, "--format", "svg", code=2)
    missing = run("trace", "show", tmp_path / "nowhere.jsonl", code=2)
    assert missing.startswith("error: ")
    assert "No such file" in missing
    (tmp_path / "bad.jsonl").write_text('{"schema_version": 1, "trace": {"id": "t", "steps": [{"id": 1}]}}')
    assert "bad.jsonl, line 1: trace.steps[0].id" in run("trace", "show", tmp_path / "bad.jsonl", code=2)
    assert "Invalid value for '--format'" in run("trace", "show", several, "--format", "pdf", code=2)


def test_piped_traces_are_read(run: Run, tmp_path: Path) -> None:
    """A pipe can be read only once."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (BUNDLED, tmp_path / "spans.pb"):
        if not path.exists():
            write_otel(path, read(BUNDLED))
        writer = threading.Thread(target=lambda path=path: pipe.write_bytes(path.read_bytes()))
        writer.start()
        assert run("trace", "show", pipe) == run("trace", "show", BUNDLED)
        writer.join()


@pytest.mark.slow
def test_outputs_that_cannot_be_written_are_reported(run: Run, tmp_path: Path) -> None:
    for arguments in (["show", "--format", "svg"], ["stats"], ["export"]):
        command, *options = arguments
        for output in (tmp_path / "no" / "folder", tmp_path):
            error = run("trace", command, BUNDLED, *options, "-o", output, code=2)
            assert error.startswith("error: ")
            assert len(error.splitlines()) == 1


def test_an_empty_file_is_reported(run: Run, tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    assert run("trace", "stats", empty) == "0 traces, 0 steps, longest 0, with loops 0\n"
    assert "has no traces" in run("trace", "show", empty, "--format", "svg", code=2)


def test_traces_cannot_send_control_codes_to_the_terminal(run: Run, tmp_path: Path) -> None:
    odd = ExecutionTrace(
        id="\x1b[2J[/red]",
        steps=(Step(id="a\x1b[H", node_id="[bold]", error=Failure("[/]", "\x1b]0;title\x07")),),
        attributes={"promptiter.skipped_spans": "[/red]"},
    )
    write_traces(tmp_path / "odd.jsonl", [odd])
    write_traces(tmp_path / "two.jsonl", [odd, odd])
    for command, file in (("show", "odd"), ("stats", "odd"), ("show", "two")):
        assert "\x1b" not in run("trace", command, tmp_path / f"{file}.jsonl")


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (120, ["kind", "when", "time", "tokens", "cost", "reads instruction"]),
        (80, ["when", "time", "tokens", "cost", "reads instruction"]),
        (60, ["when", "time", "tokens", "cost"]),
        (46, ["when", "time", "tokens"]),
    ],
)
def test_a_narrow_terminal_shows_fewer_but_complete_columns(
    monkeypatch: pytest.MonkeyPatch, width: int, shown: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = CliRunner().invoke(app, ["trace", "show", str(BUNDLED)]).stdout
    table = lines.split("failing path")[0].split("\n\n")[1].splitlines()
    heading, steps = table[0], [line for line in table if "finalize" not in line]
    for column in ("kind", "when", "time", "tokens", "cost", "reads instruction"):
        assert (column in heading + steps[1]) is (column in shown)
    assert "…" not in "".join(steps)
    assert max(map(len, table)) <= width


def test_long_step_ids_keep_their_index_in_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    name = "worker_with_a_rather_long_name_for_tests"
    steps = [Step(id=f"{name}[{index}]", node_id=name, start_ns=index + 1, end_ns=index + 9) for index in range(8)]
    write_traces(tmp_path / "long.jsonl", [ExecutionTrace(id="long", steps=tuple(steps))])
    monkeypatch.setenv("COLUMNS", "80")
    shown = CliRunner().invoke(app, ["trace", "show", str(tmp_path / "long.jsonl")]).stdout
    for index in range(8):
        assert re.search(rf"worker_with\S*…\S*\[{index}\]", shown)
    assert "━" in shown


def test_show_prints_inputs_as_json(run: Run, tmp_path: Path) -> None:
    failed = Step(id="a", node_id="a", input=Snapshot(data={"query": None, "deep": [True]}), error=Failure("Oops"))
    write_traces(tmp_path / "failed.jsonl", [ExecutionTrace(id="t", steps=(failed,), status="failed")])
    assert 'in   {"query": null, "deep": [true]}' in run("trace", "show", tmp_path / "failed.jsonl")


def test_the_name_of_the_output_implies_the_format(run: Run, tmp_path: Path) -> None:
    run("trace", "show", BUNDLED, "-o", tmp_path / "run.svg")
    assert (tmp_path / "run.svg").read_text(encoding="utf-8").startswith("<svg")
    assert "name it .jsonl, .otlp.jsonl or .pb" in run("trace", "export", BUNDLED, "-o", tmp_path / "x.txt", code=2)


def test_help_and_version(run: Run) -> None:
    assert "trace" in run("--help")
    assert run("--version").startswith("promptiter 0.")
