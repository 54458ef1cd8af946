"""What works without a model: the offline defaults, and the baseline that stages with a model have to beat.

- `SimulatedModel`: a stand-in for a language model that follows plain English instructions.
- `EvidenceAttributor`: finds the step to blame by following values and formats back through a trace.
- `ReferenceCorrector`: corrects the output of a blamed step from the expected answer.
- `RuleOptimizer`: patches a prompt with rules that separate good outputs from bad ones.

The package is frozen. It keeps demos, tests and runs without a key working, and it is not tuned further: effort goes
into the stages that ask a model. Other packages find these classes by name, through `promptiter.registry`.
"""

from traces.lazy import lazy_package

__getattr__, __dir__ = lazy_package(__name__)
