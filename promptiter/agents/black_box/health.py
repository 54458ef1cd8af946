"""Health checks: a command or an address that must answer before anything is spent."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import TypeAlias
from weakref import WeakKeyDictionary

from promptiter.agents.black_box.hosts import AgentHosts
from promptiter.agents.black_box.process import ProcessLimits, describe_exit, run_process
from promptiter.agents.black_box.service_client import describe_status, send
from promptiter.errors import CommandError, ModelUnavailableError, ServiceError, SetupError
from promptiter.wording import shorten

HealthCheck: TypeAlias = "str | tuple[str, ...]"
"""An http:// or https:// address that must answer with a status below 400, or a command that must exit with 0."""
LIMITS = ProcessLimits(timeout_s=30.0, max_output_bytes=1_000_000)


def validate_health_check(health: HealthCheck | None) -> None:
    """Raise SetupError if this is neither an address nor a command."""
    if isinstance(health, str) and not health.startswith(("http://", "https://")):
        raise SetupError(f"health is {shorten(health)}; give an address, http://..., or a command as a list")
    if health is not None and not health:
        raise SetupError("health is empty; give an address, http://..., or a command as a list")


class HealthChecker:
    """Checks the health of an agent until it has passed once, however many runs ask for it at the same time."""

    def __init__(self, hosts: AgentHosts | None = None) -> None:
        self._hosts = hosts
        self._checks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Future[None]] = WeakKeyDictionary()
        self._has_passed = False

    async def check(
        self, health: HealthCheck | None, *, environment: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> None:
        """Wait for the check. Raises SetupError if it fails."""
        if health is None or self._has_passed:
            return
        loop = asyncio.get_running_loop()
        if loop not in self._checks:
            checked = check_health(health, environment=environment, cwd=cwd, hosts=self._hosts)
            self._checks[loop] = asyncio.ensure_future(checked)
        await asyncio.shield(self._checks[loop])
        self._has_passed = True


async def check_health(
    health: HealthCheck,
    *,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    hosts: AgentHosts | None = None,
) -> None:
    """Run a health check. Raises SetupError if it fails."""
    if isinstance(health, str):
        await _check_address(health, hosts)
        return
    try:
        finished = await run_process(
            health, environment=os.environ if environment is None else environment, cwd=cwd, limits=LIMITS
        )
    except CommandError as error:
        raise SetupError(f"the health check of the agent failed: {error}") from error
    if finished.code:
        raise SetupError(f"the health check of the agent failed: {describe_exit(health, finished)}")


async def _check_address(address: str, hosts: AgentHosts | None) -> None:
    try:
        answer = await send("GET", address, timeout_s=LIMITS.timeout_s, max_bytes=LIMITS.max_output_bytes, hosts=hosts)
    except (ServiceError, ModelUnavailableError) as error:
        raise SetupError(f"the health check of the agent failed: {error}") from error
    if answer.status >= HTTPStatus.BAD_REQUEST:
        raise SetupError(f"the health check of the agent failed: {describe_status(address, answer)}")
