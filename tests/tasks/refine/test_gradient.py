from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from promptiter.errors import SetupError
from promptiter.tasks.refine.gradient import MetricGap, RefinementGradient, extract_gradient
from promptiter.tasks.refine.records import Defect, GateRejection, MetricValue, RunRecord
from promptiter.tasks.refine.run_folder import find_events, read_run, write_run
from tests.tasks.refine.foreign_runs import RUN_ID, gate, write_completion, write_events, write_json


def critique(*descriptions: str, severity: str = "high") -> dict[str, object]:
    defects = [{"description": each, "severity": severity, "category": "content"} for each in descriptions]
    return {"critiques": [{"worker": "w", "defects": defects}]}


def test_defects_of_all_critiques_come_in_the_order_of_the_iterations(tmp_path: Path) -> None:
    write_completion(tmp_path, critique={"defects": [{"summary": "not used", "severity": "low"}]})
    for number, description in ((10, "third"), (2, "second"), (1, "first")):
        write_json(tmp_path / "iterations" / str(number) / "critique.json", critique(description))
    assert [each.description for each in read_run(tmp_path).defects] == ["first", "second", "third"]


def test_defects_of_the_completion_are_the_fallback(tmp_path: Path) -> None:
    write_completion(tmp_path, critique={"defects": [{"summary": "too short", "severity": "medium"}]})
    assert read_run(tmp_path).defects == (Defect(description="too short", severity="medium"),)


def test_equal_defects_count_once() -> None:
    long = "x" * 120
    defects = [
        Defect(description=f"{long} one", severity="high"),
        Defect(description=f"{long} two", severity="high"),
        Defect(description=f"{long} one", severity="low"),
    ]
    found = extract_gradient(RunRecord(run_id="r", task="t", defects=tuple(defects))).defects
    assert found == (defects[0], defects[2])


def test_gate_rejections_are_read_in_both_shapes_and_the_last_three_count(tmp_path: Path) -> None:
    write_completion(tmp_path)
    events = [
        gate("L0", "too early"),
        gate("critique", "passed", triggered=False),
        {"type": "gate.reject", "gate": "file", "reason": "no file"},
        {"type": "tool.call", "gate": "none"},
        gate("placeholder", "TODO found"),
        gate("eval", "0.4 of 0.8"),
    ]
    write_events(tmp_path / "events.jsonl", events)
    assert read_run(tmp_path).rejections == (
        GateRejection(gate="file", reason="no file"),
        GateRejection(gate="placeholder", reason="TODO found"),
        GateRejection(gate="eval", reason="0.4 of 0.8"),
    )


def test_events_are_found_beside_the_folder_of_runs(tmp_path: Path) -> None:
    run_dir = tmp_path / "workspace" / "runs" / RUN_ID
    colocated = write_events(run_dir / "events.jsonl", [])
    assert find_events(run_dir, RUN_ID) == colocated
    above = write_events(tmp_path / "workspace" / "logs" / RUN_ID / "events.jsonl", [])
    assert find_events(run_dir, RUN_ID) == above
    own = write_events(run_dir / "logs" / RUN_ID / "events.jsonl", [])
    assert find_events(run_dir, RUN_ID) == own


def test_a_run_id_with_a_path_leads_nowhere(tmp_path: Path) -> None:
    write_events(tmp_path / "logs" / "secret" / "events.jsonl", [gate("a", "b")])
    assert find_events(tmp_path / "run", "../secret") is None
    assert find_events(tmp_path / "run", "long" * 100) is None


def test_only_metrics_below_their_threshold_are_gaps(tmp_path: Path) -> None:
    write_completion(
        tmp_path,
        evaluation={
            "per_metric": {"accuracy": 0.6, "style": {"score": 0.5}, "length": 0.9, "odd": "n/a", "free": 0.1},
            "thresholds": {"accuracy": 0.8, "style": 1.0, "length": 0.9, "missing": 1.0},
        },
    )
    assert extract_gradient(read_run(tmp_path)).metric_gaps == (
        MetricGap(name="style", value=0.5, threshold=1.0, gap=0.5),
        MetricGap(name="accuracy", value=0.6, threshold=0.8, gap=0.2),
    )


def test_what_other_programs_wrote_wrongly_is_left_out(tmp_path: Path) -> None:
    write_completion(
        tmp_path, evaluation=[1], critique="none", final_budget="?", task=7, models={"manager": "m", "worker": 3}
    )
    (tmp_path / "iterations" / "1").mkdir(parents=True)
    (tmp_path / "iterations" / "1" / "critique.json").write_text("{")
    write_json(
        tmp_path / "iterations" / "2" / "critique.json", {"critiques": [{"defects": [3, {"severity": "low"}]}, 5]}
    )
    (tmp_path / "events.jsonl").write_text('{"gate": broken\n[1, "gate"]\n')
    record = read_run(tmp_path)
    assert (record.defects, record.rejections, record.metrics, record.task) == ((), (), (), "")
    assert record.models.manager == "m"


@pytest.mark.parametrize(("content", "problem"), [(None, "cannot be read"), ("{", "not JSON"), ("[]", "JSON object")])
def test_an_unreadable_seed_is_a_setup_error(tmp_path: Path, content: str | None, problem: str) -> None:
    if content is not None:
        (tmp_path / "run_completion.json").write_text(content)
    with pytest.raises(SetupError, match=problem):
        read_run(tmp_path)


def test_a_gradient_without_anything_is_empty(tmp_path: Path) -> None:
    assert extract_gradient(RunRecord(run_id="r", task="t")).is_empty
    met = MetricValue(name="m", value=1.0, threshold=1.0)
    assert extract_gradient(RunRecord(run_id="r", task="t", metrics=(met,))).is_empty
    gradient = RefinementGradient(run_id="r", gate_rejections=(GateRejection(gate="g"),))
    assert not gradient.is_empty
    stored = orjson.loads(gradient.write(tmp_path).read_bytes())
    assert RefinementGradient.model_validate(stored) == gradient
    assert (tmp_path / "gradient_input.json").exists()


def test_what_we_write_about_a_run_is_read_again(tmp_path: Path) -> None:
    record = RunRecord(
        run_id="r",
        parent_run_id="p",
        task="t",
        status="budget_ended",
        defects=(Defect(description="d", severity="P1", category="c", location="l"),),
        metrics=(MetricValue(name="m", value=0.5, threshold=0.7, weight=2.0), MetricValue(name="n", value=1.0)),
    )
    write_run(tmp_path, record)
    assert read_run(tmp_path) == record
