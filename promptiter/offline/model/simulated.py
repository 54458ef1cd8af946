"""SimulatedModel: a stand-in for a language model, so that everything runs with no key, no network and no cost.

It is not a language model, and nothing measured with it says how a real one would do: every figure that comes from it
is to be labelled *simulated*. What it shares with a real one is what an optimizer of prompts has to cope with:

- It does what its instruction says. Instructions are ordinary English; imperative sentences are understood in some
  seventy families, in the manner of IFEval: fields to carry along, JSON and its keys, first and last words, dates,
  numbers, currencies, letter case, length, lists, language, labels, citations, tools, and so on.
- Without instructions it is lazy: one short sentence about the topic, in English; most fields of its input are dropped;
  dates become `March 5, 2026`; no JSON, no citation, no label of a list it was not given; no tool, unless the tool's
  own description says when to use it and the task is of that kind.
- It does not always obey. Each rule is followed with a probability below 1, which falls with the length of the prompt
  and the number of rules: see `chance_of_compliance`. Of rules that contradict each other it follows one, by chance.
- It knows little: what its messages say, the `knowledge` it was built with, and one step of arithmetic, in which it
  slips unless told to calculate. Asked for more, it is vague or invents something, unless told to admit it.
- Its answer depends on nothing but the request's digest, the repeat, the seed and what it was built with: the same in
  every process. It never sees references or metrics, nor which node of an agent is at fault.

The instruction is the system's messages; without any, the user's messages are read as instruction and task at once.

    model = SimulatedModel(knowledge={"capital of france": "Paris"})
    reply = await model(ModelRequest(model="simulated", messages=(Message("user", "What is the capital of France?"),)))
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Mapping
from random import Random
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from promptiter.llm.messages import ModelReply, ModelRequest, ToolRequest
from promptiter.llm.prices import Price
from promptiter.offline.model.answers import draft_answer, write_answer
from promptiter.offline.model.instruction_rules import RuleBook, understood_rules, without_conflicts
from promptiter.offline.model.json_schema import SchemaWriter
from promptiter.offline.model.task import Task, read_task
from promptiter.offline.model.tool_calls import inviting_tool, tool_request, wanted_tools
from traces import Usage, digest
from traces.model import Json

FREE_CHARACTERS = 2_000
LOSS_PER_1000_CHARACTERS = 0.01
FREE_RULES = 6
LOSS_PER_RULE = 0.005
LEAST_SHARE = 0.5

_TOKEN = re.compile(r"[\u4e00-\u9fff]|[^\W\u4e00-\u9fff]+|[^\w\s]")


class SimulatedSettings(BaseModel):
    """`models.simulated` in promptiter.yaml: the chance to follow a rule, what the model knows, its latency."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    compliance: Annotated[float, Field(strict=True, ge=0, le=1)] = 0.98
    knowledge: dict[str, str] = Field(default_factory=dict)
    latency_s: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] = 0.0


class SimulatedModel:
    """A model to be called like any other; see the module for what it does and does not do.

    `knowledge` maps phrases, in lower case, to answers. `compliance` is the probability that a rule of a short prompt
    is followed. It may be called many times at once, and never fails.
    """

    name = "simulated"
    is_simulated = True
    Settings = SimulatedSettings

    def __init__(
        self,
        *,
        seed: int = 0,
        knowledge: Mapping[str, str] | None = None,
        compliance: float = 0.98,
        price_per_token_usd: float = 0.0,
        latency_s: float = 0.0,
    ) -> None:
        if not 0.0 <= compliance <= 1.0:
            raise ValueError(f"compliance is a probability, not {compliance!r}: pass a number from 0 to 1")
        self._seed = seed
        self._knowledge = {" ".join(phrase.lower().split()): answer for phrase, answer in (knowledge or {}).items()}
        self._compliance = compliance
        self._price_per_token_usd = price_per_token_usd
        self._latency_s = latency_s

    @property
    def settings(self) -> Mapping[str, Json]:
        """What changes answers or their cost, besides the seed."""
        return {
            "compliance": self._compliance,
            "knowledge": digest(self._knowledge)[:16],
            "price_per_token_usd": self._price_per_token_usd,
            "latency_s": self._latency_s,
        }

    @property
    def price(self) -> Price:
        per_million = self._price_per_token_usd * 1e6
        return Price(input_usd_per_million=per_million, output_usd_per_million=per_million)

    async def __call__(self, request: ModelRequest, *, repeat: int = 0) -> ModelReply:
        """Answer a request. The same request, repeat and seed give the same reply."""
        if self._latency_s > 0:
            await asyncio.sleep(self._latency_s)
        origin = hashlib.sha256(f"{request.digest}\n{repeat}\n{self._seed}".encode())
        rng = Random(int.from_bytes(origin.digest()))
        instruction = _instruction(request)
        rules = understood_rules(instruction)
        chance = chance_of_compliance(self._compliance, characters=len(request.text), rules=len(rules))
        followed = [rule for rule in rules if rng.random() < chance]
        book = RuleBook(without_conflicts(followed, rng))
        task = read_task(request.messages)
        wishes = _tool_requests(request, task, book, takes_invitation=rng.random() < chance, origin=origin.hexdigest())
        if wishes:
            return self._reply(request, "", wishes)
        return self._reply(request, self._text(request, task, book, rng), ())

    def _text(self, request: ModelRequest, task: Task, book: RuleBook, rng: Random) -> str:
        if request.schema is None:
            return write_answer(task, book, knowledge=self._knowledge, rng=rng)
        draft = draft_answer(task, book, knowledge=self._knowledge, rng=rng)
        return json.dumps(SchemaWriter(request.schema, draft).value(), ensure_ascii=False)

    def _reply(self, request: ModelRequest, text: str, wishes: tuple[ToolRequest, ...]) -> ModelReply:
        limit = request.options.get("max_tokens") or request.options.get("max_completion_tokens")
        said = text + "".join(f"{wish.name} {_plain_json(wish.arguments)}" for wish in wishes)
        finish_reason = "tool_calls" if wishes else "stop"
        if isinstance(limit, int) and count_tokens(said) > limit:
            text, wishes, finish_reason = _first_tokens(text, limit), (), "length"
            said = text
        asked = [request.text]
        asked += [f"{tool.name} {tool.description} {_plain_json(tool.parameters)}" for tool in request.tools]
        asked += [] if request.schema is None else [_plain_json(request.schema)]
        input_tokens, output_tokens = sum(map(count_tokens, asked)), count_tokens(said)
        usage = Usage(
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            cost_usd=(input_tokens + output_tokens) * self._price_per_token_usd,
        )
        return ModelReply(text=text, tool_requests=wishes, usage=usage, finish_reason=finish_reason)


def chance_of_compliance(compliance: float, *, characters: int, rules: int) -> float:
    """The probability that one rule is followed in a prompt of this length with this many rules.

    Each 1,000 characters above 2,000 cost 0.01 of it, each rule above 6 costs 0.005; both shares end at a half.
    """
    length = max(1 - LOSS_PER_1000_CHARACTERS * max(characters - FREE_CHARACTERS, 0) / 1_000, LEAST_SHARE)
    number = max(1 - LOSS_PER_RULE * max(rules - FREE_RULES, 0), LEAST_SHARE)
    return compliance * length * number


def count_tokens(text: str) -> int:
    """Words, marks and Chinese characters: a tokenizer that needs no vocabulary."""
    return sum(1 for _ in _TOKEN.finditer(text))


def _instruction(request: ModelRequest) -> str:
    by_role = {
        role: "\n".join(message.content for message in request.messages if message.role == role)
        for role in ("system", "user")
    }
    return by_role["system"] or by_role["user"]


def _tool_requests(
    request: ModelRequest, task: Task, book: RuleBook, *, takes_invitation: bool, origin: str
) -> tuple[ToolRequest, ...]:
    if not request.tools:
        return ()
    tools = wanted_tools(request.tools, task, book)
    if not tools and takes_invitation and not task.called_tools:
        invited = inviting_tool(request.tools, task, book)
        tools = [] if invited is None else [invited]
    return tuple(
        tool_request(tool, task, book, request_id=f"call_{origin[:12]}_{number}")
        for number, tool in enumerate(tools, 1)
    )


def _first_tokens(text: str, count: int) -> str:
    ends = [token.end() for token in _TOKEN.finditer(text)]
    return text[: ends[count - 1]] if count > 0 and ends else ""


def _plain_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=dict)
