"""Options of model requests: those that a request cannot have, and what the values of others must be."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from promptiter.errors import SetupError
from promptiter.numbers import is_number
from traces.model import Json

OUTPUT_BOUNDS = ("max_tokens", "max_completion_tokens")
"""The options of a request that limit the tokens of its answer."""

RESERVED_OPTIONS: Mapping[str, str] = {
    "model": "name it where the node, judge or stage names its model",
    "messages": "they are made of the instruction and the prompt",
    "tools": "give them as the tools of the node",
    "functions": "give them as the tools of the node",
    "api_key": "give it under models in promptiter.yaml, or to LiteLLMModel",
    "api_base": "give it under models in promptiter.yaml, or to LiteLLMModel",
    "base_url": "give it as api_base under models in promptiter.yaml, or to LiteLLMModel",
    "client": "the connection is made from the settings of the model",
    "request_timeout": "give it as timeout",
    "num_retries": "the gateway retries",
    "max_retries": "the gateway retries",
    "fallbacks": "a call of another model would not be counted",
    "context_window_fallback_dict": "a call of another model would not be counted",
    "model_list": "a call of another model would not be counted",
    "stream": "answers are read as a whole",
    "n": "a call has one answer",
    "best_of": "a call has one answer",
    "drop_params": "it is always on",
    "additional_drop_params": "it could drop max_tokens, which limits what a call may cost",
}
"""Options that litellm takes and that a request cannot have, each with what to do instead."""

_IN_EXTRA_BODY = {**RESERVED_OPTIONS, **dict.fromkeys(OUTPUT_BOUNDS, "give it as an option of its own")}


CHOICES = "n"
"""The option for several answers to one request. Only programs that read all of them may ask for it."""


def count_choices(options: Mapping[str, Json]) -> int:
    """How many answers a request asks for."""
    return int(options.get(CHOICES) or 1)


def check_options(options: Mapping[str, Json], *, place: str, allows_choices: bool = False) -> None:
    """Raise SetupError if the options of a model contain one that is set elsewhere, or cannot work.

    What changes nothing is allowed, such as `stream: false` in files of other tools, or None.
    """
    if not options:
        return
    if allows_choices and _is_count(options.get(CHOICES)):
        options = {name: value for name, value in options.items() if name != CHOICES}
    _check_names(options, RESERVED_OPTIONS, place=place, what="an option")
    for name, (is_right, wanted) in _VALUES.items():
        value = options.get(name)
        if value is not None and not is_right(value):
            shown = f"of type {type(value).__name__}" if name in _WITH_SECRETS else repr(value)
            raise SetupError(f"{place} have {name!r}, which is {shown}; give {wanted}")
    _check_names(options.get("extra_body") or {}, _IN_EXTRA_BODY, place=place, what="part of extra_body")


def _check_names(options: Mapping[str, Json], refused: Mapping[str, str], *, place: str, what: str) -> None:
    for name, advice in refused.items():
        if options.get(name) and (name, options[name]) not in _WITHOUT_EFFECT:
            raise SetupError(f"{place} have {name!r}, which cannot be {what}: {advice}")


_WITHOUT_EFFECT = (("n", 1), ("best_of", 1))
_WITH_SECRETS = ("headers", "extra_headers", "extra_body")


def _is_count(value: Json) -> bool:
    return isinstance(value, int) and is_number(value, least=1)


def _is_above_0(value: Json) -> bool:
    return is_number(value) and value > 0


def _has_texts(value: Json) -> bool:
    return isinstance(value, Mapping) and all(isinstance(each, str) for each in value.values())


_VALUES: Mapping[str, tuple[Callable[[Json], bool], str]] = {
    **dict.fromkeys(OUTPUT_BOUNDS, (_is_count, "a whole number of at least 1")),
    "timeout": (_is_above_0, "seconds, a number above 0"),
    **dict.fromkeys(("temperature", "top_p", "presence_penalty", "frequency_penalty"), (is_number, "a number")),
    "reasoning_effort": (lambda value: isinstance(value, str | Mapping), "text, such as 'low'"),
    "seed": (lambda value: isinstance(value, int), "a whole number"),
    **dict.fromkeys(("headers", "extra_headers"), (_has_texts, "texts by name, such as {'X-Team': 'desk'}")),
    "extra_body": (lambda value: isinstance(value, Mapping), "values by name, such as {'top_k': 5}"),
}
"""What the value of an option must be, and how to say so."""
