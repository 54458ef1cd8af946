"""Profiles of a run as its log has them: candidates, and what validation says of the best ones."""

from __future__ import annotations

from dataclasses import dataclass

from promptiter.errors import JournalError, SetupError
from promptiter.evaluation.result import Evaluation
from promptiter.profile import Profile
from promptiter.runlog.payloads import CandidateProposed
from promptiter.structure import StructureSnapshot


@dataclass(frozen=True, slots=True)
class ValidatedProfile:
    """A profile with its validation: the best so far, or the initial one."""

    profile: Profile
    validation: Evaluation


def build_candidate(proposed: CandidateProposed, structure: StructureSnapshot) -> Profile:
    """The profile of a candidate. JournalError if its values do not fit the structure or their digest."""
    name = f"{proposed.profile_digest[:12]}…"
    try:
        profile = Profile.of(structure, proposed.values)
    except SetupError as error:
        raise JournalError(f"the candidate {name} does not fit the structure of its run: {error}") from error
    if profile.digest != proposed.profile_digest:
        raise JournalError(
            f"the values of the candidate {name} make {profile.digest[:12]}…; restore the journal from a copy"
        )
    return profile
