"""Judges: models in the gateway, with their names, options, addresses and keys; agents; functions.

A judge with its own address or key is registered in the gateway under a unique name, so that it is not mixed up with a
model of the same name elsewhere. Keys are never part of a request: they are revealed when the model is built, other
secrets while it is called. The gateway's redactor knows all of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from pydantic import TypeAdapter

from promptiter.agents.base import CaseInput, RunContext
from promptiter.agents.runner import Runner, ask_runner, check_runner, load_runner, name_runner
from promptiter.errors import MetricError, SetupError
from promptiter.evaluation.metrics.criteria import JudgeModel
from promptiter.llm.gateway import Gateway
from promptiter.llm.judgement import keep_repeats, place_repeat
from promptiter.llm.litellm import LiteLLMModel
from promptiter.llm.messages import CallSite, Message, ModelReply, ModelRequest
from promptiter.llm.options import check_options
from promptiter.llm.secret import secrets_in
from promptiter.llm.structured import Attempt, ask_for, ask_until_usable
from promptiter.references import is_reference
from promptiter.registry import MODELS
from traces import digest
from traces.model import Json

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """A model, agent or function that judges. `repeats` are its samples.

    `name` is what the user calls it, `model` its name in the gateway; empty if a `runner` judges.
    """

    name: str
    model: str = ""
    runner: Runner | None = None
    options: Mapping[str, Json] = field(default_factory=dict)
    repeats: range = range(1)
    weight: float = 1.0

    async def ask_for(
        self, shape: TypeAdapter[T], messages: tuple[Message, ...], gateway: Gateway, *, repeat: int, metric: str
    ) -> T:
        """Ask for one sample of this shape. Raises ModelError or RunnerError if there is none."""
        if self.runner is None:
            request = ModelRequest(model=self.model, messages=messages, options=self.options)
            return await ask_for(shape, request, CallSite(role="judge", repeat=repeat), gateway, node_id=metric)
        runner = self.runner
        context = RunContext(repeat=place_repeat(repeat), seed=gateway.find_active().seed, role="judge")

        async def ask(attempt: Attempt) -> ModelReply:
            with keep_repeats():
                return ModelReply(text=await ask_runner(runner, _as_one_message(attempt.messages), context, gateway))

        return await ask_until_usable(shape, messages, ask, name=repr(self.name))


def choose_judge(judge: Runner | str) -> JudgeModel:
    """A judge by the name of a model or by `module:attr`, or an agent or function itself."""
    return JudgeModel(model_name=judge) if isinstance(judge, str) else JudgeModel(runner=judge)


def build_judges(models: Sequence[JudgeModel], gateway: Gateway, *, place: str) -> tuple[Judge, ...]:
    """Register the models in the gateway, and import agents and functions. One that is listed twice gets separate
    samples."""
    taken: Counter[str] = Counter()
    judges = []
    for model in models:
        runner = _find_runner(model, place=place)
        options = {} if runner is not None else build_request_options(model, place=place)
        served_as = "" if runner is not None else _register_model(gateway, model)
        name = model.model_name or (name_runner(runner) if runner is not None else "")
        key = digest([name, served_as, options])
        repeats = range(taken[key], taken[key] + model.num_samples)
        taken[key] = repeats.stop
        judges.append(
            Judge(name=name, model=served_as, runner=runner, options=options, repeats=repeats, weight=model.weight)
        )
    return tuple(judges)


def name_for_litellm(model: JudgeModel) -> str:
    """The name under which litellm finds the provider. A variant of OpenAI's protocol needs none."""
    name, provider = model.model_name, model.provider_name
    if name in MODELS:
        return name
    if provider:
        return name if name.startswith(f"{provider}/") else f"{provider}/{name}"
    return f"openai/{name}" if model.base_url and "/" not in name else name


def build_request_options(model: JudgeModel, *, place: str) -> dict[str, Json]:
    """`generation_config`, `think` and `extra_fields` as request options. Secrets in them stay wrapped."""
    options: dict[str, Json] = {}
    for key, value in model.generation_config.items():
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower()
        name = _OPTION_NAMES.get(name, name)
        if name in _OWN_OPTIONS:
            raise MetricError(f"{place}: generation_config cannot set {key!r}; {_OWN_OPTIONS[name]}")
        if value is not None and name not in _NOT_FOR_JUDGES:
            options[name] = value
    if model.think is not None:
        options.setdefault("reasoning_effort", "medium" if model.think else "none")
    if model.extra_fields:
        options["extra_body"] = {**options.get("extra_body", {}), **model.extra_fields}
    try:
        check_options(options, place=f"{place}: generation_config and extra_fields")
    except SetupError as error:
        raise MetricError(str(error)) from None
    return options


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeEndpoint(LiteLLMModel):
    """A litellm model under a name that only the gateway knows. `in_options` are the secrets in its request options."""

    served_as: str
    in_options: tuple[str, ...] = field(default=(), repr=False)

    def secrets(self) -> tuple[str, ...]:
        return (*LiteLLMModel.secrets(self), *self.in_options)

    def find_setup_problem(self, name: str) -> str | None:  # noqa: ARG002 - the name that litellm knows counts
        return LiteLLMModel.find_setup_problem(self, self.served_as)

    def find_problem_of_server(self, name: str) -> str | None:  # noqa: ARG002 - the same
        return LiteLLMModel.find_problem_of_server(self, self.served_as)

    async def __call__(self, request: ModelRequest, *, repeat: int) -> ModelReply:
        return await LiteLLMModel.__call__(self, replace(request, model=self.served_as), repeat=repeat)


def _find_runner(model: JudgeModel, *, place: str) -> Runner | None:
    """The agent or function that judges, or that a name refers to; None if it is the name of a model."""
    if model.runner is not None:
        try:
            return check_runner(model.runner, what="judge")
        except SetupError as error:
            raise MetricError(f"{place}: {error}") from error
    is_served = model.provider_name or model.base_url or model.api_key
    if is_served or model.model_name in MODELS or not is_reference(model.model_name):
        return None
    for_models = [name for name in ("generation_config", "extra_fields", "think") if getattr(model, name)]
    if for_models:
        raise MetricError(
            f"{place}: {for_models[0]} is for models, but {model.model_name!r} is an agent or a function; remove it"
        )
    try:
        return load_runner(model.model_name, what="judge")
    except SetupError as error:
        raise MetricError(f"{place}: {error}") from error


def _as_one_message(messages: tuple[Message, ...]) -> CaseInput:
    """The prompt of a judge for an agent or a function. Both may ignore history, so all of it is in the message."""
    rules, question, *repairs = (message.content for message in messages)
    pairs = zip(repairs[::2], repairs[1::2], strict=True)
    answers = [f"You answered:\n{answer}\n\n{problem}" for answer, problem in pairs]
    return CaseInput(text="\n\n".join((rules, question, *answers)))


_OPTION_NAMES = {
    "max_output_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "stop_sequences": "stop",
}
_NOT_FOR_JUDGES = frozenset(("stream", "stream_options", "n", "candidate_count"))
_OWN_OPTIONS = {
    "model": "use model_name",
    "messages": "promptiter writes the prompt of a judge",
    "tools": "judges have no tools",
    "response_format": "promptiter sets it",
    "api_base": "use base_url",
    "base_url": "put it beside generation_config",
    "api_key": "put it beside generation_config",
    "extra_headers": "leave it out",
    "timeout": "the gateway sets it",
    "num_retries": "the gateway retries",
    "max_retries": "the gateway retries",
    "drop_params": "leave it out",
}


def _register_model(gateway: Gateway, model: JudgeModel) -> str:
    name = name_for_litellm(model)
    in_options = secrets_in([model.generation_config, model.extra_fields])
    gateway.redactor.learn(secrets_in(model))
    if name in MODELS or not (model.base_url or model.api_key or in_options):
        return name
    key = model.api_key.reveal() if model.api_key is not None else None
    endpoint = JudgeEndpoint(
        api_base=model.base_url,
        api_key=key,
        timeout_s=gateway.pool.timeout_s,
        served_as=name,
        in_options=in_options,
    )
    own = _make_unique_name(name, model)
    free, number = own, 1
    while isinstance(known := gateway.model(free), JudgeEndpoint) and known != endpoint:
        number += 1
        free = f"{own}~{number}"
    gateway.add_model(free, endpoint)
    return free


def _make_unique_name(name: str, model: JudgeModel) -> str:
    """A name that is the same in every process and for every key. litellm finds the price by what follows the `/`."""
    origin = digest([name, model.base_url, str(model.api_key or "")])[:8]
    provider, _, bare = name.partition("/")
    return f"judge-{origin}/{bare if provider in _LISTED_BARE and bare else name}"


_LISTED_BARE = frozenset(("openai", "anthropic"))
