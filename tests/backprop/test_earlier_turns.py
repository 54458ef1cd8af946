from __future__ import annotations

from dataclasses import dataclass, field

from promptiter.backprop import JudgedTrace, Loss, backpropagate
from promptiter.stages.contracts import BackwardRequest, BackwardResult, SurfaceGradient
from promptiter.stages.optimizer import OptimizeRequest, PatchResult
from promptiter.structure import Node, StructureSnapshot, Surface
from traces import ExecutionTrace, Snapshot, Step

OPENING, FOLLOW_UP = "opening#instruction", "follow_up#instruction"
STRUCTURE = StructureSnapshot(
    nodes=(Node(id="opening", kind="llm"), Node(id="follow_up", kind="llm")),
    surfaces=(
        Surface(node_id="opening", type="instruction", value="Greet the caller."),
        Surface(node_id="follow_up", type="instruction", value="Answer from the conversation."),
    ),
)
SAID = (
    ("opening", "My kettle leaks.", "Hello!"),
    ("follow_up", "I bought it in May.", "Noted."),
    ("follow_up", "What is my ticket?", "You have none."),
)


@dataclass(frozen=True, slots=True)
class Blames:
    """A backwarder that blames some surfaces, and remembers what it was asked."""

    surfaces: tuple[str, ...]
    asked: list[BackwardRequest] = field(default_factory=list)

    async def backward(self, request: BackwardRequest) -> BackwardResult:
        self.asked.append(request)
        found = (each for each in request.blamable if each in self.surfaces)
        return BackwardResult(
            step_id=request.step.id,
            gradients=tuple(
                SurfaceGradient(surface_id=each, case_id="", step_id=request.step.id, text="Give a ticket number.")
                for each in found
            ),
        )


@dataclass(frozen=True, slots=True)
class Remembers:
    """An optimizer that writes nothing, and remembers what it was asked."""

    asked: list[OptimizeRequest] = field(default_factory=list)

    async def optimize(self, request: OptimizeRequest) -> PatchResult:
        self.asked.append(request)
        return PatchResult(patch=None, reason="it only looks")


def make_turns(*failed: int) -> list[JudgedTrace]:
    """A conversation in which these turns failed."""
    turns = []
    for turn, (node_id, said, answer) in enumerate(SAID):
        step = Step(
            id=node_id,
            node_id=node_id,
            kind="llm",
            input=Snapshot(said),
            output=Snapshot(answer),
            surface_reads={f"{node_id}#instruction": ""},
        )
        turns.append(
            JudgedTrace(
                case_id="kettle",
                trace=ExecutionTrace(id=f"kettle-{turn}", steps=(step,)),
                losses=(Loss(text="no number", metric="contains"),) if turn in failed else (),
                input=said,
                earlier="\n\n".join(f"user: {user}\n\nassistant: {given}" for _, user, given in SAID[:turn]),
                expected="T-17" if turn == 2 else None,
                turn=turn,
            )
        )
    return turns


async def test_if_nothing_in_a_failed_turn_is_to_blame_the_answers_before_it_are_asked_about() -> None:
    blames, optimizer = Blames((OPENING,)), Remembers()
    found = await backpropagate(make_turns(2), backwarder=blames, optimizer=optimizer, structure=STRUCTURE)
    first = "user: My kettle leaks.\n\nassistant: Hello!"
    second = "user: I bought it in May.\n\nassistant: Noted."
    assert [(each.turn, each.input, each.earlier) for each in blames.asked] == [
        (2, "What is my ticket?", f"{first}\n\n{second}"),
        (1, "I bought it in May.", first),
        (0, "My kettle leaks.", ""),
    ]
    [gradient] = found.gradients
    assert (gradient.surface_id, gradient.turn, gradient.step_id) == (OPENING, 0, "opening")
    [asked] = optimizer.asked
    [example] = asked.failing
    assert (example.case_input, example.output) == ("My kettle leaks.", "Hello!")


async def test_a_moved_loss_says_what_was_said_later() -> None:
    blames = Blames((OPENING,))
    await backpropagate(make_turns(2), backwarder=blames, optimizer=Remembers(), structure=STRUCTURE)
    [loss] = blames.asked[-1].losses
    assert loss.report == (
        "contains: This answer passed, but a later one failed, and nothing in its own turn was found to be at fault. "
        "The user said 'What is my ticket?', and the answer was 'You have none.', where 'T-17' was expected. no number"
    )
    assert loss.expected is None
    assert [each.report for each in blames.asked[1].losses] == [loss.report]


async def test_blame_in_the_failed_turn_stays_there() -> None:
    blames = Blames((OPENING, FOLLOW_UP))
    found = await backpropagate(make_turns(2), backwarder=blames, optimizer=Remembers(), structure=STRUCTURE)
    assert [each.turn for each in blames.asked] == [2]
    assert [each.turn for each in found.gradients] == [2]


async def test_a_turn_that_failed_itself_is_blamed_for_its_own_losses_only() -> None:
    blames = Blames((OPENING,))
    found = await backpropagate(make_turns(0, 2), backwarder=blames, optimizer=Remembers(), structure=STRUCTURE)
    assert [(each.turn, len(each.losses)) for each in blames.asked] == [(0, 1), (2, 1), (1, 1)]
    [gradient] = found.gradients
    assert gradient.reasons == ()
    assert gradient.turn == 0
