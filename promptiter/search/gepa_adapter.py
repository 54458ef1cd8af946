"""What gepa's engine calls, in its thread: an adapter, and a callback that watches its iterations.

Neither does anything itself: each call is answered by a GepaRun in the task of the search.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from promptiter.search.gepa_library import build_batch
from promptiter.search.gepa_run import Example, GepaRun
from promptiter.search.task_portal import TaskPortal


class SessionAdapter:
    """gepa's adapter: runs cases and rewrites components in a session."""

    def __init__(self, run: GepaRun, portal: TaskPortal) -> None:
        self._run = run
        self._portal = portal

    def evaluate(self, batch: list[Example], candidate: dict[str, str], capture_traces: bool = False) -> Any:  # noqa: ARG002, FBT - gepa's protocol
        """Run cases. The trajectories are for callbacks; a reflection reads what the run recorded."""
        found = self._portal.call(lambda: self._run.evaluate(batch, candidate))
        return build_batch(
            outputs=found.outputs,
            scores=found.scores,
            trajectories=[
                {"case_id": each.case.id, "score": score, "output": output}
                for each, score, output in zip(batch, found.scores, found.outputs, strict=True)
            ],
            objective_scores=found.metrics,
            metric_calls=found.case_runs,
        )

    def make_reflective_dataset(
        self,
        candidate: dict[str, str],  # noqa: ARG002 - gepa's protocol
        eval_batch: Any,
        components_to_update: list[str],
    ) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """A short form of the records, for callbacks. A reflection model sees more: `build_case_records`."""
        return {name: list(eval_batch.trajectories) for name in components_to_update}

    def propose_new_texts(
        self,
        candidate: dict[str, str],  # noqa: ARG002 - gepa's protocol
        reflective_dataset: Mapping[str, Sequence[Mapping[str, Any]]],  # noqa: ARG002
        components_to_update: list[str],
    ) -> dict[str, str]:
        return self._portal.call(lambda: self._run.reflect(components_to_update))

    def select_blamed(self) -> list[str]:
        return self._portal.call(self._run.blame)


class IterationWatcher:
    """gepa's callback: makes each iteration a round, and each child a candidate of it."""

    def __init__(self, run: GepaRun, portal: TaskPortal) -> None:
        self._run = run
        self._portal = portal
        self._front: Sequence[int] = ()

    def on_iteration_start(self, event: Mapping[str, Any]) -> None:
        self._portal.call(lambda: self._run.begin(event["iteration"]))

    def on_candidate_selected(self, event: Mapping[str, Any]) -> None:
        self._run.select(event["candidate_idx"])

    def on_evaluation_start(self, event: Mapping[str, Any]) -> None:
        if event["candidate_idx"] is None:
            self._run.expect_child(event["parent_ids"])

    def on_evaluation_skipped(self, event: Mapping[str, Any]) -> None:
        self._run.skip(event["reason"])

    def on_candidate_rejected(self, event: Mapping[str, Any]) -> None:
        self._portal.call(lambda: self._run.reject(_describe_gate(event["old_score"], event["new_score"])))

    def on_merge_rejected(self, event: Mapping[str, Any]) -> None:  # noqa: ARG002 - its reason holds lists of scores
        self._portal.call(lambda: self._run.reject("the merged candidate scores below one of its parents"))

    def on_pareto_front_updated(self, event: Mapping[str, Any]) -> None:
        self._front = event["new_front"]

    def on_valset_evaluated(self, event: Mapping[str, Any]) -> None:
        if event["iteration"] == 0:  # the baseline
            return
        self._portal.call(
            lambda: self._run.add_to_pool(
                event["candidate_idx"],
                score=event["average_score"],
                scores=event["scores_by_val_id"],
                is_best=event["is_best_program"],
                front=self._front,
            )
        )

    def on_iteration_end(self, event: Mapping[str, Any]) -> None:  # noqa: ARG002 - the run knows the iteration
        if not self._portal.is_over:
            self._portal.call(self._run.end)


def _describe_gate(before: float, after: float) -> str:
    return f"no better on the mini-batch: its scores add up to {after:g}, those of the parent to {before:g}"
