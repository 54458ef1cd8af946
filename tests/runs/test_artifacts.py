from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import orjson
from hypothesis import given
from hypothesis import strategies as st

from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.evaluation.score import Score
from promptiter.evaluation.trace_file import TraceFile
from promptiter.profile import Profile
from promptiter.runlog.results import RoundResult, RunMeasured, RunResult
from promptiter.runs.artifacts import file_name, write_artifacts
from promptiter.structure import Node, StructureSnapshot, Surface
from traces import digest

STRUCTURE = StructureSnapshot(
    nodes=(Node(id="team/writer"), Node(id="reader")),
    surfaces=(
        Surface(node_id="team/writer", type="instruction", value="Write."),
        Surface(node_id="team/writer", type="examples", value=[]),
        Surface(node_id="reader", type="instruction", value="Read.\n"),
        Surface(node_id="reader", type="model", value="simulated"),
    ),
)
BASELINE = Profile.baseline(STRUCTURE)
EXAMPLES = [{"role": "user", "content": "é"}, {"role": "assistant", "content": "e"}]
BEST = Profile.of(STRUCTURE, {"team/writer#instruction": "Write well.", "team/writer#examples": EXAMPLES})
RESULT = RunResult(
    status="succeeded",
    verdict="improved",
    structure=STRUCTURE,
    targets=("reader#instruction", "team/writer#instruction"),
    objective="mean_score",
    initial_profile=BASELINE,
    accepted_profile=BEST,
    working_profile=BEST,
    measured=RunMeasured(run_id="2026-01-02T03-04-05_0123abcd"),
)


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_the_files_of_a_run_can_be_read_back(tmp_path: Path) -> None:
    write_artifacts(tmp_path, RESULT)
    assert files(tmp_path) == [
        "profiles/baseline.json",
        "profiles/best.json",
        "profiles/candidates.jsonl",
        "result.json",
        "surfaces/reader#instruction.md",
        "surfaces/team%2Fwriter#examples.baseline.md",
        "surfaces/team%2Fwriter#examples.best.md",
        "surfaces/team%2Fwriter#instruction.baseline.md",
        "surfaces/team%2Fwriter#instruction.best.md",
    ]
    assert RunResult.from_json((tmp_path / "result.json").read_bytes()) == RESULT
    assert Profile.load(tmp_path / "profiles" / "baseline.json") == BASELINE
    assert Profile.load(tmp_path / "profiles" / "best.json") == BEST


def test_the_texts_of_surfaces_can_be_copied_from_their_files(tmp_path: Path) -> None:
    write_artifacts(tmp_path, RESULT)
    surfaces = tmp_path / "surfaces"
    assert (surfaces / "reader#instruction.md").read_text() == "Read.\n"
    assert (surfaces / "team%2Fwriter#instruction.baseline.md").read_text() == "Write."
    assert (surfaces / "team%2Fwriter#instruction.best.md").read_text() == "Write well."
    assert orjson.loads((surfaces / "team%2Fwriter#examples.best.md").read_bytes()) == EXAMPLES


def test_files_of_an_earlier_end_are_replaced(tmp_path: Path) -> None:
    write_artifacts(tmp_path, replace(RESULT, accepted_profile=BASELINE))
    assert files(tmp_path)[3:] == [
        "result.json",
        "surfaces/reader#instruction.md",
        "surfaces/team%2Fwriter#instruction.md",
    ]
    write_artifacts(tmp_path, RESULT)
    assert "surfaces/team%2Fwriter#instruction.md" not in files(tmp_path)
    assert Profile.load(tmp_path / "profiles" / "best.json") == BEST


@given(st.sets(st.text(min_size=1), min_size=2, max_size=2))
def test_names_of_files_are_safe_and_differ_as_the_surfaces_do(ids: set[str]) -> None:
    names = {file_name(f"{each}#instruction") for each in ids}
    assert len(names) == 2
    for name in names:
        assert "/" not in name
        assert name.isprintable()
        assert len(name.encode()) <= 140


def test_long_names_stay_apart() -> None:
    one, other = (file_name(f"{'x' * 300}{end}#instruction") for end in "ab")
    assert one != other
    assert len(one) == len(other) < 140


def test_the_traces_of_all_failed_runs_are_kept(tmp_path: Path) -> None:
    """Runs of the rounds, comparisons with the accepted profile, the final test and the test set."""

    def run_case(name: str, value: float, repeat: int = 0) -> CaseRow:
        score = Score(metric="careful", value=value)
        return CaseRow(case_id="c", scores=(score,), trace_digests=(digest(name),), repeat=repeat)

    def evaluation(phase: str) -> Evaluation:
        rows = (run_case(f"{phase} fails", 0.5), run_case(f"{phase} passes", 1.0, repeat=1))
        return Evaluation(
            eval_set_id="e",
            profile_digest="p",
            rows=rows,
            thresholds={"careful": 1.0},
            number=phases.index(phase),
            phase=phase,
        )

    phases = ("baseline", "train", "validation", "final_test", "test")
    names = [f"{phase} {outcome}" for phase in phases for outcome in ("fails", "passes")]
    stored = TraceFile(tmp_path / "traces.jsonl.gz")
    for name in names:
        stored.write(digest(name), b"")
    outside = [evaluation(phase) for phase in ("baseline", "final_test", "test")]
    inside = RoundResult(round=1, input_profile=BASELINE, evaluations=(evaluation("train"), evaluation("validation")))
    result = replace(RESULT, evaluations=tuple(outside), rounds=(inside,), is_final=True)
    write_artifacts(tmp_path, result, keep_traces="failed")
    kept = TraceFile(tmp_path / "traces.jsonl.gz")
    assert {name for name in names if digest(name) in kept} == {f"{phase} fails" for phase in phases}
