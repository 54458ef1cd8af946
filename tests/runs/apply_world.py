"""A small project with four surfaces in three files, and results of runs that changed them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from promptiter.policies.verdict import Conclusion, Verdict
from promptiter.profile import Profile
from promptiter.runlog.results import RunMeasured, RunResult, Status
from promptiter.runs.place_search import Project
from promptiter.structure import Node, StructureSnapshot, Surface
from traces.model import Json

BEFORE: dict[str, Json] = {
    "planner#instruction": "Plan the work.",
    "actor#instruction": "Do the work.\nBe quick.",
    "critic#instruction": "Find faults.",
    "critic#parameter.top_k": 5,
}
AFTER: dict[str, Json] = {
    "planner#instruction": 'Plan the work in "steps".\n',
    "actor#instruction": "Do the work.\nBe careful.",
    "critic#instruction": "Find faults, and praise.",
    "critic#parameter.top_k": 7,
}
FILES: dict[str, bytes] = {
    "bot.py": b'"""The bots."""\n\nPLANNER = "Plan the work."  # plan\nagent = object()\n',
    "prompts/actor.md": b"Do the work.\r\nBe quick.\r\n",
    "config.yaml": b"# settings\ncritic:\n  prompt: 'Find faults.'  # short\n  top_k: 5\n",
}
PLACES = {"critic#parameter.top_k": "config.yaml:critic.top_k"}
"""The place that is not found by itself: it is a number."""


def write_project(folder: Path) -> Project:
    """Write the files of the project, and an empty folder of a run."""
    for name, raw in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(raw)
    (folder / "runs" / "one").mkdir(parents=True)
    return Project(folder=folder, roots=(folder,), excluded=(folder / "runs",))


def read_files(folder: Path) -> dict[str, bytes]:
    """The files of the project as they are now."""
    return {name: (folder / name).read_bytes() for name in FILES}


def make_result(
    after: Mapping[str, Json] = AFTER, *, verdict: Verdict = "improved", status: Status = "succeeded"
) -> RunResult:
    """The result of a run that changed surfaces to these values."""
    surfaces = []
    for surface_id, value in BEFORE.items():
        node, _, name = surface_id.partition("#")
        kind, _, part = name.partition(".")
        surfaces.append(Surface(node_id=node, type=kind, part=part, value=value))  # type: ignore[arg-type]
    nodes = tuple(Node(id=name) for name in ("planner", "actor", "critic"))
    structure = StructureSnapshot(nodes=nodes, surfaces=tuple(surfaces))
    initial, best = Profile.baseline(structure), Profile.of(structure, after)
    is_adopted = verdict in ("improved", "improved_on_validation")
    return RunResult(
        status=status,
        verdict=verdict,
        structure=structure,
        targets=tuple(BEFORE),
        objective="mean_score",
        initial_profile=initial,
        accepted_profile=best if is_adopted else initial,
        working_profile=best,
        conclusion=Conclusion(verdict=verdict, before=0.5, after=1.0, tried=1, cases=8),
        is_final=True,
        measured=RunMeasured(run_id="one"),
    )
