"""The files of lessons that a run reads: the patches, and cases made from the traces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from promptiter.evaluation.data.case import EvalCase
from promptiter.evaluation.data.evalset_rows import write_lines
from promptiter.tasks.cases_from_traces import cases_from_traces
from promptiter.tasks.feedback import FeedbackFile
from promptiter.tasks.learned_patches import write_patches
from promptiter.tasks.lessons import Lessons
from promptiter.tasks.recorded_agent import JudgedRun

PATCHES, LEARNED_CASES, OTHER_CASES = "patches.json", "learned_cases.jsonl", "other_cases.jsonl"

MOST_CASES = 30
"""Maximum number of cases of each file: they are run several times to validate the patches."""


def write_lesson_files(
    folder: Path,
    lessons: Lessons,
    runs: Sequence[JudgedRun],
    feedback: FeedbackFile | None,
    *,
    own: Iterable[EvalCase] = (),
) -> list[Path]:
    """Write the patches, the cases of runs that they were learned from, and those of other runs, each as a file.

    A case needs a reference, which feedback gives it, and must not ask what a case of the user's `own` asks.
    """
    folder.mkdir(parents=True, exist_ok=True)
    known = {_list_questions(case) for case in own}
    judged = [run for run in runs if run.feedback is not None]
    written = [folder / PATCHES]
    write_patches(written[0], lessons.patches)
    for name, chosen in (
        (LEARNED_CASES, [run for run in judged if run.id in lessons.learned_from]),
        (OTHER_CASES, [run for run in judged if run.id not in lessons.learned_from]),
    ):
        (folder / name).unlink(missing_ok=True)
        made = cases_from_traces([run.trace for run in chosen], feedback).cases if chosen else ()
        cases = [case for case in made if case.turns[-1].expected is not None and _list_questions(case) not in known]
        known |= {_list_questions(case) for case in cases}
        if cases:
            (folder / name).write_bytes(write_lines(cases[:MOST_CASES]))
            written.append(folder / name)
    return written


def _list_questions(case: EvalCase) -> tuple[str, ...]:
    return tuple(" ".join(turn.user.split()) for turn in case.turns)
