"""An agent that is nothing but an HTTP client of its session. At the top level, so that workers import it."""

from __future__ import annotations

from promptiter.agents.base import AgentRun, CaseInput, RunContext
from promptiter.endpoint import open_session
from promptiter.profile import Profile
from promptiter.structure import Node, StructureSnapshot, Surface
from tests.endpoint.clients import open_client


class HttpClientAgent:
    """Sends the text of a case, once as it is and once with an image, and answers with what the model says."""

    def describe(self) -> StructureSnapshot:
        surface = Surface(node_id="agent", type="instruction", value="Repeat.")
        return StructureSnapshot(nodes=(Node(id="agent"),), surfaces=(surface,), entry="agent")

    async def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:  # noqa: ARG002
        async with open_session(context) as session, open_client(session) as client:
            parts = [{"type": "text", "text": case.text}, {"type": "image_url", "image_url": {"url": "data:,x"}}]
            said = []
            for content in (case.text, parts):
                body = {"model": "clerk", "messages": [{"role": "user", "content": content}], "stop": ["."]}
                response = await client.post("/chat/completions", json=body)
                said.append(response.json()["choices"][0]["message"]["content"])
        return AgentRun(output=" / ".join(said))


agent = HttpClientAgent()
