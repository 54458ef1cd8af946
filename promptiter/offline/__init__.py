"""What works without a model: the offline defaults, and a baseline to beat.

- `SimulatedModel`: a stand-in for a language model that reads plain instructions.
- `EvidenceAttributor`: blame from what a trace shows.
- `ReferenceCorrector`: corrects a blamed step from the expected answer.
- `RuleOptimizer`: patches from rules that separate good outputs from bad ones.
"""

from traces.lazy import lazy_package

__getattr__, __dir__ = lazy_package(__name__)
