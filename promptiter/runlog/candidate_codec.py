"""How a candidate is written down: the digest of the profile that it changes, and the values in which it differs.

A run tries many candidates, and most of their texts are those of the accepted profile: they are not written again.
"""

from __future__ import annotations

from collections.abc import Callable

from promptiter.errors import JournalError, SetupError
from promptiter.profile import Profile, SurfacePatch
from promptiter.structure import StructureSnapshot
from traces import digest
from traces.model import Json


def data_of(
    candidate: Profile, *, accepted: Profile, structure: StructureSnapshot, safe: Callable[[Json], Json]
) -> tuple[dict[str, Json], Profile]:
    """The data of a `candidate` event, and the candidate as it is read from there: that is the one to run.

    A surface that the candidate resets has the baseline's value there. `safe` takes out what may not be written down.
    """
    candidate.check(structure)
    patches = {change.surface_id: safe(change.after) for change in accepted.changes(candidate, structure)}
    candidate = _patched(accepted, patches, structure)
    parent, own = accepted.digest, candidate.digest
    data = {"request": digest([parent, own]), "profile_digest": own, "parent": parent, "patches": patches}
    return data, candidate


def candidate_of(data: dict[str, Json], *, accepted: Profile, structure: StructureSnapshot) -> Profile:
    """The candidate of such data. JournalError: it was made from another profile, or its values are others."""
    name = f"{data['profile_digest'][:12]}…"
    if (parent := accepted.digest) != data["parent"]:
        raise JournalError(
            f"the candidate {name} was made from the profile {data['parent'][:12]}…, but {parent[:12]}… is the "
            "accepted one there; bring the journal back from a copy"
        )
    try:
        candidate = _patched(accepted, data["patches"], structure)
    except SetupError as error:
        raise JournalError(f"the candidate {name} does not fit the structure of its run: {error}") from error
    if (found := candidate.digest) != data["profile_digest"]:
        raise JournalError(
            f"the patches of the candidate {name} make {found[:12]}…; bring the journal back from a copy"
        )
    return candidate


def _patched(accepted: Profile, patches: dict[str, Json], structure: StructureSnapshot) -> Profile:
    return accepted.apply(
        [SurfacePatch(surface_id=name, value=value, reason="") for name, value in patches.items()], structure
    )
