from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from promptiter.backprop.record import (
    GradientsMerged,
    LossesAttributed,
    LossesExtracted,
    PatchesWritten,
    TraceBlame,
    VariantsWritten,
    describe_dropped,
)
from promptiter.evaluation.result import CaseRow
from promptiter.evaluation.score import Score
from promptiter.llm.ledger import Spending
from promptiter.observers.progress import RunProgress
from promptiter.policies.evidence import AcceptanceDecision
from promptiter.policies.stop_decision import StopDecision, StopReason
from promptiter.profile import PatchSet, Profile, SurfacePatch
from promptiter.runlog.codec import to_plain
from promptiter.runlog.events import Event, Payload, Phase
from promptiter.runlog.payloads import (
    BudgetEnded,
    CandidateDecided,
    CandidateProposed,
    CaseFinished,
    EvalSetSummary,
    EvaluationFinished,
    EvaluationStarted,
    FinalTestBegun,
    RoundCompleted,
    RoundStarted,
    RunCompleted,
    RunStarted,
    StopDecided,
)
from promptiter.stages.contracts import AggregateResult, BackwardResult
from promptiter.stages.optimizer import Rejection

STARTED = RunStarted(
    structure={"name": "desk", "nodes": [], "edges": [], "surfaces": []},
    profile=Profile(structure_id="desk"),
    targets=("a#instruction", "b#instruction"),
    train=EvalSetSummary(id="t", digest="", cases=2),
    validation=EvalSetSummary(id="v", digest="", cases=3),
    max_rounds=2,
)


def decision(accepted: bool, reason: str) -> CandidateDecided:
    found = AcceptanceDecision(accepted=accepted, delta=None, reason=reason)
    return CandidateDecided(candidate="b", decision=found)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Watching:
    """A progress on a console of its own, fed with events by hand."""

    def __init__(self, *, is_terminal: bool = False, width: int = 80) -> None:
        self.file = io.StringIO()
        console = Console(file=self.file, force_terminal=is_terminal, color_system=None, width=width)
        self.clock = Clock()
        self.spent = Spending(calls=7, cost_usd=0.25)
        self.progress = RunProgress(console, spent=lambda: self.spent, clock=self.clock)
        self.seq = 0

    async def see(self, payload: Payload, *, phase: Phase = "start", round_: int = 0) -> None:
        kind, data = payload.event_type, to_plain(payload)
        await self.progress.observe(Event(seq=self.seq, run_id="run", round=round_, phase=phase, type=kind, data=data))
        self.seq += 1

    async def begin(
        self, phase: Phase, cases: int, *, profile: str = "a", without: tuple[str, ...] = (), round_: int = 0
    ) -> None:
        started = EvaluationStarted(
            evaluation=0, eval_set_id="", profile_digest=profile, cases=cases, runs=cases, without=without
        )
        await self.see(started, phase=phase, round_=round_)

    async def evaluate(self, phase: Phase, values: list[float | None], *, round_: int = 0) -> None:
        await self.begin(phase, len(values), profile="b" if phase == "validation" else "a", round_=round_)
        for value in values:
            await self.case(value, phase=phase, round_=round_)
        await self.finish(phase, values, round_=round_)

    async def case(self, value: float | None, *, phase: Phase, round_: int = 0) -> None:
        row = CaseRow(case_id="", scores=(Score(metric="", value=value, error=None if value is not None else "no"),))
        await self.see(CaseFinished(evaluation=0, row=row), phase=phase, round_=round_)

    async def finish(self, phase: Phase, values: list[float | None], *, round_: int = 0) -> None:
        known = [value for value in values if value is not None]
        finished = EvaluationFinished(
            evaluation=0,
            thresholds={},
            mean_score=sum(known) / len(known) if known else None,
            pass_rate=sum(value == 1 for value in values) / len(values),
            errored_fraction=values.count(None) / len(values),
        )
        await self.see(finished, phase=phase, round_=round_)

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.file.getvalue().splitlines()]

    @property
    def shown(self) -> list[str]:
        """What is shown below the lines now."""
        self.file.truncate(0)
        self.file.seek(0)
        self.progress.console.print(self.progress)
        return self.lines


async def test_each_stage_that_ended_is_one_line() -> None:
    watching = Watching(width=40)
    with watching.progress:
        await watching.see(STARTED)
        await watching.evaluate("baseline", [1.0, 0.0, None])
        await watching.see(RoundStarted(profile_digest="a"), phase="train", round_=1)
        await watching.evaluate("train", [0.0, 0.5], round_=1)
        await watching.see(LossesExtracted(), phase="train", round_=1)
        unread = TraceBlame(case_id="x", results=(BackwardResult(step_id="a", dropped=2),))
        await watching.see(LossesAttributed(blames=(unread,)), phase="train", round_=1)
        signals = [
            AggregateResult(surface_id=f"{node}#instruction", text="", case_ids=tuple("xyz"[:count]))
            for node, count in SIGNALS
        ]
        await watching.see(GradientsMerged(signals=tuple(signals)), phase="train", round_=1)
        patches = PatchSet((SurfacePatch(surface_id="a#instruction", value="", reason=""),))
        refused = (Rejection(surface_id="b#instruction", value="", reason="no"),)
        await watching.see(PatchesWritten(patches=patches, refused=refused, notes=("x", "y")), phase="train", round_=1)
        await watching.evaluate("rerun", [1.0], round_=1)
        await watching.see(CandidateProposed(profile_digest="b", parents=("a",)), phase="validation", round_=1)
        await watching.evaluate("validation", [1.0, 1.0, 1.0], round_=1)
        await watching.see(decision(True, "gain +0.500 reaches 0.005"), phase="validation", round_=1)
        stop = StopDecision(stop=True, reasons=(StopReason("target_score", "mean_score 1.000\nreaches 1"),))
        await watching.see(StopDecided(decision=stop), phase="validation", round_=1)
        await watching.see(StopDecided(decision=StopDecision(stop=False)), phase="validation", round_=1)
        await watching.see(RunCompleted(status="succeeded", verdict="improved"), phase="end", round_=1)
    assert watching.lines == [
        "desk  2 train, 3 validation cases; 2 surfaces may change",
        "baseline    validation: 0.500, 1/3 pass, 33% could not be run or scored",
        "round 1     train: 0.250, 0/2 pass",
        f"round 1     {describe_dropped(2)}",
        f"round 1     blame: {', '.join(f'{node}#instruction ({count})' for node, count in BLAMED)} and 1 more",
        "round 1     patches: a#instruction; 1 refused (b#instruction: no); 2 surfaces without a patch (x; y)",
        "round 1     failed train cases with the patches: 1.000, 1/1 pass",
        "round 1     validation: 1.000, 3/3 pass",
        "round 1     accepted: gain +0.500 reaches 0.005",
        "round 1     stop: mean_score 1.000 reaches 1",
    ]


BLAMED = (("a", "2 cases"), ("b", "1 case"), ("c", "1 case"), ("d", "1 case"))
SIGNALS = (("b", 1), ("a", 2), ("c", 1), ("d", 1), ("e", 1))


async def test_the_current_stage_fits_80_columns() -> None:
    watching = Watching()
    await watching.see(STARTED)
    await watching.evaluate("baseline", [1.0, 0.0, 0.5])
    await watching.see(RoundStarted(profile_digest="a"), phase="train", round_=1)
    await watching.begin("train", 2, round_=1)
    await watching.case(0.25, phase="train", round_=1)
    watching.clock.now += 8
    bar, figures = watching.shown
    assert bar.startswith("round 1 of 2  running the train cases  ")
    assert bar.endswith("  1/2  mean 0.250")
    # 4 of 3 + 2 * (2 + 4 + 3) + 4 * 3 case runs in 8 s: 29 more take 58 s
    assert figures == "best 0.500 (baseline 0.500)  7 calls  $0.2500  0:08  up to about 0:58 left"


async def test_rounds_to_come_are_expected_to_be_like_those_that_ended() -> None:
    watching = Watching()
    await watching.see(STARTED)
    await watching.evaluate("baseline", [1.0, 0.0, 0.5])
    await watching.see(RoundStarted(profile_digest="a"), phase="train", round_=1)
    await watching.evaluate("train", [0.25], round_=1)
    await watching.see(RoundCompleted(), round_=1)
    await watching.see(RoundStarted(profile_digest="a"), phase="train", round_=2)
    watching.clock.now += 8
    # 4 of 3 + 2 * 1 + 4 * 3 case runs in 8 s: 13 more take 26 s
    assert watching.shown[1].endswith("up to about 0:26 left")


async def test_the_time_left_needs_a_few_cases_and_an_unknown_price_is_unknown() -> None:
    watching = Watching()
    watching.spent = Spending(calls=1, cost_usd=None, unpriced_calls=1)
    await watching.see(STARTED)
    await watching.begin("baseline", 3)
    await watching.case(1.0, phase="baseline")
    watching.clock.now += 3700
    assert watching.shown[1] == "1 call  cost unknown  1:01:40"


async def test_a_rejected_candidate_leaves_the_best_score_as_it_was() -> None:
    watching = Watching()
    await watching.see(STARTED)
    await watching.evaluate("baseline", [1.0, 0.0, 0.5])
    await watching.see(RoundStarted(profile_digest="a"), phase="train", round_=1)
    await watching.evaluate("validation", [0.0, 0.0, 0.0], round_=1)
    await watching.see(decision(False, "gain -0.500 is below 0.005"), phase="validation", round_=1)
    assert watching.lines[-1] == "round 1     rejected: gain -0.500 is below 0.005"
    assert watching.shown[1].startswith("best 0.500 (baseline 0.500)")


async def test_time_spent_paused_does_not_count() -> None:
    watching = Watching(is_terminal=True)
    with watching.progress:
        await watching.see(STARTED)
        watching.clock.now += 5
        with watching.progress.pause():
            watching.clock.now += 600
    assert "  0:05" in watching.shown[1]


async def test_on_a_terminal_lines_stay_and_the_current_stage_disappears() -> None:
    watching = Watching(is_terminal=True)
    with watching.progress:
        await watching.see(STARTED)
        await watching.evaluate("baseline", [1.0, 0.0, 0.5])
        watching.progress.say("Ctrl-C: finishing the work in progress; a second one stops at once")
    printed = watching.file.getvalue()
    assert "baseline    validation: 0.500, 1/3 pass" in printed
    assert "Ctrl-C: finishing the work in progress" in printed
    assert "\x1b[?25l" in printed  # the cursor is hidden
    assert printed.rstrip().endswith(("\x1b[2K", "\x1b[?25h"))  # and shown again at the end


async def test_the_final_test_names_each_profile_and_the_ablation_what_is_left_out() -> None:
    watching = Watching()
    await watching.see(replace(STARTED, test=EvalSetSummary(id="s", digest="", cases=4)))
    await watching.evaluate("baseline", [1.0, 0.0, 0.5])
    await watching.begin("ablation", 3, profile="c", without=("b#instruction",), round_=1)
    assert watching.shown[0].startswith("ablation  ablation without b#instruction")
    await watching.finish("ablation", [0.0, 0.0, 0.5], round_=1)
    assert watching.lines[-1] == "ablation    without b#instruction: 0.167, 0/3 pass"
    for phase, label in FINAL_PHASES:
        for profile, name in (("a", "baseline"), ("b", "best")):
            await watching.begin(phase, 3, profile=profile, round_=1)
            await watching.finish(phase, [1.0, 1.0, 1.0], round_=1)
            assert watching.lines[-1] == f"{label:<10}  {name}: 1.000, 3/3 pass"


async def test_on_a_terminal_wrapped_lines_are_indented() -> None:
    watching = Watching(is_terminal=True, width=50)
    await watching.see(STARTED)
    rejected = decision(False, "the gain of three cases is smaller than the loss of two")
    await watching.see(rejected, phase="validation", round_=1)
    assert watching.lines[-2:] == [
        "round 1     rejected: the gain of three cases is",
        "            smaller than the loss of two",
    ]


FINAL_PHASES: tuple[tuple[Phase, str], ...] = (("final_test", "final test"), ("test", "test set"))


async def test_a_round_without_blame_and_the_end_of_a_search_say_why() -> None:
    watching = Watching(width=200)
    unsure = AggregateResult(surface_id="a#instruction", text="", case_ids=("x",))
    skipped = AcceptanceDecision(accepted=False, delta=None, reason="no surface was patched")
    with watching.progress:
        await watching.see(STARTED)
        await watching.see(RoundStarted(profile_digest="a"), phase="train", round_=1)
        await watching.see(GradientsMerged(), phase="train", round_=1)
        undecided = BackwardResult(step_id="a", diagnosis="No step knows the policy.")
        blame = TraceBlame(case_id="x", results=(undecided,))
        await watching.see(LossesAttributed(blames=(blame,)), phase="train", round_=1)
        await watching.see(GradientsMerged(), phase="train", round_=1)
        await watching.see(GradientsMerged(below_support=(unsure,)), phase="train", round_=1)
        await watching.see(CandidateDecided(candidate=None, decision=skipped), phase="train", round_=1)
        await watching.see(BudgetEnded(cap="max_calls", message="the budget has ended"), phase="train", round_=1)
        await watching.see(RoundStarted(profile_digest="a"), phase="train", round_=2)
        await watching.see(FinalTestBegun(), phase="final_test", round_=2)
        stop = StopDecision(stop=True, reasons=(StopReason(kind="exhausted", text="nothing left"),))
        await watching.see(
            RunCompleted(status="succeeded", verdict="improved", stop=stop), phase="final_test", round_=2
        )
    assert watching.lines[1:] == [
        "round 1     blame: no surface could be blamed for the failures",
        "round 1     blame: no surface could be blamed for the failures: No step knows the policy.",
        "round 1     blame: with little support: a#instruction (1 case)",
        "round 1     no candidate: no surface was patched",
        "round 1     stop: the budget has ended",
        "final test  stop: the search has nothing left to try",
    ]


async def test_a_failed_aggregator_has_a_line() -> None:
    watching = Watching(width=200)
    failed = AggregateResult(surface_id="a#instruction", text="", case_ids=("x",), error="ModelError: no\nJSON")
    await watching.see(GradientsMerged(signals=(failed,)), phase="train", round_=1)
    assert watching.lines == [
        "round 1     blame: a#instruction (1 case)",
        (
            "round 1     the aggregator gave no usable answer for a#instruction, so the blame was not merged by it: "
            "ModelError: no JSON"
        ),
    ]


def write_patch(value: str, *refused: Rejection) -> PatchesWritten:
    patch = SurfacePatch(surface_id="a#instruction", value=value, reason="")
    return PatchesWritten(patches=PatchSet((patch,)), refused=refused)


async def test_each_of_several_candidates_has_a_number_from_its_patches_to_its_decision() -> None:
    watching = Watching(width=200)
    leak = Rejection(surface_id="a#instruction", value="", reason="it copies the case\nx " + "again " * 40)
    variants = (write_patch("One."), write_patch("Two.", leak), write_patch("One."))
    await watching.see(RoundStarted(profile_digest="a"), phase="train", round_=1)
    await watching.see(VariantsWritten(variants=variants), phase="train", round_=1)
    for number, profile in enumerate("bc"):
        started = EvaluationStarted(evaluation=number, eval_set_id="", profile_digest=profile, cases=2, runs=2)
        await watching.see(started, phase="rerun", round_=1)
    for number in range(2):
        finished = EvaluationFinished(evaluation=number, thresholds={}, mean_score=0.5, pass_rate=0.5)
        await watching.see(finished, phase="rerun", round_=1)
    await watching.see(variants[0], phase="rerun", round_=1)
    lost = AcceptanceDecision(accepted=False, delta=None, reason="no better")
    await watching.see(CandidateDecided(candidate="c", decision=lost), phase="validation", round_=1)
    copied = "it copies the case x " + "again " * 18
    assert watching.lines == [
        "round 1     candidate 1 of 3: patches: a#instruction",
        f"round 1     candidate 2 of 3: patches: a#instruction; 1 refused (a#instruction: {copied}…)",
        "round 1     candidate 3 of 3: the same texts as candidate 1",
        "round 1     failed train cases with candidate 1 of 3: 0.500, 1/2 pass",
        "round 1     failed train cases with candidate 2 of 3: 0.500, 1/2 pass",
        "round 1     chosen: candidate 1 of 3",
        "round 1     candidate 2 of 3 rejected: no better",
    ]
    await watching.see(write_patch("Two."), phase="rerun", round_=1)
    await watching.evaluate("rerun", [1.0], round_=1)
    assert watching.lines[-2:] == [
        "round 1     patches: a#instruction",
        "round 1     failed train cases with the patches: 1.000, 1/1 pass",
    ], "a later pass of the round has no candidates to choose from"


async def test_equal_candidates_are_said_to_be_equal_and_one_is_run() -> None:
    watching = Watching(width=200)
    variants = (write_patch("One."), write_patch("One."))
    await watching.see(VariantsWritten(variants=variants), phase="train", round_=1)
    await watching.see(variants[0], phase="train", round_=1)
    await watching.evaluate("rerun", [1.0], round_=1)
    assert watching.lines == [
        "round 1     candidate 1 of 2: patches: a#instruction",
        "round 1     candidate 2 of 2: the same texts as candidate 1",
        "round 1     chosen: candidate 1 of 2",
        "round 1     failed train cases with candidate 1 of 2: 1.000, 1/1 pass",
    ]


def test_a_run_that_is_resumed_says_where_it_continues() -> None:
    def resume(round_: int) -> str:
        watching = Watching()
        event = Event(
            seq=1,
            run_id="run",
            round=round_,
            phase="start",
            type="evaluation_started",
            data=to_plain(EvaluationStarted(evaluation=0, eval_set_id="", profile_digest="a", cases=1, runs=1)),
        )
        watching.progress.catch_up([event])
        return watching.file.getvalue()

    assert resume(0) == "resuming before the first round\n"
    assert resume(2) == "resuming in round 2, after event 1\n"
