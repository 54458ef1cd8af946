"""ScoredFiles: the files of a run with a scorer, such as a file task, as a deliverable that its scorer measures.

A file that is left out is that of the seed. Files that are not those of the run, and bounds that do not hold, are gate
rejections. What cannot be measured has a score of 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from promptiter.agents.base import Agent, CaseInput, RunContext
from promptiter.evaluation.case_runner import GuardedAgent, score_run
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.result import Figures
from promptiter.evaluation.score import Score
from promptiter.evaluation.scorer import SCORER_SET, ScorerRun
from promptiter.profile import Profile, SurfacePatch
from promptiter.search.edit_aims import find_broken_bounds
from promptiter.structure import StructureSnapshot
from promptiter.tasks.files.globs import find_escape
from promptiter.tasks.refine.deliverables import list_files
from promptiter.tasks.refine.prefix import show_name
from promptiter.tasks.refine.records import Defect, GateRejection, MetricValue, RunRecord
from promptiter.tasks.refine.scores import list_defects, list_metrics
from traces.files import write_file

[SCORER_CASE] = SCORER_SET.cases


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredFiles:
    """Measures files by the scorer of a run, under its adopted profile. `policy` accepts candidates by its bounds.

    `agent` is the scorer in place of the agent of the run.
    """

    agent: Agent
    evaluator: Evaluator
    profile: Profile
    policy: object

    async def measure(self, record: RunRecord, deliverable: Path, *, repeat: int) -> RunRecord:
        """The record with what the scorer finds in a deliverable. The gateway must be active."""
        structure = self.agent.describe()
        surfaces = find_file_surfaces(structure)
        texts, rejections = _read_texts(deliverable, surfaces)
        record = replace(record, rejections=(*record.rejections, *rejections))
        patches = [
            SurfacePatch(surface_id=surfaces[path], value=text, reason="refined") for path, text in texts.items()
        ]
        profile = self.profile.apply(patches, structure)
        context = RunContext(case_id=SCORER_CASE.id, repeat=repeat, seed=self.evaluator.gateway.seed)
        run = await GuardedAgent(self.agent).run(CaseInput(text=""), profile, context)
        if run.error is not None:
            return self._describe_crash(record, run.error.message)
        scores = await score_run(self.evaluator.metrics, SCORER_CASE, run, repeat=repeat)
        return self.describe(record, scores, run.figures if isinstance(run, ScorerRun) else {})

    def complete(self, deliverable: Path) -> None:
        """Add the files of the seed that an iteration left out, so that what is kept is what is measured."""
        root, present = deliverable.resolve(), set(list_files(deliverable))
        for path, text in list_texts(self.profile, self.agent.describe()).items():
            if path not in present and (deliverable / path).resolve().is_relative_to(root):
                write_file(deliverable / path, text.encode())

    def describe(self, record: RunRecord, scores: Iterable[Score], figures: Figures) -> RunRecord:
        """The record with scores, and with the bounds that the figures do not meet."""
        scores = tuple(scores)
        broken = (GateRejection(gate="bounds", reason=each) for each in find_broken_bounds(self.policy, figures))
        return replace(
            record,
            metrics=list_metrics(scores, self.evaluator.weights),
            defects=(*record.defects, *list_defects(scores)),
            rejections=(*record.rejections, *broken),
        )

    def _describe_crash(self, record: RunRecord, message: str) -> RunRecord:
        worst = (MetricValue(name=each.name, value=0.0, threshold=each.threshold) for each in self.evaluator.metrics)
        crash = Defect(description=f"it cannot be measured: {message}", severity="P0")
        return replace(record, metrics=tuple(worst), defects=(*record.defects, crash))


def find_file_surfaces(structure: StructureSnapshot) -> dict[str, str]:
    """The surfaces that are files, by path."""
    files = (each for each in structure.surfaces if each.type == "file" and each.part and not find_escape(each.part))
    return {each.part: each.id for each in files}


def list_texts(profile: Profile, structure: StructureSnapshot) -> dict[str, str]:
    """The files of a profile by path. An empty one does not exist yet."""
    files = find_file_surfaces(structure).items()
    return {path: text for path, surface in files if (text := str(profile.value(surface, structure)))}


def _read_texts(deliverable: Path, known: Mapping[str, str]) -> tuple[dict[str, str], list[GateRejection]]:
    """The texts of a deliverable by path, and what is not one of the run."""
    texts: dict[str, str] = {}
    rejections = []
    for name in list_files(deliverable):
        if name not in known:
            reason = f"{show_name(name)} is not a file of this run, and is not used"
            rejections.append(GateRejection(gate="files", reason=reason))
            continue
        try:
            texts[name] = (deliverable / name).read_bytes().decode()
        except UnicodeDecodeError:
            rejections.append(GateRejection(gate="files", reason=f"{name} is not UTF-8 text, and is not used"))
    return texts, rejections
