"""FewShotSearch: gives nodes few-shot examples from train cases, and changes nothing else.

A round runs the train cases, collects what the nodes did in those that pass and the references of the others, and
selects several sets of examples. Each is screened on train cases that none of them shows, since a case whose answer is
shown proves nothing. The best set is validated. After an acceptance the next round starts from more passing steps;
after a rejection it tries other sets, which prefer the cases that still failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import get_args

from promptiter.backprop.example_selection import SelectionStrategy
from promptiter.backprop.example_writing import MOST_EXAMPLES
from promptiter.engine.outline import SearchOutline
from promptiter.engine.session import Session
from promptiter.errors import SetupError
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.result import Evaluation
from promptiter.numbers import check_count
from promptiter.profile import PatchSet, Profile
from promptiter.runlog.results import RunShape
from promptiter.search.rerun_cases import measure_gain
from promptiter.search.session_examples import SessionExamples
from promptiter.structure import StructureSnapshot
from promptiter.wording import join_names, plural

MOST_SCREENED = 24
"""Maximum number of train cases that a set of examples is screened on."""

FEWEST_SCREENED = 6
"""Below this number of cases that no set of a round shows, each set is screened on those that it does not show."""

BATCH, TRIALS = 4, 16
"""Number of sets of examples in a round, and in a run."""

ONE_SET = (
    "few-shot examples are made of train cases, and this run judges candidates by the same cases; give a validation "
    "set of its own"
)


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
    candidate: Profile | None = None
    gain: float | None = None
    is_accepted: bool = False
    reason: str = ""


class FewShotSearch:
    """The search for few-shot examples.

    It gives each node whose examples are a target at most `k` examples, chosen by `strategy`. It screens `trials` sets
    of examples, `batch_size` in each round. A `seed` of None is that of the run.
    """

    def __init__(
        self,
        *,
        k: int = MOST_EXAMPLES,
        strategy: SelectionStrategy = "coverage",
        trials: int = TRIALS,
        batch_size: int = BATCH,
        seed: int | None = None,
    ) -> None:
        check_count(k, "k")
        check_count(trials, "trials")
        check_count(batch_size, "batch_size")
        known = get_args(SelectionStrategy)
        if strategy not in known:
            raise SetupError(f"strategy is {strategy!r}; give {join_names([repr(each) for each in known])}")
        self.k = k
        self.strategy = strategy
        self.trials = trials
        self.batch_size = batch_size
        self.seed = seed

    async def search(self, session: Session) -> None:
        rounds = ExampleRounds(
            session,
            k=self.k,
            strategy=self.strategy,
            batch_size=self.batch_size,
            seed=session.seed if self.seed is None else self.seed,
        )
        left = self.trials
        while left > 0 and not await session.should_stop():
            tried = await rounds.run_round(most=left)
            if not tried:
                return
            left -= tried

    def outline(self) -> SearchOutline:
        """What a round may call, for the forecast."""
        return SearchOutline(screened_cases=MOST_SCREENED, trials=self.batch_size)

    def find_target_problems(
        self, snapshot: StructureSnapshot, targets: Collection[str], *, shape: RunShape
    ) -> list[str]:
        """Say that no target holds examples, or that there is one set of cases for everything."""
        known = [each.id for each in snapshot.surfaces if each.type == "examples"]
        found = [] if shape == "two_sets" else [ONE_SET]
        if not set(known) & set(targets):
            advice = f"add {join_names(known, limit=3)} to the targets" if known else "this agent has none"
            found.append(f"no target of this run holds few-shot examples; {advice}")
        return found


class ExampleRounds:
    """Rounds that try examples, one after the other. Another search can alternate them with rounds of its own."""

    def __init__(
        self,
        session: Session,
        *,
        k: int = MOST_EXAMPLES,
        strategy: SelectionStrategy = "coverage",
        batch_size: int = BATCH,
        seed: int = 0,
    ) -> None:
        self._examples = SessionExamples(session)
        self._session = session
        self._k = k
        self._strategy: SelectionStrategy = strategy
        self._batch_size = batch_size
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
        self._known = profile, evaluation
        self._weights.clear()

    async def try_sets(self, *, most: int | None = None) -> TriedSets:
        """Try sets of examples in a round that has begun. The train runs of the accepted profile must be known."""
        assert self._known is not None, "the train cases are run before examples are selected"
        trials = self._select_trials(min(self._batch_size, most or self._batch_size))
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
            candidate = session.candidate(patches)
            shown = self._examples.find_shown(candidate)
            if candidate.digest not in self._tried and len(shown) < len(session.train.cases):
                self._tried.add(candidate.digest)
                trials.append(_Trial(patches=patches, candidate=candidate, shown=shown))
        return trials

    async def _try(self, trials: Sequence[_Trial], known: Evaluation) -> TriedSets:
        """Screen sets of examples, and validate the best one if it helps cases that it does not show."""
        session, objective = self._session, self._session.request.objective
        cases = self._select_cases(trials)
        evaluations = await session.evaluate_many(
            [(eval_set, each.candidate) for eval_set, each in zip(cases, trials, strict=True)], phase="screening"
        )
        gains = [measure_gain(known, each, objective) or 0.0 for each in evaluations]
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
            candidate=trials[best].candidate,
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
        return (
            "no examples could be made of the train cases: a node needs a step that passed without calling tools, or "
            "has to give the answer of cases that have a reference"
        )


def _describe_gain(gain: float, cases: EvalSet) -> str:
    return f"gain {gain:+.3f} on {plural(len(cases.cases), 'train case')} that they do not show"
