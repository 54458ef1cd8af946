"""The recorded baseline of `promptiter try`: the texts that edits are compared with, and the edits tried so far.

It is a folder next to the runs:

    runs/try/
      baseline.json     values of all surfaces, which repeats were recorded, and the edits tried against them
      answers.sqlite    the recorded answers, unless promptiter.yaml names a cache
      profiles/         a profile for each edit that was tried
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

import orjson
from pydantic import TypeAdapter, ValidationError

from promptiter.errors import SetupError
from promptiter.evaluation.stats.paired_difference import ComparisonAnswer
from promptiter.profile import Profile, ProfileDiff
from promptiter.structure import StructureSnapshot
from traces import digest
from traces.files import write_atomically
from traces.model import Json

FOLDER, FILE_NAME, ANSWERS = "try", "baseline.json", "answers.sqlite"

REPEATS_APART = 1_000
"""The distance of the first repeats of two recordings. A new recording has no repeat in common with earlier ones."""

OLD_AFTER = timedelta(days=1)
"""After this time, a model may have changed since the recording."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedEdit:
    """An edit that was compared with the baseline. `edit_id` hashes the new values.

    `repeats` is what the answer rests on, 0 if the comparison was stopped. `trials` counts how often the edit was tried
    with new answers: answers from the cache are those of an earlier trial.
    """

    edit_id: str
    surfaces: tuple[str, ...]
    answer: ComparisonAnswer
    gain: float | None
    tried_at: str
    repeats: int = 0
    trials: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedBaseline:
    """The values of all surfaces when the baseline was recorded, and the edits that were tried against it.

    `is_complete` if its runs were not stopped early.
    """

    values: Mapping[str, Json]
    recorded_at: str
    first_repeat: int = 0
    tried: tuple[TriedEdit, ...] = ()
    is_complete: bool = False
    schema_version: int = 1

    @staticmethod
    def start(
        profile: Profile, snapshot: StructureSnapshot, *, now: datetime, earlier: RecordedBaseline | None = None
    ) -> RecordedBaseline:
        """Start a recording of this profile, with repeats that an earlier one does not have."""
        return RecordedBaseline(
            values={name: profile.value(name, snapshot) for name in sorted(snapshot.surface_ids)},
            recorded_at=now.isoformat(timespec="seconds"),
            first_repeat=0 if earlier is None else earlier.first_repeat + REPEATS_APART,
        )

    def build_profile(self, snapshot: StructureSnapshot) -> Profile:
        """Build the profile with the recorded values, for the agent as it is now. New surfaces have their own value."""
        known = {name: value for name, value in self.values.items() if name in snapshot.surface_ids}
        try:
            return Profile.of(snapshot, known)
        except SetupError as error:
            raise SetupError(
                f"the recorded baseline does not fit the agent any more: {error}; pass --record"
            ) from error

    def find_structure_changes(self, snapshot: StructureSnapshot) -> tuple[str, ...]:
        """The surfaces that the agent had when it was recorded and no longer has, and those that are new."""
        return tuple(sorted(set(self.values) ^ set(snapshot.surface_ids)))

    def is_old(self, now: datetime) -> bool:
        return now - datetime.fromisoformat(self.recorded_at) > OLD_AFTER

    @property
    def shown_time(self) -> str:
        """When it was recorded, in local time: `2026-11-16 14:05`."""
        return datetime.fromisoformat(self.recorded_at).astimezone().strftime("%Y-%m-%d %H:%M")

    @property
    def trials(self) -> int:
        """How often an edit was tried with new answers."""
        return sum(each.trials for each in self.tried)

    def find(self, edit_id: str) -> TriedEdit | None:
        """The edit if it was tried before."""
        return next((each for each in self.tried if each.edit_id == edit_id), None)

    def add(self, edit: TriedEdit, *, has_new_answers: bool = True) -> RecordedBaseline:
        """The same with one more edit. One that was tried before counts again if it has new answers."""
        earlier, others = self.find(edit.edit_id), (each for each in self.tried if each.edit_id != edit.edit_id)
        if earlier is not None:
            edit = replace(edit, trials=earlier.trials + has_new_answers)
        return replace(self, tried=(*others, edit))

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        with write_atomically(folder / FILE_NAME) as file:
            file.write(orjson.dumps(self, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def load_recorded_baseline(folder: Path) -> RecordedBaseline | None:
    """Load the baseline that was recorded in a folder; None if there is none."""
    file = folder / FILE_NAME
    try:
        return _ADAPTER.validate_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SetupError(f"{file}: cannot be read: {error.strerror or error}") from error
    except ValidationError as error:
        raise SetupError(f"{file}: is damaged or of another version; delete it to record again") from error


def identify_edit(differences: ProfileDiff) -> str:
    """A hash of the new values of an edit."""
    return digest([[change.surface_id, digest(change.after)] for change in differences])[:12]


_ADAPTER = TypeAdapter(RecordedBaseline)
