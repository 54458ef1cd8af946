from promptiter.policies.acceptance import (
    AcceptancePolicy as AcceptancePolicy,
)
from promptiter.policies.acceptance import (
    AnyGain as AnyGain,
)
from promptiter.policies.acceptance import (
    MinGain as MinGain,
)
from promptiter.policies.acceptance import (
    NoRegression as NoRegression,
)
from promptiter.policies.acceptance import (
    Protected as Protected,
)
from promptiter.policies.constraints import Constraint as Constraint
from promptiter.policies.constraints import TieBreak as TieBreak
from promptiter.policies.evidence import (
    AcceptanceDecision as AcceptanceDecision,
)
from promptiter.policies.evidence import (
    Evidence as Evidence,
)
from promptiter.policies.evidence import (
    MoreEvidence as MoreEvidence,
)
from promptiter.policies.final_test import Conclusion as Conclusion
from promptiter.policies.final_test import FinalTest as FinalTest
from promptiter.policies.goals import Goal as Goal
from promptiter.policies.non_inferiority import NonInferior as NonInferior
from promptiter.policies.paired_gain import PairedGain as PairedGain
from promptiter.policies.sigma_gain import SigmaGain as SigmaGain
from promptiter.policies.stop_limits import (
    Deadline as Deadline,
)
from promptiter.policies.stop_limits import (
    MaxCalls as MaxCalls,
)
from promptiter.policies.stop_limits import (
    MaxEvaluations as MaxEvaluations,
)
from promptiter.policies.stop_limits import (
    MaxTokens as MaxTokens,
)
from promptiter.policies.stop_limits import (
    MaxUsd as MaxUsd,
)
from promptiter.policies.stopping import (
    MaxRounds as MaxRounds,
)
from promptiter.policies.stopping import (
    Patience as Patience,
)
from promptiter.policies.stopping import (
    RequiredMetrics as RequiredMetrics,
)
from promptiter.policies.stopping import (
    StopDecision as StopDecision,
)
from promptiter.policies.stopping import (
    StopFile as StopFile,
)
from promptiter.policies.stopping import (
    StopPolicy as StopPolicy,
)
from promptiter.policies.stopping import (
    TargetScore as TargetScore,
)
