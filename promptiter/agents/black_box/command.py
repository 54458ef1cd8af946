"""CommandAgent: an agent that is a command line, in any language.

    agent = CommandAgent(
        command=("node", "bot.js", "--prompt", "{file:reply}"),
        prompts={"reply": Path("prompts/reply.md")},
    )

Arguments, standard input and variables are templates; see `templates`. Without `{input}` in any of them, the message of
the case is on standard input. The answer is what the command writes to standard output.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from promptiter.agents.argument_checks import check_items, check_named, check_value
from promptiter.agents.base import AgentRun, CaseInput, RunContext, to_text
from promptiter.agents.black_box.agent import BlackBoxAgent, has_input
from promptiter.agents.black_box.health import HealthCheck, HealthChecker, validate_health_check
from promptiter.agents.black_box.output import read_answer
from promptiter.agents.black_box.private_files import write_private_files
from promptiter.agents.black_box.process import (
    ProcessLimits,
    describe_exit,
    find_start_problem,
    name_command,
    run_process,
    select_environment,
)
from promptiter.agents.black_box.run import BlackBoxAnswer, BlackBoxInput, run_black_box
from promptiter.agents.black_box.templates import Placeholder, fill_text, parse_template
from promptiter.errors import CommandError, SetupError
from promptiter.profile import Profile
from promptiter.wording import shorten
from traces.model import Json

INHERITED = ("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER")
"""The variables of this process that a command gets by default."""


@dataclass(frozen=True, kw_only=True)
class CommandAgent(BlackBoxAgent):
    """Runs a command for each case, without a shell. A non-zero exit code is the error of the case.

    `environment` has variables for the command, `inherit` the names of those that it gets from this process; `*` is
    all.
    """

    command: tuple[str, ...]
    stdin: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    inherit: tuple[str, ...] = INHERITED
    cwd: Path | None = None
    timeout_s: float = 300.0
    grace_s: float = 2.0
    max_output_bytes: int = 10_000_000
    health: HealthCheck | None = None

    def __post_init__(self) -> None:
        place = f"agent {self.name!r}:"
        check_items(f"{place} command", self.command, str, wanted="arguments, such as ('python', 'bot.py')")
        check_items(f"{place} inherit", self.inherit, str, wanted="names of variables")
        check_named(f"{place} environment", self.environment, str, wanted="texts by name, such as {'MODE': 'test'}")
        if unusable := [each for each in self.environment if not each or "=" in each or "\0" in each]:
            raise SetupError(f"{place} environment has {shorten(unusable[0])}, which is not the name of a variable")
        check_value(f"{place} cwd", self.cwd, str | os.PathLike | None, wanted="a folder")
        if self.cwd is not None:
            object.__setattr__(self, "cwd", Path(self.cwd))
        check_value(f"{place} stdin", self.stdin, str | None, wanted="a text, such as '{input}'")
        if not self.command or not self.command[0]:
            raise SetupError(f"{place} the command is empty; give its program and arguments")
        super().__post_init__()
        validate_health_check(self.health)
        _ = self._limits
        used = _list_placeholders(self._templates)
        places = "command, stdin or environment"
        self._check_placeholders(used, what="command", kinds=("file", "prompt"), places=places)

    @property
    def notes(self) -> tuple[str, ...]:
        return ()

    def find_setup_problem(self) -> str | None:
        """Why the program cannot be started; None if it can, or is named by a template."""
        program = "".join(each for each in self._templates["command[0]"] if isinstance(each, str))
        if program != self.command[0]:
            return None
        environment = {**select_environment(self.inherit), **self.environment}
        return find_start_problem(self.command, environment=environment, cwd=self.cwd)

    async def check_health(self) -> None:
        """Run the health check, once. Raises SetupError if it fails."""
        await self._health.check(self.health, environment=select_environment(self.inherit), cwd=self.cwd)

    async def run(self, case: CaseInput, profile: Profile, context: RunContext | None = None) -> AgentRun:
        """Run the command once. Its failure is returned in the AgentRun, not raised."""
        await self.check_health()
        return await run_black_box(self._prompts.snapshot, self._call, case, profile, context or RunContext())

    async def _call(self, given: BlackBoxInput) -> BlackBoxAnswer:
        wanted = {each.surface_id for each in _list_placeholders(self._templates) if each.kind == "file"}
        texts = {each: to_text(given.prompts[each]) for each in wanted}
        with write_private_files(texts) as files:

            def look_up(placeholder: Placeholder) -> Json:
                if placeholder.kind == "file":
                    return str(files[placeholder.surface_id])
                return given.look_up(placeholder)

            filled = {place: fill_text(parts, look_up) for place, parts in self._templates.items()}
            command = self._collect_arguments(filled)
            finished = await run_process(
                command,
                environment={
                    **select_environment(self.inherit),
                    **given.session.environment,
                    **{name: filled[f"environment.{name}"] for name in self.environment},
                },
                cwd=self.cwd,
                stdin=filled.get("stdin", "").encode(errors="replace"),
                limits=self._limits,
            )
        if finished.code != 0:
            raise CommandError(describe_exit(command, finished))
        try:
            text = finished.stdout.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise CommandError(f"{name_command(command)} wrote what is not UTF-8, at byte {error.start}") from error
        answer, data = await read_answer(text, self.normalize)
        return BlackBoxAnswer(text=answer, data=data)

    def _collect_arguments(self, filled: Mapping[str, str]) -> list[str]:
        """The arguments. CommandError if a text that was filled in would be read as an option."""
        command = [filled[f"command[{at}]"] for at in range(len(self.command))]
        for at, (template, argument) in enumerate(zip(self.command, command, strict=True)):
            if argument.startswith("-") and not template.startswith("-") and "--" not in command[:at]:
                raise CommandError(
                    f"the text of {template} begins with '-', so {name_command(command)} could take it for an option; "
                    f"write --option={template}, put '--' before it if the command knows that, or pass it on standard "
                    "input or as a file"
                )
        return command

    @cached_property
    def _health(self) -> HealthChecker:
        return HealthChecker()

    @cached_property
    def _limits(self) -> ProcessLimits:
        return ProcessLimits(timeout_s=self.timeout_s, grace_s=self.grace_s, max_output_bytes=self.max_output_bytes)

    @cached_property
    def _templates(self) -> dict[str, list[str | Placeholder]]:
        """All templates by place, parsed."""
        texts = {f"command[{at}]": each for at, each in enumerate(self.command)}
        texts |= {f"environment.{name}": each for name, each in self.environment.items()}
        if self.stdin is not None:
            texts["stdin"] = self.stdin
        ids = self._prompts.ids
        parsed = {
            place: parse_template(text, ids, place=f"agent {self.name!r}: {place}", kinds=("prompt", "file"))
            for place, text in texts.items()
        }
        if self.stdin is None and not has_input(_list_placeholders(parsed)):
            parsed["stdin"] = [Placeholder("input")]
        return parsed


def _list_placeholders(templates: Mapping[str, list[str | Placeholder]]) -> list[Placeholder]:
    return [each for parts in templates.values() for each in parts if isinstance(each, Placeholder)]
