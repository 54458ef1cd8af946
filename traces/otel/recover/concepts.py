"""What the attributes of a span mean: for each concept the keys of all conventions, in the order of their precedence.

Exports mix conventions, even on one span, so a concept is looked up key by key and no convention claims a trace.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import orjson

from traces.model import Json
from traces.otel.spans import MAX_DEPTH, Span

Role: TypeAlias = Literal["llm", "tool", "agent", "workflow", "chain", "setup", "other"]
"""What a span stands for. A `chain` only wraps others; `setup` is no part of a run."""

OPERATION: tuple[str, ...] = ("gen_ai.operation.name",)
AGENT_NAME = (
    "gen_ai.agent.name",
    "agent.name",
    "graph.node.name",
    "graph.node.id",
    "agent_name",
    "crewai.agent.role",
)
CONVERSATION = (
    "gen_ai.conversation.id",
    "session.id",
    "traceloop.association.properties.thread_id",
    "traceloop.association.properties.session_id",
    "langfuse.session.id",
    "langsmith.metadata.thread_id",
    "thread_id",
)
MODEL = (
    "gen_ai.request.model",
    "llm.request.model_name",
    "llm.model_name",
    "gen_ai.response.model",
    "model_name",
    "langfuse.observation.model.name",
    "ai.model.id",
)
TOOL_NAME = (
    "gen_ai.tool.name",
    "tool.name",
    "traceloop.entity.name",
    "ai.toolCall.name",
    "name",
)
TOOL_CALL_ID = (
    "gen_ai.tool.call.id",
    "tool.id",
    "tool_call.id",
    "ai.toolCall.id",
)
TOOL_ARGUMENTS = (
    "gen_ai.tool.call.arguments",
    "input.value",
    "traceloop.entity.input",
    "tool_arguments",
    "tool.parameters",
    "ai.toolCall.args",
    "langfuse.observation.input",
    "mlflow.spanInputs",
    "lmnr.span.input",
    "gcp.vertex.agent.tool_call_args",
    "input",
)
TOOL_RESULT = (
    "gen_ai.tool.call.result",
    "output.value",
    "traceloop.entity.output",
    "tool_response",
    "ai.toolCall.result",
    "langfuse.observation.output",
    "mlflow.spanOutputs",
    "lmnr.span.output",
    "gcp.vertex.agent.tool_response",
    "output",
)
FINISH_REASON = (
    "gen_ai.response.finish_reasons",
    "gen_ai.completion.0.finish_reason",
    "llm.finish_reason",
    "ai.response.finishReason",
    "gen_ai.response.finish_reason",
)
INPUT_TOKENS = (
    "gen_ai.usage.input_tokens",
    "gen_ai.usage.prompt_tokens",
    "llm.token_count.prompt",
    "llm.usage.prompt_tokens",
    "ai.usage.inputTokens",
    "ai.usage.promptTokens",
)
OUTPUT_TOKENS = (
    "gen_ai.usage.output_tokens",
    "gen_ai.usage.completion_tokens",
    "llm.token_count.completion",
    "llm.usage.completion_tokens",
    "ai.usage.outputTokens",
    "ai.usage.completionTokens",
)
CACHED_TOKENS = ("gen_ai.usage.cache_read.input_tokens", "llm.token_count.prompt_details.cache_read")
COST = ("llm.cost.total", "gen_ai.usage.cost")
INPUT = (
    "gen_ai.task.input",
    "traceloop.entity.input",
    "input.value",
    "langfuse.observation.input",
    "user_goal",
    "ai.prompt",
    "mlflow.spanInputs",
    "lmnr.span.input",
)
OUTPUT = (
    "gen_ai.task.output",
    "traceloop.entity.output",
    "output.value",
    "final_result",
    "langfuse.observation.output",
    "ai.response.text",
    "mlflow.spanOutputs",
    "lmnr.span.output",
)
STATIC_EDGES = ("gen_ai.workflow.edges", "workflow.definition")

_OPERATIONS: Mapping[str, Role] = {
    "chat": "llm",
    "generate_content": "llm",
    "text_completion": "llm",
    "completion": "llm",
    "responses": "llm",
    "execute_tool": "tool",
    "retrieval": "tool",
    "embeddings": "tool",
    "invoke_agent": "agent",
    "invoke_workflow": "workflow",
    "invoke_graph": "workflow",
    "invoke_swarm": "workflow",
    "create_agent": "setup",
    "execute_task": "chain",
    "goto": "chain",
}
_OPENINFERENCE: Mapping[str, Role] = {
    "LLM": "llm",
    "TOOL": "tool",
    "RETRIEVER": "tool",
    "RERANKER": "tool",
    "EMBEDDING": "tool",
    "AGENT": "agent",
    "CHAIN": "chain",
    "GUARDRAIL": "chain",
    "EVALUATOR": "chain",
    "PROMPT": "chain",
}
_TRACELOOP: Mapping[str, Role] = {"workflow": "workflow", "task": "chain", "agent": "agent", "tool": "tool"}
_OTHERS: Mapping[str, Role] = {
    "generation": "llm",
    "llm": "llm",
    "chat_model": "llm",
    "agent": "agent",
    "tool": "tool",
    "retriever": "tool",
    "embedding": "tool",
    "span": "chain",
    "chain": "chain",
    "default": "chain",
    "evaluator": "chain",
    "guardrail": "chain",
    "operation": "chain",
    "task": "chain",
    "workflow": "workflow",
    "session": "workflow",
}
OTHER_KINDS = (
    "langfuse.observation.type",
    "langsmith.span.kind",
    "mlflow.spanType",
    "lmnr.span.type",
    "agentops.span.kind",
)
_LOGFIRE: Mapping[str, Role] = {"Agent run: {name!r}": "agent", "Function: {name}": "tool"}
"""How Logfire words the spans of the OpenAI Agents SDK, which say nothing else about their kind."""
_MERGED_TOOLS = "(merged tools)"
"""The name under which ADK repeats the results of several tool calls together."""
_VERCEL: Mapping[str, Role] = {"doGenerate": "llm", "doStream": "llm", "toolCall": "tool", "doEmbed": "tool"}


def first(attributes: Mapping[str, Json], keys: tuple[str, ...]) -> Json:
    """The value of the first key that has one; None if none has."""
    for key in keys:
        if key in attributes:
            value = attributes[key]
            if value is not None and value != "":
                return value
    return None


_ROLE_KEYS = frozenset(OTHER_KINDS).union(
    ("openinference.span.kind", "traceloop.span.kind", "gen_ai.operation.name", "gen_ai.request.model"),
    ("llm.request.type", "llm.input_messages.0.message.role", "gcp.vertex.agent.llm_request"),
    ("gen_ai.tool.name", "agent_name", "ai.operationId", "logfire.msg_template"),
)
"""A span without any of these says nothing about its role but by its name."""


_PROMPTS = ("gen_ai.prompt", "request_data")


def read_role(span: Span) -> Role:
    """What a span stands for, by the first vocabulary that says so, else by what it holds."""
    attributes = span.attributes
    if _ROLE_KEYS.isdisjoint(attributes):  # spans of the transport
        return "agent" if span.name.startswith("agent_run [") else "other"
    kind = attributes.get("openinference.span.kind")
    if isinstance(kind, str) and (role := _OPENINFERENCE.get(kind)) is not None and role != "chain":
        return role
    entity = attributes.get("traceloop.span.kind")
    if entity == "workflow":  # the outermost chain, even if its operation calls it an agent
        return "workflow"
    operation = attributes.get("gen_ai.operation.name")
    if isinstance(operation, str) and (found := _OPERATIONS.get(operation)) is not None and found != "chain":
        return "other" if attributes.get("gen_ai.tool.name") == _MERGED_TOOLS else found
    if isinstance(entity, str) and (known := _TRACELOOP.get(entity)) is not None:
        return known
    if kind is not None or operation is not None:
        return "llm" if kind is None and operation not in _OPERATIONS and _asks_model(span) else "chain"
    if "llm.request.type" in attributes or "llm.input_messages.0.message.role" in attributes:
        return "llm"
    if "gen_ai.request.model" in attributes and any(key.startswith(_PROMPTS) for key in attributes):
        return "llm"
    if "gcp.vertex.agent.llm_request" in attributes:
        return "llm"
    if "gen_ai.tool.name" in attributes:
        return "other" if attributes["gen_ai.tool.name"] == _MERGED_TOOLS else "tool"
    if span.name.startswith("agent_run ["):
        return "agent"
    if "agent_name" in attributes and (span.name == "agent run" or "all_messages_events" in attributes):
        return "agent"
    return _read_other_role(attributes)


def _asks_model(span: Span) -> bool:
    """Whether a model answered or failed, whatever the operation is called: LiteLLM writes `acompletion`."""
    attributes = span.attributes
    if "gen_ai.request.model" not in attributes or "gen_ai.agent.name" in attributes:
        return False
    return "gen_ai.output.messages" in attributes or (span.is_error and "gen_ai.input.messages" in attributes)


def _read_other_role(attributes: Mapping[str, Json]) -> Role:
    """What a span stands for in the vocabularies of observability products and of the Vercel AI SDK."""
    for key in OTHER_KINDS:
        if isinstance(kind := attributes.get(key), str):
            return _OTHERS.get(kind.strip('"').lower(), "chain")
    if isinstance(operation := attributes.get("ai.operationId"), str):
        return _VERCEL.get(operation.rpartition(".")[2], "chain")
    return _LOGFIRE.get(str(attributes.get("logfire.msg_template")), "other")


def as_data(value: Json) -> Json:
    """A value as JSON can hold it: numbers that it does not have, and what is nested too deeply, become text."""
    return value if _is_data(value, 0) else _to_data(value, 0)


def _is_data(value: Json, depth: int) -> bool:
    if value is None or value is True or value is False or isinstance(value, str):
        return True
    if type(value) in (int, float):
        return bool(-(2**63) <= value < 2**63)
    if depth == MAX_DEPTH:
        return False
    for each in value.values() if isinstance(value, dict) else value:
        if type(each) is not str and not _is_data(each, depth + 1):  # most values are texts
            return False
    return True


def _to_data(value: Json, depth: int) -> Json:
    if isinstance(value, dict) and depth < MAX_DEPTH:
        return {key: _to_data(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list | tuple) and depth < MAX_DEPTH:
        return [_to_data(each, depth + 1) for each in value]
    if isinstance(value, dict | list | tuple):
        return "(nested too deeply)"
    return value if _is_data(value, depth) else str(value)


def load_json(text: Json) -> Json:
    """Parse JSON if a text is that; anything else is returned as it is."""
    if isinstance(text, str):
        if not text.startswith(("{", "[", '"')):
            return text
    elif not isinstance(text, bytes) or not text.startswith((b"{", b"[", b'"')):
        return text
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
