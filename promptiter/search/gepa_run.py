"""GepaRun: what gepa asks for, answered by the session of a run. All of it runs in the task of the search.

gepa chooses parents and mini-batches, gates children, and keeps the frontier. Here cases are run, components blamed and
rewritten, and every candidate recorded: screened out, kept on the frontier, or decided by the acceptance of the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal, TypeAlias

from promptiter.backprop.iteration_record import Iteration, IterationFinished, score_cases
from promptiter.engine.session import Session
from promptiter.evaluation.data.case import EvalCase, EvalSet
from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.profile import PatchSet, Profile
from promptiter.search.reflections import Minibatch, Reflections
from promptiter.value_text import decode_value, encode_value
from promptiter.wording import format_score

Texts: TypeAlias = Mapping[str, str]
"""The texts of a candidate, by surface. A value that is not a text is JSON: gepa knows texts only."""

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
class BatchScores:
    """The cases of a batch, in its order: answers, scores from 0 to 1, and the score of each metric.

    `case_runs` is the number of cases that were run for it.
    """

    outputs: tuple[str, ...]
    scores: tuple[float, ...]
    metrics: tuple[dict[str, float], ...]
    case_runs: int


class _OpenIteration:
    """The iteration in progress. It `expects_child` once gepa runs something that is not in its pool."""

    def __init__(self, number: int) -> None:
        self.record = Iteration(number=number)
        self.minibatch: Minibatch | None = None
        self.child: Minibatch | None = None
        self.patches = PatchSet()
        self.expects_child = False
        self.candidate: Profile | None = None
        self.is_decided = False

    def note(self, **facts: Any) -> None:
        self.record = replace(self.record, **facts)


class GepaRun:
    """One run of gepa. `pool` are the profiles of its candidates, by number.

    `idle` counts the iterations since the last one that proposed a candidate.
    """

    def __init__(
        self, session: Session, reflections: Reflections, *, validation: EvalSet, baseline: Evaluation, reuses: bool
    ) -> None:
        self.pool: dict[int, Profile] = {0: session.baseline.profile}
        self.idle = 0
        self._session = session
        self._reflections = reflections
        self._sets: dict[Part, EvalSet] = {"train": session.train, "validation": validation}
        self._reuses = reuses
        self._rows: dict[tuple[str, Part], dict[tuple[str, int], CaseRow]] = {}
        self._keep(session.baseline.profile, "validation", baseline.rows)
        self._accepted_score = fmean(self._score_cases(baseline).values())
        self._open = _OpenIteration(0)

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
        self._open = _OpenIteration(number)

    def select(self, parent: int) -> None:
        """Note the parent that gepa selected for a reflection."""
        self._open.note(parents=(parent,))

    def expect_child(self, parents: Sequence[int]) -> None:
        """Note that gepa runs a child next: one of a parent, or a merge of two."""
        self._open.expects_child = True
        self._open.note(parents=tuple(parents), kind="merge" if len(parents) > 1 else "reflective")

    def skip(self, reason: str) -> None:
        """Note why gepa proposes nothing."""
        self._open.note(skipped=SKIPPED.get(reason, reason))

    async def evaluate(self, batch: Sequence[Example], texts: Texts) -> BatchScores:
        """Run a batch of cases under the texts of a candidate. A child is recorded first."""
        opened, part = self._open, batch[0].part
        profile = await self._propose(texts) if opened.expects_child else self._build_profile(texts)
        cases = {each.case.id: each.case for each in batch}
        evaluation, eval_set = await self._run_cases(part, tuple(cases.values()), profile)
        scores, ids = self._score_cases(evaluation), [each.case.id for each in batch]
        metrics = {
            each.case_id: {name: value or 0.0 for name, value in each.means.items()} for each in evaluation.cases
        }
        outputs = {case_id: rows[0].output for case_id, rows in evaluation.rows_by_case.items()}
        if opened.record.number:  # 0 is the baseline
            ran = Minibatch(profile=profile, evaluation=evaluation, eval_set=eval_set, scores=scores)
            self._note_scores(ran, ids)
        if part == "train" or self._session.shape != "two_sets":
            for case_id in cases:
                self._reflections.remember(case_id, scores[case_id], outputs[case_id])
        return BatchScores(
            outputs=tuple(outputs[each] for each in ids),
            scores=tuple(scores[each] for each in ids),
            metrics=tuple(metrics[each] for each in ids),
            case_runs=len({row.case_id for row in evaluation.rows if row.origin != "kept"}),
        )

    async def blame(self) -> list[str]:
        """The components that the failures of the mini-batch are blamed on."""
        assert self._open.minibatch is not None, "gepa runs a mini-batch before it selects components"
        blamed = await self._reflections.blame(self._open.minibatch)
        if not blamed:
            self._open.note(skipped=self._reflections.explain_no_blame())
        return blamed

    async def reflect(self, components: Sequence[str]) -> dict[str, str]:
        """New texts of these components; none if every one was refused or could not be written."""
        opened = self._open
        assert opened.minibatch is not None, "gepa runs a mini-batch before it reflects"
        if not components:
            return {}
        opened.note(components=tuple(components))
        found = await self._reflections.reflect(opened.minibatch, components)
        opened.patches = found.patches
        opened.note(error=found.error)
        if not found.patches:
            opened.note(skipped="; ".join(found.notes) or "no new text was written")
        return {each.surface_id: encode_value(each.value) for each in found.patches}

    async def reject(self, reason: str) -> None:
        """Record that gepa's gate rejected the child."""
        opened = self._open
        assert opened.candidate is not None, "gepa runs a child before it rejects it"
        opened.is_decided = True
        await self._session.reject(opened.candidate, reason)
        if opened.record.kind == "reflective" and opened.child is not None:
            self._reflections.learn(opened.patches, opened.child, reason)

    async def add_to_pool(
        self, number: int, *, score: float, scores: Mapping[int, float], is_best: bool, front: Sequence[int]
    ) -> None:
        """Take a child into the pool. The acceptance of the run decides whether it becomes the best profile.

        `scores` are those of the validation cases, by position.
        """
        opened, session, child = self._open, self._session, self._open.candidate
        assert child is not None, "gepa runs a child before it adds it"
        self.pool[number] = child
        self._reflections.forget()
        cases = self._sets["validation"].cases
        opened.is_decided = True
        opened.note(
            pool_number=number,
            validation_score=score,
            validation_scores={cases[place].id: value for place, value in sorted(scores.items())},
            is_best=is_best,
            front=tuple(front),
        )
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
        opened, session = self._open, self._session
        self.idle = self.idle + 1 if opened.candidate is None else 0
        if not opened.is_decided:
            await session.skip_round(opened.record.skipped or "nothing was proposed")
        await session.note(IterationFinished(iteration=opened.record))
        await session.complete_round()

    async def _propose(self, texts: Texts) -> Profile:
        """Record the child of the iteration, once, and return it as it is recorded."""
        opened, session = self._open, self._session
        if opened.candidate is None:
            parents = [self.pool[number] for number in opened.record.parents]
            if opened.record.kind == "merge":
                profile = self._build_profile(texts)
                changed = parents[0].changes(profile, session.snapshot)
                opened.note(components=tuple(each.surface_id for each in changed))
                opened.candidate = await session.propose(profile, parents=parents, reason="merged from two candidates")
            else:
                opened.candidate = await session.propose(opened.patches, parents=parents)
            opened.note(candidate=opened.candidate.digest)
        return opened.candidate

    async def _run_cases(self, part: Part, cases: Sequence[EvalCase], profile: Profile) -> tuple[Evaluation, EvalSet]:
        session, whole = self._session, self._sets[part]
        is_whole = part == "validation" and len(cases) == len(whole.cases)
        eval_set = whole if is_whole else replace(whole, cases=tuple(cases))
        stored = self._rows.get((profile.digest, part), {})
        known = [row for row in stored.values() if row.case_id in eval_set.by_id]
        repeats = session.evaluator.options.repeats
        if is_whole and len(known) == len(cases) * repeats:  # the baseline, or all cases were in a mini-batch
            return session.evaluator.build_evaluation(known, eval_set, profile), eval_set
        phase = "frontier" if is_whole else "child_minibatch" if self._open.expects_child else "minibatch"
        if not self._reuses and not is_whole and self._open.record.kind != "merge":
            found = await session.evaluate(eval_set, profile, phase=phase, repeats=session.reserve_repeats(repeats))
            return found, eval_set
        found = await session.evaluate(eval_set, profile, phase=phase, known=known)
        self._keep(profile, part, found.rows)
        return found, eval_set

    def _note_scores(self, ran: Minibatch, ids: Sequence[str]) -> None:
        """Note the scores of a mini-batch: those of the parent, then those of its child."""
        opened, scores = self._open, tuple(ran.scores[each] for each in ids)
        if not opened.expects_child:
            opened.minibatch = ran
            opened.note(minibatch=tuple(ids), parent_scores=(scores,))
        elif not opened.record.candidate_scores:
            opened.child = ran
            opened.note(minibatch=tuple(ids), candidate_scores=scores)
            if opened.record.kind == "merge":
                opened.note(parent_scores=tuple(self._score_parents(ids)))

    def _score_parents(self, case_ids: Sequence[str]) -> Iterator[tuple[float, ...]]:
        """The scores of the parents of a merge, which gepa compares it with."""
        for number in self._open.record.parents:
            parent = self.pool[number]
            rows = self._rows[parent.digest, "validation"].values()
            evaluation = self._session.evaluator.build_evaluation(rows, self._sets["validation"], parent)
            scores = self._score_cases(evaluation)
            yield tuple(scores[each] for each in case_ids)

    def _keep(self, profile: Profile, part: Part, rows: Sequence[CaseRow]) -> None:
        stored = self._rows.setdefault((profile.digest, part), {})
        stored.update({(row.case_id, row.repeat): row for row in rows})

    def _score_cases(self, evaluation: Evaluation) -> dict[str, float]:
        return score_cases(evaluation, self._session.request.objective)

    def _build_profile(self, texts: Texts) -> Profile:
        session = self._session
        values = {name: decode_value(session.snapshot.surface(name), text) for name, text in texts.items()}
        return Profile.of(session.snapshot, {**session.baseline.profile.overrides, **values})
