"""GepaRun: what gepa asks for, answered by the session of a run. All of it runs in the task of the search.

gepa chooses parents and mini-batches, gates children, and keeps the frontier. Here cases are run, components blamed and
rewritten, and every candidate recorded: screened out, kept on the frontier, or decided by the acceptance of the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from promptiter.backprop.iteration_record import Iteration, IterationFinished, IterationKind
from promptiter.engine.session import Session
from promptiter.evaluation.data.case import EvalCase, EvalSet
from promptiter.evaluation.result import CaseRow, Evaluation, get_best_value
from promptiter.profile import PatchSet, Profile
from promptiter.search.reflections import Minibatch, Reflections
from promptiter.wording import format_score

Texts: TypeAlias = Mapping[str, str]
"""The texts of a candidate, by surface."""

Part: TypeAlias = Literal["train", "validation"]

SKIPPED = {
    "all_scores_perfect": "every case of the mini-batch has a perfect score",
    "no_trajectories": "no case of the mini-batch could be run",
}
"""gepa's reasons for an iteration without a proposal, in words."""


@dataclass(frozen=True, slots=True)
class Example:
    """A case as gepa sees it: opaque."""

    part: Part
    case: EvalCase


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """The cases of a batch, in its order: answers, scores from 0 to 1, and the score of each metric.

    `case_runs` is the number of cases that were run for it.
    """

    outputs: tuple[str, ...]
    scores: tuple[float, ...]
    metrics: tuple[dict[str, float], ...]
    case_runs: int


@dataclass(slots=True)
class _Open:
    """The iteration in progress. It `expects_child` once gepa runs something that is not in its pool."""

    number: int
    expects_child: bool = False
    kind: IterationKind = "reflective"
    parents: tuple[int, ...] = ()
    components: tuple[str, ...] = ()
    patches: PatchSet = field(default_factory=PatchSet)
    candidate: Profile | None = None
    minibatch: tuple[str, ...] = ()
    parent_scores: tuple[tuple[float, ...], ...] = ()
    candidate_scores: tuple[float, ...] = ()
    is_decided: bool = False
    skipped: str = ""
    extra: dict[str, object] = field(default_factory=dict)


class GepaRun:
    """One run of gepa. `pool` are the profiles of its candidates, by number."""

    def __init__(
        self, session: Session, reflections: Reflections, *, validation: EvalSet, baseline: Evaluation, reuses: bool
    ) -> None:
        self.pool: dict[int, Profile] = {0: session.baseline.profile}
        self._session = session
        self._reflections = reflections
        self._sets: dict[Part, EvalSet] = {"train": session.train, "validation": validation}
        self._reuses = reuses
        self._rows: dict[tuple[str, Part], dict[tuple[str, int], CaseRow]] = {}
        self._keep(session.baseline.profile, "validation", baseline.rows)
        self._accepted_score = self._average(baseline)
        self._iteration = _Open(number=0)
        self._minibatch: Minibatch | None = None

    @property
    def examples(self) -> tuple[list[Example], list[Example]]:
        """The train and validation cases. They are the same if a run has one set."""
        validation = [Example("validation", case) for case in self._sets["validation"].cases]
        if self._session.shape != "two_sets":
            return validation, validation
        return [Example("train", case) for case in self._sets["train"].cases], validation

    async def begin(self, number: int) -> None:
        """Begin an iteration."""
        await self._session.begin_round()
        self._iteration, self._minibatch = _Open(number=number), None

    def expect_child(self, parents: Sequence[int]) -> None:
        """Note the parents of the next candidate that is not in the pool: one, or two of a merge."""
        opened = self._iteration
        opened.parents, opened.expects_child = tuple(parents), True
        opened.kind = "merge" if len(parents) > 1 else "reflective"

    def select(self, parent: int) -> None:
        """Note the parent that gepa selected for a reflection."""
        self._iteration.parents = (parent,)

    def skip(self, reason: str) -> None:
        """Note why gepa proposes nothing."""
        self._iteration.skipped = SKIPPED.get(reason, reason)

    async def evaluate(self, batch: Sequence[Example], texts: Texts) -> Scored:
        """Run a batch of cases under the texts of a candidate. One that is not in the pool is recorded first."""
        part, cases = batch[0].part, list({each.case.id: each.case for each in batch}.values())
        profile = self._build_profile(texts)
        is_whole = part == "validation" and len(cases) == len(self._sets[part].cases)
        opened = self._iteration
        if opened.expects_child:
            profile = await self._propose(profile)
        evaluation, eval_set = await self._run_cases(part, cases, profile, is_whole=is_whole)
        by_id = {each.case_id: each for each in evaluation.cases}
        scored = Scored(
            outputs=tuple(evaluation.rows_by_case[each.case.id][0].output for each in batch),
            scores=tuple(self._score(evaluation, each.case.id) for each in batch),
            metrics=tuple({name: value or 0.0 for name, value in by_id[each.case.id].means.items()} for each in batch),
            case_runs=len({row.case_id for row in evaluation.rows if row.origin != "kept"}),
        )
        if not opened.candidate_scores and opened.number:
            self._note_minibatch(batch, scored)
        if opened.number and not opened.expects_child:
            scores = {each.case.id: score for each, score in zip(batch, scored.scores, strict=True)}
            self._minibatch = Minibatch(profile=profile, evaluation=evaluation, eval_set=eval_set, scores=scores)
        if part == "train" or self._session.shape != "two_sets":
            for each, score, output in zip(batch, scored.scores, scored.outputs, strict=True):
                self._reflections.remember(each.case.id, score, output)
        return scored

    async def blame(self) -> list[str]:
        """The components that the failures of the mini-batch are blamed on."""
        assert self._minibatch is not None, "gepa runs a mini-batch before it selects components"
        blamed = await self._reflections.blame(self._minibatch)
        if not blamed:
            self._iteration.skipped = self._reflections.explain_no_blame()
        return blamed

    async def reflect(self, components: Sequence[str]) -> dict[str, str]:
        """New texts of these components; none if every one was refused or could not be written."""
        self._iteration.components = tuple(components)
        assert self._minibatch is not None, "gepa runs a mini-batch before it reflects"
        if not components:
            return {}
        found = await self._reflections.reflect(self._minibatch, components)
        self._iteration.patches = found.patches
        if not found.patches:
            self._iteration.skipped = "; ".join(found.notes) or "no new text was written"
        self._iteration.extra["error"] = found.error
        return {each.surface_id: str(each.value) for each in found.patches}

    async def reject(self, reason: str) -> None:
        """Record that gepa's gate rejected the child."""
        assert self._iteration.candidate is not None, "gepa evaluates a child before it rejects it"
        self._iteration.is_decided = True
        await self._session.reject(self._iteration.candidate, reason)

    async def add_to_pool(
        self, number: int, *, score: float, scores: Mapping[int, float], is_best: bool, front: Sequence[int]
    ) -> None:
        """Take a child into the pool. The acceptance of the run decides whether it becomes the best profile.

        `scores` are those of the validation cases, by position.
        """
        opened, session = self._iteration, self._session
        assert opened.candidate is not None, "gepa evaluates a child before it adds it"
        self.pool[number] = child = opened.candidate
        cases = self._sets["validation"].cases
        opened.extra |= {
            "pool_number": number,
            "validation_score": score,
            "validation_scores": {cases[place].id: value for place, value in sorted(scores.items())},
            "is_best": is_best,
            "front": tuple(front),
        }
        opened.is_decided = True
        if score <= self._accepted_score:
            place = "kept on the frontier" if number in front else "kept in the pool"
            best = format_score(self._accepted_score)
            await session.reject(child, f"{place}: its validation score {format_score(score)} is not above {best}")
            return
        decision = await session.validate(child, known=tuple(self._rows[child.digest, "validation"].values()))
        if decision.accepted:
            self._accepted_score = score

    async def end(self) -> None:
        """Record the iteration, and complete the round."""
        opened = self._iteration
        if opened.candidate is None or not opened.is_decided:
            await self._session.skip_round(opened.skipped or "no candidate was proposed")
        finished = Iteration(
            number=opened.number,
            kind=opened.kind,
            parents=opened.parents,
            components=opened.components,
            candidate=None if opened.candidate is None else opened.candidate.digest,
            minibatch=opened.minibatch,
            parent_scores=opened.parent_scores,
            candidate_scores=opened.candidate_scores,
            skipped=opened.skipped if opened.candidate is None else "",
            **opened.extra,  # type: ignore[arg-type]
        )
        await self._session.note(IterationFinished(iteration=finished))
        await self._session.complete_round()

    async def _propose(self, profile: Profile) -> Profile:
        """Record a child, once per iteration, and return it as it is recorded."""
        opened, session = self._iteration, self._session
        if opened.candidate is None:
            parents = [self.pool[number] for number in opened.parents]
            if opened.kind == "merge":
                opened.components = tuple(each.surface_id for each in parents[0].changes(profile, session.snapshot))
                opened.candidate = await session.propose(profile, parents=parents, reason="merged from two candidates")
            else:
                opened.candidate = await session.propose(opened.patches, parents=parents)
        return opened.candidate

    async def _run_cases(
        self, part: Part, cases: Sequence[EvalCase], profile: Profile, *, is_whole: bool
    ) -> tuple[Evaluation, EvalSet]:
        session, whole = self._session, self._sets[part]
        eval_set = whole if is_whole else replace(whole, cases=tuple(cases))
        ids = {case.id for case in cases}
        stored = self._rows.get((profile.digest, part), {})
        known = [row for row in stored.values() if row.case_id in ids]
        wanted = len(cases) * session.evaluator.options.repeats
        if is_whole and len(known) == wanted:  # the baseline, or a child of a run with one set
            return session.evaluator.build_evaluation(known, eval_set, profile), eval_set
        phase = "frontier" if is_whole or self._iteration.kind == "merge" else "minibatch"
        if self._reuses or phase == "frontier":
            found = await session.evaluate(eval_set, profile, phase=phase, known=known)
            self._keep(profile, part, found.rows)
        else:
            repeats = session.reserve_repeats(session.evaluator.options.repeats)
            found = await session.evaluate(eval_set, profile, phase=phase, repeats=repeats)
        return found, eval_set

    def _keep(self, profile: Profile, part: Part, rows: Sequence[CaseRow]) -> None:
        stored = self._rows.setdefault((profile.digest, part), {})
        stored.update({(row.case_id, row.repeat): row for row in rows})

    def _note_minibatch(self, batch: Sequence[Example], scored: Scored) -> None:
        opened = self._iteration
        opened.minibatch = tuple(each.case.id for each in batch)
        if opened.candidate is None:
            opened.parent_scores = (scored.scores,)
            return
        opened.candidate_scores = scored.scores
        if opened.kind == "merge":
            parents = [self._rows[self.pool[each].digest, "validation"] for each in opened.parents]
            opened.parent_scores = tuple(self._score_known(rows, batch) for rows in parents)

    def _score_known(self, rows: Mapping[tuple[str, int], CaseRow], batch: Sequence[Example]) -> tuple[float, ...]:
        evaluation = self._session.evaluator.build_evaluation(
            list(rows.values()), self._sets["validation"], self.pool[0]
        )
        return tuple(self._score(evaluation, each.case.id) for each in batch)

    def _score(self, evaluation: Evaluation, case_id: str) -> float:
        """The objective of a case, from 0 to 1. What could not be scored counts 0, as gepa wants it."""
        objective = self._session.request.objective
        [case] = (each for each in evaluation.cases if each.case_id == case_id)
        value = case.objective(objective)
        return 0.0 if value is None else 1.0 + value - get_best_value(objective)

    def _average(self, evaluation: Evaluation) -> float:
        scores = [self._score(evaluation, each.case_id) for each in evaluation.cases]
        return sum(scores) / len(scores) if scores else 0.0

    def _build_profile(self, texts: Texts) -> Profile:
        session = self._session
        return Profile.of(session.snapshot, {**session.baseline.profile.overrides, **texts})
