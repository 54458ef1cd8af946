"""Earlier turns: a turn of a conversation may fail because of what the agent answered before.

A number that was never given cannot be repeated, and the trace of the failed turn does not have the step that should
have given it. So if nothing in that turn is to blame, its losses are moved to the answer before it, and so on.
"""

from __future__ import annotations

from dataclasses import replace

from promptiter.backprop.judged_traces import JudgedTraces
from promptiter.backprop.step_text import render_answer
from promptiter.stages.losses import CaseLoss
from traces.text import cut

MOST_SAID = 400
"""Maximum number of characters of a message of a later turn that a loss quotes."""


async def move_to_turn_before(case_loss: CaseLoss, traces: JudgedTraces) -> CaseLoss | None:
    """The losses of a turn as losses of the answer before it. Their texts say what happened later.

    None for the first turn, and if the turn before failed as well: that one has losses of its own.
    """
    before = traces.find((case_loss.case_id, case_loss.repeat, case_loss.turn - 1))
    if before is None or before.losses:
        return None
    trace, later = await before.load(), await _describe_failed_turn(case_loss, traces)
    distinct = {(loss.metric, loss.text): loss for loss in case_loss.losses}  # each is on every terminal step
    return replace(
        case_loss,
        turn=before.turn,
        input=before.input or trace.steps[0].input.text or "",
        earlier=await before.load_earlier(),
        trace_digest=before.trace_digest,
        losses=tuple(
            replace(loss, step_id=step.id, expected=None, text=f"{later}{loss.text}")
            for loss in distinct.values()
            for step in trace.terminals
        ),
    )


async def _describe_failed_turn(case_loss: CaseLoss, traces: JudgedTraces) -> str:
    """What was said in the turn that failed; empty if these losses were moved before, so that their texts say it."""
    failed = traces.find((case_loss.case_id, case_loss.repeat, case_loss.turn))
    if failed is None or not failed.losses:
        return ""
    answer = render_answer(await failed.load())
    expected = f", where {cut(failed.expected, MOST_SAID)!r} was expected" if failed.expected is not None else ""
    return (
        "This answer passed, but a later one failed, and nothing in its own turn was found to be at fault. "
        f"The user said {cut(case_loss.input, MOST_SAID)!r}, and the answer was {cut(answer, MOST_SAID)!r}{expected}. "
    )
