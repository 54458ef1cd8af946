"""CandidateLabels: the candidates that a round with a `width` above 1 chooses from, as the progress names them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from promptiter.backprop.record import PatchesWritten


@dataclass(slots=True)
class CandidateLabels:
    """`candidate 1 of 2`, by profile. Candidates are evaluated in the order in which they are written, equal ones once.

    `written` are the numbers by the digest of the patches, `waiting` those that have no evaluation yet.
    """

    count: int = 0
    written: dict[str, int] = field(default_factory=dict)
    waiting: list[int] = field(default_factory=list)
    profiles: dict[str, int] = field(default_factory=dict)

    def add(self, variants: Sequence[PatchesWritten]) -> list[tuple[str, int | None]]:
        """Number the variants. Return the label of each, and the number of an earlier one with the same patches."""
        self.count, self.written, self.waiting, self.profiles = len(variants), {}, [], {}
        found = []
        for number, each in enumerate(variants, start=1):
            earlier = self.written.setdefault(each.patches.digest, number)
            if earlier == number and each.patches:
                self.waiting.append(number)
            found.append((self._label(number), None if earlier == number or not each.patches else earlier))
        return found

    def start_evaluation(self, profile_digest: str) -> None:
        """Note the profile of the next candidate, which is evaluated now."""
        if self.waiting:
            self.profiles[profile_digest] = self.waiting.pop(0)

    def choose(self, patches: PatchesWritten) -> str | None:
        """The label of the candidate that these patches are, if it was one of several; no other is evaluated then."""
        number = self.written.get(patches.patches.digest)
        self.written, self.waiting = {}, [each for each in self.waiting if each == number]
        return None if number is None else self._label(number)

    def find(self, profile_digest: str | None) -> str | None:
        """The label of a profile, if it is one of several candidates."""
        number = self.profiles.get(profile_digest or "")
        return None if number is None else self._label(number)

    def _label(self, number: int) -> str:
        return f"candidate {number} of {self.count}"
