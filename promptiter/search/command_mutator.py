"""CommandMutator: any program that edits files, such as a coding agent, as the mutator of the search `edits`.

It works in a private copy of the workspace, which has the files of the profile to improve and a folder with the request
(`edit_request_files`), as `{folder}` in its arguments and in PROMPTITER_FOLDER. What it changed is the candidate.
Changes of other files are refused with their paths. Its model calls through the endpoint are counted under the role of
the optimizer. What it changed is stored as the answer of a model is, so a resumed run does not run it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from promptiter.agents.argument_checks import check_items, check_named
from promptiter.agents.base import RunContext
from promptiter.agents.black_box.command import INHERITED
from promptiter.agents.black_box.process import (
    ProcessLimits,
    describe_exit,
    find_start_problem,
    select_environment,
)
from promptiter.concurrency import run_in_thread
from promptiter.endpoint.sessions import open_session
from promptiter.errors import CommandError, SetupError
from promptiter.llm.gateway import current_gateway
from promptiter.llm.messages import CallSite
from promptiter.sandbox import Changes, PrivateCopy, Sandbox, find_sandbox
from promptiter.search.edit_request_files import REASON_FILE, write_request_files
from promptiter.search.edit_workspace import MAX_FILE_BYTES, EditWorkspace
from promptiter.search.mutation import MutationRequest, WrittenValues
from promptiter.wording import join_names
from traces import digest
from traces.model import Json

FOLDER = "{folder}"
REQUEST_FOLDER = ".promptiter-request"
"""The folder of the request in the private copy."""

MAX_REASON = 2_000
MAX_NAMES = 10
"""A refusal names at most this number of paths."""


@dataclass(frozen=True, kw_only=True)
class CommandMutator:
    """How a command is run that edits the files of a workspace."""

    command: tuple[str, ...]
    workspace: EditWorkspace
    environment: Mapping[str, str] = field(default_factory=dict)
    inherit: tuple[str, ...] = INHERITED
    limits: ProcessLimits = field(default_factory=lambda: ProcessLimits(timeout_s=900.0))

    def __post_init__(self) -> None:
        check_items("the command of a mutator", self.command, str, wanted="arguments, such as ('my-agent', '{folder}')")
        check_items("inherit of a mutator", self.inherit, str, wanted="names of variables")
        check_named("environment of a mutator", self.environment, str, wanted="texts by name")
        if not self.command or not self.command[0]:
            raise SetupError("the command of a mutator is empty; give its program and arguments")

    @classmethod
    def of(
        cls,
        command: Sequence[str],
        workspace: EditWorkspace,
        *,
        environment: Mapping[str, str] | None = None,
        inherit: Sequence[str] | None = None,
        timeout_s: float = 900.0,
    ) -> CommandMutator:
        """A mutator with the default variables, unless others are given."""
        if isinstance(command, str):
            raise SetupError(f"the command of a mutator is {command!r}; give a list: its program, then its arguments")
        return cls(
            command=tuple(command),
            workspace=workspace,
            environment=environment or {},
            inherit=INHERITED if inherit is None else tuple(inherit),
            limits=ProcessLimits(timeout_s=timeout_s),
        )

    def find_setup_problem(self) -> str | None:
        """Why the program cannot be started; None if it can, as far as that is known before its copy is made."""
        environment = {**select_environment(self.inherit), **self.environment}
        return find_start_problem(self.command, environment=environment, cwd=self.workspace.folder)

    async def find_isolation_problem(self) -> str | None:
        """Say that commands are not kept from changing other files, and why; None if they are."""
        sandbox = await self._find_sandbox()
        return None if sandbox.kind != "none" else f"the command of the mutator is {sandbox.description}"

    async def _find_sandbox(self) -> Sandbox:
        return await run_in_thread(lambda: find_sandbox(self.workspace.sandbox))

    async def write(self, request: MutationRequest) -> WrittenValues:
        """Run the command, and return what it changed. CommandError if it fails."""
        plain = request.to_json()
        gateway = current_gateway()

        async def execute(**_: Json) -> Json:
            gateway.check_stop()
            return await self._run(request)

        arguments: Json = {"command": list(self.command), "request": digest(plain)}
        site = CallSite(role="optimizer", case_id=f"edit {request.number}")
        found = cast("dict[str, Json]", await gateway.call_tool("mutator:command", arguments, execute, site))
        return WrittenValues(
            values=cast("dict[str, Json]", found["values"]),
            reason=str(found["reason"]) or "written by a command",
            refused=tuple(map(str, cast("list[Json]", found["refused"]))),
        )

    async def _run(self, request: MutationRequest) -> dict[str, Json]:
        workspace = self.workspace
        folder = workspace.find_free_name(REQUEST_FOLDER)
        files = write_request_files(request, artifacts=workspace.artifacts)
        plan = workspace.build_plan(
            request.profile, request.structure, {f"{folder}/{name}": text for name, text in files.items()}
        )
        context = RunContext(role="optimizer", case_id=f"edit {request.round}/{request.number}")
        sandbox = await self._find_sandbox()
        async with open_session(context) as session, sandbox.open(plan) as copy:
            place = str(copy.root / folder)
            finished = await copy.run(
                [each.replace(FOLDER, place) for each in self.command],
                environment={
                    **select_environment(self.inherit),
                    **session.environment,
                    **self.environment,
                    "PROMPTITER_FOLDER": place,
                },
                limits=self.limits,
            )
            if finished.code:
                raise CommandError(describe_exit(self.command, finished))
            return await self._read_changes(copy, folder)

    async def _read_changes(self, copy: PrivateCopy, folder: str) -> dict[str, Json]:
        """The texts of the artifacts that the command changed, and what it changed besides."""
        changes = await copy.list_changes()
        refused = [*self._list_refused(changes, folder)]
        if outside := await copy.find_outside_changes():
            names = join_names([repr(each) for each in sorted(outside)], limit=MAX_NAMES)
            refused.append(f"{names} changed outside of the private copy; restore what the command should not change")
        values: dict[str, Json] = {}
        for path in sorted(set(changes.written) & set(self.workspace.artifacts)):
            try:
                content = await copy.read(path, max_bytes=MAX_FILE_BYTES)
                values[path] = "" if content is None else self.workspace.decode(path, content)
            except (CommandError, SetupError) as error:
                refused.append(f"{path!r}: {error}")
        return {"values": values, "refused": list(refused), "reason": await _read_reason(copy, folder)}

    def _list_refused(self, changes: Changes, folder: str) -> Iterable[str]:
        """What a command may not do, each with the paths where it did."""
        artifacts = set(self.workspace.artifacts)
        kinds = (
            ("is a symbolic link", changes.links),
            ("is a pipe, a socket or a device", changes.special),
            ("was deleted; empty it instead", [each for each in changes.deleted if each in artifacts]),
            (
                "is not one of the files that may change",
                [each for each in (*changes.written, *changes.deleted) if each not in artifacts],
            ),
        )
        for what, paths in kinds:
            counted = [
                each for each in paths if not each.startswith(f"{folder}/") and not self.workspace.is_ignored(each)
            ]
            if counted:
                yield f"{join_names([repr(each) for each in sorted(counted)], limit=MAX_NAMES)} {what}"


async def _read_reason(copy: PrivateCopy, folder: str) -> str:
    """What the command says about its edit, if it says anything."""
    try:
        content = await copy.read(f"{folder}/{REASON_FILE}", max_bytes=MAX_FILE_BYTES)
    except CommandError:
        return ""
    return (content or b"").decode(errors="replace").strip()[:MAX_REASON]
