"""An eval set as a test file: pytest collects its cases, runs those that are selected, and reports them."""

from __future__ import annotations

import asyncio
import json
import sys
import tomllib
from pathlib import Path

import pytest

from promptiter.api import load_evaluation

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.slow

AGENT = """
from promptiter.agents import agent, surface

@agent(instruction="Shout.")
async def shout(text: str) -> str:
    with open("calls.txt", "a") as calls:
        calls.write(text + "\\n")
    if text == "crash":
        raise ValueError("it crashed")
    return text.upper() if "Shout" in surface("instruction") else text
"""
CONFIG = "agent: agent:shout\ncases: cases.jsonl\nmetrics: [{metric_name: contains}]\n"
CASES = [{"id": name, "input": name, "expected": name.upper()} for name in ("one", "two", "three")]
WRONG = {"id": "wrong", "input": "four", "expected": "5"}
CRASH = {"id": "crash", "input": "crash", "expected": "CRASH"}


SMALL_AGENT = (
    "from promptiter.agents import agent\n@agent(instruction='Shout.')\ndef shout(text: str) -> str: return text"
)


@pytest.fixture(autouse=True, scope="session")
def _imports(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Import what an evaluation imports. Otherwise each run of pytest in this process would import it again."""
    folder = tmp_path_factory.mktemp("imports")
    (folder / "cases.jsonl").write_text(json.dumps(CASES[0]))
    (folder / "first_agent.py").write_text(SMALL_AGENT)
    (folder / "promptiter.yaml").write_text(CONFIG.replace("agent:shout", "first_agent:shout"))
    built = load_evaluation(folder / "promptiter.yaml")
    asyncio.run(built.evaluate())
    built.gateway.cache.close()


def make_project(pytester: pytest.Pytester, *more: dict[str, str], config: str = CONFIG) -> None:
    pytester.makepyfile(agent=AGENT, test_other="def test_other(): pass")
    lines = "".join(f"{json.dumps(case)}\n" for case in (*CASES, *more))
    (pytester.path / "cases.jsonl").write_text(lines)
    (pytester.path / "promptiter.yaml").write_text(config)
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")


def run(pytester: pytest.Pytester, *arguments: str, code: int = 0, alone: bool = False) -> pytest.RunResult:
    """Run pytest, in a process of its own if `alone`.

    It loads the plugin by its entry point, and by this name even if that is not installed yet.
    """
    parallel = "xdist" if "-n" in arguments else "no:xdist"
    start = pytester.runpytest_subprocess if alone else pytester.runpytest_inprocess
    result = start("-p", "promptiter.pytest_plugin", "-p", parallel, *arguments)
    assert result.ret == code, result.outlines
    return result


def read_calls(pytester: pytest.Pytester) -> list[str]:
    """The inputs that the agent was called with since the last time."""
    file = pytester.path / "calls.txt"
    calls = file.read_text().split() if file.exists() else []
    file.unlink(missing_ok=True)
    return sorted(calls)


def test_each_case_is_a_test_beside_the_others(pytester: pytest.Pytester) -> None:
    make_project(pytester, WRONG)
    result = run(pytester, "--promptiter", "promptiter.yaml", "-v", code=1)
    result.assert_outcomes(passed=4, failed=1)
    result.stdout.fnmatch_lines_random(["promptiter.yaml::two PASSED*", "test_other.py::test_other PASSED*"])
    result.stdout.fnmatch_lines(["FAILED promptiter.yaml::wrong - contains 0: '5' is missing"])
    text = result.stdout.str()
    failure = json.loads(text[text.index("\n{\n") : text.index("\n}\n") + 3])
    assert failure["case"] == "wrong"
    [found] = failure["failures"]
    assert (found["input"], found["expected"], found["actual"]) == (["four"], ["5"], "FOUR")
    assert (found["metric"], found["score"], "5" in found["reason"]) == ("contains", 0.0, True)
    assert read_calls(pytester) == ["four", "one", "three", "two"], "each once"


def test_only_selected_cases_run(pytester: pytest.Pytester) -> None:
    make_project(pytester, WRONG)
    run(pytester, "--promptiter", ".", "-k", "one or two").assert_outcomes(passed=2, deselected=3)
    assert read_calls(pytester) == ["one", "two"]
    run(pytester, "promptiter.yaml::three").assert_outcomes(passed=1)
    assert read_calls(pytester) == ["three"], "a name that pytest printed is enough"
    run(pytester, "promptiter.yaml", code=1)
    read_calls(pytester)
    run(pytester, "promptiter.yaml", "--lf", code=1).assert_outcomes(failed=1)
    assert read_calls(pytester) == ["four"]
    run(pytester, "promptiter.yaml", "-x", code=1).assert_outcomes(passed=3, failed=1)


def test_collecting_neither_imports_nor_calls_the_agent(pytester: pytest.Pytester) -> None:
    make_project(pytester)
    (pytester.path / "agent.py").write_text("raise ValueError('imported')")
    result = run(pytester, "promptiter.yaml", "--collect-only", "-q")
    result.stdout.fnmatch_lines(["promptiter.yaml::one", "promptiter.yaml::two", "promptiter.yaml::three"])
    result = run(pytester, "promptiter.yaml", code=1)
    result.assert_outcomes(errors=3)
    result.stdout.fnmatch_lines(["*ValueError: imported*"])
    result.stdout.no_fnmatch_line("*def setup*")


def test_two_configurations_do_not_share_an_agent_by_its_name(pytester: pytest.Pytester) -> None:
    make_project(pytester)
    other = pytester.mkdir("other")
    for name in ("promptiter.yaml", "cases.jsonl"):
        (other / name).write_text((pytester.path / name).read_text())
    (other / "agent.py").write_text(AGENT.replace("text.upper()", "'another agent'"))
    result = run(pytester, "promptiter.yaml", "other/promptiter.yaml", code=1)
    result.assert_outcomes(passed=3, errors=3)
    result.stdout.fnmatch_lines(["*the module 'agent' was already imported from *agent.py; *other*agent.py*"])


def test_a_case_that_could_not_be_scored_is_an_error(pytester: pytest.Pytester) -> None:
    make_project(pytester, CRASH)
    result = run(pytester, "promptiter.yaml", "--promptiter-min-pass-rate", "0.5", code=1)
    result.assert_outcomes(passed=3, errors=1)
    result.stdout.fnmatch_lines(["contains not scored: *it crashed*"])
    result.stdout.no_fnmatch_line("*def setup*")


def test_names_and_errors_are_single_lines_without_control_characters(pytester: pytest.Pytester) -> None:
    odd = "\x1b[2Jan\nid"
    make_project(pytester, CRASH, {"id": odd, "input": "odd", "expected": "ODD"})
    (pytester.path / "agent.py").write_text(AGENT.replace("it crashed", "it \\x1b[2J\\ncrashed"))
    result = run(pytester, "promptiter.yaml", "-v", code=1)
    result.assert_outcomes(passed=4, errors=1)
    result.stdout.fnmatch_lines(["contains not scored: the run failed: ValueError: it * crashed"])
    assert "\x1b[2J" not in result.stdout.str()


def test_a_limit_for_the_whole_decides_instead_of_single_cases(pytester: pytest.Pytester) -> None:
    make_project(pytester, WRONG)
    result = run(pytester, "promptiter.yaml", "--promptiter-min-pass-rate", "0.75")
    result.assert_outcomes(passed=3, xfailed=1)
    result.stdout.fnmatch_lines(["PASSED promptiter.yaml: pass rate 0.750, the limit is 0.75"])
    result = run(pytester, "promptiter.yaml", "--promptiter-min-score", "0.8", code=1)
    result.assert_outcomes(passed=3, xfailed=1)
    result.stdout.fnmatch_lines(["FAILED promptiter.yaml: mean score 0.750, the limit is 0.8"])
    result = run(pytester, "promptiter.yaml", "--promptiter-min-score", "80", code=4)
    result.stderr.fnmatch_lines(["*promptiter_min_score is 80.0; give a number from 0 to 1"])


def test_settings_may_be_in_the_ini_file(pytester: pytest.Pytester) -> None:
    make_project(pytester, WRONG)
    pytester.makeini(
        "[pytest]\ntestpaths = test_other.py\npromptiter = promptiter.yaml\npromptiter_min_pass_rate = 0.9\n"
        "promptiter_eval_set = cases\nasyncio_default_fixture_loop_scope = function\n"
    )
    run(pytester, code=1).assert_outcomes(passed=4, xfailed=1)
    run(pytester, "test_other.py").assert_outcomes(passed=1)


@pytest.mark.long
def test_workers_of_xdist_share_the_cases_and_the_limit_holds_for_all_of_them(pytester: pytest.Pytester) -> None:
    make_project(pytester, WRONG)
    result = run(pytester, "promptiter.yaml", "-n", "2", "--promptiter-min-pass-rate", "0.8", code=1)
    result.assert_outcomes(passed=3, xfailed=1)
    result.stdout.fnmatch_lines(["FAILED promptiter.yaml: pass rate 0.750, the limit is 0.8"])
    assert read_calls(pytester) == ["four", "one", "three", "two"], "each once"


def test_a_profile_and_repeats_are_used(pytester: pytest.Pytester) -> None:
    make_project(pytester, config=f"{CONFIG}evaluation: {{repeats: 2}}\n")
    from_python = (
        "from agent import shout\nfrom promptiter import Profile\n"
        "Profile.of(shout.describe(), {'shout#instruction': 'Whisper.'}).save('quiet.json')\n"
    )
    pytester.run(sys.executable, "-c", from_python)
    run(pytester, "promptiter.yaml").assert_outcomes(passed=3)
    assert len(read_calls(pytester)) == 6
    run(pytester, "promptiter.yaml", "--promptiter-profile", "quiet.json", code=1).assert_outcomes(failed=3)
    result = run(pytester, "promptiter.yaml", "--promptiter-profile", "none.json", code=1)
    result.stdout.fnmatch_lines(["*none.json* cannot be read*"])


def test_what_is_wrong_with_a_configuration_is_reported_at_collection(pytester: pytest.Pytester) -> None:
    make_project(pytester, config="agent: agent:shout\ncase: cases.jsonl\nmetrics: [{metric_name: contains}]\n")
    result = run(pytester, "promptiter.yaml", code=2)
    result.stdout.fnmatch_lines(["*did you mean 'cases'*"])
    result.stdout.fnmatch_lines(["*validation: is missing; name its eval set, or pass --promptiter-eval-set FILE"])


def test_a_test_may_evaluate_by_itself(pytester: pytest.Pytester) -> None:
    make_project(pytester, WRONG)
    pytester.makepyfile(
        test_desk="""
        import pytest

        def test_the_share_of_cases_that_pass(promptiter_evaluate):
            evaluation = promptiter_evaluate("promptiter.yaml", min_pass_rate=0.7)
            assert evaluation.pass_rate == 0.75

        @pytest.mark.asyncio
        async def test_some_cases_within_an_event_loop(promptiter_evaluate):
            promptiter_evaluate(eval_set="cases.jsonl", cases=["one", "two"])

        def test_every_case_has_to_pass_without_a_limit(promptiter_evaluate):
            promptiter_evaluate()
        """
    )
    result = run(pytester, "test_desk.py", code=1)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*1 of 4 cases did not pass: wrong", '*"actual": "FOUR"*'])


def test_nothing_is_imported_unless_a_configuration_is_named(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_imports():
            found = {name for name in sys.modules if name.startswith(("promptiter", "traces"))}
            assert found <= {"promptiter", "promptiter.pytest_plugin", "traces", "traces.lazy"}
        """
    )
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    run(pytester, alone=True).assert_outcomes(passed=1)


def test_the_plugin_is_an_entry_point_of_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"promptiter.pytest_plugin": "promptiter.pytest_plugin"}
