from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import orjson
import pytest

from examples.working_example.agent import agent
from promptiter.llm.ledger import LedgerEntry, LedgerSnapshot, Spending
from promptiter.profile import Profile
from promptiter.runs.cost_wording import spending_line
from promptiter.runs.summary import summarize_costs
from tests.cli.conftest import Run

ROOT = Path(__file__).parents[2]
AGENT = "examples.working_example.agent:agent"
CASES = ROOT / "examples" / "working_example" / "validation.jsonl"
METRICS = ROOT / "tests" / "worlds" / "desk.metrics.json"
GIVEN = ("--eval-set", CASES, "--metrics", METRICS)
BETTER = (
    "Keep the order number, the product, the amount, the quantity, the date and the priority. Copy the values verbatim."
)

LONELY = """
from promptiter import Edge, GraphAgent, ModelNode
from promptiter.agents import Choice

nodes = [ModelNode(name=name, instruction="Answer.", model="simulated") for name in ("first", "last", "unused")]
choice = Choice("first", lambda context: "last", {"last": "last", "unused": "unused"})
agent = GraphAgent(name="lonely", nodes=tuple(nodes), edges=(choice, Edge("unused", "last")))
"""


@pytest.fixture
def better(tmp_path: Path) -> Path:
    path = tmp_path / "better.json"
    Profile.of(agent.describe(), {"planner#instruction": BETTER}).save(path)
    return path


def test_a_failing_agent_exits_with_1_and_the_reasons(run: Run) -> None:
    shown = run("evaluate", AGENT, *GIVEN, code=1, stream="out")
    assert "0 of 4 cases pass" in shown
    assert "(offline model)" in shown
    assert "expected '308', got None at $.amount" in shown
    narrow = run("evaluate", AGENT, *GIVEN, code=1, stream="out", width=50).splitlines()
    first = next(number for number, line in enumerate(narrow) if line.startswith("✗"))
    details = [line for line in narrow[first:] if not line.startswith("✗")]
    assert all(line.startswith("  ") for line in details), "wrapped lines are indented"
    assert any(line.startswith(" " * 8) for line in details)


def test_surfaces_that_no_run_read_are_named(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lonely.py").write_text(LONELY)
    monkeypatch.syspath_prepend(tmp_path)
    shown = run("evaluate", "lonely:agent", *GIVEN, code=1, stream="out")
    assert (
        "Never read: unused#examples, unused#instruction, unused#model; a patch there cannot change anything" in shown
    )
    assert "Never read" not in run("evaluate", AGENT, *GIVEN, code=1, stream="out")


def test_a_better_profile_passes(run: Run, better: Path) -> None:
    shown = run("evaluate", AGENT, *GIVEN, "--profile", better)
    assert "4 of 4 cases pass (100%), mean score 1.000" in shown


def test_parts_that_only_a_run_uses_may_lack_their_variables(run: Run, tmp_path: Path) -> None:
    part = "{name: my:part, options: {key: '${PROMPTITER_UNSET}'}}"
    config = f"agent: {AGENT}\nvalidation: {CASES}\nmetrics: {METRICS}\n"
    path = tmp_path / "promptiter.yaml"
    path.write_text(f"{config}search: {part}\nstages: {{optimizer: {part}}}\nobservers: [{part}]\n")
    assert "0 of 4 cases pass" in run("evaluate", "--config", path, code=1, stream="out")
    path.write_text(f"{config}executor: {part}\n")
    assert "'PROMPTITER_UNSET' is not set; export it" in run("evaluate", "--config", path, code=2)


def test_a_service_that_gets_one_case_at_a_time_is_noted(run: Run, tmp_path: Path) -> None:
    agent = "{http: 'http://127.0.0.1:9/chat', prompts: {reply: Be kind.}}"
    path = tmp_path / "promptiter.yaml"
    path.write_text(f"agent: {agent}\nvalidation: {CASES}\nmetrics: {METRICS}\n")
    errors = run("evaluate", "--config", path, code=1)
    assert errors.count("note: the service of agent 'agent' runs one case at a time: it is not sent {key}") == 1


def test_json_has_rows_and_figures(run: Run, tmp_path: Path) -> None:
    run("evaluate", AGENT, *GIVEN, "--repeats", "2", "--json", "-o", tmp_path / "out.json", code=1)
    found = orjson.loads((tmp_path / "out.json").read_bytes())
    assert (found["mean_score"], found["is_simulated"], len(found["rows"])) == (0.5, True, 8)
    assert {row["repeat"] for row in found["rows"]} == {0, 1}
    assert set(found["rows"][0]["measured"]) == {"duration_s", "origin", "paid_calls", "cache_hits"}


def test_what_an_agent_prints_is_not_part_of_the_json(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "talkative.py").write_text("from examples.working_example.agent import agent\nprint('loaded')\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert len(orjson.loads(run("evaluate", "talkative:agent", *GIVEN, "--json", code=1, stream="out"))["rows"]) == 4


@pytest.mark.slow
def test_two_seeds_on_one_cache_are_two_samples(run: Run, tmp_path: Path) -> None:
    def count_calls(*options: str) -> tuple[int, int]:
        output = tmp_path / "out.json"
        run("evaluate", AGENT, *GIVEN, "--cache", tmp_path / "answers.jsonl", "--json", "-o", output, *options, code=1)
        entries = orjson.loads(output.read_bytes())["measured"]["ledger"]["entries"]
        paid, cached = (sum(entry["spent"][name] for entry in entries) for name in ("calls", "cache_hits"))
        return paid, cached

    paid, _ = first = count_calls("--seed", "1")
    assert first == (paid, 0) == count_calls("--seed", "2")
    assert count_calls("--seed", "1") == (0, paid)
    assert count_calls() == (paid, 0)
    assert count_calls("--seed", "0") == (0, paid)


def test_junit_has_the_details_of_a_failure(run: Run, tmp_path: Path) -> None:
    run("evaluate", AGENT, *GIVEN, "--junit", tmp_path / "out.xml", code=1)
    suite = ElementTree.parse(tmp_path / "out.xml").getroot()
    assert (suite.attrib["tests"], suite.attrib["failures"]) == ("4", "4")
    failure = suite.find("./testcase[@name='clock']/failure")
    assert failure is not None
    [failed] = orjson.loads(failure.text or "")
    assert (failed["input"][0].splitlines()[1], orjson.loads(failed["expected"][0])["amount"], failed["metric"]) == (
        "order number: B-3219",
        "308",
        "json_match",
    )


def test_a_shared_cache_pays_nothing_twice(run: Run, better: Path, tmp_path: Path) -> None:
    arguments = ("evaluate", AGENT, *GIVEN, "--profile", better, "--cache", tmp_path / "cache.sqlite")
    assert ", 0 cached, " in run(*arguments)
    assert " 0 model calls, " in run(*arguments)


def test_a_cap_in_dollars_covers_the_offline_model(run: Run, better: Path) -> None:
    assert "cost $0 (offline model)" in run("evaluate", AGENT, *GIVEN, "--profile", better, "--max-usd", "0.01")


def test_one_case_can_be_chosen(run: Run, better: Path) -> None:
    shown = run("evaluate", AGENT, "-e", f"{CASES}:clock", "-m", METRICS, "-p", better)
    assert "1 of 1 cases pass" in shown


def test_a_teacher_writes_missing_references_and_a_user_simulator_leads_scenarios(run: Run, tmp_path: Path) -> None:
    plain = {"eval_id": "open", "conversation": [{"user_content": {"parts": [{"text": "What did order B-04 cost?"}]}}]}
    scenario = {"starting_prompt": "Where is order A-17?", "conversation_plan": "Ask where the order is, then stop."}
    cases = {"eval_set_id": "s", "eval_cases": [plain, {"eval_id": "talk", "conversation_scenario": scenario}]}
    (tmp_path / "set.evalset.json").write_bytes(orjson.dumps(cases))
    metrics = {
        "metrics": [{"metric_name": "length", "threshold": 0.0, "criterion": {"max": 9999}}],
        "user_simulator_config": {"model": "simulated", "max_turns": 2},
    }
    (tmp_path / "test_config.json").write_bytes(orjson.dumps(metrics))
    shown = run("evaluate", AGENT, "-e", tmp_path / "set.evalset.json", "--teacher", "simulated", "--json")
    found = orjson.loads(shown)
    assert {row["case_id"]: row["error"] for row in found["rows"]} == {"open": None, "talk": None}
    roles = {entry["role"] for entry in found["measured"]["ledger"]["entries"]}
    assert {"agent", "teacher"} <= roles
    metrics["user_simulator_config"] = {"modell": "x"}
    (tmp_path / "test_config.json").write_bytes(orjson.dumps(metrics))
    assert "unknown key 'modell' (did you mean 'model'?)" in run(
        "evaluate", AGENT, "-e", tmp_path / "set.evalset.json", code=2
    )


@pytest.mark.slow
def test_wrong_input_is_reported_before_anything_is_spent(run: Run, tmp_path: Path) -> None:
    assert "'nothing' is neither an agent as module:attr nor a config" in run("evaluate", "nothing", *GIVEN, code=2)
    assert "cannot import 'no_such'" in run("evaluate", "no_such:agent", *GIVEN, code=2)
    assert "has no 'unused'" in run("evaluate", "examples.working_example.agent:unused", *GIVEN, code=2)
    assert "not an agent" in run("evaluate", "examples.working_example.agent:MODEL", *GIVEN, code=2)
    (tmp_path / "set.jsonl").write_text('{"input": "x", "expected": "y"}\n')
    assert "no metrics: pass --metrics" in run("evaluate", AGENT, "-e", tmp_path / "set.jsonl", code=2)
    other = tmp_path / "other.json"
    other.write_text('{"structure_id": "x", "values": {"gone#instruction": "a"}}')
    assert "  - profile: " in run("evaluate", AGENT, *GIVEN, "-p", tmp_path / "nope.json", code=2)
    assert "the agent has no gone#instruction" in run("evaluate", AGENT, *GIVEN, "-p", other, code=2)


def test_an_undecorated_function_is_named_as_such(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bare.py").write_text("async def plain(question: str) -> str:\n    return question\n")
    monkeypatch.syspath_prepend(tmp_path)
    wrong = run("describe", "bare:plain", code=2)
    assert "'bare:plain' is a plain function, not an agent; decorate it with @agent(instruction=...)" in wrong


def test_calls_of_unknown_price_are_counted_as_unknown() -> None:
    priced = LedgerEntry(role="agent", model="a", node_id="n", spent=Spending(calls=12, cost_usd=0.5))
    unknown = LedgerEntry(
        role="agent", model="b", node_id="n", spent=Spending(calls=60, cost_usd=None, unpriced_calls=60)
    )
    tool = LedgerEntry(role="agent", model="tool:search", node_id="n", spent=Spending(calls=24))
    both = summarize_costs(LedgerSnapshot((priced, unknown, tool)))
    assert spending_line(both) == (
        "72 model calls, 0 cached, 24 tool calls, 0 tokens, cost $0.5000 + 60 calls of unknown price"
    )
    assert spending_line(summarize_costs(LedgerSnapshot((unknown,)))).endswith(", cost unknown")
    silent = Spending(calls=2, cost_usd=None, unpriced_calls=2, uncounted_calls=2)
    entries = (priced, unknown, LedgerEntry(role="judge", model="c", node_id="", spent=silent))
    told_apart = "cost $0.5000 + 2 calls of unknown usage + 60 calls of unknown price"
    assert spending_line(summarize_costs(LedgerSnapshot(entries))).endswith(told_apart)
    uncounted = LedgerEntry(role="agent", model="c", node_id="n", spent=Spending(calls=3, uncounted_calls=3))
    counted = LedgerEntry(role="agent", model="d", node_id="n", spent=Spending(calls=2, input_tokens=40))
    assert ", tokens unknown, " in spending_line(summarize_costs(LedgerSnapshot((uncounted,))))
    some = spending_line(summarize_costs(LedgerSnapshot((uncounted, counted))))
    assert ", 40 tokens + 3 calls of unknown usage, " in some


def test_describe_shows_nodes_and_surfaces(run: Run, tmp_path: Path) -> None:
    shown = run("describe", AGENT)
    assert "desk  6 nodes, 7 edges, 15 surfaces" in shown
    assert "rewrite (need_revision), finalize (finalize)" in shown
    assert "finalize#instruction" in shown
    assert run("describe", AGENT, "--format", "mermaid").startswith("flowchart TD")
    run("describe", AGENT, "-o", tmp_path / "desk.svg")
    assert (tmp_path / "desk.svg").read_text(encoding="utf-8").count("data-id=") == 6
    assert orjson.loads(run("describe", AGENT, "--format", "json"))["structure_id"] == agent.describe().structure_id
