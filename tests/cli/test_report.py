from __future__ import annotations

from pathlib import Path

import pytest

from promptiter.runs.report.run_report import read_report
from tests.cli.conftest import Run
from tests.runs.report.test_pages import Page, check_links

pytestmark = pytest.mark.slow

MAX_BYTES = 2_000_000


def test_the_report_of_the_demo_links_each_hunk_to_its_evidence_and_is_small(run: Run, finished_run: Path) -> None:
    for name in ("report.html", "report.md", "trajectory.csv"):
        (finished_run / name).unlink()
    assert run("report", finished_run).strip() == f"runs/{finished_run.name}/report.html"
    written = (finished_run / "report.html").read_bytes()
    assert len(written) < MAX_BYTES
    run("report", finished_run)
    assert (finished_run / "report.html").read_bytes() == written
    report = check_links(finished_run)
    hunks = [hunk for found in report.hunks.values() for hunk in found]
    assert {hunk.surface_id for hunk in hunks} == {"filing#instruction", "reception#instruction"}
    assert [each.surface_id for each in hunks if each.whole_surface] == []


def test_the_report_says_what_a_reviewer_asks(finished_run: Path) -> None:
    page = Page((finished_run / "report.html").read_text(encoding="utf-8"))
    for title in ("Evidence", "Trajectory", "Blame", "Cases", "Cost", "How to adopt it", "Inputs", "Caveats"):
        assert title in page.text
    text = (finished_run / "report.md").read_text(encoding="utf-8")
    for fact in (
        "Improved on these 8 cases: mean score 0.500 → 1.000",
        "Not shown for new cases",
        "| purchase\\_date | 0.000 | 1.000 |",
        "new pass: 8",
        "| filing\\#instruction | +0.500 | kept |",
        "- steps: filing (12 gradients)",
        "- seed: 0",
        "An offline model simulated the answers.",
    ):
        assert fact in text


def test_a_thinned_run_can_be_shown_judged_and_reported(run: Run, desk: Path) -> None:
    run("run", "--keep-best-only", "--quiet")
    [folder] = (desk / "runs").glob("[!.]*")
    kept = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert kept == {
        *("run.json", "journal.jsonl", "result.json", "forecast.json"),
        *("report.html", "report.md", "trajectory.csv", "profiles/baseline.json", "profiles/best.json"),
        *(f"surfaces/filing#instruction.{kind}.md" for kind in ("baseline", "best")),
        *(f"surfaces/reception#instruction.{kind}.md" for kind in ("baseline", "best")),
    }
    assert len(read_report(folder).diagrams) == 2
    assert "Improved on these 8 cases" in run("show", folder)
    assert "Compared with the forecast" in run("show", folder, "--costs")
    run("rejudge", folder)
    run("gate", folder)
    run("report", folder)
    check_links(folder)
