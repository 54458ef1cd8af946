"""IterationGuard: what is special about the model calls of one iteration.

The first planning step of the manager begins with the prefix, in all calls of that step and in no other. Manager and
workers get the models of the tier. Steps and tool calls beyond the budget are refused. Tokens are capped by a Budget of
the gateway. A call of a black box that does not name its node is of the one whose prompt is in the request, as in the
trace of the seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from promptiter.errors import BudgetEndedError
from promptiter.llm.messages import CallSite, EmbeddingRequest, Message, ModelRequest, RichMessage
from promptiter.tasks.refine.budget import IterationBudget
from promptiter.tasks.refine.records import ModelPair, ObservedUse
from traces.model import Json

ITERATION_CAPS = ("max_loops", "max_total_workers", "max_tool_calls", "max_tokens")
"""The caps of an iteration, as errors name them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRoles:
    """Which nodes manage and which work. Without `workers`, all others do. The prefix is for the `prefix_node`.

    Without a `prefix_node`, the prefix comes before the task itself.
    """

    managers: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()
    prefix_node: str | None = None

    def names(self, node_id: str) -> bool:
        """Whether a node is one of those with a role of their own."""
        return node_id in (*self.managers, *self.workers, self.prefix_node)

    def is_manager(self, node_id: str) -> bool:
        return node_id in self.managers

    def is_worker(self, node_id: str) -> bool:
        return node_id in self.workers or (not self.workers and not self.is_manager(node_id))


@dataclass(slots=True, kw_only=True)
class _Conversation:
    """The messages that a step began with. Its later calls begin with the same ones."""

    messages: tuple[Message, ...]
    is_prefixed: bool


class IterationGuard:
    """A CallGuard for one iteration. It also counts steps and tool calls."""

    def __init__(
        self,
        roles: NodeRoles,
        *,
        prefix: str,
        budget: IterationBudget,
        models: ModelPair,
        find_node: Callable[[ModelRequest, str], str | None] = lambda _, node_id: node_id,
    ) -> None:
        self._roles = roles
        self._find_node = find_node
        self._prefix = prefix
        self._budget = budget
        self._models = models
        self._conversations: dict[tuple[str, str, int], list[_Conversation]] = {}
        self._is_prefix_shown = False
        self._loops = self._workers = self._tool_calls = 0

    @property
    def is_prefix_missed(self) -> bool:
        """Whether the node that should get the prefix made no step."""
        return self._roles.prefix_node is not None and not self._is_prefix_shown

    @property
    def use(self) -> ObservedUse:
        """What was used so far, except for tokens and time."""
        return ObservedUse(loops=self._loops, workers=self._workers, tool_calls=self._tool_calls)

    def revise_request(self, request: ModelRequest, site: CallSite, node_id: str) -> ModelRequest:
        if isinstance(request, EmbeddingRequest):
            return request
        if not self._roles.names(node_id):
            node_id = self._find_node(request, node_id) or node_id
        conversation = self._find_conversation(request, site, node_id)
        messages = request.messages
        if conversation.is_prefixed:
            messages = _prepend(self._prefix, messages, opening=len(conversation.messages))
        return replace(request, model=self._choose_model(node_id) or request.model, messages=messages)

    def check_tool_call(self, name: str, site: CallSite, node_id: str) -> None:  # noqa: ARG002 - the protocol's
        if name.startswith("node:"):  # a function of the agent with a version, not a tool
            return
        self._tool_calls = self._count(self._tool_calls, self._budget.max_tool_calls, "max_tool_calls", "tool calls")

    def _find_conversation(self, request: ModelRequest, site: CallSite, node_id: str) -> _Conversation:
        """The conversation that a request continues, or a new one."""
        key = (node_id, site.step_id, site.repeat)
        known = self._conversations.setdefault(key, [])
        for each in known:
            opening = each.messages
            if len(request.messages) > len(opening) and request.messages[: len(opening)] == opening:
                return each
        self._count_step(node_id)
        is_first = node_id == self._roles.prefix_node and not self._is_prefix_shown
        self._is_prefix_shown |= is_first
        known.append(_Conversation(messages=request.messages, is_prefixed=is_first))
        return known[-1]

    def _count_step(self, node_id: str) -> None:
        if self._roles.is_manager(node_id):
            self._loops = self._count(self._loops, self._budget.max_loops, "max_loops", "steps of the manager")
        elif self._roles.is_worker(node_id):
            cap = self._budget.max_total_workers
            self._workers = self._count(self._workers, cap, "max_total_workers", "steps of workers")

    @staticmethod
    def _count(used: int, cap: int | None, name: str, what: str) -> int:
        if cap is not None and used >= cap:
            key = {"max_loops": "loops", "max_total_workers": "workers", "max_tool_calls": "tool_calls"}[name]
            raise BudgetEndedError(
                f"{what}: the cap of this iteration is {cap}, half of what the seed made",
                cap=name,
                advice=f"raise refine.floors.{key} in promptiter.yaml if that is too few",
            )
        return used + 1

    def _choose_model(self, node_id: str) -> str:
        if self._roles.is_manager(node_id):
            return self._models.manager
        return self._models.worker if self._roles.is_worker(node_id) else ""


def _prepend(prefix: str, messages: tuple[Message, ...], *, opening: int) -> tuple[Message, ...]:
    """Put a text before the last message of the user among the first ones; as one of its own if there is none."""
    places = [at for at, message in enumerate(messages[:opening]) if message.role == "user"]
    if not places:
        return (*messages[:opening], Message("user", prefix.rstrip()), *messages[opening:])
    at = places[-1]
    return (*messages[:at], _prepend_to(prefix, messages[at]), *messages[at + 1 :])


def _prepend_to(prefix: str, message: Message) -> Message:
    changed = replace(message, content=prefix + message.content)
    if isinstance(changed, RichMessage) and isinstance(parts := changed.extra.get("content"), list):
        extra: Mapping[str, Json] = {**changed.extra, "content": [{"type": "text", "text": prefix}, *parts]}
        return replace(changed, extra=extra)
    return changed
