"""The span attributes that promptiter writes: its own, and those of OpenTelemetry's GenAI conventions."""

from __future__ import annotations

from typing import NamedTuple

SCOPE = "promptiter"
TRACE_ID = "promptiter.trace.id"
TRACE_STATUS = "promptiter.trace.status"
NODE_ID = "promptiter.node.id"
STEP_ID = "promptiter.step.id"
STEP_KIND = "promptiter.step.kind"
PREDECESSORS = "promptiter.step.predecessors"
EDGES = "promptiter.step.edges"
EDGE_KIND = "promptiter.edge.kind"
SURFACE_READS = "promptiter.step.surface_reads"
COST_USD = "promptiter.usage.cost_usd"
TOOL_CALL_INDEX = "promptiter.tool_call.index"
SKIPPED_SPANS = "promptiter.skipped_spans"
"""Trace attribute: the number of spans that were neither steps nor tool calls."""

OPERATION = "gen_ai.operation.name"
AGENT_NAME = "gen_ai.agent.name"
CONVERSATION_ID = "gen_ai.conversation.id"
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHED_INPUT_TOKENS = "gen_ai.usage.cache_read.input_tokens"
REQUEST_MODEL = "gen_ai.request.model"
TOOL_NAME = "gen_ai.tool.name"
TOOL_CALL_ID = "gen_ai.tool.call.id"
TOOL_ARGUMENTS = "gen_ai.tool.call.arguments"
TOOL_RESULT = "gen_ai.tool.call.result"
ERROR_TYPE = "error.type"


class SnapshotNames(NamedTuple):
    """The attributes that hold a step's input or output; `messages` holds data that is GenAI messages."""

    text: str
    data: str
    blobs: str
    messages: str


INPUT = SnapshotNames(
    "promptiter.step.input.text", "promptiter.step.input.data", "promptiter.step.input.blobs", INPUT_MESSAGES
)
OUTPUT = SnapshotNames(
    "promptiter.step.output.text", "promptiter.step.output.data", "promptiter.step.output.blobs", OUTPUT_MESSAGES
)

OWNED = frozenset(
    (
        OPERATION,
        AGENT_NAME,
        TOOL_NAME,
        CONVERSATION_ID,
        INPUT_MESSAGES,
        OUTPUT_MESSAGES,
        INPUT_TOKENS,
        OUTPUT_TOKENS,
        CACHED_INPUT_TOKENS,
        ERROR_TYPE,
    )
)
"""Attributes outside `promptiter.` that hold fields of a step."""

OF_TRACE = (TRACE_ID, TRACE_STATUS, CONVERSATION_ID)
"""Attributes of a root span that describe the whole trace."""

DERIVED = (OPERATION, AGENT_NAME, TOOL_NAME)
"""Attributes written for other tools only: they follow from the kind and node of a step."""

ESCAPED = "promptiter.attribute."
"""Prefix for a user's attribute whose name is also used for a field."""
