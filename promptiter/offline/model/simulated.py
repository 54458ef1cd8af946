"""SimulatedModel: a stand-in for a language model, so that everything runs with no key, no network and no cost.

It is not a language model, and nothing measured with it predicts how a real one performs: label every figure that
comes from it *simulated*. It poses the problems that an optimizer of prompts has to solve:

- It follows its instruction. Instructions are ordinary English; it understands imperative sentences of about thirty
  families, in the manner of IFEval: fields to carry, JSON and its keys, first and last words, dates, decimals, letter
  case, length, language, labels, citations, tools.
- Without instructions it is lazy: one short English sentence about the topic; most fields of its input are dropped;
  dates become `March 5, 2026`; no JSON, no citation, no label from a list that it was not given; no tool, unless the
  tool's own description says when to use it and the task is of that kind.
- It does not always obey. It follows each rule with a probability below 1, which falls with the length of the prompt
  and the number of rules: see `chance_of_compliance`. Of rules that contradict each other it follows one at random.
- It knows little: what its messages contain, and the `knowledge` it was built with. For anything else it is vague or
  invents an answer.
- Its answer depends only on the request's digest, the repeat, the seed and what it was built with: it is the same in
  every process. The model never sees references or metrics, nor which node of an agent is at fault.

The instruction is the system messages; without any, the user messages are both instruction and task. The description of
a field of its structured output says what the field holds and how it is written, and is followed like a rule.

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
from promptiter.offline.model.instruction_rules import RuleBook, find_rules, resolve_conflicts
from promptiter.offline.model.json_schema import SchemaWriter
from promptiter.offline.model.task import Task, read_task
from promptiter.offline.model.tool_calls import choose_tools, request_tool
from traces import Usage, digest
from traces.model import Json

FREE_CHARACTERS = 2_000
LOSS_PER_1000_CHARACTERS = 0.01
FREE_RULES = 6
LOSS_PER_RULE = 0.005
MIN_SHARE = 0.5

_TOKEN = re.compile(r"[\u4e00-\u9fff]|[^\W\u4e00-\u9fff]+|[^\w\s]")


class SimulatedSettings(BaseModel):
    """`models.simulated` in promptiter.yaml: the chance that a rule is followed, what the model knows, its latency."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    compliance: Annotated[float, Field(strict=True, ge=0, le=1)] = 0.98
    knowledge: dict[str, str] = Field(default_factory=dict)
    latency_s: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] = 0.0


class SimulatedModel:
    """A model like any other; the module describes its behaviour.

    `knowledge` maps phrases to answers. `compliance` is the probability that a rule of a short prompt is followed.
    A `seed` given here replaces that of the run. Concurrent calls are safe, and no call fails.
    """

    name = "simulated"
    is_simulated = True
    Settings = SimulatedSettings

    def __init__(
        self,
        *,
        seed: int | None = None,
        knowledge: Mapping[str, str] | None = None,
        compliance: float = 0.98,
        price_per_token_usd: float = 0.0,
        latency_s: float = 0.0,
    ) -> None:
        if not 0.0 <= compliance <= 1.0:
            raise ValueError(f"compliance must be a probability, not {compliance!r}: pass a number from 0 to 1")
        self._seed = seed
        self._knowledge = {" ".join(phrase.lower().split()): answer for phrase, answer in (knowledge or {}).items()}
        self._compliance = compliance
        self._price_per_token_usd = price_per_token_usd
        self._latency_s = latency_s

    @property
    def settings(self) -> Mapping[str, Json]:
        """Everything besides the seed that changes answers or their cost."""
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

    async def __call__(self, request: ModelRequest, *, repeat: int = 0, seed: int = 0) -> ModelReply:
        """Answer a request. The same request, repeat and seed give the same reply."""
        if self._latency_s > 0:
            await asyncio.sleep(self._latency_s)
        seed = seed if self._seed is None else self._seed
        origin = hashlib.sha256(f"{request.digest}\n{repeat}\n{seed}".encode())
        rng = Random(int.from_bytes(origin.digest()))
        rules = find_rules(_read_instruction(request))
        chance = chance_of_compliance(self._compliance, characters=len(request.text), rules=len(rules))
        followed = [rule for rule in rules if rng.random() < chance]
        book = RuleBook(resolve_conflicts(followed, rng))
        task = read_task(request.messages)
        tools = choose_tools(request.tools, task, book, accepts_invitation=rng.random() < chance)
        if tools:
            prefix = f"call_{origin.hexdigest()[:12]}"
            calls = [
                request_tool(tool, task, book, request_id=f"{prefix}_{number}") for number, tool in enumerate(tools, 1)
            ]
            return self._reply(request, "", tuple(calls))
        return self._reply(request, self._write(request, task, book, chance=chance, rng=rng), ())

    def _write(self, request: ModelRequest, task: Task, book: RuleBook, *, chance: float, rng: Random) -> str:
        if request.answer_schema is None:
            return write_answer(task, book, knowledge=self._knowledge, rng=rng)
        draft = draft_answer(task, book, knowledge=self._knowledge, rng=rng)
        writer = SchemaWriter(request.answer_schema, draft, knowledge=self._knowledge, chance=chance, rng=rng)
        return json.dumps(writer.write(), ensure_ascii=False)

    def _reply(self, request: ModelRequest, text: str, calls: tuple[ToolRequest, ...]) -> ModelReply:
        limit = request.options.get("max_tokens") or request.options.get("max_completion_tokens")
        output = text + "".join(f"{call.name} {_dump_json(call.arguments)}" for call in calls)
        finish_reason = "tool_calls" if calls else "stop"
        if isinstance(limit, int) and count_tokens(output) > limit:
            output = text = _take_tokens(text, limit)
            calls, finish_reason = (), "length"
        inputs = [request.text]
        inputs += [f"{tool.name} {tool.description} {_dump_json(tool.parameters)}" for tool in request.tools]
        inputs += [] if request.answer_schema is None else [_dump_json(request.answer_schema)]
        input_tokens, output_tokens = sum(map(count_tokens, inputs)), count_tokens(output)
        usage = Usage(
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            cost_usd=(input_tokens + output_tokens) * self._price_per_token_usd,
        )
        return ModelReply(text=text, tool_requests=calls, usage=usage, finish_reason=finish_reason)


def chance_of_compliance(compliance: float, *, characters: int, rules: int) -> float:
    """The probability that one rule is followed in a prompt of this length with this many rules.

    Each 1,000 characters above 2,000 cost a share of 0.01, each rule above 6 costs 0.005; neither costs more than half.
    """
    length = max(1 - LOSS_PER_1000_CHARACTERS * max(characters - FREE_CHARACTERS, 0) / 1_000, MIN_SHARE)
    number = max(1 - LOSS_PER_RULE * max(rules - FREE_RULES, 0), MIN_SHARE)
    return compliance * length * number


def count_tokens(text: str) -> int:
    """The number of words, punctuation marks and Chinese characters: a tokenizer without a vocabulary."""
    return sum(1 for _ in _TOKEN.finditer(text))


def _read_instruction(request: ModelRequest) -> str:
    by_role = {
        role: "\n".join(message.content for message in request.messages if message.role == role)
        for role in ("system", "user")
    }
    return by_role["system"] or by_role["user"]


def _take_tokens(text: str, count: int) -> str:
    ends = [token.end() for token in _TOKEN.finditer(text)]
    return text[: ends[count - 1]] if count > 0 and ends else ""


def _dump_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=dict)
