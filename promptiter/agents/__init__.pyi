from promptiter.agents.base import (
    Agent as Agent,
)
from promptiter.agents.base import (
    AgentRun as AgentRun,
)
from promptiter.agents.base import (
    CaseInput as CaseInput,
)
from promptiter.agents.base import (
    RunContext as RunContext,
)
from promptiter.agents.function import agent as agent
from promptiter.agents.function import ask as ask
from promptiter.agents.function import ask_sync as ask_sync
from promptiter.agents.function import chain as chain
from promptiter.agents.function import node as node
from promptiter.agents.graph import (
    Choice as Choice,
)
from promptiter.agents.graph import (
    Edge as Edge,
)
from promptiter.agents.graph import (
    FanOut as FanOut,
)
from promptiter.agents.graph import (
    GraphAgent as GraphAgent,
)
from promptiter.agents.graph import (
    Join as Join,
)
from promptiter.agents.in_place.agent import InPlaceAgent as InPlaceAgent
from promptiter.agents.nodes import (
    FunctionNode as FunctionNode,
)
from promptiter.agents.nodes import (
    ModelNode as ModelNode,
)
from promptiter.agents.nodes import (
    Parameter as Parameter,
)
from promptiter.agents.nodes import (
    Tool as Tool,
)
from promptiter.agents.nodes import (
    View as View,
)
from promptiter.agents.nodes import (
    surface as surface,
)
from promptiter.sources import CallbackSource as CallbackSource
from promptiter.sources import FileSource as FileSource
from promptiter.sources import Source as Source
from promptiter.structure import Limits as Limits
from promptiter.structure import Node as Node
