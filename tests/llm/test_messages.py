"""The digest of a request, by which answers are found in caches of all releases."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptiter.llm.messages import (
    AnswerSchema,
    Message,
    ModelRequest,
    RichMessage,
    RichToolSpec,
    ToolRequest,
    ToolSpec,
)
from traces import digest
from traces.errors import UnwritableTraceError
from traces.model import Json, write_canonically

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"enum": ["ä", None, 1.5]}}}
MESSAGES = st.builds(
    Message,
    st.sampled_from(["system", "user", "assistant", "tool"]),
    TEXTS,
    st.lists(st.builds(ToolRequest, TEXTS, TEXTS, st.dictionaries(TEXTS, TEXTS, max_size=2)), max_size=1).map(tuple),
    st.none() | TEXTS,
)


@given(
    model=TEXTS,
    messages=st.lists(MESSAGES, max_size=3).map(tuple),
    tools=st.sampled_from([(), (ToolSpec("look_up", "Find it.", {"type": "object"}),)]),
    options=st.dictionaries(TEXTS, st.integers(0, 9) | TEXTS, max_size=2),
    schema=st.sampled_from([None, SCHEMA, AnswerSchema(SCHEMA)]),
)
def test_the_digest_of_a_request_is_that_of_its_canonical_json(
    model: str,
    messages: tuple[Message, ...],
    tools: tuple[ToolSpec, ...],
    options: dict[str, Json],
    schema: dict[str, Json] | None,
) -> None:
    request = ModelRequest(model=model, messages=messages, tools=tools, options=options, schema=schema)
    raw = orjson.dumps(request, option=orjson.OPT_SORT_KEYS)
    assert request.measure() == (digest(raw), len(raw))


@pytest.mark.parametrize("first", [(), (Message("system", "Answer briefly."),)])
@pytest.mark.parametrize(("text", "options"), [("half a pair: \ud800", {}), ("hello", {"when": {1, 2}})])
def test_a_request_that_is_not_json_says_what_is_wrong(
    first: tuple[Message, ...], text: str, options: dict[str, Json]
) -> None:
    request = ModelRequest(model="m", messages=(*first, Message("user", text)), options=options)
    with pytest.raises(UnwritableTraceError, match="has no digest"):
        request.measure()


def test_a_message_that_is_more_than_text_has_a_digest_of_its_own() -> None:
    rules, plain = Message("system", "Be brief."), Message("user", "What is this?")
    rich = [RichMessage("user", "What is this?", extra={"content": [{"type": kind}]}) for kind in ("image", "audio")]
    requests = [ModelRequest(model="m", messages=(rules, message)) for message in (plain, *rich)]
    assert len({request.digest for request in requests}) == 3
    assert all(request.digest == digest(write_canonically(request)) for request in requests)
    tools = (ToolSpec("f", "F"), RichToolSpec("f", "F", extra={"strict": True}))
    assert len({ModelRequest(model="m", messages=(rules,), tools=(tool,)).digest for tool in tools}) == 2
