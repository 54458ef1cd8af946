"""An agent that is a command: how it gets prompts and cases, and what becomes of its answers and failures."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from promptiter.agents.base import AgentRun, CaseInput, RunContext
from promptiter.agents.black_box.command import CommandAgent
from promptiter.agents.in_place.agent import InPlaceAgent
from promptiter.errors import SetupError, SurfaceValueError
from promptiter.evaluation.workers.wire_format import Packer, Unpacker
from promptiter.llm.messages import Message
from promptiter.profile import Profile
from promptiter.sources import CallbackSource, FileSource
from promptiter.structure import Limits

SHOW = """
import json, os, stat, sys
seen = {"arguments": sys.argv[1:], "stdin": sys.stdin.read(), "environment": dict(os.environ)}
paths = [each for each in (*sys.argv[1:], *os.environ.values()) if "/promptiter-" in each]
seen["files"] = [open(each).read() for each in paths]
seen["modes"] = [[oct(stat.S_IMODE(os.stat(path).st_mode)) for path in (each, os.path.dirname(each))] for each in paths]
print(json.dumps(seen))
"""
NOTE = {"note": "Be kind."}


def show(*arguments: str, **fields: Any) -> CommandAgent:
    """A command that answers with all that it got."""
    fields.setdefault("prompts", NOTE)
    return CommandAgent(command=(sys.executable, "-Sc", SHOW, *arguments), **fields)


def echo(text: str, **fields: Any) -> CommandAgent:
    """A command that always answers the same."""
    given = {"X": "{input}{prompt:note}"}
    return CommandAgent(command=("cat",), prompts=NOTE, stdin=text, environment=given, **fields)


def run(
    agent: CommandAgent | InPlaceAgent, text: str = "hello", *, case: CaseInput | None = None, **values: str
) -> AgentRun:
    profile = Profile.of(agent.describe(), {f"{name}#instruction": value for name, value in values.items()})
    return asyncio.run(agent.run(case or CaseInput(text=text), profile, RunContext(case_id="one")))


def seen(agent: CommandAgent, text: str = "hello", **values: str) -> Any:
    done = run(agent, text, case=None, **values)
    assert done.error is None, done.error
    return orjson.loads(done.output)


def test_prompts_are_arguments_variables_standard_input_or_private_files() -> None:
    prompts = {"one": "1", "two": "2", "three": "3", "bot#tool.search": "4"}
    agent = show(
        "--one={prompt:one}",
        "{file:two}",
        "--text={input}",
        prompts=prompts,
        stdin="{prompt:three}",
        environment={"FOUR": "{file:bot#tool.search}", "FIVE": "{prompt:bot#tool.search}"},
    )
    got = seen(agent, one="first")
    assert got["arguments"][0] == "--one=first"
    assert got["arguments"][2] == "--text=hello"
    assert got["stdin"] == "3"
    assert got["files"] == ["2", "4"]
    assert got["environment"]["FIVE"] == "4"
    assert got["modes"] == [["0o600", "0o700"]] * 2
    assert not Path(got["arguments"][1]).parent.exists()
    assert agent.describe().surface_ids == (
        "one#instruction",
        "two#instruction",
        "three#instruction",
        "bot#tool.search",
    )
    assert [node.id for node in agent.describe().nodes] == ["agent", "one", "two", "three", "bot"]


def test_the_case_is_on_standard_input_unless_a_template_has_it() -> None:
    assert seen(show("{file:note}"), "-x\n{prompt:note}")["stdin"] == "-x\n{prompt:note}"
    assert seen(show("{file:note}", environment={"CASE": "{input}"}))["stdin"] == ""


def test_history_and_state_are_json() -> None:
    agent = show("{file:note}", stdin='{"past": {history}, "state": {state}, "text": "{{input}}"}')
    history = (Message("user", "hi"), Message("assistant", "hello"))
    done = run(agent, case=CaseInput(text="more", history=history, state={"id": 7}))
    got = orjson.loads(orjson.loads(done.output)["stdin"])
    assert got["past"] == [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    assert got["state"] == {"id": 7}
    assert got["text"] == "{input}"


def test_only_listed_variables_are_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THIS_PROCESS", "x")
    monkeypatch.setenv("WANTED", "y")
    assert "SECRET_OF_THIS_PROCESS" not in seen(show("{file:note}"))["environment"]
    got = seen(show("{file:note}", inherit=("WANTED",)))["environment"]
    assert got["WANTED"] == "y"
    assert "PATH" not in got


def test_values_are_filled_in_once_and_never_read_by_a_shell() -> None:
    text = "$(touch x) `id` ; {prompt:note} {{input}} \n\"'"
    got = seen(show("--note={prompt:note}", "--text={input}"), text, note="{input} {file:note}")
    assert got["arguments"] == ["--note={input} {file:note}", f"--text={text}"]


@pytest.mark.parametrize("text", ["--help", "-"])
def test_a_text_that_would_be_an_option_is_refused(text: str) -> None:
    refused = run(show("{file:note}", "{input}"), text)
    assert refused.error is not None
    assert "begins with '-', so the command" in refused.error.message
    assert seen(show("{file:note}", "--", "{input}"), text)["arguments"][2] == text


def test_a_nul_in_an_argument_is_an_error_of_the_case() -> None:
    refused = run(show("{file:note}", "{input}"), "a\0b")
    assert refused.error is not None
    assert "only standard input or a file can hold" in refused.error.message
    assert seen(show("{file:note}"), "a\0b")["stdin"] == "a\0b"


def test_names_of_prompts_cannot_lead_out_of_the_private_folder() -> None:
    got = seen(show("{file:../../note}", prompts={"../../note": "Be kind."}))
    assert got["files"] == ["Be kind."]
    assert ".." not in Path(got["arguments"][0]).parts


def test_a_failing_command_is_an_error_with_the_end_of_its_error_output() -> None:
    code = "import sys; sys.exit('no such booking')"
    failed = run(CommandAgent(command=(sys.executable, "-Sc", code, "{file:note}"), prompts=NOTE))
    assert failed.error is not None
    assert failed.error.text.endswith("ended with exit code 1: no such booking")
    assert not failed.error.is_outage
    assert failed.trace is not None
    assert failed.trace.status == "failed"


def test_the_answer_may_be_a_part_of_the_output() -> None:
    done = run(echo('{"a": {"b": ["one", "two"]}}', normalize="$.a"))
    assert (done.output, done.data, done.error) == ('{"b":["one","two"]}', {"b": ["one", "two"]}, None)
    failed = run(echo("{}", normalize="$.a"))
    assert failed.error is not None
    assert failed.error.message.startswith('the output has no $["a"]')


def test_output_that_is_not_text_is_an_error() -> None:
    failed = run(CommandAgent(command=("printf", "\\377", "{file:note}"), prompts=NOTE))
    assert failed.error is not None
    assert "is not UTF-8, at byte 0" in failed.error.message


def test_a_case_that_takes_too_long_is_a_timeout_of_the_case() -> None:
    agent = CommandAgent(command=("sh", "-c", "sleep 60", "{file:note}"), prompts=NOTE, grace_s=0.1)
    profile = Profile.baseline(agent.describe())
    done = asyncio.run(agent.run(CaseInput(text="a"), profile, RunContext(deadline_s=0.2)))
    assert done.error is not None
    assert done.error.text == "TimeoutError: no answer in 0.2 s"


def test_a_run_without_visible_calls_is_one_step_that_may_have_read_every_prompt() -> None:
    done = run(show("{file:one}{prompt:two}", prompts={"one": "1", "two": "2"}), one="first")
    assert done.trace is not None
    [step] = done.trace.steps
    assert (step.id, step.node_id, step.input.text) == ("agent", "agent", "hello")
    assert set(step.surface_reads or ()) == {"one#instruction", "two#instruction"}


def test_prompts_are_read_from_their_sources(tmp_path: Path) -> None:
    file = tmp_path / "note.md"
    file.write_text("Be brief.\n")
    remote = CallbackSource(lambda: "Be kind.", lambda _: None)
    agent = show("{prompt:note}", "{prompt:reply}", prompts={"note": file, "reply": remote})
    assert seen(agent, note="New.")["arguments"] == ["New.", "Be kind."]
    assert agent.describe().surface("note#instruction").value == "Be brief.\n"
    assert agent.sources == {"note#instruction": FileSource(file), "reply#instruction": remote}
    assert file.read_text() == "Be brief.\n"


def test_new_values_must_respect_limits(tmp_path: Path) -> None:
    (tmp_path / "note.md").write_text("Be brief, {name}.")
    prompts = {"note": tmp_path / "note.md", "bot#parameter.top_k": 3}
    limits = {"note": Limits(max_chars=20, placeholders=("name",)), "bot#parameter.top_k": Limits(maximum=9)}
    agent = show("{file:note}", "{prompt:bot#parameter.top_k}", prompts=prompts, limits=limits)
    snapshot = agent.describe()
    for name, value, problem in (
        ("note#instruction", "Be very, very brief, {name}.", "at most 20 are allowed"),
        ("note#instruction", "Be brief.", "the placeholder {name} is missing"),
        ("bot#parameter.top_k", 10, "10 is not between None and 9"),
    ):
        with pytest.raises(SurfaceValueError, match=problem):
            Profile.of(snapshot, {name: value})
    (tmp_path / "note.md").write_text("Be brief.")
    with pytest.raises(SurfaceValueError, match=r"the placeholder {name} is missing"):
        show("{file:note}", prompts={"note": tmp_path / "note.md"}, limits={"note": limits["note"]}).describe()


def test_in_place_the_command_reads_its_own_file(tmp_path: Path) -> None:
    file = tmp_path / "note.md"
    file.write_text("Be brief.")
    inner = CommandAgent(command=("cat", str(file)), prompts={"note": file}, is_in_place=True)
    agent = InPlaceAgent(inner, inner.sources, state_folder=tmp_path / "state")
    assert run(agent, note="New.").output == "New."
    agent.close()
    assert file.read_text() == "Be brief."


def test_the_health_check_runs_once_and_before_the_first_case(tmp_path: Path) -> None:
    count = tmp_path / "count"
    agent = show("{file:note}", health=("sh", "-c", f"echo x >> {count}"))
    profile = Profile.baseline(agent.describe())

    async def run_twice() -> None:
        await asyncio.gather(*(agent.run(CaseInput(text="a"), profile) for _ in range(2)))

    asyncio.run(run_twice())
    assert count.read_text() == "x\n"
    with pytest.raises(
        SetupError, match="health check of the agent failed: the command 'sh' ended with exit code 2: no"
    ):
        run(show("{file:note}", health=("sh", "-c", "echo no >&2; exit 2")))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"command": ()}, "the command is empty"),
        ({"command": "bot --x"}, "command"),
        ({"command": ("bot",)}, "does not get the prompt note; write {file:note} or {prompt:note}"),
        ({"command": ("bot", "{prompt:nose}")}, "no prompt 'nose' for {prompt:nose} .did you mean 'note'"),
        ({"command": ("bot", "{inptu}", "{file:note}")}, "{inptu} is not a placeholder; known are {input}"),
        ({"stdin": "{prompt:note}", "command": ("bot",)}, "does not get the message of the case"),
        ({"prompts": {}}, "give its prompts by name"),
        ({"prompts": {"note#rules": "x"}}, "'note#rules' is not a surface id"),
        ({"prompts": {"note": "x", "note#instruction": "y"}}, "several prompts are the surface 'note#instruction'"),
        ({"normalize": "answer"}, "'answer' is not a JSON path"),
        ({"health": "bot --check"}, "health is 'bot --check'; give an address"),
        ({"timeout_s": 0}, "timeout_s must be above 0"),
        ({"timeout_s": "5"}, "timeout_s must be above 0, got '5'"),
        ({"grace_s": None}, "grace_s must be above 0, got None"),
        ({"max_output_bytes": 1.5}, "max_output_bytes must be a whole number above 0, got 1.5"),
        ({"environment": {"A=B": "x"}}, "environment has 'A=B', which is not the name of a variable"),
        ({"cwd": 5}, "cwd is 5; give a folder"),
        (
            {"limits": {"nose": Limits(max_chars=9)}},
            "limits are given for 'nose', which is not a prompt .did you mean 'note'",
        ),
        ({"limits": {"note": Limits(minimum=1)}}, "minimum is not a limit of 'note#instruction'; it takes max_chars"),
        ({"limits": {"note": 9}}, "limits"),
    ],
)
def test_mistakes_are_found_when_the_agent_is_built(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SetupError, match=message):
        CommandAgent(**{"command": ("bot", "{file:note}"), "prompts": NOTE, **fields})


def test_another_process_builds_the_same_agent(tmp_path: Path) -> None:
    file = tmp_path / "note.md"
    file.write_text("Be brief.")
    agent = show(
        "{file:note}",
        prompts={"note": file, "bot#parameter.top_k": 3},
        stdin="{input}{prompt:bot#parameter.top_k}",
        limits={"note": Limits(max_chars=90, placeholders=()), "bot#parameter.top_k": Limits(minimum=1, maximum=9)},
    )
    handles: Any = None
    again = Unpacker(handles).unpack(orjson.loads(Packer(handles).dump(agent, "the agent")))
    assert again == agent
    assert again.describe().baseline_id == agent.describe().baseline_id
