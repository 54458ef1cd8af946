"""The candidates and iterations of a GEPA run, as `promptiter show` prints them."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from promptiter.cli.views.candidate_tree import print_candidates
from promptiter.cli.views.rounds import print_rounds
from promptiter.runs.directory import RunDirectory
from promptiter.runs.report.pages import render_html, render_markdown
from promptiter.runs.report.run_report import read_report
from promptiter.runs.summary import RunSummary, read_summary
from tests.runs.test_candidate_pool import gepa
from tests.worlds.two_cares import build_request


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = RunDirectory.begin(tmp_path_factory.mktemp("gepa"), gepa(), build_request())
    run.run_sync()
    return run.path


def show(summary: RunSummary, *, rounds: bool = False) -> list[str]:
    screen = Console(file=io.StringIO(), width=120, highlight=False)
    (print_rounds if rounds else print_candidates)(screen, summary)
    assert isinstance(screen.file, io.StringIO)
    return [line.rstrip() for line in screen.file.getvalue().splitlines() if line.strip()]


def test_candidates_are_a_tree_with_the_best_marked(folder: Path) -> None:
    assert show(read_summary(folder)) == [
        "Candidates",
        "  #0  0.500  best on 0 of 6 cases  baseline",
        "  ├── #1  0.625  best on 3 of 6 cases, on the frontier  round 1: draft#instruction",
        "  │   └── #3  1.000  best on 6 of 6 cases, on the frontier, the best  round 3: merge of #1 + #2",
        "  └── #2  0.625  best on 3 of 6 cases, on the frontier  round 2: polish#instruction",
        "  --rounds shows each iteration",
    ]


def test_each_iteration_has_a_line(folder: Path) -> None:
    lines = show(read_summary(folder), rounds=True)
    assert lines[1].split() == ["round", "kind", "from", "mini-batch", "validation", "decision"]
    assert lines[2].split() == ["0", "0.500", "#0", "baseline"]
    assert lines[3].split(maxsplit=7) == [
        *("1", "reflective", "#0", "0.500", "→", "0.750", "0.625"),
        "#1 best draft#instruction: gain +0.125",
    ]
    assert any("merge       #1 + #2  0.700 and 0.550 → 1.000       1.000  #3 best" in line for line in lines)


def test_a_pool_without_a_candidate_has_no_tree(folder: Path) -> None:
    summary = read_summary(folder)
    baseline = replace(summary.pool, candidates=summary.pool.candidates[:1])
    assert show(replace(summary, pool=baseline)) == ["Candidates", "  none was kept; --rounds shows each iteration"]


def test_the_report_has_the_tree_and_the_iterations(folder: Path) -> None:
    report = read_report(folder)
    page = render_html(report)
    section = page[page.index('<h2 id="candidates">') : page.index('<h2 id="changes">')]
    assert section.count("<rect") == 4 + 3, "candidates, and the legend"
    assert section.count("<tr>") == 1 + 3
    assert '<a href="#candidates">' in page
    text = render_markdown(report)
    assert "| `#3` | `#1 + #2` | 3 | 1.000 | 6 of 6 | **the best** |" in text
    assert "| 2 | reflective | `#0` | polish\\#instruction | 0.500 → 0.750 | 0.625 | `#2` kept | kept on" in text
