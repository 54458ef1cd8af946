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


def test_steps_that_read_the_same_text_side_by_side_are_not_a_chain() -> None:
    """Each worker repeats a passage of what all of them read: it does not hand that on to the next one."""
    note = "this is about the toaster that was bought in the northern branch last week"
    trace = build(
        Tree(
            "run",
            0,
            50,
            agent("reception", 0, 10, call(1, 9, asked="please help", answered=note)),
            agent("returns", 11, 20, call(12, 19, asked=note, answered=f"{note}: wants a refund")),
            agent("payments", 21, 30, call(22, 29, asked=note, answered=f"{note}: paid by card")),
            agent("lead", 31, 40, call(32, 39, asked=f"{note}: wants a refund\n\n{note}: paid by card")),
        )
    )
    assert edges(trace)["returns"] == edges(trace)["payments"] == {"reception"}
    assert edges(trace)["lead"] == {"returns", "payments"}


def test_instructions_that_are_filled_in_with_what_others_wrote_are_read() -> None:
    """ADK fills earlier answers into the instructions. What every agent is told comes from no step."""
    told = "You work for the billing department of a freight company in the north."
    clause = "A surcharge needs a notice in writing ten business days in advance."
    ledger = "Nine of the eleven invoices carry a surcharge line that nobody ordered."
    trace = build(
        Tree(
            "run",
            0,
            50,
            agent("clause", 0, 10, call(1, 9, system=told, answered=f"{told} {clause}")),
            agent("ledger", 0, 8, call(1, 7, system=told, answered=ledger)),
            agent("writer", 11, 20, call(12, 19, system=f"{told}\n{ledger}", asked=clause, answered="Dear")),
            agent("sender", 21, 30, call(22, 29, system=told)),
        )
    )
    assert edges(trace)["writer"] == {"clause", "ledger"}
    assert edges(trace)["sender"] == {"writer"}


def test_a_fan_out_with_few_workers_whose_results_nobody_reads_is_not_a_chain() -> None:
    plan = "copy all invoices of the southern harbour to the archive"
    workers = [agent("worker", at, at + 9, call(at + 1, at + 8, asked=plan, answered=f"{at} done")) for at in (11, 21)]
    trace = build(Tree("run", 0, 50, agent("planner", 0, 10, call(1, 9, asked="go", answered=plan)), *workers))
    assert edges(trace)["worker"] == edges(trace)["worker-2"] == {"planner"}
