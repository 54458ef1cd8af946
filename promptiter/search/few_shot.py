"""FewShotSearch: gives nodes few-shot examples from train cases, and changes nothing else."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, TypeAlias, get_args

from promptiter.backprop.example_selection import SelectionStrategy
from promptiter.backprop.example_writing import MOST_EXAMPLES
from promptiter.engine.outline import SearchOutline
from promptiter.engine.session import Session
from promptiter.errors import SetupError
from promptiter.llm.gateway import Gateway
from promptiter.numbers import check_count
from promptiter.runlog.results import RunShape
from promptiter.search.descent.study import find_optuna_problems
from promptiter.search.example_rounds import BATCH, MOST_SCREENED, ExampleRounds
from promptiter.search.example_study import ExampleStudies
from promptiter.search.session_examples import find_replaceable_models
from promptiter.structure import StructureSnapshot
from promptiter.wording import join_names

TRIALS = 16
"""Number of sets of examples in a run."""

FewShotStrategy: TypeAlias = SelectionStrategy | Literal["optuna"]
"""How sets of examples are found: selected from the cases, or searched by a study that knows only their gains."""

STRATEGIES: tuple[FewShotStrategy, ...] = (*get_args(SelectionStrategy), "optuna")

ONE_SET = (
    "few-shot examples are made of train cases, and this run judges candidates by the same cases; give a validation "
    "set of its own"
)


class FewShotSearch:
    """The search for few-shot examples.

    It gives each node whose examples are a target at most `k` examples, chosen by `strategy`. It screens `trials` sets
    of examples, `batch_size` in each round. A `seed` of None is that of the run. The `teacher` is a stronger
    model. It runs the train cases that fail in place of the models of the nodes, and examples are made of what passes.
    """

    def __init__(
        self,
        *,
        k: int = MOST_EXAMPLES,
        strategy: FewShotStrategy = "coverage",
        trials: int = TRIALS,
        batch_size: int = BATCH,
        seed: int | None = None,
        teacher: str | None = None,
    ) -> None:
        check_count(k, "k")
        check_count(trials, "trials")
        check_count(batch_size, "batch_size")
        if strategy not in STRATEGIES:
            raise SetupError(f"strategy is {strategy!r}; give {join_names([*map(repr, STRATEGIES)])}")
        self.k = k
        self.strategy = strategy
        self.trials = trials
        self.batch_size = batch_size
        self.seed = seed
        self.teacher = teacher

    async def search(self, session: Session) -> None:
        seed = session.seed if self.seed is None else self.seed
        studies = ExampleStudies(seed, startup_trials=max(1, self.trials // 2)) if self.strategy == "optuna" else None
        rounds = ExampleRounds(
            session,
            k=self.k,
            strategy="coverage" if self.strategy == "optuna" else self.strategy,
            batch_size=self.batch_size,
            seed=seed,
            start_study=studies,
            teacher=self.teacher,
        )
        left = self.trials
        while left > 0 and not await session.should_stop():
            tried = await rounds.run_round(most=left)
            if not tried:
                return
            left -= tried

    def outline(self) -> SearchOutline:
        """What a round may call, for the forecast."""
        return SearchOutline(screened_cases=MOST_SCREENED, trials=self.batch_size, teacher=self.teacher)

    def find_setup_problems(self, gateway: Gateway) -> list[str]:
        """One line if optuna is needed and not installed, or the teacher cannot be called or has no price."""
        found = find_optuna_problems() if self.strategy == "optuna" else []
        models = [] if self.teacher is None else [self.teacher]
        return [*found, *gateway.find_setup_problems(models), *gateway.find_unpriced_models(models)]

    def choose_targets(self, snapshot: StructureSnapshot) -> list[str]:
        """The examples of all nodes."""
        return [each.id for each in snapshot.surfaces if each.type == "examples"]

    def find_target_problems(
        self, snapshot: StructureSnapshot, targets: Collection[str], *, shape: RunShape
    ) -> list[str]:
        """Say that no target holds examples, or that there is one set of cases for everything."""
        known = self.choose_targets(snapshot)
        found = [] if shape == "two_sets" else [ONE_SET]
        if not set(known) & set(targets):
            advice = f"add {join_names(known, limit=3)} to the targets" if known else "this agent has none"
            found.append(f"no target of this run holds few-shot examples; {advice}")
        if self.teacher is not None and not find_replaceable_models(snapshot, self.teacher):
            found.append(f"teacher is {self.teacher!r}, but no node of this agent can use this model; leave it out")
        return found

    def find_kept_targets(
        self,
        snapshot: StructureSnapshot,
        targets: Collection[str],
        *,
        shape: RunShape,  # noqa: ARG002
    ) -> set[str]:
        """The targets that are not examples."""
        return set(targets).difference(self.choose_targets(snapshot))
