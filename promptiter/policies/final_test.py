"""FinalTest: how a run tests its gain.

The search accepts candidates leniently. At the end, parts of the accepted profile that do not help are removed, the
rest and the initial profile are run again, and one significance test decides. A gain that it does not show is not
adopted.
"""

from __future__ import annotations

from dataclasses import dataclass

from promptiter.errors import SetupError
from promptiter.numbers import is_number


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalTest:
    """How a run tests its gain: with `repeats` runs of each case and profile before each of three looks.

    If the third look is promising but shows no gain, five times as many runs and a last look follow.
    The false-positive rate of the test is the run's `alpha`. A run that shows no gain is `underpowered`, rather than
    `no_evidence`, if its cases are too few or too noisy to show `min_detectable_gain`. `ablate` removes parts that do
    not help before the test.
    """

    repeats: int = 2
    min_detectable_gain: float = 0.1
    ablate: bool = True

    def __post_init__(self) -> None:
        if not is_number(self.repeats, least=1) or self.repeats != int(self.repeats):
            raise SetupError(f"repeats of the final test is {self.repeats!r}; give a whole number of at least 1")
        gain = self.min_detectable_gain
        if not is_number(gain, least=0) or gain == 0 or gain > 1:
            raise SetupError(f"min_detectable_gain is {gain!r}; give a number above 0 and at most 1, such as 0.1")
