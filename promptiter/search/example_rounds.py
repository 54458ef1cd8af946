"""ExampleRounds: rounds that try sets of few-shot examples on top of the accepted profile.

A round runs the train cases, collects what the nodes did in those that pass and the references of the others, and
selects several sets of examples. Each is screened on train cases that none of them shows, since a case whose answer is
shown proves nothing. The best set is validated. After an acceptance the next round starts from more passing steps;
after a rejection it tries other sets, which prefer the cases that still failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Protocol, TypeAlias

from promptiter.backprop.example_pool import Exchange
from promptiter.backprop.example_selection import SelectionStrategy
from promptiter.backprop.example_writing import MOST_EXAMPLES
from promptiter.engine.session import Session
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.result import Evaluation
from promptiter.profile import PatchSet, Profile
from promptiter.search.rerun_cases import measure_gain
from promptiter.search.session_examples import SessionExamples
from promptiter.wording import plural

MOST_SCREENED = 24
"""Maximum number of train cases that a set of examples is screened on."""

FEWEST_SCREENED = 6
"""Below this number of cases that no set of a round shows, each set is screened on those that it does not show."""

BATCH = 4
"""Number of sets of examples in a round."""


class ExampleProposer(Protocol):
    """Proposes sets of examples, and learns what they gained."""

    async def ask(self, session: Session, count: int) -> list[dict[str, tuple[Exchange, ...]]]:
        """Sets of examples, by surface; none if there is nothing to show."""

    def tell(self, losses: Sequence[float | None]) -> None:
        """The losses of the last sets, in their order; None if one was not run."""


StartStudy: TypeAlias = Callable[[Mapping[str, Sequence[Exchange]], int], ExampleProposer]
"""Starts a study of exchanges, by surface, with this number of examples for each at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """A set of examples for each node, and the train cases that it shows."""

    patches: PatchSet
    candidate: Profile
    shown: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedSets:
    """The sets of examples of a round: how many, the best one, and its gain on train cases that it does not show."""

    tried: int = 0
    best: PatchSet = field(default_factory=PatchSet)
    gain: float | None = None
    is_accepted: bool = False
    reason: str = ""


class ExampleRounds:
    """Rounds that try examples, one after the other. Another search can alternate them with rounds of its own.

    Sets are selected by `strategy`, or proposed by the studies that `start_study` starts, one per accepted profile.
    The `teacher`, a model, runs the train cases that fail, to make examples of those that it passes.
    """

    def __init__(
        self,
        session: Session,
        *,
        k: int = MOST_EXAMPLES,
        strategy: SelectionStrategy = "coverage",
        batch_size: int = BATCH,
        seed: int = 0,
        start_study: StartStudy | None = None,
        teacher: str | None = None,
    ) -> None:
        self._teacher = teacher
        self._taught: set[str] = set()
        self._examples = SessionExamples(session)
        self._session = session
        self._k = k
        self._strategy: SelectionStrategy = strategy
        self._batch_size = batch_size
        self._start_study = start_study
        self._study: ExampleProposer | None = None
        self._asked: list[str | None] = []
        self._losses: dict[str, float] = {}
        self._rng = Random(f"{seed} examples")
        self._known: tuple[Profile, Evaluation] | None = None
        self._weights: Counter[str] = Counter()
        self._tried: set[str] = set()

    async def run_round(self, *, most: int | None = None) -> int:
        """Try sets of examples on top of the accepted profile. Returns their number; 0 if there is none left to try."""
        await self._session.begin_round()
        await self._run_train()
        found = await self.try_sets(most=most)
        await self._session.complete_round()
        return found.tried

    async def know_train(self, profile: Profile, evaluation: Evaluation) -> None:
        """Start from these train runs of the accepted profile, and add them to the pool."""
        await self._examples.add(evaluation, self._session.train, profile)
        await self._ask_teacher(profile, evaluation)
        self._known = profile, evaluation
        self._weights.clear()
        if self._start_study is not None:  # gains over another profile would say little
            self._losses.clear()
            self._study = self._start_study(self._examples.list_exchanges(), self._examples.limit(self._k))

    async def _ask_teacher(self, profile: Profile, evaluation: Evaluation) -> None:
        """Have the teacher run the train cases that fail, each once."""
        if self._teacher is None:
            return
        done = self._taught.union(row.case_id for row in evaluation.rows if row.passed)
        left = tuple(case for case in self._session.train.cases if case.id not in done)
        if left:
            self._taught.update(case.id for case in left)
            await self._examples.ask_teacher(self._teacher, replace(self._session.train, cases=left), profile)

    async def try_sets(self, *, most: int | None = None) -> TriedSets:
        """Try sets of examples in a round that has begun. The train runs of the accepted profile must be known."""
        assert self._known is not None, "the train cases are run before examples are selected"
        count = min(self._batch_size, most or self._batch_size)
        trials = await self._ask_study(count) if self._study is not None else self._select_trials(count)
        if not trials:
            reason = self._explain_no_trial()
            await self._session.skip_round(reason)
            return TriedSets(reason=reason)
        return await self._try(trials, self._known[1])

    async def _run_train(self) -> None:
        """Run the train cases under the accepted profile, unless they were, and add them to the pool."""
        session, profile = self._session, self._session.accepted.profile
        if self._known is None or self._known[0].digest != profile.digest:
            evaluation = await session.evaluate(session.train, profile, phase="train")
            await self.know_train(profile, evaluation)

    def _select_trials(self, count: int) -> list[_Trial]:
        """Select sets of examples that were not tried before, for all nodes at once."""
        session = self._session
        profile = session.accepted.profile
        writer = self._examples.build_writer(most=self._k, strategy=self._strategy, weights=self._weights)
        surfaces = [profile.surface(each, session.snapshot) for each in self._examples.surface_ids]
        series = [writer.iterate_patches(each, rng=self._rng) for each in surfaces]
        trials: list[_Trial] = []
        while len(trials) < count:
            patches = PatchSet(tuple(patch for each in series if (patch := next(each, None)) is not None))
            if not patches:
                break
            if (trial := self._build_trial(patches)) is not None:
                trials.append(trial)
        return trials

    def _build_trial(self, patches: PatchSet) -> _Trial | None:
        """The trial of some patches; None if it was made before, or leaves no case to screen it on."""
        session = self._session
        candidate = session.candidate(patches)
        shown = self._examples.find_shown(candidate)
        if candidate.digest in self._tried or len(shown) == len(session.train.cases):
            return None
        self._tried.add(candidate.digest)
        return _Trial(patches=patches, candidate=candidate, shown=shown)

    async def _ask_study(self, count: int) -> list[_Trial]:
        """Sets of examples that the study proposes. Those that were tried before are not tried again."""
        assert self._study is not None, "a study starts with the train runs"
        session, writer = self._session, self._examples.build_writer(most=self._k)
        profile = session.accepted.profile
        trials: list[_Trial] = []
        self._asked = []
        for chosen in await self._study.ask(session, count):
            surfaces = {name: profile.surface(name, session.snapshot) for name in chosen}
            written = [writer.build_patch(surfaces[name], examples) for name, examples in chosen.items()]
            patches = PatchSet(tuple(each for each in written if each is not None))
            self._asked.append(session.candidate(patches).digest if patches else None)
            if patches and (trial := self._build_trial(patches)) is not None:
                trials.append(trial)
        return trials

    async def _try(self, trials: Sequence[_Trial], known: Evaluation) -> TriedSets:
        """Screen sets of examples, and validate the best one if it helps cases that it does not show."""
        session, objective = self._session, self._session.request.objective
        cases = self._select_cases(trials)
        evaluations = await session.evaluate_many(
            [(eval_set, each.candidate) for eval_set, each in zip(cases, trials, strict=True)], phase="screening"
        )
        gains = [measure_gain(known, each, objective) or 0.0 for each in evaluations]
        if self._study is not None:
            self._losses.update({each.candidate.digest: -gain for each, gain in zip(trials, gains, strict=True)})
            self._study.tell([self._losses.get(each or "") for each in self._asked])
        best = max(range(len(trials)), key=lambda at: (gains[at], -at))
        for at, trial in enumerate(trials):
            if at != best:
                reason = f"screened out: {_describe_gain(gains[at], cases[at])}; the best has {gains[best]:+.3f}"
                await session.reject(trial.patches, reason)
        if gains[best] > 0:
            decision = await session.validate(trials[best].patches)
        else:
            reason = f"the examples did not help: {_describe_gain(gains[best], cases[best])}"
            decision = await session.reject(trials[best].patches, reason)
        if not decision.accepted:
            self._weights.update(row.case_id for row in evaluations[best].rows if not row.passed)
        return TriedSets(
            tried=len(trials),
            best=trials[best].patches,
            gain=gains[best],
            is_accepted=decision.accepted,
            reason=_describe_gain(gains[best], cases[best]),
        )

    def _select_cases(self, trials: Sequence[_Trial]) -> list[EvalSet]:
        """The train cases that each set is screened on: the same ones for all, if enough are shown by none."""
        train = self._session.train
        everywhere = frozenset().union(*(each.shown for each in trials))
        common = [case for case in train.cases if case.id not in everywhere]
        if len(common) >= FEWEST_SCREENED:
            chosen = self._rng.sample(common, min(MOST_SCREENED, len(common)))
            return [replace(train, cases=tuple(chosen))] * len(trials)
        return [
            replace(train, cases=tuple(case for case in train.cases if case.id not in each.shown)[:MOST_SCREENED])
            for each in trials
        ]

    def _explain_no_trial(self) -> str:
        if self._tried:
            return "no other examples are left to try"
        teacher = (
            "no run of the teacher passed either" if self._taught else "the teacher of few_shot can make some pass"
        )
        return (
            "no examples could be made of the train cases: a node needs a step without tool calls that passed, or that "
            f"gives the answer of a case with a reference; {teacher}"
        )


def _describe_gain(gain: float, cases: EvalSet) -> str:
    return f"gain {gain:+.3f} on {plural(len(cases.cases), 'train case')} that they do not show"
