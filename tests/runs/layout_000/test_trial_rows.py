from __future__ import annotations

from promptiter.runlog.events import Event, EventMeasured
from promptiter.runs.layout_000.trial_rows import TrialTimes


def test_the_time_of_an_evaluation_is_from_its_start_to_its_end() -> None:
    times = TrialTimes()
    started = {"eval_set_id": "train", "profile_digest": "p", "cases": 2, "runs": 2}
    for seq, (kind, number, elapsed_s, data) in enumerate(
        (
            ("evaluation_started", 0, 1.0, started),
            ("evaluation_started", 1, 1.5, started),
            ("evaluation_finished", 0, 3.0, {"thresholds": {}}),
            ("evaluation_finished", 1, 4.0, {"thresholds": {}}),
        )
    ):
        measured = EventMeasured(elapsed_s=elapsed_s)
        times.note(Event(seq=seq, run_id="r", type=kind, data={"evaluation": number, **data}, measured=measured))
    assert times.measure([0]) == 2.0
    assert times.measure([0, 1]) == 4.5
    assert times.measure([2]) == 0.0
