"""`promptiter apply` and `promptiter run --apply` on the starter, whose prompts are literals in agent.py."""

from __future__ import annotations

import sys
from pathlib import Path

import orjson
import pytest

from promptiter.agents.in_place.saved_baseline import SavedBaseline
from promptiter.agents.in_place.saved_value import FileChange
from promptiter.agents.in_place.source_lock import FolderLock
from promptiter.api import apply_run, load_run
from promptiter.errors import SetupError
from promptiter.profile import Profile
from promptiter.sources import FileSource
from tests.cli.conftest import Run

pytestmark = pytest.mark.slow


def test_apply_and_revert_print_what_they_did(run: Run, desk: Path, finished_run: Path) -> None:
    before = (desk / "agent.py").read_bytes()
    diff = run("apply", "--dry-run")
    assert '-            "amount, the city and the wish exactly as given.",\n' in diff
    assert (desk / "agent.py").read_bytes() == before
    assert run("apply") == "Applied 2 surfaces in 1 place\n  agent.py: filing#instruction, reception#instruction\n"
    assert run("apply") == "Nothing to do: every place has its new value\n"
    found = orjson.loads(run("apply", "--revert", "--json"))
    assert (found["state"], found["files"][0]["surfaces"]) == (
        "reverted",
        ["filing#instruction", "reception#instruction"],
    )
    assert (desk / "agent.py").read_bytes() == before
    assert run("apply", finished_run, "--revert") == "Nothing to do: every place has its old value\n"


def test_the_next_run_starts_from_the_applied_values(run: Run, desk: Path, finished_run: Path) -> None:
    run("apply")
    sys.modules.pop("agent", None)
    best = Profile.load(finished_run / "profiles" / "best.json")
    snapshot = load_run(desk).engine.describe()
    assert {name: snapshot.surface(name).value for name in best.overrides} == dict(best.overrides)
    assert "Nothing to fix" in run("run", "--quiet")


def test_a_run_can_apply_its_result_at_the_end(run: Run, desk: Path) -> None:
    printed = run("run", "--quiet", "--apply")
    assert printed.endswith("Applied 2 surfaces in 1 place\n  agent.py: filing#instruction, reception#instruction\n")
    assert "purchase date exactly as given" in (desk / "agent.py").read_text()
    assert "Nothing to do" in run("resume", "--apply", "--quiet")


def test_the_key_apply_is_the_option_and_json_has_the_report(run: Run, desk: Path) -> None:
    config = desk / "promptiter.yaml"
    config.write_text(config.read_text() + "\napply: true\n")
    found = orjson.loads(run("run", "--json"))
    assert found["applied"]["state"] == "applied"
    assert found["applied"]["files"][0]["path"] == str(desk / "agent.py")


def test_a_text_without_a_place_is_a_warning_before_the_run_and_an_error_after_it(run: Run, desk: Path) -> None:
    (desk / "copy.py").write_text((desk / "agent.py").read_text())
    printed = run("run", "--quiet", "--apply", code=1)
    assert "warning: a new value could not be applied: filing#instruction: its text is in 2 places: agent" in printed
    assert "error: the run ended, but its result was not applied: nothing was applied" in printed
    place = "agent.py:agent.nodes.5.instruction"
    shown = run("apply", "--source", f"filing#instruction={place}", code=2)
    assert "- reception#instruction: its text is in 2 places" in shown
    assert "filing#instruction:" not in shown
    config = desk / "promptiter.yaml"
    config.write_text(
        f"{config.read_text()}\nsources:\n  filing#instruction: {place}\n"
        "  reception#instruction: {place: agent.py:agent.nodes.0.instruction}\n"
    )
    assert run("apply").startswith("Applied 2 surfaces in 1 place")


def test_a_run_without_an_improvement_is_not_applied(run: Run, desk: Path) -> None:
    run("run", "--quiet", "--max-rounds", "0")
    assert "accepted no change, so there is nothing to apply" in run("apply", code=1)
    assert "was never applied" in run("apply", "--revert", code=2)


def test_a_result_that_is_not_shown_for_new_cases_has_its_own_code(run: Run, desk: Path, finished_run: Path) -> None:
    assert "no improvement for new cases (improved_on_validation)" in run("apply", "--require", "unseen", code=8)
    config = desk / "promptiter.yaml"
    config.write_text(config.read_text() + "\nrequire: unseen\n")
    assert "no improvement for new cases" in run("apply", code=8)
    assert run("apply", "--require", "unseen", "--force").startswith("Applied")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--source", "filing"), "must have the form SURFACE=PLACE"),
        (("--revert", "--force"), "--revert takes neither --force nor --require"),
        (
            ("--source", "filing#instruction=agent.py:agent.nodes.7.instruction"),
            "no 'agent.nodes.7.instruction' in",
        ),
        (("--source", "filing#instruction=prompts/none.md"), "none.md' cannot be read"),
        (("--source", "filing#instruction=no_store:key"), "cannot import 'no_store'"),
        (("--source", "fling#instruction=agent.py:X"), "unknown surface 'fling#instruction' (did you mean 'filing"),
    ],
)
def test_mistakes_are_named(run: Run, desk: Path, finished_run: Path, arguments: tuple[str, ...], problem: str) -> None:
    before = (desk / "agent.py").read_bytes()
    assert problem in run("apply", *arguments, code=2)
    assert (desk / "agent.py").read_bytes() == before


def test_wrong_sources_in_the_configuration_are_problems_of_a_run(run: Run, desk: Path) -> None:
    config = desk / "promptiter.yaml"
    config.write_text(config.read_text() + "\nsources: {fling#instruction: agent.py:X}\n")
    assert "unknown surface 'fling#instruction' (did you mean 'filing#instruction'?)" in run("run", code=2)
    config.write_text(config.read_text().replace("agent.py:X", "'agent.py:'"))
    assert "is not a place" in run("run", code=2)


@pytest.mark.parametrize("command", [("restore",), ("run", "--max-rounds", "0", "--quiet"), ("apply",)])
def test_the_next_command_repairs_what_a_kill_left(
    run: Run, desk: Path, finished_run: Path, command: tuple[str, ...]
) -> None:
    agent, other = desk / "agent.py", desk / "metrics.json"
    before = {path: path.read_bytes() for path in (agent, other)}
    saved = SavedBaseline(desk / ".promptiter")
    changes = [
        FileChange(name=path.name, source=FileSource(path), before=raw, after=raw + b"\n")
        for path, raw in before.items()
    ]
    with FolderLock(saved.folder).hold():
        saved._save([each.save() for each in changes])
        assert changes[0].write()
    run(*command)
    assert other.read_bytes() == before[other]
    assert agent.read_bytes() == before[agent] or command == ("apply",)
    assert not (desk / ".promptiter" / "in_place.json").exists()


def test_the_python_api_takes_places(desk: Path, finished_run: Path) -> None:
    report = apply_run(finished_run, sources={"filing#instruction": "agent.py:agent.nodes.5.instruction"}, dry_run=True)
    assert report.surface_ids == ("filing#instruction", "reception#instruction")
    with pytest.raises(SetupError, match=r"reception#instruction: .*was edited since"):
        apply_run(finished_run, sources=dict.fromkeys(report.surface_ids, "agent.py:agent.nodes.5.instruction"))
