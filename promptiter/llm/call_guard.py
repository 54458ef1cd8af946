"""CallGuard: checks the calls of an agent, and may change its requests, before they are made."""

from __future__ import annotations

from typing import Protocol

from promptiter.llm.messages import CallSite, ModelRequest


class CallGuard(Protocol):
    """Sees each call of the agent before it is made. Called concurrently; must not block.

    It does not see the calls of judges and stages. BudgetEndedError ends the run of the agent, like that of a budget.
    """

    def revise_request(self, request: ModelRequest, site: CallSite, node_id: str) -> ModelRequest:
        """Return the request to make instead of this one."""

    def check_tool_call(self, name: str, site: CallSite, node_id: str) -> None:
        """Raise an error if a tool must not be called."""
