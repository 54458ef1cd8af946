"""Agents in promptiter.yaml: a function, a command or a service, with their prompts."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import orjson
import pytest
import yaml

from promptiter.agents.base import Agent
from promptiter.agents.black_box.call import CallAgent
from promptiter.agents.black_box.command import CommandAgent
from promptiter.agents.black_box.http import HttpAgent
from promptiter.agents.in_place.agent import InPlaceAgent
from promptiter.agents.remote.agent import RemoteAgent
from promptiter.api import load_run
from promptiter.backprop.command.stages import CommandOptimizer
from promptiter.config.agent_section import AgentSection
from promptiter.config.agents import build_agent
from promptiter.config.configured_run import ConfiguredRun
from promptiter.config.effective_config import build_effective_config
from promptiter.config.file import RunConfig, read_config
from promptiter.config.run_project import open_project
from promptiter.errors import RequestError
from promptiter.search.rounds import BackpropRounds
from promptiter.sources import FileSource
from promptiter.structure import Limits
from tests.config.conftest import FILE, problems, write_config

OTHERS = FILE.partition("\n")[2].partition("\n")[2]
ECHO = """
def call(query, prompts):
    return f"{prompts['note']} {query}"

def clean(text):
    return text.upper()
"""


@pytest.fixture
def project(folder: Path) -> Path:
    (folder / "echo_bot.py").write_text(ECHO)
    (folder / "prompts").mkdir()
    (folder / "prompts" / "note.md").write_text("Be brief.\n")
    sys.modules.pop("echo_bot", None)
    return folder


def build(project: Path, agent: str, **environ: str) -> ConfiguredRun:
    return load_run(write_config(project, f"agent: {agent}\n{OTHERS}"), environ=environ)


def test_a_command_with_files_texts_and_fields(project: Path) -> None:
    (project / "bot.yaml").write_text("bot: {reply: Be kind.}\n")
    built = build(
        project,
        """{command: [echo, "{prompt:note}", "{prompt:reply}", "{prompt:rules}"], name: desk, timeout_s: 3,
        prompts: {note: prompts/note.md, reply: "bot.yaml:bot.reply", rules: Be honest., "bot#parameter.k": 3},
        environment: {TOKEN: "${TOKEN}", K: "{prompt:bot#parameter.k}"}, inherit: [PATH], max_output_bytes: 99}""",
        TOKEN="a-secret-token",
    )
    agent = built.engine.agent
    assert isinstance(agent, CommandAgent)
    assert {each.id: each.value for each in agent.describe().surfaces} == {
        "note#instruction": "Be brief.\n",
        "reply#instruction": "Be kind.",
        "rules#instruction": "Be honest.",
        "bot#parameter.k": 3,
    }
    assert (agent.name, agent.cwd, agent.timeout_s, agent.max_output_bytes) == ("desk", project, 3, 99)
    assert agent.environment["TOKEN"] == "a-secret-token"
    assert built.gateway.redactor.redact_text("it is a-secret-token") == "it is ***"
    assert "a-secret-token" not in repr(built.config)
    effective = build_effective_config(built).document["agent"]
    assert effective["environment"]["TOKEN"] == "${TOKEN}"
    assert "cwd" not in effective


def test_new_prompts_are_applied_to_their_places_and_to_the_file_itself(project: Path) -> None:
    agent = """{command: [echo, "{file:note}", "{file:a.b#tool.c}", "{file:rules}"],
        prompts: {note: prompts/note.md, "a.b#tool.c": {value: Be kind.}, rules: Be honest.}}"""
    built = build(project, agent)
    assert built.configuration is not None
    file = Path(built.configuration.file)
    sources = open_project(built.config, file=file).sources
    assert sources["note#instruction"] == FileSource(project / "prompts" / "note.md")
    sources["a.b#tool.c"].write("Be nice.")
    sources["rules#instruction"].write("Be frank.")
    prompts = yaml.safe_load(file.read_text())["agent"]["prompts"]
    assert prompts == {"note": "prompts/note.md", "a.b#tool.c": {"value": "Be nice."}, "rules": "Be frank."}


def test_prompts_may_have_limits(project: Path) -> None:
    prompts = """{note: {place: prompts/note.md, max_chars: 40, locked: [brief]}, rules: {value: Be honest.},
        "bot#parameter.k": {value: 3, minimum: 1, maximum: 9}}"""
    agent = build(
        project,
        f"""{{command: [echo, "{{file:note}}", "{{file:rules}}", "{{prompt:bot#parameter.k}}"], prompts: {prompts}}}""",
    ).engine.agent
    assert {each.id: each.limits for each in agent.describe().surfaces} == {
        "note#instruction": Limits(max_chars=40, locked=("brief",)),
        "rules#instruction": Limits(),
        "bot#parameter.k": Limits(kind="integer", minimum=1, maximum=9),
    }
    in_place = build(
        project, "{command: [cat], in_place: true, prompts: {note: {place: prompts/note.md, max_chars: 40}}}"
    )
    assert in_place.engine.agent.describe().surface("note#instruction").limits == Limits(max_chars=40)


def test_a_function_and_what_normalizes_its_answer(project: Path) -> None:
    built = build(project, "{call: 'echo_bot:call', normalize: 'echo_bot:clean', prompts: {note: prompts/note.md}}")
    agent = built.engine.agent
    assert isinstance(agent, CallAgent)
    assert callable(agent.normalize)


def test_a_service_by_its_address_or_its_request(project: Path) -> None:
    short = build(project, "{http: 'http://localhost:80/chat', prompts: {note: Be kind.}}").engine.agent
    assert isinstance(short, HttpAgent)
    long = build(
        project,
        """{http: {url: 'http://localhost:80/chat', headers: {Authorization: 'Bearer ${TOKEN}'}, body: {a: ['{input}',
        '{prompt:note}']}}, health: ['true'], normalize: $.answer, prompts: {note: Be kind.}}""",
        TOKEN="a-secret-token",
    )
    agent = long.engine.agent
    assert isinstance(agent, HttpAgent)
    assert agent.headers == {"Authorization": "Bearer a-secret-token"}
    assert agent.health == ("true",)
    assert long.gateway.redactor.redact_text("it is a-secret-token") == "it is ***"
    assert "a-secret-token" not in repr(long.config)


def read_remote(project: Path, text: str, environ: Mapping[str, str]) -> tuple[AgentSection, Agent]:
    (project / "promptiter.yaml").write_text(f"agent: {text}\n")
    section = read_config(project / "promptiter.yaml", environ=environ).config.agent
    return section, build_agent(section)


def test_a_remote_agent_by_its_address_or_with_settings(project: Path) -> None:
    _, short = read_remote(project, "{remote: 'http://localhost:80'}", {})
    assert short == RemoteAgent("http://localhost:80")
    section, long = read_remote(
        project,
        """{remote: {url: 'http://localhost:80', headers: {Authorization: 'Bearer ${TOKEN}'}, retries: 0,
        gateway: false}, timeout_s: 5, max_output_bytes: 6}""",
        {"TOKEN": "a-secret-token"},
    )
    headers = {"Authorization": "Bearer a-secret-token"}
    assert long == RemoteAgent(
        "http://localhost:80", headers=headers, retries=0, gateway=False, timeout_s=5, max_output_bytes=6
    )
    assert "a-secret-token" not in repr(section) + repr(long)


def test_a_remote_agent_describes_its_prompts_itself(project: Path) -> None:
    with pytest.raises(RequestError, match="an agent with the key 'remote' does not use it"):
        read_remote(project, "{remote: 'http://localhost:80', prompts: {note: Be kind.}}", {})


def test_in_place_the_files_are_the_sources(project: Path) -> None:
    agent = build(project, "{command: [cat], in_place: true, prompts: {note: prompts/note.md}}").engine.agent
    assert isinstance(agent, InPlaceAgent)
    assert agent.sources == {"note#instruction": FileSource(project / "prompts" / "note.md")}


def test_a_text_instead_of_the_mapping_is_an_agent_in_python(project: Path) -> None:
    assert read_config(write_config(project, FILE)).config.agent.python == "config_agent:agent"
    assert RunConfig.model_validate({"agent": {"python": "a:b"}}).agent.reference == "a:b"
    assert not RunConfig().agent


@pytest.mark.parametrize(
    ("agent", "problem"),
    [
        ("{prompts: {a: b}}", "agent: needs exactly one of python, call, command, http, remote, yaml, task, got none"),
        (
            "{python: 'a:b', command: [c]}",
            "agent: needs exactly one of python, call, command, http, remote, yaml, task, got python and command",
        ),
        ("{command: [a, '{file:n}'], prompts: {n: missing/n.md}}", "agent.prompts.n: the file "),
        ("{command: [a, '{file:n}'], prompts: {n: {}}}", "agent.prompts.n: needs exactly one of value and place"),
        ("{command: [a], prompts: {n: Be kind.}}", "agent: agent 'agent': the command does not get the prompt n"),
        ("{command: [a], prompst: {n: Be kind.}}", "agent: unknown key 'prompst' (did you mean 'prompts'?)"),
        ("{call: 'echo_bot:call', stdin: x, prompts: {n: a b}}", "agent.stdin: an agent with the key 'call' does not"),
        ("{call: 'echo_bot:cal', prompts: {n: a b}}", "agent: the function 'echo_bot:cal': 'echo_bot' has no 'cal'"),
        ("{command: [a, '{file:n}'], prompts: {n: {value: a b, max_chars: 0}}}", "agent.prompts.n.max_chars: must be"),
        (
            "{command: [a, '{file:n}'], prompts: {n: {value: a b, minimum: 1}}}",
            "agent: agent 'agent': minimum is not a limit of 'n#instruction'; it takes max_chars",
        ),
        ("{command: [cat, '{file:n}'], prompts: {n: {value: a b, max_chars: 2}}}", "surface 'n#instruction'"),
        (
            "{command: [a], in_place: true, prompts: {n: Be kind.}}",
            "agent.in_place: the prompt 'n#instruction' is a text",
        ),
        ("{command: [a, '{file:n}'], timeout_s: 0, prompts: {n: a b}}", "agent.timeout_s: must be above 0"),
    ],
)
def test_mistakes_are_reported_with_their_places(project: Path, agent: str, problem: str) -> None:
    [found] = problems(project, f"agent: {agent}\n{OTHERS}")
    assert found.startswith(problem)


def test_a_run_from_the_file_evaluates_the_command(project: Path) -> None:
    code = "import sys; print(sys.stdin.read().rstrip('?').split()[-1] if 'word' in sys.argv[1] else 'no')"
    command = orjson.dumps([sys.executable, "-Sc", code, "{prompt:note}"]).decode()
    built = build(project, f"{{command: {command}, prompts: {{note: Give one word.}}}}\nmax_rounds: 0")
    result = built.engine.run_sync(built.checked)
    assert result.baseline is not None
    assert result.baseline.mean_score == 1.0


def test_a_stage_may_be_a_command(folder: Path) -> None:
    stages = """{optimizer: {command: [echo, '{folder}'], environment: {KEY: '${KEY}'}, timeout_s: 5},
        aggregator: {command: ['true']}, attributor: {command: [cat]}}"""
    built = load_run(write_config(folder, f"{FILE}\nstages: {stages}"), environ={"KEY": "a-secret-key"})
    search = built.engine.search
    assert isinstance(search, BackpropRounds)
    assert isinstance(search.optimizer, CommandOptimizer)
    assert search.optimizer.command == ("echo", "{folder}")
    assert search.optimizer.environment == {"KEY": "a-secret-key"}
    assert (search.optimizer.timeout_s, search.optimizer.cwd) == (5, folder)
    assert built.gateway.redactor.redact_text("it is a-secret-key") == "it is ***"
    assert built.config.stages.models == {}


@pytest.mark.parametrize(
    ("stages", "problem"),
    [
        ("{optimizer: {}}", "stages.optimizer: needs exactly one of name and command"),
        ("{optimizer: {name: simulated, command: [a]}}", "stages.optimizer: needs exactly one of name and command"),
        ("{optimizer: {name: simulated, timeout_s: 3}}", "stages.optimizer.timeout_s: is only for commands"),
        ("{optimizer: {command: [a], options: {b: 1}}}", "stages.optimizer.options: a command has none"),
        ("{optimizer: {command: [no-such-bot]}}", "stages.optimizer: the command 'no-such-bot' cannot be started"),
        ("{corrector: {command: [a]}}", "stages.corrector: cannot be a command"),
        ("{attributor: {command: [cat]}, backwarder: simulated}", "stages: backwarder and attributor both blame"),
    ],
)
def test_mistakes_of_stages_are_reported(folder: Path, stages: str, problem: str) -> None:
    [found] = problems(folder, f"{FILE}\nstages: {stages}")
    assert found.startswith(problem)
