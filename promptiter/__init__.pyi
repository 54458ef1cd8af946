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
from promptiter.agents.edges import Edge as Edge
from promptiter.agents.edges import FanOut as FanOut
from promptiter.agents.graph import GraphAgent as GraphAgent
from promptiter.agents.in_place.agent import InPlaceAgent as InPlaceAgent
from promptiter.agents.nodes import FunctionNode as FunctionNode
from promptiter.agents.nodes import ModelNode as ModelNode
from promptiter.agents.nodes import Tool as Tool
from promptiter.api import load_run as load_run
from promptiter.api import resume_run as resume_run
from promptiter.engine.engine import Engine as Engine
from promptiter.engine.review import Reviewer as Reviewer
from promptiter.engine.run import RunFailedError as RunFailedError
from promptiter.engine.session import Search as Search
from promptiter.engine.session import Session as Session
from promptiter.errors import (
    BudgetEndedError as BudgetEndedError,
)
from promptiter.errors import (
    ModelError as ModelError,
)
from promptiter.errors import (
    PromptiterError as PromptiterError,
)
from promptiter.errors import (
    RequestError as RequestError,
)
from promptiter.errors import (
    SetupError as SetupError,
)
from promptiter.evaluation.data.case import EvalCase as EvalCase
from promptiter.evaluation.data.case import EvalSet as EvalSet
from promptiter.evaluation.data.evalset import load_eval_set as load_eval_set
from promptiter.evaluation.evaluator import Evaluator as Evaluator
from promptiter.evaluation.metrics.builtin import build_metrics as build_metrics
from promptiter.evaluation.metrics.metric import Metric as Metric
from promptiter.evaluation.metrics.metric_config import load_eval_config as load_eval_config
from promptiter.evaluation.result import Evaluation as Evaluation
from promptiter.evaluation.score import Score as Score
from promptiter.llm.budget import Budget as Budget
from promptiter.llm.gateway import Gateway as Gateway
from promptiter.observers.progress import RunProgress as RunProgress
from promptiter.policies.acceptance import AcceptancePolicy as AcceptancePolicy
from promptiter.policies.stopping import StopPolicy as StopPolicy
from promptiter.profile import PatchSet as PatchSet
from promptiter.profile import Profile as Profile
from promptiter.profile import SurfacePatch as SurfacePatch
from promptiter.runlog.events import Event as Event
from promptiter.runlog.events import Observer as Observer
from promptiter.runlog.results import RunRequest as RunRequest
from promptiter.runlog.results import RunResult as RunResult
from promptiter.runs.listing import list_runs as list_runs
from promptiter.stages.contracts import (
    Aggregator as Aggregator,
)
from promptiter.stages.contracts import (
    Attributor as Attributor,
)
from promptiter.stages.contracts import (
    Backwarder as Backwarder,
)
from promptiter.stages.contracts import (
    Optimizer as Optimizer,
)
from promptiter.structure import StructureSnapshot as StructureSnapshot
from promptiter.structure import Surface as Surface

__version__: str
