from promptiter.offline.attribution.attributor import EvidenceAttributor as EvidenceAttributor
from promptiter.offline.attribution.corrector import ReferenceCorrector as ReferenceCorrector
from promptiter.offline.model.simulated import SimulatedModel as SimulatedModel
from promptiter.offline.rules.optimizer import RuleOptimizer as RuleOptimizer
