"""CoordinateDescent: numeric phases alternate with textual phases, and each accepted candidate is the next start.

A numeric phase searches numbers and choices with a fresh Optuna study while the texts keep their value. A textual phase
diagnoses what still fails, edits one text per trial, and keeps what helps. A text may need other numbers: after a cycle
in which nothing was accepted, the numeric phase tries its points together with the most promising rejected text. The
search ends after `dry_cycles` such cycles in a row, or after `max_cycles`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, TypeGuard, get_args

from promptiter.backprop.backward_pass import MIN_SUPPORT, as_attributor, find_blaming_stage
from promptiter.backprop.iteration_record import SearchStopChecked
from promptiter.backprop.llm.applier import LLMApplier
from promptiter.backprop.llm.critic import LLMCritic
from promptiter.backprop.support_aggregator import SupportAggregator
from promptiter.backprop.trial_record import PhaseResult
from promptiter.engine.outline import SearchOutline
from promptiter.engine.session import Session
from promptiter.errors import SetupError, UnknownSurfaceError
from promptiter.llm.gateway import Gateway
from promptiter.numbers import check_count, is_number
from promptiter.references import is_reference
from promptiter.registry import OFFLINE_STAGES
from promptiter.runlog.results import RunShape
from promptiter.search.blame import BlameFinder
from promptiter.search.descent.axes import Axis, choose_axes, describe_no_targets, find_axes, find_examples, find_texts
from promptiter.search.descent.diagnoses import Diagnoses
from promptiter.search.descent.examples_phase import ExamplesPhase
from promptiter.search.descent.numeric_phase import NumericPhase
from promptiter.search.descent.phase import Phase, PhaseLimits
from promptiter.search.descent.prompt_files import read_prompt
from promptiter.search.descent.study import Sampler, StudySettings, find_optuna_problems
from promptiter.search.descent.textual_phase import TextualPhase
from promptiter.search.descent.trials import Trials
from promptiter.search.propose import PatchProposer
from promptiter.search.session_examples import find_teacher_problems
from promptiter.search.stage_failures import StageFailures
from promptiter.search.stage_models import find_model, find_model_problems, find_stage_problems
from promptiter.stages.contracts import Aggregator, Attributor, Backwarder
from promptiter.stages.diagnosis import Applier, Critic
from promptiter.stages.optimizer import Optimizer
from promptiter.stages.roles import STAGES, Role, check_part, check_stages
from promptiter.structure import StructureSnapshot
from promptiter.wording import join_names

PhaseName = Literal["numeric", "textual", "examples"]


@dataclass(eq=False)
class CoordinateDescent:
    """The search by phases. Its options have the names that they have in the `optimizer` block of an agent.yaml.

    A phase ends after its `max_trials`, or its `patience` in trials without an accepted candidate. A numeric phase also
    ends when its study expects no point to gain `convergence`; a textual one when nothing fails. The study proposes
    `batch_size` points at a time: the first `startup_trials` at random, then the best of `ei_candidates`. Random points
    say little about what the study can find, so they count for `numeric_patience` only with `count_startup`. The seed
    of each study is `seed`, by default that of the run, plus the number of its phase.

    `critic` and `applier` are models, or your own: an object, or `module:attr`. Prompts of your own are files. Without
    a critic the backward pass of the stages diagnoses, without an applier the optimizer stage writes. A diagnosis with
    less than `min_confidence` is not tried. The critic sees `failures_shown` failed cases and `rejections_shown`
    rejected trials. Each group of texts in `co_optimize` changes together. The `teacher` of the examples phase is a
    stronger model. It runs train cases of which no run passes; what it passes becomes examples.
    """

    backwarder: Backwarder | Attributor | None = None
    aggregator: Aggregator | None = None
    optimizer: Optimizer | None = None
    _: KW_ONLY
    critic: str | Critic | None = None
    critic_prompt: str | None = None
    critic_options: dict[str, Any] | None = None
    applier: str | Applier | None = None
    applier_prompt: str | None = None
    applier_options: dict[str, Any] | None = None
    max_cycles: int = 4
    dry_cycles: int = 2
    numeric_max_trials: int = 20
    numeric_patience: int = 10
    textual_max_trials: int = 10
    textual_patience: int = 4
    examples_max_trials: int = 4
    examples_patience: int = 2
    batch_size: int = 1
    startup_trials: int = 10
    count_startup: bool = False
    ei_candidates: int = 24
    multivariate: bool = True
    convergence: float = 1e-3
    min_confidence: float = 0.4
    failures_shown: int = 10
    rejections_shown: int = 3
    co_optimize: Sequence[Sequence[str]] = ()
    phases: Sequence[PhaseName] = ("numeric", "textual", "examples")
    sampler: Sampler = "tpe"
    seed: int | None = None
    teacher: str | None = None

    def __post_init__(self) -> None:
        check_stages(backwarder=self.backwarder, aggregator=self.aggregator, optimizer=self.optimizer)
        limits = [f"{phase}_{limit}" for phase in get_args(PhaseName) for limit in ("max_trials", "patience")]
        for name in ("max_cycles", "dry_cycles", *limits, "batch_size", "ei_candidates", "failures_shown"):
            check_count(getattr(self, name), name)
        for name in ("startup_trials", "rejections_shown"):
            check_count(getattr(self, name), name, least=0)
        for name in ("convergence", "min_confidence"):
            value = getattr(self, name)
            if not is_number(value, least=0) or value > 1:
                raise SetupError(f"{name} is {value!r}; give a number from 0 to 1")
        if self.sampler not in get_args(Sampler):
            raise SetupError(f"sampler is {self.sampler!r}; give {join_names([*map(repr, get_args(Sampler))])}")
        phases = (self.phases,) if isinstance(self.phases, str) else tuple(self.phases)
        known = get_args(PhaseName)
        if not phases or len(set(phases)) < len(phases) or not set(phases) <= set(known):
            raise SetupError(f"phases is {self.phases!r}; give some of {join_names(known)}, each once")
        self._phases = phases
        self._groups = _read_groups(self.co_optimize)
        self.attributor = as_attributor(self.backwarder)
        self._aggregator = self.aggregator or SupportAggregator()
        self._optimizer: Optimizer = self.optimizer or OFFLINE_STAGES.get("optimizer")()
        self._critic = self._build_critic()
        self._applier = self._build_applier()

    async def search(self, session: Session) -> None:
        axes, groups, examples = self._find_surfaces(session)
        trials = Trials(session)
        numeric = self._build_numeric(trials, axes) if axes else None
        textual = self._build_textual(trials, groups) if groups else None
        by_name: dict[PhaseName, Phase] = {}
        if numeric is not None:
            by_name["numeric"] = numeric
        if textual is not None:
            by_name["textual"] = textual
        if examples:
            limits = PhaseLimits(max_trials=self.examples_max_trials, patience=self.examples_patience)
            by_name["examples"] = ExamplesPhase(
                trials, examples, limits=limits, seed=self._find_seed(session), teacher=self.teacher
            )
        phases = [by_name[name] for name in self._phases if name in by_name]
        most_dry = 1 if numeric is None else self.dry_cycles  # without a fresh study, the next cycle is like the last
        dry = 0
        for cycle in range(1, self.max_cycles + 1):
            accepted = 0
            for phase in phases:
                if dry and phase is numeric and textual is not None:
                    result = await _run_jointly(numeric, textual, cycle)
                else:
                    result = await phase.run(cycle)
                if result is None:
                    return
                accepted += result.accepted
            dry = 0 if accepted else dry + 1
            if dry == most_dry:
                await session.note(SearchStopChecked(reason="dry_cycle"))
                return
        await session.note(SearchStopChecked(reason="max_cycles"))

    def outline(self) -> SearchOutline:
        """What a round may call, for the forecast."""
        numeric = math.ceil(self.numeric_max_trials / self.batch_size) if "numeric" in self._phases else 0
        textual = self.textual_max_trials if "textual" in self._phases else 0
        examples = self.examples_max_trials if "examples" in self._phases else 0
        blames = textual > 0 and self._critic is None
        writes = textual > 0 and self._applier is None
        return SearchOutline(
            backwarder=find_model(find_blaming_stage(self.attributor)) if blames else None,
            aggregator=find_model(self._aggregator) if blames else None,
            optimizer=find_model(self._optimizer) if writes else None,
            critic=find_model(self._critic) if textual and self._critic is not None else None,
            applier=find_model(self._applier) if textual and self._applier is not None else None,
            batch=self.batch_size if numeric else 1,
            edited_share=textual / max(1, numeric + textual),
            max_rounds=self.max_cycles * (numeric + textual + examples),
            teacher=self.teacher,
        )

    def find_setup_problems(self, gateway: Gateway) -> list[str]:
        """One line if optuna is not installed, and for each model that cannot be called, or whose price is unknown."""
        found = find_optuna_problems() if "numeric" in self._phases else []
        stages: list[object] = []
        if "textual" in self._phases:
            stages += [self._critic] if self._critic else [find_blaming_stage(self.attributor), self._aggregator]
            stages.append(self._applier or self._optimizer)
        return [*found, *find_stage_problems(stages, gateway), *find_model_problems(self.teacher, gateway)]

    def choose_targets(self, snapshot: StructureSnapshot) -> tuple[str, ...]:
        """All numbers, switches, choices and texts that its phases can change. Examples have to be asked for."""
        axes = choose_axes(snapshot) if "numeric" in self._phases else ()
        return (*axes, *(find_texts(snapshot, snapshot.surface_ids) if "textual" in self._phases else ()))

    def find_target_problems(
        self, snapshot: StructureSnapshot, targets: Collection[str], *, shape: RunShape
    ) -> list[str]:
        """Say that no phase can change a target, a number has no bounds, or a co-optimized text is not a target."""
        texts = find_texts(snapshot, targets) if "textual" in self._phases else ()
        has_examples = "examples" in self._phases and shape == "two_sets" and bool(find_examples(snapshot, targets))
        grouped = [name for group in self._groups for name in group]
        found = [str(UnknownSurfaceError(name, known=texts)) for name in grouped if name not in texts]
        if self.teacher is not None and "examples" not in self._phases:
            found.append(f"teacher is {self.teacher!r}, but phases has no examples; add it, or leave the teacher out")
        else:
            found += find_teacher_problems(self.teacher, snapshot, targets, shape=shape)
        try:
            axes = find_axes(snapshot, targets) if "numeric" in self._phases else ()
        except SetupError as error:
            return [*found, str(error)]
        if not axes and not texts and not has_examples:
            found.append(describe_no_targets(snapshot, self._phases))
        return found

    def find_kept_targets(self, snapshot: StructureSnapshot, targets: Collection[str], *, shape: RunShape) -> set[str]:
        """The targets that no phase changes."""
        axes = choose_axes(snapshot) if "numeric" in self._phases else ()
        texts = find_texts(snapshot, targets) if "textual" in self._phases else ()
        has_examples = "examples" in self._phases and shape == "two_sets"
        examples = find_examples(snapshot, targets) if has_examples else ()
        return set(targets).difference(axes, texts, examples)

    def _find_surfaces(self, session: Session) -> tuple[tuple[Axis, ...], tuple[tuple[str, ...], ...], tuple[str, ...]]:
        """The axes, the groups of texts and the examples of a run, as far as there are phases for them."""
        axes = find_axes(session.snapshot, session.targets) if "numeric" in self._phases else ()
        texts = find_texts(session.snapshot, session.targets) if "textual" in self._phases else ()
        has_examples = "examples" in self._phases and session.shape == "two_sets"
        examples = find_examples(session.snapshot, session.targets) if has_examples else ()
        grouped = {name for group in self._groups for name in group}
        return axes, (*self._groups, *((name,) for name in texts if name not in grouped)), examples

    def _build_numeric(self, trials: Trials, axes: Sequence[Axis]) -> NumericPhase:
        if self.numeric_max_trials < self.startup_trials and self.sampler == "tpe":
            trials.session.report(
                f"numeric_max_trials is {self.numeric_max_trials}, below startup_trials ({self.startup_trials}): "
                "every numeric phase is a random search"
            )
        session = trials.session
        return NumericPhase(
            trials,
            axes,
            settings=StudySettings(
                sampler=self.sampler,
                startup_trials=self.startup_trials,
                ei_candidates=self.ei_candidates,
                multivariate=self.multivariate,
            ),
            seed=self._find_seed(session),
            limits=PhaseLimits(
                max_trials=self.numeric_max_trials,
                patience=self.numeric_patience,
                startup=0 if self.count_startup or self.sampler == "random" else self.startup_trials,
            ),
            batch_size=self.batch_size,
            convergence=self.convergence,
        )

    def _build_textual(self, trials: Trials, groups: Sequence[tuple[str, ...]]) -> TextualPhase:
        session = trials.session
        failures = StageFailures(session)
        diagnoses = Diagnoses(
            session,
            critic=self._critic,
            applier=self._applier,
            finder=BlameFinder(session, self.attributor, self._aggregator, failures=failures, min_support=MIN_SUPPORT),
            patcher=PatchProposer(session, self._optimizer, failures=failures),
            failures_shown=self.failures_shown,
            rejections_shown=self.rejections_shown,
        )
        critic = self._critic or find_blaming_stage(self.attributor)
        return TextualPhase(
            trials,
            groups,
            diagnoses,
            limits=PhaseLimits(max_trials=self.textual_max_trials, patience=self.textual_patience),
            min_confidence=self.min_confidence,
            models=(find_model(critic) or "", find_model(self._applier or self._optimizer) or ""),
        )

    def _find_seed(self, session: Session) -> int:
        return session.seed if self.seed is None else self.seed

    def _build_critic(self) -> Critic | None:
        if _is_model(self.critic, self.critic_prompt):
            prompt = read_prompt(self.critic_prompt, "critic_prompt")
            return LLMCritic(self.critic, prompt=prompt, model_options=self.critic_options)
        _check_unused("critic", self.critic, critic_prompt=self.critic_prompt, critic_options=self.critic_options)
        critic: Critic | None = _load_part(self.critic, STAGES["critic"])
        return critic

    def _build_applier(self) -> Applier | None:
        if _is_model(self.applier, self.applier_prompt):
            prompt = read_prompt(self.applier_prompt, "applier_prompt")
            return LLMApplier(self.applier, prompt=prompt, model_options=self.applier_options)
        _check_unused("applier", self.applier, applier_prompt=self.applier_prompt, applier_options=self.applier_options)
        applier: Applier | None = _load_part(self.applier, STAGES["applier"])
        return applier


async def _run_jointly(numeric: NumericPhase, textual: TextualPhase, cycle: int) -> PhaseResult | None:
    """Search the numbers of the most promising rejected text, if there is one, else those of the accepted texts."""
    text = textual.take_rejected()
    result = await numeric.run(cycle, text=text)
    if text is not None and result is not None and any(name in result.axes for name in text.surfaces):
        textual.restart()
    return result


def _is_model(part: object, prompt: str | None) -> TypeGuard[str]:
    """Whether a critic or applier is a model. One of your own, as module:attr, is a model if it gets a prompt."""
    return isinstance(part, str) and (prompt is not None or not is_reference(part))


def _load_part(part: object, role: Role) -> Any:
    """A critic or applier of one's own: the object, or a class or object named as module:attr."""
    if isinstance(part, str):
        part = role.load(part)
        part = part() if isinstance(part, type) else part
    if part is not None:
        check_part(part, role)
    return part


def _read_groups(groups: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    read = tuple((each,) if isinstance(each, str) else tuple(each) for each in groups)
    names = [name for each in read for name in each]
    if any(len(each) < 2 for each in read) or len(set(names)) < len(names):
        raise SetupError(
            f"co_optimize is {groups!r}; give lists of two or more surfaces, each surface once, such as "
            "[[planner#instruction, writer#instruction]]"
        )
    return read


def _check_unused(name: str, part: object, **options: object) -> None:
    for option, value in options.items():
        if value is not None:
            why = f"this {name} has a prompt of its own" if part is not None else "none is named"
            raise SetupError(f"{option} is for a model as {name}, and {why}; name a model, or remove it")
