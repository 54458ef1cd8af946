"""The pages of a report: links lead somewhere, nothing recorded becomes markup, and nothing comes from the network."""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from promptiter.agents.edges import Edge
from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import ModelNode
from promptiter.engine.engine import Engine
from promptiter.engine.request import RunRequest
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.metrics.builtin import build_metrics
from promptiter.llm.gateway import Gateway
from promptiter.policies.goals import Goal
from promptiter.policies.non_inferiority import NonInferior
from promptiter.runs.directory import RunDirectory
from promptiter.runs.report.files import write_report
from promptiter.runs.report.run_report import RunReport, read_report
from promptiter.search.cheaper import ModelDownsizing
from tests.worlds import desk, desk_stages, shop
from tests.worlds.desk_stages import Writes

pytestmark = pytest.mark.slow

HOSTILE = "<script>alert('x')</script><img src=x onerror=\"y\">&amp;`|*"


class Page(HTMLParser):
    """The tags, ids and links of a page, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.handlers: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        for name, value in attrs:
            self.ids += [value] if name == "id" and value else []
            self.links += [value] if name in ("href", "src") and value else []
            self.handlers += [name] if name.startswith("on") else []

    def handle_data(self, data: str) -> None:
        self.text += data


def make_hostile_set(name: str, count: int) -> EvalSet:
    cases = [
        EvalCase(id=f"{name}-{number}{HOSTILE}", turns=(Turn(user=f"{name} {number} {HOSTILE}", expected=HOSTILE),))
        for number in range(count)
    ]
    return EvalSet(id=f"{name}{HOSTILE}", cases=tuple(cases))


def run_hostile(folder: Path) -> Path:
    """A run in which every name and text is markup: agent, nodes, model, cases, instructions, patches, reasons."""
    nodes = tuple(ModelNode(name=name, instruction=f"{name} {HOSTILE}", model=HOSTILE) for name in ("draft", "polish"))
    agent = GraphAgent(name=HOSTILE, nodes=nodes, edges=(Edge("draft", "polish"),))
    engine = Engine(
        agent,
        desk.evaluator(Gateway(models={HOSTILE: desk.model()})),
        desk_stages.Blames(),
        desk_stages.Merges(),
        desk_stages.Writes(lambda request: f"{request.surface.value} Be careful. {HOSTILE}"),
    )
    request = desk.request(
        run_id="", train=make_hostile_set("train", 3), validation=make_hostile_set("validation", 2), max_rounds=1
    )
    run = RunDirectory.begin(folder, engine, request)
    run.run_sync()
    assert not [note for note in run.notes if "report" in note]
    return run.path


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_hostile(tmp_path_factory.mktemp("hostile"))


def test_markup_in_names_and_texts_appears_as_text(hostile: Path) -> None:
    page = Page((hostile / "report.html").read_text(encoding="utf-8"))
    assert page.tags["script"] == page.tags["img"] == page.tags["link"] == page.tags["iframe"] == 0
    assert page.handlers == []
    assert page.text.count(HOSTILE) >= 8
    assert [link for link in page.links if not link.startswith("#")] == []


def test_the_markdown_has_no_html_of_what_was_recorded(hostile: Path) -> None:
    text = (hostile / "report.md").read_text(encoding="utf-8")
    fenced = text.split("```")
    outside = "".join(fenced[::2])
    assert "<script" not in outside
    assert "<img" not in outside
    assert "&lt;script&gt;" in outside


def check_links(folder: Path) -> RunReport:
    """Every link of the page leads to an element, and each hunk links to its evidence or says that it has none."""
    page = Page((folder / "report.html").read_text(encoding="utf-8"))
    assert len(set(page.ids)) == len(page.ids)
    assert {link.removeprefix("#") for link in page.links} <= set(page.ids)
    report = read_report(folder)
    hunks = [hunk for found in report.hunks.values() for hunk in found]
    assert hunks
    for hunk in hunks:
        assert f"#{hunk.anchor}" in page.links
        assert any(f"#{each.anchor}" in page.links for each in hunk.gradients)
        assert any(f"#{each.anchor}" in page.links for each in hunk.steps)
        assert "whole surface" in page.text or not hunk.whole_surface
    shown = {case.anchor for case in report.evidence}
    assert shown
    assert shown <= {link.removeprefix("#") for link in page.links}
    return report


def test_hunks_link_to_their_gradients_cases_and_steps(hostile: Path) -> None:
    report = check_links(hostile)
    steps = [step for case in report.evidence for step in case.steps]
    assert {step.node_id for step in steps} == {"draft", "polish"}
    assert all(HOSTILE in step.input for step in steps)


def test_a_run_that_crashed_has_a_report_of_what_it_did(hostile: Path, tmp_path: Path) -> None:
    """Whatever event it was killed at."""
    lines = (hostile / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "run.json").write_bytes((hostile / "run.json").read_bytes())
    for count in range(1, len(lines), 5):
        (tmp_path / "journal.jsonl").write_bytes(b"".join(lines[:count]))
        page = Page(write_report(tmp_path).read_text(encoding="utf-8"))
        assert "Interrupted" in page.text
        assert {link.removeprefix("#") for link in page.links} <= set(page.ids)


def test_a_run_without_its_traces_says_so(hostile: Path, tmp_path: Path) -> None:
    for name in ("run.json", "journal.jsonl"):
        (tmp_path / name).write_bytes((hostile / name).read_bytes())
    report = read_report(tmp_path)
    assert {case.note for case in report.evidence} == {"the trace of 2 steps was not kept"}
    assert len(report.diagrams) == 1
    check_links(write_report(tmp_path).parent)


def run_desk(folder: Path, writes: Writes) -> Path:
    """A run of the desk, whose prompts `writes` changes."""
    run = RunDirectory.begin(folder, desk_stages.engine(optimizer=writes), desk.request(run_id=""))
    run.run_sync()
    return run.path


def test_a_step_that_was_blamed_in_two_turns_of_a_case_has_an_id_for_each(tmp_path: Path) -> None:
    turns = tuple(Turn(user=text, expected=f"{text} careful careful") for text in ("one", "two"))
    cases = EvalSet(id="cases", cases=(EvalCase(id="talk", turns=turns),))
    metrics = build_metrics([{"metric_name": "exact_match"}])
    evaluator = Evaluator(metrics, gateway=Gateway(models={"scripted": desk.model()}))
    engine = Engine(desk.agent(), evaluator, desk_stages.Blames(), desk_stages.Merges(), Writes())
    run = RunDirectory.begin(tmp_path, engine, RunRequest(cases=cases, max_rounds=1))
    run.run_sync()
    [case] = check_links(run.path).evidence
    assert [step.place for step in case.steps if step.step_id == "draft"] == [
        "node draft, round 1",
        "node draft, round 1, turn 2",
    ]


def test_a_change_without_evidence_says_so(tmp_path: Path) -> None:
    run = RunDirectory.begin(tmp_path, desk.engine(desk.DRAFT), desk.request(run_id=""))
    run.run_sync()
    page = Page((run.path / "report.html").read_text(encoding="utf-8"))
    assert "whole surface" in page.text
    assert "no gradient, case or step is recorded for it" in page.text
    assert "(whole surface)" in (run.path / "report.md").read_text(encoding="utf-8")


def test_control_characters_are_replaced(tmp_path: Path) -> None:
    text = "Be careful.\x00\x1b[0m\x0b \N{RIGHT-TO-LEFT OVERRIDE}gnp"
    folder = run_desk(tmp_path, Writes(lambda request: f"{request.surface.value} {text}"))
    for name in ("report.html", "report.md"):
        page = (folder / name).read_text(encoding="utf-8")
        assert all(letter.isprintable() or letter in "\n\t" for letter in page)
        assert "Be careful.\N{REPLACEMENT CHARACTER}" in page
        assert "[U+202E]gnp" in page


def test_the_evidence_of_many_changes_is_nested_in_markdown(tmp_path: Path) -> None:
    rules = [f"Rule {number}." for number in range(24)]
    agent = GraphAgent(name="desk", nodes=(ModelNode(name="draft", instruction=" ".join(rules), model="scripted"),))
    changed = " ".join(f"{rule} Be careful {number}." if number % 2 else rule for number, rule in enumerate(rules))
    engine = Engine(
        agent, desk.evaluator(), desk_stages.Blames(), desk_stages.Merges(), Writes(lambda _: f"{changed} careful")
    )
    run = RunDirectory.begin(tmp_path, engine, desk.request(run_id=""))
    run.run_sync()
    tokens = MarkdownIt().parse((run.path / "report.md").read_text(encoding="utf-8"))
    levels = {each.level for each in tokens if each.type == "inline" and each.content.startswith("tokens: about")}
    assert len([each for each in tokens if each.type == "ordered_list_open"]) == 1
    assert levels == {5}


def test_a_change_that_rests_on_cases_without_gradients_names_them_and_their_steps(tmp_path: Path) -> None:
    request = desk.request(
        run_id="",
        train=shop.eval_set("train", 2),
        validation=shop.eval_set("validation", 20),
        goal=Goal(kind="cheaper"),
        acceptance=NonInferior(0.05, "usd"),
        final_test=None,
    )
    run = RunDirectory.begin(tmp_path, shop.engine(ModelDownsizing(), shop.agent()), request)
    run.run_sync()
    page = (run.path / "report.html").read_text(encoding="utf-8")
    assert "<dt>cases</dt><dd>validation-" in page.replace("<dd>\n", "<dd>")
    assert "<dt>steps</dt><dd>clerk</dd>" in page
    text = (run.path / "report.md").read_text(encoding="utf-8")
    assert "   - steps: clerk\n" in text
    assert re.search(r"dollars of a case run \| \$0\.0\d+ \| \$0\.0000\d+ \|", text)
