"""Points: the events of a run as plain figures and facts, which every tracker can store.

Figures are numbers over rounds. Each name has at most one value per round, so that a chart of it shows the course of
the run. Round 0 is the baseline.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from importlib.metadata import version
from typing import TypeAlias

import orjson

from promptiter.evaluation.result import Evaluation
from promptiter.evaluation.score import Score
from promptiter.runlog.events import Event
from promptiter.runlog.payloads import (
    AblationFinished,
    CandidateDecided,
    CaseFinished,
    EvalSetSummary,
    EvaluationFinished,
    EvaluationStarted,
    FinalTestFinished,
    RoundCompleted,
    RoundStarted,
    RunCompleted,
    RunConcluded,
    RunStarted,
    StopDecided,
)
from promptiter.runlog.run_state import RunState
from traces.model import Json

Fact: TypeAlias = str | int | float | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What one event says, for a tracker. `seq`, `type`, `round` and `phase` are those of the event.

    `at` is the start of the run plus its working time, in seconds since 1970: the same whenever it is computed.
    `profile` holds the values of all surfaces that may change, if they are known to be the best so far.
    """

    seq: int
    type: str
    run_id: str
    round: int
    phase: str
    at: float
    elapsed_s: float
    figures: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, Fact] = field(default_factory=dict)
    scores: tuple[Score, ...] = ()
    profile: Mapping[str, Json] | None = None


class PointReader:
    """Turns the events of one run into points, in order, from its first event on."""

    def __init__(self) -> None:
        self._state = RunState()
        self._started_at = 0.0

    def read(self, event: Event) -> Point | None:
        """Take the next event, and return its point; None if it has nothing for a tracker."""
        self._state.take(event)
        if isinstance(event.payload, RunStarted):
            self._started_at = datetime.fromisoformat(event.payload.measured.started_at).timestamp()
        found = self._read(event)
        if found is None:
            return None
        figures, facts = found
        shows_profile = isinstance(event.payload, RunStarted | RoundCompleted | RunConcluded | RunCompleted)
        return Point(
            seq=event.seq,
            type=event.type,
            run_id=event.run_id,
            round=event.round,
            phase=event.phase,
            at=self._started_at + event.measured.elapsed_s,
            elapsed_s=event.measured.elapsed_s,
            figures={name: float(value) for name, value in figures.items() if value is not None},
            facts={name: value for name, value in facts.items() if value is not None and value != ""},
            scores=event.payload.row.scores if isinstance(event.payload, CaseFinished) else (),
            profile=self._build_profile() if shows_profile else None,
        )

    def _read(self, event: Event) -> tuple[Mapping[str, float | None], Mapping[str, Fact | None]] | None:
        match event.payload:
            case RunStarted() as started:
                return {}, dict(describe_start(started))
            case EvaluationStarted() as evaluation:
                return {}, {
                    "evaluation": evaluation.evaluation,
                    "eval_set": evaluation.eval_set_id,
                    "profile": evaluation.profile_digest[:12],
                    "cases": evaluation.cases,
                    "without": ", ".join(evaluation.without),
                }
            case CaseFinished(evaluation=number, row=row):
                return {}, {
                    "evaluation": number,
                    "case": row.case_id,
                    "repeat": row.repeat,
                    "passed": row.passed,
                    "error": None if row.error is None else f"{row.error.type}: {row.error.message}",
                    "duration_s": row.measured.duration_s,
                }
            case EvaluationFinished() as finished:
                figures = self._describe_best() if event.phase == "baseline" else {}
                return figures, {
                    "evaluation": finished.evaluation,
                    "mean_score": finished.mean_score,
                    "pass_rate": finished.pass_rate,
                    "errored_fraction": finished.errored_fraction,
                }
            case RoundStarted():
                return {}, {}
            case CandidateDecided(candidate=candidate, decision=decision):
                return {}, {
                    "candidate": (candidate or "")[:12],
                    "accepted": decision.accepted,
                    "gain": decision.delta,
                    "reason": decision.reason,
                }
            case RoundCompleted():
                return {**self._describe_best(), **self._describe_round()}, self._describe_decision()
            case StopDecided(decision=decision, measured=measured) if not decision.is_user_stop:
                spent = measured.spent
                figures = {"cost_usd": spent.cost_usd, "tokens": spent.tokens, "calls": spent.calls}
                spending = {f"spent/{name}": value for name, value in figures.items()}
                return spending, {"stop": decision.stop, "reason": decision.text}
            case AblationFinished(ablation=ablation):
                return {}, {"dropped": ", ".join(ablation.dropped)}
            case FinalTestFinished(result=result):
                name = f"final_test/{result.scope.replace(' ', '_')}"
                return {f"{name}/gain": result.gain, f"{name}/p_value": result.p_value}, {
                    "scope": result.scope,
                    "outcome": result.outcome,
                    "reason": result.reason,
                }
            case RunConcluded(conclusion=found):
                figures = {"final_test/before": found.before, "final_test/after": found.after}
                figures |= {"test/before": found.test_before, "test/after": found.test_after}
                facts = {"verdict": found.verdict, "scope": found.scope, "reasons": "\n".join(found.reasons)}
                return figures, {**facts, "adopted": found.adopts, "obstacle": found.obstacle}
            case RunCompleted() as completed:
                scores = {"result/baseline": completed.baseline, "result/best": completed.best}
                # a run that can be resumed ends again, and a figure has one value
                return scores if completed.is_final else {}, {**self._describe_end(completed), **scores}
            case _:
                return None

    def _describe_best(self) -> dict[str, float | None]:
        """The best profile so far on validation."""
        if self._state.accepted is None:
            return {}
        best = self._state.accepted.validation
        return {"best/objective": best.objective(self._state.run.objective), **_describe_evaluation("best", best)}

    def _describe_round(self) -> dict[str, float | None]:
        """The train cases of the round, and its candidate."""
        found = self._state.round
        if found is None:
            return {}
        decision = found.decision
        figures: dict[str, float | None] = {} if found.train is None else _describe_evaluation("train", found.train)
        if found.validation is not None:
            figures["round/candidate"] = found.validation.objective(self._state.run.objective)
        if decision is not None:
            figures |= {"round/accepted": float(decision.accepted), "round/gain": decision.delta}
        return figures

    def _describe_decision(self) -> dict[str, Fact | None]:
        found = self._state.round
        if found is None or found.decision is None:
            return {}
        return {
            "accepted": found.decision.accepted,
            "reason": found.decision.reason,
            "changed": ", ".join(sorted(found.patches.values)),
        }

    def _describe_end(self, completed: RunCompleted) -> dict[str, Fact | None]:
        spent, conclusion = completed.measured.spent.of_models, self._state.run.conclusion
        return {
            "status": completed.status,
            "verdict": completed.verdict,
            "scope": None if conclusion is None else conclusion.scope,
            "stop_reason": None if completed.stop is None else completed.stop.text,
            "error": completed.error,
            "is_final": completed.is_final,
            "changed": ", ".join(change.surface_id for change in self._state.run.changes),
            "cost_usd": spent.cost_usd,
            "tokens": spent.tokens,
            "calls": spent.calls,
            "duration_s": round(completed.measured.duration_s, 3),
        }

    def _build_profile(self) -> dict[str, Json]:
        run = self._state.run
        return {each: run.accepted_profile.value(each, run.structure) for each in run.targets}


def describe_start(started: RunStarted) -> Iterator[tuple[str, Fact]]:
    """The parameters of a run by name: what it optimizes, how, with which models, on which cases."""
    structure = started.structure
    yield "agent", str(structure.get("name") or "agent")
    yield from (
        ("objective", started.objective),
        ("goal", started.goal.kind),
        ("search", started.search),
        ("acceptance", started.acceptance),
        ("final_test", started.final_test),
        ("stop", started.stop),
        ("max_rounds", started.max_rounds),
        ("seed", started.seed),
        ("targets", ", ".join(started.targets)),
        ("promptiter", version("promptiter")),
    )
    for name, each in (("train", started.train), ("validation", started.validation), ("test", started.test)):
        if each is not None:
            yield from _describe_set(name, each)
    for surface in structure.get("surfaces", ()):
        if surface.get("type") == "model":
            yield f"model.{surface.get('node_id')}", str(surface.get("value"))


def _describe_set(name: str, eval_set: EvalSetSummary) -> Iterator[tuple[str, Fact]]:
    yield f"{name}.id", eval_set.id
    yield f"{name}.digest", eval_set.digest
    yield f"{name}.cases", eval_set.cases


def _describe_evaluation(name: str, evaluation: Evaluation) -> dict[str, float | None]:
    figures = {"mean_score": evaluation.mean_score, "pass_rate": evaluation.pass_rate}
    by_metric = {f"metric/{metric}": mean for metric, mean in evaluation.metric_means.items()}
    return {f"{name}/{each}": value for each, value in {**figures, **by_metric}.items()}


def to_text(value: Json) -> str:
    """The value of a surface: a text as it is, anything else as JSON."""
    return value if isinstance(value, str) else orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
