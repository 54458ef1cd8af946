"""Converts frozen records to plain JSON data and back, for events and files.

A candidate is stored as the digest of the profile that it changes and the values that differ: a run tries many
candidates that share most texts with the accepted profile, and those texts are not stored again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from promptiter.errors import JournalError, SetupError
from promptiter.profile import Profile, SurfacePatch
from promptiter.structure import StructureSnapshot
from traces import digest
from traces.model import Json


def to_plain(value: Any, shape: Any = None) -> Json:
    """Return a record as JSON data. A `shape` such as `tuple[CaseLoss, ...]` gives the type of a plain container."""
    shape = type(value) if shape is None else shape
    return _adapter(shape).dump_python(value, mode="json")


def from_plain(shape: Any, data: Json) -> Any:
    """Return the record of such data."""
    return _adapter(shape).validate_python(data)


def encode_candidate(
    candidate: Profile, *, accepted: Profile, structure: StructureSnapshot, redact: Callable[[Json], Json]
) -> tuple[dict[str, Json], Profile]:
    """Return the data of a `candidate` event, and the candidate that is decoded from it, which is the one to run.

    A surface that the candidate resets is stored with the baseline's value. `redact` removes secrets.
    """
    candidate.check(structure)
    patches = {change.surface_id: redact(change.after) for change in accepted.changes(candidate, structure)}
    candidate = _apply_values(accepted, patches, structure)
    parent, own = accepted.digest, candidate.digest
    data = {"request": digest([parent, own]), "profile_digest": own, "parent": parent, "patches": patches}
    return data, candidate


def decode_candidate(data: dict[str, Json], *, accepted: Profile, structure: StructureSnapshot) -> Profile:
    """Decode the candidate of such data. Raises JournalError if its parent or its values do not match."""
    name = f"{data['profile_digest'][:12]}…"
    if (parent := accepted.digest) != data["parent"]:
        raise JournalError(
            f"the candidate {name} was made from the profile {data['parent'][:12]}…, but {parent[:12]}… is the "
            "accepted one at that event; restore the journal from a copy"
        )
    try:
        candidate = _apply_values(accepted, data["patches"], structure)
    except SetupError as error:
        raise JournalError(f"the candidate {name} does not fit the structure of its run: {error}") from error
    if (found := candidate.digest) != data["profile_digest"]:
        raise JournalError(f"the patches of the candidate {name} make {found[:12]}…; restore the journal from a copy")
    return candidate


def _apply_values(accepted: Profile, patches: dict[str, Json], structure: StructureSnapshot) -> Profile:
    return accepted.apply(
        [SurfacePatch(surface_id=name, value=value, reason="") for name, value in patches.items()], structure
    )


@cache
def _adapter(shape: Any) -> TypeAdapter[Any]:
    return TypeAdapter(shape)
