from __future__ import annotations

from dataclasses import replace

from promptiter.engine.request import RunRequest
from promptiter.runs.layout_000.header import LayoutHeader, add_end
from promptiter.search.descent.search import CoordinateDescent
from tests.worlds.quadratic_world import TEXT, ReasonReader, RuleAdder, build_descent, build_engine, build_request

HEADER = LayoutHeader(run_id="r", promptiter_version="1", baseline_agent_path="agent.yaml", baseline_sha256="0", seed=0)


def run(search: CoordinateDescent, request: RunRequest, *, passing: float = 0.8) -> LayoutHeader:
    return add_end(HEADER, build_engine(search, seed=0, passing=passing).run_sync(request))


def test_a_phase_that_ends_with_the_run_has_its_reason() -> None:
    header = run(build_descent(), replace(build_request(), max_rounds=3))
    assert header.exit_reason == "max_rounds"
    [phase] = header.phase_exit_reasons
    assert (phase.cycle, phase.phase, phase.trials, phase.exit_reason) == (1, "numeric", 3, "max_rounds")


def test_a_phase_without_trials_has_a_reason() -> None:
    search = CoordinateDescent(critic=ReasonReader(), applier=RuleAdder(), phases=("textual",))
    header = run(search, build_request(targets=(TEXT,)), passing=0.0)
    assert header.exit_reason == "dry_cycle"
    [phase] = header.phase_exit_reasons
    assert (phase.phase, phase.trials, phase.exit_reason) == ("textual", 0, "exhaustion")
