"""EditSearch: improves files, or other texts, by edits of a mutator: the same steps each round, whatever mutates.

    EditSearch(function=shorten_guide)
    EditSearch(command=["my-agent", "Read {folder}/README.md and do what it says."], workspace=EditWorkspace(...))
    EditSearch(optimizer=LLMOptimizer("gpt-5"))

A round takes the best profile, or with several objectives one that no other dominates, and asks the mutator for one or
more candidates. Each is checked (the edit limits, no change, tried before), measured once, all at the same time, and
then decided by the acceptance policy of the run, one after the other: against the record of the best profile, as each
is measured as often as the others. A candidate that crashes is rejected. Only stop policies end the search, or a
mutator that has nothing left to try: even after a perfect score, a tie-breaker may improve.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import orjson

from promptiter.engine.outline import SearchOutline
from promptiter.engine.session import Session
from promptiter.errors import SetupError
from promptiter.evaluation.result import Evaluation
from promptiter.llm.gateway import Gateway
from promptiter.numbers import check_count
from promptiter.policies.combine import iter_policies
from promptiter.policies.crashes import has_crashed
from promptiter.policies.figure_gain import Bound, Direction
from promptiter.profile import PatchSet, Profile
from promptiter.references import load_reference
from promptiter.search.command_mutator import CommandMutator
from promptiter.search.edit_aims import list_aims, list_failures, read_known_figures
from promptiter.search.edit_record import FrontChanged, Mutation
from promptiter.search.edit_workspace import EditWorkspace
from promptiter.search.gradient_check import GradientCheck
from promptiter.search.mutation import FunctionMutator, MutationRequest, RejectedEdit, TargetNames, TextMutator
from promptiter.search.pareto import Front
from promptiter.search.stage_failures import StageFailures
from promptiter.search.stage_models import find_model, find_stage_problems
from promptiter.search.stage_writer import MAX_CANDIDATES, StageMutator, StageWriter
from promptiter.search.text_writer import TextWriter
from promptiter.stages.contracts import Aggregator, Attributor, Backwarder
from promptiter.stages.optimizer import Optimizer
from promptiter.wording import shorten
from traces.model import Json

MOST_REJECTED = 20
"""Maximum number of rejected candidates that a mutator is shown, the latest."""

MOST_IDLE = 5
"""After this number of rounds in a row without a candidate to measure, the mutator has nothing left to try."""

CRASHED = "crashed: "
"""How the reason begins for which a candidate that crashed is rejected."""

TRIED_BEFORE = "this candidate was tried before"


class EditSearch:
    """The search `edits`. Its mutator is a `command`, a `function` (or `module:attr` of one), or the stages.

    A round makes `parallel` candidates. With several `objectives`, figures and their directions, they are made from the
    candidates that no other one dominates in them; the acceptance policy still decides which one is the best.
    `instructions` say what the task is, and `history` are results of other tasks, as JSONL files, that a mutator is
    shown. A command works in a private copy of the `workspace`, with the variables of `environment` and those named in
    `inherit`, for `timeout_s` at most.
    """

    def __init__(
        self,
        backwarder: Backwarder | Attributor | None = None,
        aggregator: Aggregator | None = None,
        optimizer: Optimizer | None = None,
        *,
        check: GradientCheck | Literal["auto"] | None = "auto",
        mutator: TextMutator | None = None,
        command: Sequence[str] | None = None,
        function: Any = None,
        workspace: Any = None,
        environment: dict[str, str] | None = None,
        inherit: Sequence[str] | None = None,
        timeout_s: float = 900.0,
        parallel: int = 1,
        objectives: dict[str, str] | None = None,
        instructions: str = "",
        history: Sequence[str] = (),
    ) -> None:
        check_count(parallel, "parallel")
        self.backwarder, self.aggregator, self.optimizer, self.check = backwarder, aggregator, optimizer, check
        self.mutator, self.command, self.function = mutator, command, function
        self.workspace, self.environment, self.inherit, self.timeout_s = workspace, environment, inherit, timeout_s
        self.parallel, self.objectives = parallel, objectives
        self.instructions, self.history = instructions, history
        self.directions = _check_objectives(objectives or {})
        self.chosen = self._choose_mutator()
        if isinstance(self.chosen, StageMutator) and parallel > MAX_CANDIDATES:
            raise SetupError(f"parallel is {parallel}; stages write at most {MAX_CANDIDATES} candidates at once")

    def _choose_mutator(self) -> TextMutator | StageMutator:
        """The mutator that is given, or the stages."""
        names = [name for name in ("mutator", "command", "function") if getattr(self, name)]
        has_stages = any(each is not None for each in (self.backwarder, self.aggregator, self.optimizer))
        if len(names) > 1 or (names and has_stages):
            others = ["stages"] if has_stages else []
            raise SetupError(f"the search 'edits' has {' and '.join([*names, *others])}; give one of them")
        if self.command:
            return CommandMutator.of(
                self.command,
                EditWorkspace.of(self.workspace),
                environment=self.environment,
                inherit=self.inherit,
                timeout_s=self.timeout_s,
            )
        if self.function:
            function = load_reference(self.function) if isinstance(self.function, str) else self.function
            return FunctionMutator(function)
        return self.mutator or StageMutator(self.backwarder, self.aggregator, self.optimizer, check=self.check)

    async def search(self, session: Session) -> None:
        names = TargetNames(session.snapshot, session.targets)
        failures = StageFailures(session)
        writer: CandidateWriter
        if isinstance(self.chosen, StageMutator):
            writer = StageWriter(session, self.chosen, failures=failures)
        else:
            writer = TextWriter(session, self.chosen, names, failures=failures)
        if isinstance(self.chosen, CommandMutator) and (warning := await self.chosen.find_isolation_problem()):
            session.report(warning)
        rounds = _EditRounds(session, self, writer, names)
        await rounds.begin()
        while not await session.should_stop():
            if not await rounds.run():
                return

    def outline(self) -> SearchOutline:
        """What a round may call, for the forecast."""
        if not isinstance(self.chosen, StageMutator):
            return SearchOutline()
        blaming, merger, writer, *_ = self.chosen.stages
        return SearchOutline(
            width=self.parallel,
            backwarder=find_model(blaming),
            aggregator=find_model(merger),
            optimizer=find_model(writer),
        )

    def find_setup_problems(self, gateway: Gateway) -> list[str]:
        """One line for each model that cannot be called or has no price, and each missing program and file."""
        stages = self.chosen.stages if isinstance(self.chosen, StageMutator) else (self.chosen,)
        found = find_stage_problems(stages, gateway)
        try:
            list(_read_history(self.history))
        except SetupError as error:
            found.append(str(error))
        return found


class CandidateWriter(Protocol):
    """Writes the candidates of a run: the stages, or a mutator."""

    async def write(self, requests: Sequence[MutationRequest]) -> Sequence[Mutation]:
        """The mutations of a round, one for each request, in their order."""

    def learn(self, patches: PatchSet, *, accepted: bool, reason: str) -> None:
        """Called with each candidate once it is decided."""


@dataclass(frozen=True, slots=True)
class _Measured:
    """A profile and its evaluation on the cases that the search learns from."""

    profile: Profile
    evaluation: Evaluation


class _EditRounds:
    """The rounds of one run. `best` is the accepted profile."""

    def __init__(self, session: Session, search: EditSearch, writer: CandidateWriter, names: TargetNames) -> None:
        self._session = session
        self._search = search
        self._writer = writer
        self._names = names
        self._policy = session.request.acceptance
        self._front: Front[_Measured] = Front(search.directions)
        self._tried = {session.baseline.profile.digest}
        self._rejected: list[RejectedEdit] = []
        self._idle = 0
        self._history = tuple(_read_history(search.history))

    async def begin(self) -> None:
        """Measure the profile that the run starts from. In a run with a scorer, the engine has done so."""
        self.best = await self._measure_accepted()
        if not self._search.directions:
            return
        if self._session.shape != "scorer":
            raise SetupError("objectives are figures of a scorer, and this run has cases; remove objectives")
        figures = read_known_figures(self.best.evaluation)
        if not self._front.add(self.best.profile.digest, self.best, figures):
            missing = sorted(set(self._search.directions).difference(figures))
            returned = ", ".join(sorted(figures)) or "none"
            raise SetupError(f"the objective {missing[0]!r} is not a figure of this run; it has {returned}")

    async def run(self) -> bool:
        """One round. Returns whether the mutator may have more to try."""
        session = self._session
        await session.begin_round()
        parents = self._select_parents()
        requests = [self._build_request(each, number) for number, each in enumerate(parents, start=1)]
        mutations = await self._writer.write(requests)
        made = [(mutation, parent) for mutation, parent in zip(mutations, parents, strict=True) if mutation.patches]
        if not made:
            await session.skip_round("; ".join(dict.fromkeys(each.problem for each in mutations)))
        self._remember_refused(mutations)
        new, repeated = self._split_repeated(made)
        candidates = [each for pair in new if (each := await self._propose(*pair)) is not None]
        await self._measure_and_decide(candidates)
        for mutation, parent in repeated:
            await session.reject(mutation.patches, TRIED_BEFORE, parents=(parent.profile,))
            self._learn(mutation.patches, TRIED_BEFORE)
        await session.complete_round()
        self._idle = 0 if candidates else self._idle + 1
        is_exhausted = not made and all(each.is_exhausted for each in mutations)
        return not is_exhausted and self._idle < MOST_IDLE

    def _select_parents(self) -> Sequence[_Measured]:
        count = self._search.parallel
        return self._front.select(count) if self._search.directions else [self.best] * count

    def _build_request(self, parent: _Measured, number: int) -> MutationRequest:
        session, evaluation = self._session, parent.evaluation
        figures = read_known_figures(evaluation)
        return MutationRequest(
            round=session.round,
            profile=parent.profile,
            structure=session.snapshot,
            evaluation=evaluation,
            values=self._names.read_values(parent.profile),
            number=number,
            count=self._search.parallel,
            instructions=self._search.instructions,
            aims=list_aims(self._policy, figures),
            scores=evaluation.metric_means,
            figures=figures,
            failures=list_failures(evaluation),
            output=evaluation.rows[0].output if evaluation.rows else "",
            rejected=tuple(self._rejected[-MOST_REJECTED:]),
            limits=session.request.edit_limits,
            history=self._history,
        )

    def _split_repeated(
        self, made: Sequence[tuple[Mutation, _Measured]]
    ) -> tuple[list[tuple[Mutation, _Measured]], list[tuple[Mutation, _Measured]]]:
        """The mutations that give new candidates, and those that give one that was tried, or is made twice.

        The second ones are rejected once the first are decided: until then, they are the same candidate to the record.
        """
        new: list[tuple[Mutation, _Measured]] = []
        repeated: list[tuple[Mutation, _Measured]] = []
        for mutation, parent in made:
            digest = self._session.candidate(mutation.patches, parent=parent.profile).digest
            (repeated if digest in self._tried else new).append((mutation, parent))
            self._tried.add(digest)
        return new, repeated

    async def _propose(self, mutation: Mutation, parent: _Measured) -> tuple[Profile, PatchSet, _Measured] | None:
        """Record a candidate. None if it is rejected before anything runs."""
        session, patches = self._session, mutation.patches
        profile = await session.propose(patches, parents=(parent.profile,))
        self._tried.add(profile.digest)
        if (excess := session.find_excess(profile)) is not None:
            await session.reject(profile, excess)
            self._learn(patches, excess)
            return None
        return profile, patches, parent

    async def _measure_and_decide(self, candidates: Sequence[tuple[Profile, PatchSet, _Measured]]) -> None:
        """Measure all candidates at the same time, and decide them one after the other.

        In a run with cases, validation measures them, on repeats that no decision has seen.
        """
        session = self._session
        if session.shape != "scorer":
            for profile, patches, parent in candidates:
                decision = await session.validate(profile, parents=(parent.profile,))
                await self._follow(patches, accepted=decision.accepted, reason=decision.reason, measured=None)
            return
        if not candidates:
            return
        repeats = range(session.evaluator.options.repeats)
        pairs = [(session.train, profile) for profile, _, _ in candidates]
        evaluations = await session.evaluate_many(pairs, phase="candidates", repeats=repeats)
        for (profile, patches, parent), evaluation in zip(candidates, evaluations, strict=True):
            measured = _Measured(profile, evaluation)
            if has_crashed(evaluation):
                reason = f"{CRASHED}{evaluation.commonest_errors}"
                await session.reject(profile, reason, parents=(parent.profile,))
                await self._follow(patches, accepted=False, reason=reason, measured=measured)
                continue
            decision = await session.validate(
                profile, parents=(parent.profile,), known=evaluation.rows, compares_records=True
            )
            reason = await self._read_reason(profile) or decision.reason
            await self._follow(patches, accepted=decision.accepted, reason=reason, measured=measured)
            await self._add_to_front(measured)

    async def _read_reason(self, profile: Profile) -> str:
        """Why the policy decided so, with the figures. The search has measured the same cases itself."""
        found = (await self._session.read_validation()).state.round
        decided = [] if found is None else [each for each in found.candidates if each.profile.digest == profile.digest]
        return decided[-1].decision.reason if decided and decided[-1].decision is not None else ""

    async def _follow(self, patches: PatchSet, *, accepted: bool, reason: str, measured: _Measured | None) -> None:
        """Continue from an accepted candidate, or remember why it was not accepted."""
        if not accepted:
            self._learn(patches, reason, {} if measured is None else read_known_figures(measured.evaluation))
            return
        self._rejected = [each for each in self._rejected if each.is_vetoed]
        self._writer.learn(patches, accepted=True, reason=reason)
        self.best = measured or await self._measure_accepted()

    def _remember_refused(self, mutations: Sequence[Mutation]) -> None:
        """Keep what was refused or vetoed before it was tried, so that the mutator does not write it again."""
        for each in mutations:
            if each.refused or each.vetoed:
                self._rejected.append(
                    RejectedEdit(
                        round=self._session.round,
                        values=self._names.name_values(each.vetoed),
                        reason="; ".join(each.refused) or each.note,
                        is_vetoed=bool(each.vetoed),
                    )
                )

    def _learn(self, patches: PatchSet, reason: str, figures: Mapping[str, float] | None = None) -> None:
        values = self._names.name_values(patches)
        rejected = RejectedEdit(round=self._session.round, values=values, reason=reason, figures=figures or {})
        self._rejected.append(rejected)
        self._writer.learn(patches, accepted=False, reason=reason)

    async def _add_to_front(self, measured: _Measured) -> None:
        """Keep a candidate that meets all bounds and that no other one dominates, as the start of others."""
        figures = read_known_figures(measured.evaluation)
        bounds = [part for part in iter_policies(self._policy) if isinstance(part, Bound)]
        if not self._search.directions or not all(each.is_met(figures.get(each.figure)) for each in bounds):
            return
        if self._front.add(measured.profile.digest, measured, figures):
            await self._session.note(FrontChanged(members=self._front.figures))

    async def _measure_accepted(self) -> _Measured:
        session = self._session
        profile = session.accepted.profile
        return _Measured(profile, await session.evaluate(session.train, profile, phase="train"))


def _check_objectives(objectives: Mapping[str, str]) -> dict[str, Direction]:
    found: dict[str, Direction] = {}
    for name, direction in objectives.items():
        if direction == "maximize":
            found[name] = "maximize"
        elif direction == "minimize":
            found[name] = "minimize"
        else:
            known = " or ".join(get_args(Direction))
            raise SetupError(f"the direction of the objective {name!r} is {direction!r}; give {known}")
    return found


def _read_history(files: Iterable[str]) -> Iterable[Json]:
    """The lines of JSONL files. SetupError says which one cannot be read."""
    for name in files:
        try:
            lines = Path(name).read_bytes().splitlines()
            yield from (orjson.loads(line) for line in lines if line.strip())
        except (OSError, orjson.JSONDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else f"it has a line that is not JSON: {error}"
            raise SetupError(f"the history {shorten(name)} cannot be read: {why}; correct history") from error
