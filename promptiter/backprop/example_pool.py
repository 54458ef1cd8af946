"""ExamplePool: the exchanges that few-shot examples of a node can be made of, from train runs.

An exchange is what a node was given and what it answered in a run that passed. Where no run of a case passes, it is
from a passing run of the teacher, a stronger model. Without one, the reference of the case is the answer, if the node
gives the answer of the agent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from promptiter.backprop.judged_traces import JudgedTraces
from promptiter.backprop.stage_calls import Redact
from promptiter.stages.optimizer import StepExample
from promptiter.structure import Surface
from traces.model import Json

ExampleSource: TypeAlias = Literal["passing", "teacher", "reference"]

MAX_CHARACTERS = 1_500
"""Maximum length of an exchange: longer ones cost more tokens in every call than they are likely to be worth."""

PATTERNS = frozenset(("regex", "max_length", "min_length"))
"""Findings of metrics whose reference is not an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One example: an input of a node and a good output.

    It is from a `passing` run, from one of the `teacher`, or the `reference` of its case.
    """

    case_id: str
    input: str
    output: str
    source: ExampleSource = "passing"

    @property
    def messages(self) -> list[Json]:
        return [{"role": "user", "content": self.input}, {"role": "assistant", "content": self.output}]

    def __len__(self) -> int:
        return len(self.input) + len(self.output)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownInput:
    """An input of a node that examples should help with. `wanted` is the right output, if it is known."""

    case_id: str
    input: str
    passed: bool
    wanted: str | None = None


@dataclass(slots=True)
class _NodePool:
    exchanges: dict[str, Exchange] = field(default_factory=dict)
    inputs: dict[str, KnownInput] = field(default_factory=dict)

    def list_texts(self) -> list[tuple[str, str]]:
        """The inputs of cases, with those of the teacher's runs."""
        return [
            *((case_id, each.input) for case_id, each in self.inputs.items()),
            *((case_id, each.input) for case_id, each in self.exchanges.items()),
        ]


class ExamplePool:
    """The exchanges of one run, by node. `is_forbidden` says of messages that they may not be shown.

    `own` are the user's own examples of each node. They stay as they are, also if they show a train case.
    """

    def __init__(
        self,
        *,
        redact: Redact = lambda text: text,
        is_forbidden: Callable[[Json], object] = lambda _: False,
        own: Mapping[str, Json] | None = None,
    ) -> None:
        self._redact = redact
        self._is_forbidden = is_forbidden
        self._own = {
            node_id: frozenset(_fold(each["content"]) for each in messages or () if each["role"] == "user")
            for node_id, messages in (own or {}).items()
        }
        self._nodes: dict[str, _NodePool] = {}

    async def add_runs(self, traces: JudgedTraces, node_ids: Iterable[str]) -> None:
        """Add what nodes did in some runs. What is new of a case replaces what was known of it."""
        for node_id in sorted(set(node_ids)):
            self.add(node_id, await traces.collect_visits(node_id))

    async def add_taught_runs(self, traces: JudgedTraces, node_ids: Iterable[str]) -> None:
        """Add what nodes did in passing runs of the teacher, for cases that have no passing run of their own."""
        for node_id in sorted(set(node_ids)):
            node = self._nodes.setdefault(node_id, _NodePool())
            for step in await traces.collect_visits(node_id):
                known = node.exchanges.get(step.case_id)
                exchange = self._build_exchange(step) if step.passed else None
                if exchange is None or (known is not None and known.source == "passing"):
                    continue
                if self._is_usable(exchange, step):
                    node.exchanges[step.case_id] = replace(exchange, source="teacher")

    def add(self, node_id: str, steps: Iterable[StepExample]) -> None:
        """Add steps of a node. A passing step is a better example than the reference of its case."""
        node = self._nodes.setdefault(node_id, _NodePool())
        for step in sorted(steps, key=lambda each: each.passed):
            if not step.input.strip():
                continue
            exchange = self._build_exchange(step)
            wanted = None if exchange is None else exchange.output
            node.inputs[step.case_id] = KnownInput(
                case_id=step.case_id, input=self._redact(step.input), passed=step.passed, wanted=wanted
            )
            known = node.exchanges.get(step.case_id)
            is_better = known is None or known.source != "teacher" or step.passed
            if exchange is not None and is_better and self._is_usable(exchange, step):
                node.exchanges[step.case_id] = exchange

    def list_exchanges(self, node_id: str, *, without: Collection[str] = ()) -> tuple[Exchange, ...]:
        """The exchanges of a node, each input once, `without` those of some cases and those the user's own show."""
        node, own = self._nodes.get(node_id, _NodePool()), self._own.get(node_id, ())
        distinct: dict[str, Exchange] = {}
        for case_id in sorted(node.exchanges):
            exchange = node.exchanges[case_id]
            if case_id not in without and (text := _fold(exchange.input)) not in own:
                distinct.setdefault(text, exchange)
        return tuple(distinct.values())

    def list_inputs(self, node_id: str) -> tuple[KnownInput, ...]:
        """All inputs of a node that were seen, one of each case."""
        node = self._nodes.get(node_id, _NodePool())
        return tuple(node.inputs[case_id] for case_id in sorted(node.inputs))

    def find_cases(self, node_id: str, examples: Json) -> frozenset[str]:
        """The cases that some examples of a node show."""
        shown = {each["content"] for each in examples or ()}
        node = self._nodes.get(node_id, _NodePool())
        return frozenset(case_id for case_id, text in node.list_texts() if text in shown)

    def list_foreign(self, surface: Surface) -> list[Json]:
        """The examples of a surface that stay: the user's own, and others that are not of this pool."""
        node, own = self._nodes.get(surface.node_id, _NodePool()), self._own.get(surface.node_id, ())
        known = {text for _, text in node.list_texts()}
        kept: list[Json] = []
        is_kept = True
        for message in surface.value:
            if message["role"] == "user":
                is_kept = message["content"] not in known or _fold(message["content"]) in own
            if is_kept:
                kept.append(message)
        return kept

    def _build_exchange(self, step: StepExample) -> Exchange | None:
        """The good exchange of a step; None if a good output is not known, or is not text."""
        if step.earlier:  # the examples of a node have no conversation before them
            return None
        source: ExampleSource = "passing"
        output: str | None = step.output
        if not step.passed:
            is_pattern = any(finding.predicate in PATTERNS for finding in step.findings)
            source, output = "reference", step.expected if step.is_terminal and not is_pattern else None
        if output is None or not output.strip():
            return None
        return Exchange(
            case_id=step.case_id, input=self._redact(step.input), output=self._redact(output), source=source
        )

    def _is_usable(self, exchange: Exchange, step: StepExample) -> bool:
        """Whether an exchange can be shown. One without the tool calls it took would teach to answer without them."""
        has_calls = bool(step.tool_calls or step.expected_tool_calls)
        return not has_calls and len(exchange) <= MAX_CHARACTERS and not self._is_forbidden(exchange.messages)


def _fold(text: str) -> str:
    return " ".join(text.casefold().split())
