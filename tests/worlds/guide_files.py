"""A folder with two files, a scorer that measures them, and mutators that improve them step by step.

The guide is better with each of four words, and shorter is better. `notes.md` decides nothing. A guide with the word
CRASH makes the scorer fail; one with the word BAD breaks a rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from promptiter.engine.request import RunRequest
from promptiter.evaluation.score import Score
from promptiter.evaluation.scorer import ScoredProfile
from promptiter.policies.figure_gain import Bound, FigureGain
from promptiter.policies.final_test import FinalTest
from promptiter.policies.stop_limits import MaxFailures
from promptiter.profile import Profile
from promptiter.search.mutation import MutationRequest
from promptiter.structure import Node, StructureSnapshot, Surface
from traces import ExecutionTrace, Snapshot, Step

WORDS = ("greet", "ask", "answer", "thank")
GUIDE, NOTES = "guide.md", "notes.md"
FILES = {GUIDE: "Please be so kind as to write.\n", NOTES: "Nothing.\n"}
STRUCTURE = StructureSnapshot(
    nodes=(Node(id="workspace", description="the guide of a desk"),),
    surfaces=tuple(Surface(node_id="workspace", type="file", part=path, value=text) for path, text in FILES.items()),
    entry="workspace",
)
POLICY = (
    Bound("violations", "<=", 0)
    & Bound("length", "<=", 400)
    & FigureGain("words", tie_breakers=(("lower", "length"), ("lower", "lines")))
)


def read(profile: Profile, path: str = GUIDE) -> str:
    return str(profile.value(f"workspace#file.{path}", STRUCTURE))


class Scoring:
    """The scorer. `runs` counts how often it measured each guide."""

    def __init__(self) -> None:
        self.runs = Counter[str]()

    def __call__(self, profile: Profile) -> ScoredProfile:
        guide = read(profile)
        self.runs[guide] += 1
        if "CRASH" in guide:
            raise OSError("the build failed: exit code 1")
        known = [word for word in WORDS if word in guide]
        missing = [word for word in WORDS if word not in known]
        reason = f"missing: {', '.join(missing)}" if missing else "complete"
        return ScoredProfile(
            scores=(Score(metric="score", value=len(known) / len(WORDS), reason=reason),),
            output=f"found {known}",
            figures={
                "words": len(known),
                "violations": guide.count("BAD"),
                "length": len(guide),
                "lines": len(guide.splitlines()),
            },
            traces=(_build_trace(guide),),
        )


def _build_trace(guide: str) -> ExecutionTrace:
    reads = {each.id: "" for each in STRUCTURE.surfaces}
    step = Step(
        id="workspace",
        node_id="workspace",
        kind="function",
        input=Snapshot("improve the guide"),
        output=Snapshot(guide),
        surface_reads=reads,
    )
    return ExecutionTrace(id="run", steps=(step,))


def build_request(scorer: Any, **changes: Any) -> RunRequest:
    values: dict[str, Any] = {
        "scorer": scorer,
        "run_id": "r",
        "acceptance": POLICY,
        "stop": MaxFailures(10),
        "max_rounds": 12,
        "final_test": FinalTest(repeats=2, ablate=False),
        "targets": tuple(each.id for each in STRUCTURE.surfaces),
    }
    return RunRequest(**(values | changes))


class Planned:
    """A mutator that writes these guides in turn, and then has nothing left. `seen` are its requests."""

    def __init__(self, *guides: str | Mapping[str, str]) -> None:
        self.guides = guides
        self.seen: list[MutationRequest] = []

    def __call__(self, request: MutationRequest) -> Mapping[str, str] | None:
        self.seen.append(request)
        place = (request.round - 1) * request.count + request.number - 1
        if place >= len(self.guides):
            return None
        guide = self.guides[place]
        return {GUIDE: guide} if isinstance(guide, str) else guide


STEPS = ("greet BAD ask", "greet", "CRASH", "greet ask", "greet", "greet ask answer thank", "greet ask answer thanks!")
"""Guides of a run that breaks a bound, gains, crashes, gains, loses, gains, and ties with more characters."""
