"""The reply of a simulated user: its next message, or that the conversation is over."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import CallSite, ModelRequest
from promptiter.llm.structured import ask_for, build_shape


async def ask_for_message(request: ModelRequest, site: CallSite, gateway: Gateway) -> str | None:
    """The user's next message; None if the conversation is over. Raises ModelError if the model fails."""
    return await ask_for(_SHAPE, request, site, gateway, node_id="user")


class _UserReply(BaseModel):
    model_config = ConfigDict(title="Answer")
    done: bool
    message: str = ""


def _read_message(reply: _UserReply) -> str | None:
    if reply.done:
        return None
    if not reply.message.strip():
        raise ValueError("the message is empty although the conversation is not done; say something, or be done")
    return reply.message


_SHAPE = build_shape(_UserReply, _read_message)
