"""FileScorer: scores a profile of a file task, by its raw figures and by a score from 0 to 1.

A run calls it once for each candidate and repeat, and the hold-out scorer only in its final test. Decisions use the
figures; the score is what searches and statistics need.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from promptiter.agents.base import RunContext
from promptiter.errors import CommandError, SetupError, nearest
from promptiter.evaluation.score import Finding, Score
from promptiter.evaluation.scorer import ScoredProfile
from promptiter.llm.gateway import current_gateway
from promptiter.llm.judgement import judge_repeat
from promptiter.profile import Profile
from promptiter.tasks.files.guards import TAMPERED, GuardReading, list_bounds, read_guards
from promptiter.tasks.files.judges import ask_judges, build_task_judges
from promptiter.tasks.files.measurement import Measurement, measure
from promptiter.tasks.files.recorded_traces import parse_recorded
from promptiter.tasks.files.score_scale import scale_figure
from promptiter.tasks.files.scorer_output import CaseOutcome
from promptiter.tasks.files.task import FileTask
from promptiter.tasks.files.workspace import Workspace
from promptiter.tasks.files.workspace_trace import build_trace
from promptiter.wording import join_names
from traces import ExecutionTrace

MOST_NAMED = 5

READ_ONLY = "read-only file system"
"""What a command reports that writes to a protected file, in namespaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The raw figures of a candidate, with what the scorers and guards said about them."""

    figures: Mapping[str, float]
    cases: tuple[CaseOutcome, ...]
    remarks: tuple[str, ...]
    findings: tuple[Finding, ...]
    measured: Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class FileScorer:
    """Scores profiles of a task's artifacts."""

    task: FileTask
    workspace: Workspace

    async def score(self, profile: Profile, context: RunContext) -> ScoredProfile:
        """Measure a candidate. CommandError if it crashes, SetupError if the baseline does."""
        baseline = await self.read_baseline(context)
        texts = self.workspace.read_profile(profile)
        found = await self.read(texts, context)
        reason = _explain(self.task, found)
        scores = [
            Score(
                metric=objective.metric,
                value=scale_figure(
                    _pick(found.figures, objective.metric), objective, baseline=baseline.figures[objective.metric]
                ),
                reason=reason,
                findings=found.findings,
            )
            for objective in self.task.objectives
        ]
        return ScoredProfile(
            scores=tuple(scores),
            output=found.measured.output,
            traces=(self._trace(texts, found),),
            usage=found.measured.usage,
            figures=dict(found.figures),
        )

    async def score_holdout(self, profile: Profile, context: RunContext, case: str) -> ScoredProfile:
        """Measure a candidate with the hold-out scorer, on one of its cases."""
        before = await self._read_holdout({**self.workspace.texts}, replace(context, repeat=0), case)
        found = await self._read_holdout(self.workspace.read_profile(profile), context, case)
        value = scale_figure(found, self.task.primary, baseline=before)
        scores = tuple(Score(metric=each.metric, value=value) for each in self.task.objectives)
        return ScoredProfile(scores=scores, figures={self.task.primary.metric: found})

    async def read_baseline(self, context: RunContext) -> Reading:
        """The figures of the files as they are. SetupError if they crash, or lack a figure that the task names."""
        try:
            found = await self.read(dict(self.workspace.texts), replace(context, repeat=0))
        except CommandError as error:
            advice = _advise(self.task, str(error))
            raise SetupError(f"the files as they are cannot be measured: {error}; {advice}") from error
        if changed := sorted(set(found.measured.tampered).intersection(self.task.protected)):
            raise SetupError(
                f"the commands of the task change {join_names(changed, limit=MOST_NAMED)}, which is protected, even if "
                "nothing is edited; if commands write it, list it in outputs"
            )
        for name in self.task.named_figures:
            if name not in found.figures:
                known = sorted(found.figures)
                raise SetupError(
                    f"the task names the figure {name!r}, which no scorer gives{nearest(name, known)}; known are "
                    f"{join_names(known, limit=10)}"
                )
        return found

    async def read(self, texts: Mapping[str, str], context: RunContext) -> Reading:
        """Run the commands and judges on artifacts with these texts. CommandError if that crashes."""
        measured = await measure(self.task, self.workspace, texts, context)
        if measured.crash:
            raise CommandError(measured.crash)
        figures, findings = self._collect_figures(measured), list[Finding]()
        cases = tuple(case for each in measured.scored for case in each.cases)
        remarks: list[str] = []
        with judge_repeat(context.repeat):
            judges = build_task_judges(self.task, current_gateway())
            judged = await ask_judges(self.task, judges, texts, measured.output)
        for each in judged:
            _add(figures, each.metric, each.value, who=f"the judge {each.metric!r}")
            findings += each.findings
            remarks += [f"{each.metric}: {each.reason}"] if each.findings else []
        guards = read_guards(self.task.guards, texts, self.workspace.texts)
        figures |= {each.figure: each.value for each in guards} | {TAMPERED: float(len(measured.tampered))}
        remarks += _list_remarks(guards, measured.tampered)
        findings += [_build_finding(each) for each in cases if each.has_failed]
        first = {name: figures[name] for name in self.task.named_figures if name in figures}
        return Reading(
            figures={**first, **figures},
            cases=cases,
            remarks=tuple(remarks),
            findings=tuple(findings),
            measured=measured,
        )

    async def _read_holdout(self, texts: Mapping[str, str], context: RunContext, case: str) -> float:
        measured = await measure(self.task, self.workspace, texts, context, holdout_case=case)
        if measured.crash:
            raise CommandError(measured.crash)
        [scored] = measured.scored
        by_name = {each.name: each.score for each in scored.cases}
        found = by_name.get(case, scored.score if not by_name else None)
        if found is None and self.task.primary.metric in scored.metrics:
            found = scored.metrics[self.task.primary.metric]
        if found is None:
            known = sorted(by_name)
            raise CommandError(
                f"the hold-out scorer printed no case {case!r}{nearest(case, known)}; print a score for each case, or "
                "one score"
            )
        return found

    def _collect_figures(self, measured: Measurement) -> dict[str, float]:
        figures: dict[str, float] = {}
        for each in measured.scored:
            for name, value in each.metrics.items():
                _add(figures, name, value, who="another scorer")
        for each in measured.scored:
            if each.score is not None and each.metric and figures.get(each.metric) != each.score:
                _add(figures, each.metric, each.score, who="another scorer")
        return figures

    def _trace(self, texts: Mapping[str, str], found: Reading) -> ExecutionTrace:
        return build_trace(
            texts,
            question="\n\n".join(filter(None, (self.task.description, self.task.prompt))) or self.task.id,
            output=found.measured.output,
            recorded=parse_recorded(found.measured.spans),
        )


def _add(figures: dict[str, float], name: str, value: float, *, who: str) -> None:
    if name in figures:
        raise CommandError(f"the figure {name!r} is given twice, also by {who}; name one of them with `metric`")
    figures[name] = value


def _pick(figures: Mapping[str, float], name: str) -> float:
    if name not in figures:
        raise CommandError(f"the scorers gave no figure {name!r}{nearest(name, figures)}")
    return figures[name]


def _explain(task: FileTask, found: Reading) -> str:
    """What a model, and a reader, should know about the figures of a candidate."""
    shown = ", ".join(f"{name} {found.figures[name]:g}" for name in task.named_figures if name in found.figures)
    broken = [
        f"{each.metric} is {found.figures[each.metric]:g}, and must be {each.op} {each.value:g}"
        for each in (*task.constraints, *list_bounds(task.guards))
        if each.metric in found.figures and not each.holds(found.figures[each.metric])
    ]
    failed = [each for each in found.cases if each.has_failed]
    lines = [shown, *broken, *found.remarks]
    if failed:
        lines.append(f"{len(failed)} of {len(found.cases)} cases failed")
        lines += [f"{each.name}: {each.reason}" for each in failed[:MOST_NAMED] if each.reason]
    return "\n".join(filter(None, lines))


def _advise(task: FileTask, error: str) -> str:
    """What to do about files as they are that crash."""
    refused = [line for line in error.splitlines() if READ_ONLY in line.lower()]
    for path in task.protected:
        if any(path in line for line in refused):
            return f"{path!r} is protected because a command names it; if commands write it, list it in outputs"
    return "correct the task, then `promptiter task check`"


def _list_remarks(guards: Sequence[GuardReading], tampered: Sequence[str]) -> Iterator[str]:
    yield from (each.reason for each in guards if each.reason)
    if tampered:
        yield f"the commands changed protected files: {join_names(tampered, limit=MOST_NAMED)}"


def _build_finding(case: CaseOutcome) -> Finding:
    """A failed case as a finding, which becomes a loss of its own."""
    has_pair = case.expected is not None or case.actual is not None
    return Finding(
        kind="wrong",
        predicate=f"case {case.name}",
        expected=case.expected if has_pair else "pass",
        actual=case.actual if has_pair else (case.reason or "fail"),
        where=case.file,
    )
