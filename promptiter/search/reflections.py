"""Reflections: new texts for components, after the cases of a mini-batch ran with the current ones.

A reflection model sees the cases as records. Without one, the failures are blamed on surfaces, and the optimizer stage
writes the texts, so that no model is needed. Either way lint and the leak guard refuse texts before they are tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from promptiter.backprop.iteration_record import TextsProposed
from promptiter.backprop.lint import Linter
from promptiter.backprop.llm.reflector import LLMReflector
from promptiter.backprop.patch_writing import NO_EXAMPLES, PatchAttempt, lint_patch
from promptiter.backprop.record import StagesMeasured
from promptiter.backprop.stage_calls import call_or_error
from promptiter.concurrency import run_together
from promptiter.engine.session import Session
from promptiter.errors import StageError
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.result import Evaluation
from promptiter.profile import PatchEvidence, PatchSet, Profile, SurfacePatch
from promptiter.search.blame import BlameFinder, BlameReport
from promptiter.search.case_records import build_case_records
from promptiter.search.propose import PatchProposer
from promptiter.search.rejections import Rerun
from promptiter.search.stage_models import find_prices
from promptiter.stages.contracts import AggregateResult
from promptiter.stages.reflection import ReflectRequest
from promptiter.value_text import decode_value, encode_value
from promptiter.wording import join_names, plural

MAX_FIRST_FAILURES = 3
"""If this many reflections fail and none has ever worked, the run fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Minibatch:
    """The cases of a mini-batch under the parent. `scores` are those of the search, by case."""

    profile: Profile
    evaluation: Evaluation
    eval_set: EvalSet
    scores: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReflectionResult:
    """The patches of a reflection. `notes` say why others are missing; `error` is set if the model failed."""

    patches: PatchSet
    notes: tuple[str, ...] = ()
    error: str = ""


class Reflections:
    """The reflections of one run, on these components."""

    def __init__(
        self,
        session: Session,
        components: Sequence[str],
        *,
        finder: BlameFinder,
        patcher: PatchProposer,
        reflector: LLMReflector | None,
        history_top_k: int,
    ) -> None:
        self._session = session
        self._components = tuple(components)
        self._finder = finder
        self._patcher = patcher
        self._reflector = reflector
        self._history_top_k = history_top_k
        self._history: dict[str, list[tuple[float, str]]] = {}
        self._linter = Linter(session.train.cases)
        self._blame: tuple[Minibatch, BlameReport] | None = None
        self._failed = 0
        self._has_worked = False

    @property
    def has_failed(self) -> bool:
        """Whether every reflection so far has failed."""
        return self._failed > 0 and not self._has_worked

    def remember(self, case_id: str, score: float, output: str) -> None:
        """Keep an answer to a case, if it is one of the best."""
        known = self._history.setdefault(case_id, [])
        if not any(answer == output for _, answer in known):
            known.append((score, output))
            known.sort(key=lambda each: -each[0])
            del known[self._history_top_k :]

    def learn(self, patches: PatchSet, child: Minibatch, reason: str) -> None:
        """Remember a rejected child, if it ran all train cases: no other mini-batch can show that it is better."""
        if len(child.scores) == len(self._session.train.cases):
            rerun = Rerun(candidate=child.profile, cases=child.eval_set, evaluation=child.evaluation)
            self._patcher.rejected.add_candidate(patches, reason, rerun=rerun)

    def forget(self) -> None:
        """Forget rejected children: what they changed may help on top of a new parent."""
        self._patcher.rejected.forget_all_but_vetoes()

    async def blame(self, minibatch: Minibatch) -> list[str]:
        """The components that the failures of a mini-batch are blamed on, the strongest signal first."""
        report = await self._find_blame(minibatch)
        return list(dict.fromkeys(each.surface_id for each in report.signals or report.weak))

    def explain_no_blame(self) -> str:
        """Why the last mini-batch is blamed on no component."""
        return "nothing is blamed" if self._blame is None else self._blame[1].no_blame

    async def reflect(self, minibatch: Minibatch, components: Sequence[str]) -> ReflectionResult:
        """Write new texts of these components. Few-shot examples are selected from the mini-batches before this one."""
        await self._patcher.examples.add(minibatch.evaluation, minibatch.eval_set, minibatch.profile)
        if self._reflector is None:
            return await self._write_by_stages(minibatch, components)
        components = self._patcher.keep_to_limit(components)
        if set(components).intersection(self._patcher.examples.surface_ids):
            await self._patcher.examples.ask_teacher(minibatch.profile, without=tuple(minibatch.scores))
        found = await self._ask_model(self._reflector, minibatch, components)
        patches = [
            SurfacePatch(
                surface_id=name,
                value=decode_value(self._session.snapshot.surface(name), text),
                reason=found.reasons.get(name, "reflection"),
                evidence=PatchEvidence(cases=tuple(minibatch.scores)),
            )
            for name, text in found.texts.items()
        ]
        error = ""
        if found.failed and not found.texts and not found.refused:
            error = f"the reflection failed: {found.notes[0]}"
        self._count(error)
        refused = [f"{each.surface_id}: {each.reason}" for each in found.refused]
        return ReflectionResult(patches=PatchSet(tuple(patches)), notes=(*refused, *found.notes), error=error)

    async def _find_blame(self, minibatch: Minibatch) -> BlameReport:
        if self._blame is None or self._blame[0] is not minibatch:
            report = await self._finder.find(
                minibatch.evaluation, minibatch.eval_set, minibatch.profile, phase="minibatch"
            )
            self._blame = minibatch, report
        known = self._patcher.examples.add_signals(self._blame[1])
        mine = [
            tuple(each for each in some if each.surface_id in self._components) for some in (known.signals, known.weak)
        ]
        return replace(known, signals=mine[0], weak=mine[1])

    async def _write_by_stages(self, minibatch: Minibatch, components: Sequence[str]) -> ReflectionResult:
        report = await self._find_blame(minibatch)
        signals = tuple(each for each in (*report.signals, *report.weak) if each.surface_id in components)
        if not signals:
            names = join_names(components, limit=3)
            why = report.no_blame if not report.gradients else f"no failure of the mini-batch is blamed on {names}"
            return ReflectionResult(patches=PatchSet(), notes=(why,))
        written = await self._patcher.propose(replace(report, signals=signals, weak=()), unseen=tuple(minibatch.scores))
        refused = tuple(f"{each.surface_id}: {each.reason}" for each in written.refused)
        return ReflectionResult(patches=written.patches, notes=(*refused, *written.notes))

    async def _ask_model(
        self, reflector: LLMReflector, minibatch: Minibatch, components: Sequence[str]
    ) -> TextsProposed:
        session = self._session
        report = None if self._blame is None or self._blame[0] is not minibatch else self._blame[1]
        signals = {} if report is None else {each.surface_id: each for each in (*report.weak, *report.signals)}

        async def work() -> TextsProposed:
            await session.restore_traces(minibatch.evaluation, minibatch.eval_set, minibatch.profile)
            ledger = session.evaluator.gateway.ledger
            before = ledger.snapshot()
            written = await run_together(self._rewrite(reflector, minibatch, each, signals) for each in components)
            measured = StagesMeasured.between(before, ledger.snapshot())
            shown = [signals.get(each) or _describe_cases(each, minibatch) for each in components]
            attempts = await self._patcher.review(written, shown, minibatch.profile)
            patches = [each.patch for each in attempts if each.patch is not None]
            return TextsProposed(
                texts={each.surface_id: session.redact(encode_value(each.value)) for each in patches},
                reasons={each.surface_id: session.redact(each.reason) for each in patches},
                refused=tuple(refused for each in attempts for refused in each.refused),
                notes=tuple(each.note for each in attempts if each.note),
                failed=tuple(name for name, each in zip(components, attempts, strict=True) if each.has_failed),
                measured=measured,
            )

        key = [minibatch.profile.digest, list(components), list(minibatch.scores), session.round]
        return await session.record(TextsProposed, work, request=key, phase="minibatch")

    async def _rewrite(
        self,
        reflector: LLMReflector,
        minibatch: Minibatch,
        component: str,
        signals: Mapping[str, AggregateResult],
    ) -> PatchAttempt:
        """Ask for the new text of one component. Lint may refuse it."""
        session, profile = self._session, minibatch.profile
        surface = profile.surface(component, session.snapshot)
        if surface.type == "examples":
            examples = self._patcher.examples.build_writer(without=tuple(minibatch.scores))
            chosen = examples.write(surface)
            return PatchAttempt(patch=chosen, note="" if chosen is not None else f"{component}: {NO_EXAMPLES}")
        records = await build_case_records(
            minibatch.evaluation,
            minibatch.eval_set,
            session.trace,
            node_id=surface.node_id,
            scores=minibatch.scores,
            history=self._history if self._history_top_k else {},
        )
        others = [profile.surface(each, session.snapshot) for each in self._components if each != component]
        request = ReflectRequest(
            surface=surface,
            records=records,
            others=tuple(others),
            signal=signals.get(component),
            criteria=minibatch.evaluation.criteria,
            prices=find_prices(surface, session.evaluator.gateway),
            rejected=self._patcher.rejected.for_surface(component),
            max_changed_lines=self._patcher.max_changed_lines,
        )
        patch, error = await call_or_error(partial(reflector.reflect, request), session.redact)
        if patch is None:
            return PatchAttempt(note=f"{component}: {error}", has_failed=True)
        refused = lint_patch(self._linter, patch, surface, tried=request.rejected)
        return PatchAttempt(patch=patch) if refused is None else PatchAttempt(refused=(refused,))

    def _count(self, error: str) -> None:
        """Report a reflection that failed. The run fails if the first ones all do."""
        if not error:
            self._has_worked = True
            return
        self._failed += 1
        if not self._has_worked and self._failed >= MAX_FIRST_FAILURES:
            raise StageError(f"{error} (all of {self._failed} reflections failed)")
        self._session.report(error)


def _describe_cases(surface_id: str, minibatch: Minibatch) -> AggregateResult:
    """What a reviewer sees if there was no backward pass."""
    text = f"a reflection on {plural(len(minibatch.scores), 'case')}"
    return AggregateResult(surface_id=surface_id, text=text, case_ids=tuple(minibatch.scores))
