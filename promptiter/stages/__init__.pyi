from promptiter.backprop.llm.aggregator import LLMAggregator as LLMAggregator
from promptiter.backprop.llm.attributor import LLMAttributor as LLMAttributor
from promptiter.backprop.llm.backwarder import LLMBackwarder as LLMBackwarder
from promptiter.backprop.llm.cheapest_attributor import (
    AttributionChoice as AttributionChoice,
)
from promptiter.backprop.llm.cheapest_attributor import (
    CheapestAttributor as CheapestAttributor,
)
from promptiter.backprop.llm.corrector import LLMCorrector as LLMCorrector
from promptiter.backprop.llm.optimizer import LLMOptimizer as LLMOptimizer
from promptiter.backprop.propagate import StepwiseAttributor as StepwiseAttributor
from promptiter.backprop.propagate import propagate as propagate
from promptiter.backprop.support_aggregator import SupportAggregator as SupportAggregator
from promptiter.stages.contracts import (
    AggregateRequest as AggregateRequest,
)
from promptiter.stages.contracts import (
    AggregateResult as AggregateResult,
)
from promptiter.stages.contracts import (
    Aggregator as Aggregator,
)
from promptiter.stages.contracts import (
    AttributeRequest as AttributeRequest,
)
from promptiter.stages.contracts import (
    Attributor as Attributor,
)
from promptiter.stages.contracts import (
    Backwarder as Backwarder,
)
from promptiter.stages.contracts import (
    BackwardRequest as BackwardRequest,
)
from promptiter.stages.contracts import (
    BackwardResult as BackwardResult,
)
from promptiter.stages.contracts import (
    GradientPacket as GradientPacket,
)
from promptiter.stages.contracts import (
    Optimizer as Optimizer,
)
from promptiter.stages.contracts import (
    OptimizeRequest as OptimizeRequest,
)
from promptiter.stages.contracts import (
    OptimizeResult as OptimizeResult,
)
from promptiter.stages.contracts import (
    SurfaceGradient as SurfaceGradient,
)
from promptiter.stages.losses import CaseLoss as CaseLoss
from promptiter.stages.losses import Loss as Loss
from promptiter.stages.losses import LossHint as LossHint
from promptiter.stages.losses import LossPlacement as LossPlacement
