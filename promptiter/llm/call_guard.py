"""CallGuard: what is between an agent and the gateway while one thing about its calls is different from usual."""

from __future__ import annotations

from typing import Protocol

from promptiter.llm.messages import CallSite, ModelRequest


class CallGuard(Protocol):
    """Sees each call of the agent before it is made. Called concurrently; must not block.

    It does not see the calls of judges and stages. BudgetEndedError ends the run of the agent, like that of a budget.
    """

    def revise_request(self, request: ModelRequest, site: CallSite, node_id: str) -> ModelRequest:
        """The request that is made in place of this one."""

    def check_tool_call(self, name: str, site: CallSite, node_id: str) -> None:
        """Raise an error if a tool must not be called."""
