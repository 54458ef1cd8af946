from __future__ import annotations

from promptiter.runlog.events import Event, EventMeasured
from promptiter.runs.layout_000.trial_rows import TrialTimes
from traces.model import Json


def test_the_time_of_an_evaluation_is_from_its_start_to_its_end() -> None:
    times = TrialTimes()
    started: dict[str, Json] = {"eval_set_id": "train", "profile_digest": "p", "cases": 2, "runs": 2}
    ended: dict[str, Json] = {"thresholds": {}}

    def note(kind: str, number: int, elapsed_s: float, data: dict[str, Json]) -> None:
        measured = EventMeasured(elapsed_s=elapsed_s)
        times.note(Event(seq=0, run_id="r", type=kind, data={"evaluation": number, **data}, measured=measured))

    note("evaluation_started", 0, 1.0, started)
    note("evaluation_started", 1, 1.5, started)
    note("evaluation_finished", 0, 3.0, ended)
    note("evaluation_finished", 1, 4.0, ended)
    assert times.measure([0]) == 2.0
    assert times.measure([0, 1]) == 4.5
    assert times.measure([2]) == 0.0
