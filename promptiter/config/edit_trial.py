"""EditTrial: an edit of a project's prompts, compared with its recorded baseline. It is what `promptiter try` does.

The first trial of a project records its baseline: the values of all surfaces, and the answers of the runs. Later ones
find what was edited since, and compare. Recorded answers are free, so only what follows an edited text is paid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from promptiter.config.build import build_evaluation
from promptiter.config.configured_run import ConfiguredEvaluation
from promptiter.config.file import ParsedConfig, RunConfig, read_document
from promptiter.engine.comparison_result import ProfileComparison
from promptiter.engine.interrupts import Interrupt, run_blocking
from promptiter.engine.profile_comparison import compare_profiles
from promptiter.engine.profile_runs import ProfileRuns
from promptiter.errors import SetupError
from promptiter.evaluation.evaluator import OnRow
from promptiter.evaluation.result import Evaluation
from promptiter.evaluation.stats.final_test import count_repeats, plan_blocks
from promptiter.evaluation.stats.permutation import has_run_noise
from promptiter.evaluation.surface_reads import may_touch
from promptiter.evaluation.teacher import write_expected_answers
from promptiter.llm.ledger import LedgerSnapshot
from promptiter.policies.final_test import FinalTest
from promptiter.policies.pairing import leave_out_lost_pairs, pair_scores
from promptiter.profile import Profile, ProfileDiff, SurfacePatch
from promptiter.runlog.case_uses import CaseUse, list_case_digests
from promptiter.runs.case_use_file import CaseUseFile
from promptiter.runs.recorded_baseline import (
    ANSWERS,
    FOLDER,
    RecordedBaseline,
    TriedEdit,
    identify_edit,
    load_recorded_baseline,
)
from promptiter.structure import StructureSnapshot
from traces import digest
from traces.model import Json

Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRuns:
    """The runs of a baseline that was recorded. `stop_reason` is why it ended early; the next trial makes the rest.

    `is_noisy` if a case had different scores in the first repeats.
    """

    evaluation: Evaluation
    ledger: LedgerSnapshot
    stop_reason: str | None = None
    is_noisy: bool = False


class EditTrial:
    """A project that is ready to try an edit. `is_new` if its baseline was not recorded before.

    `current` is the profile of the agent as it is now, `after` has the values on top of it that are to be tried.
    `is_first_use` if the comparison was the first to show results on these cases.
    """

    def __init__(
        self,
        built: ConfiguredEvaluation,
        config: RunConfig,
        *,
        eval_set: str = "validation",
        record: bool = False,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.built = built
        self.eval_set = eval_set
        self.config = config
        self.folder = config.runs / FOLDER
        self.snapshot: StructureSnapshot = built.agent.describe()
        self.current = built.profile or Profile.baseline(self.snapshot)
        self.current.check(self.snapshot)
        self.after = self.current
        earlier = load_recorded_baseline(self.folder)
        self.is_new = record or earlier is None
        self.is_first_use = False
        if earlier is None or record:
            self.recorded = RecordedBaseline.start(self.current, self.snapshot, now=now(), earlier=earlier)
        else:
            self.recorded = earlier
        self.before = self.recorded.build_profile(self.snapshot)
        self._now = now

    @property
    def differences(self) -> ProfileDiff:
        """What the edit changes."""
        return self.before.changes(self.after, self.snapshot)

    @property
    def is_old(self) -> bool:
        """Whether the recording is old enough for a model to have changed since."""
        return self.recorded.is_old(self._now())

    @property
    def repeats(self) -> int:
        """The runs of each case before each look."""
        final_test = self.config.final_test
        return FinalTest().repeats if final_test is None else final_test.repeats

    @property
    def most_repeats(self) -> int:
        """The runs of each case after the last look."""
        return count_repeats(plan_blocks(self.config.alpha, repeats=self.repeats))

    def set_values(self, values: Mapping[str, Json]) -> None:
        """Try these values on top of the current ones. Raises UnknownSurfaceError or SurfaceValueError."""
        patches = (SurfacePatch(surface_id=name, value=value, reason="tried") for name, value in values.items())
        self.after = self.after.apply(patches, self.snapshot)

    def record(
        self, *, on_row: OnRow | None = None, notify: Notify = lambda _: None, announce: Notify = lambda _: None
    ) -> RecordedRuns:
        """Run the baseline, so that its answers are recorded: without run noise as often as the first look needs.

        With run noise, an edit may need the repeats of all looks, so all are recorded. `announce` is called with what
        they will take. Comparing an edit pays for what is missing.
        """
        interrupt = Interrupt()
        self.recorded.save(self.folder)
        found = run_blocking(lambda: self._record(on_row, interrupt, announce), interrupt, notify=notify)
        if found.stop_reason is None:
            self.recorded = replace(self._reload(), is_complete=True)
            self.recorded.save(self.folder)
        return found

    def compare(self, *, on_row: OnRow | None = None, notify: Notify = lambda _: None) -> ProfileComparison:
        """Compare the edit with the baseline, and count it. Records what is missing of the baseline."""
        interrupt = Interrupt()
        self.recorded.save(self.folder)
        found = run_blocking(lambda: self._compare(on_row, interrupt), interrupt, notify=notify)
        if found.before.rows:
            self._count(found)
        return found

    async def _record(self, on_row: OnRow | None, interrupt: Interrupt, announce: Notify) -> RecordedRuns:
        await self._write_references()
        runs = ProfileRuns(
            self.built.agent,
            self.built.evaluator,
            self.built.cases,
            [self.before],
            first_repeat=self.recorded.first_repeat,
            on_row=on_row,
            interrupt=interrupt,
        )
        async with runs.open():
            stop_reason = await runs.run_block(self.repeats)
            is_noisy, more = self._has_run_noise(runs), self.most_repeats - self.repeats
            if stop_reason is None and (is_noisy or self.repeats == 1) and _has_recorded(runs.ledger):
                calls = f"about {runs.ledger.total.calls * more // self.repeats:,} calls"
                why = "scores vary between repeats" if is_noisy else "one repeat cannot show noise"
                announce(f"{why}: recording {more} more repeats of each case, {calls}, which no edit then has to pay")
                stop_reason = await runs.run_block(more)
        [evaluation] = runs.build_evaluations()
        return RecordedRuns(evaluation=evaluation, ledger=runs.ledger, stop_reason=stop_reason, is_noisy=is_noisy)

    def _has_run_noise(self, runs: ProfileRuns) -> bool:
        [found] = runs.build_evaluations()
        return has_run_noise(pair_scores(*leave_out_lost_pairs(found, found), self.config.objective))

    async def _compare(self, on_row: OnRow | None, interrupt: Interrupt) -> ProfileComparison:
        await self._remember_cases()
        await self._write_references()
        return await compare_profiles(
            self.built.agent,
            self.built.evaluator,
            self.built.cases,
            self.before,
            self.after,
            alpha=self.config.alpha,
            objective=self.config.objective,
            repeats=self.repeats,
            first_repeat=self.recorded.first_repeat,
            on_row=on_row,
            interrupt=interrupt,
        )

    async def _remember_cases(self) -> None:
        """Remember that results of edits on these cases were shown: a later run does not take them for new ones."""
        cases = list_case_digests(self.built.cases)
        use = CaseUse(id=f"{FOLDER} {digest(list(cases))[:16]}", run_id=FOLDER, kind="try", place=FOLDER)
        use = replace(use, test=cases) if self.eval_set == "test" else replace(use, validation=cases)
        file = CaseUseFile(self.config.runs)
        self.is_first_use = all(each.id != use.id for each in file.read())
        await file.add(use)

    async def _write_references(self) -> None:
        """Let the teacher write missing references, if there is one. Its answers are recorded, too."""
        built = self.built
        if built.teacher is not None:
            labelled = await write_expected_answers(built.cases, built.teacher, gateway=built.gateway)
            self.built = replace(built, cases=labelled.eval_set, teacher=None)

    @property
    def profile_file(self) -> Path:
        """Where the profile of the edit is saved."""
        return self.folder / "profiles" / f"{identify_edit(self.differences)}.json"

    def _count(self, found: ProfileComparison) -> None:
        edit_id, latest = identify_edit(self.differences), self._reload()
        earlier = latest.find(edit_id)
        edit = TriedEdit(
            edit_id=edit_id,
            surfaces=found.surface_ids,
            answer=found.answer,
            gain=found.gain,
            tried_at=self._now().isoformat(timespec="seconds"),
            repeats=found.repeats,
        )
        self.recorded = latest.add(edit, has_new_answers=earlier is not None and _has_new_answers(found, earlier))
        self.recorded.save(self.folder)
        self.profile_file.parent.mkdir(exist_ok=True)
        self.after.save(self.profile_file)

    def _reload(self) -> RecordedBaseline:
        """The recording with the edits that other processes have tried meanwhile."""
        latest = load_recorded_baseline(self.folder)
        is_same = latest is not None and latest.recorded_at == self.recorded.recorded_at
        return latest if latest is not None and is_same else self.recorded


def _has_recorded(ledger: LedgerSnapshot) -> bool:
    """Whether the agent made calls through promptiter, whose answers are recorded."""
    return bool(ledger.total.calls or ledger.total.cache_hits)


def _has_new_answers(found: ProfileComparison, earlier: TriedEdit) -> bool:
    """Whether a repeat that an earlier trial made was made again, as for an agent whose calls are not recorded."""
    return any(
        row.origin == "executed" and row.repeat < earlier.repeats and may_touch(row.reads, earlier.surfaces)
        for row in found.after.rows
    )


def build_trial(parsed: ParsedConfig, eval_set: str = "validation", *, record: bool = False) -> EditTrial:
    """Build the trial of a configuration. Without a `cache`, answers are recorded in a folder next to the runs."""
    config = parsed.config
    if config.cache == "memory" and parsed.file is not None:
        settings = {**parsed.settings, "cache": str(config.runs.absolute() / FOLDER / ANSWERS)}
        parsed = read_document(parsed.document, file=parsed.file, settings=settings)
    if config.scorer is not None:
        raise SetupError("the project has a scorer and no cases, so there is nothing to fork; use `promptiter run`")
    return EditTrial(build_evaluation(parsed, eval_set), parsed.config, eval_set=eval_set, record=record)
