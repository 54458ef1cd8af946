"""Text and time together."""

from __future__ import annotations

from tests.traces.recover.spans import Tree, agent, build, call, edges


def test_whoever_collects_from_a_fan_out_collects_from_all_of_it() -> None:
    """The input of `total` was cut off: it shows one of the three answers."""
    shown = "copper rose sharply while freight fell across the southern harbour"
    trace = build(
        Tree(
            "run",
            0,
            50,
            agent("worker", 0, 10, call(1, 9, answered=shown)),
            *(agent("worker", 0, 10, call(1, 9, answered=f"answer {at} of its own")) for at in range(2)),
            agent("total", 11, 20, call(12, 19, asked=shown)),
        )
    )
    assert edges(trace)["total"] == {"worker", "worker-2", "worker-3"}
