from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from promptiter.backprop.record import NO_TRACE, BackpropDetails, PassResult
from promptiter.errors import SetupError
from promptiter.llm.ledger import LedgerEntry, LedgerSnapshot, Spending
from promptiter.policies.evidence import AcceptanceDecision
from promptiter.profile import PatchEdit, PatchEvidence, PatchSet, Profile, SurfacePatch
from promptiter.runlog.results import CandidateResult, RoundResult, RunResult
from promptiter.runs.blame_summary import BlameReason, find_main_reason
from promptiter.runs.cost_wording import cost_line, describe_unknown_prices
from promptiter.runs.directory import RunDirectory
from promptiter.runs.summary import read_summary, summarize, summarize_costs
from promptiter.stages.contracts import AggregateResult
from promptiter.stages.optimizer import Rejection
from tests.worlds import desk

FOLDER = Path("runs/r")


@pytest.fixture(scope="module")
def improved() -> RunResult:
    return desk.engine(desk.DRAFT, desk.POLISH).run_sync(desk.request())


def test_an_improvement_is_summarized_with_its_scores_and_changes(improved: RunResult) -> None:
    found = summarize(improved)
    assert (found.agent, found.run_id, found.outcome, found.adopted) == ("desk", "r", "improved_on_validation", True)
    assert found.headline == "Improved on these 2 cases"
    assert found.score is not None
    assert (found.score.name, found.score.before, found.score.after) == ("mean score", 0.0, 1.0)
    assert [(each.surface_id, each.before, each.after) for each in found.changes] == [
        ("draft#instruction", "Draft.", desk.DRAFT["draft#instruction"]),
        ("polish#instruction", "Polish.", desk.POLISH["polish#instruction"]),
    ]
    assert [(each.round, [one.accepted for one in each.candidates]) for each in found.rounds] == [
        (1, [True]),
        (2, [True]),
    ]
    assert (found.unchanged, found.failing, found.rejections) == ((), (), ())


def test_a_rejected_candidate_is_summarized_with_the_reason() -> None:
    found = summarize(desk.engine(desk.WORSE).run_sync(desk.request()))
    assert (found.outcome, found.adopted, found.changes) == ("underpowered", False, ())
    assert found.headline.endswith("too few or too noisy cases to show an improvement, nothing adopted")
    assert found.score is not None
    assert (found.score.before, found.score.after) == (0.0, None)
    assert [(each.round, each.reason.startswith("gain +0.000")) for each in found.rejections] == [(1, True)]
    assert found.failing == ("validation-0", "validation-1")
    assert found.unchanged == ("draft#instruction", "polish#instruction")


def test_a_candidate_that_was_not_adopted_has_its_own_figures(improved: RunResult) -> None:
    refused = replace(improved, accepted_profile=improved.initial_profile, accepted=improved.baseline)
    found = summarize(refused)
    assert found.candidate is not None
    assert found.validation is not None
    assert (found.candidate.score, found.validation.score) == (1.0, 0.0)
    assert [(each.before, each.after) for each in found.metrics] == [(0.0, 1.0)]
    assert (found.adopted, found.unchanged) == (False, ())


def test_a_run_without_rounds_has_no_verdict() -> None:
    found = summarize(desk.engine().run_sync(desk.request(max_rounds=0)))
    assert (found.outcome, found.headline, found.reason) == ("baseline_only", "Baseline", "")


def test_a_loss_is_shown_as_a_positive_number() -> None:
    result = desk.engine(desk.DRAFT, desk.POLISH).run_sync(desk.request(objective="weighted_loss"))
    score = summarize(result).score
    assert score is not None
    assert (score.name, score.before, score.after) == ("weighted loss", 1.0, 0.0)


def unfinished(result: RunResult, **changes: object) -> RunResult:
    """The run before its final test."""
    open_run = replace(result, status="running", conclusion=None, stop=None, is_final=False)
    return replace(open_run, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(("is_held", "outcome"), [(True, "running"), (False, "interrupted")])
def test_an_unfinished_run_is_running_while_a_process_holds_it(
    is_held: bool, outcome: str, improved: RunResult
) -> None:
    found = summarize(unfinished(improved), FOLDER, is_held=is_held)
    assert (found.outcome, found.headline) == (outcome, f"{outcome.capitalize()} in round 2")
    assert found.reason == "accepted changes are not tested yet"
    assert (found.adopted, len(found.changes)) == (False, 2)
    purposes = ["details", "all diffs", *(["resume", "final test"] if not is_held else [])]
    assert [each.purpose for each in found.commands] == purposes


def test_a_failed_run_names_the_error(improved: RunResult) -> None:
    found = summarize(unfinished(improved, status="failed", error="OSError: the network is down"), FOLDER)
    assert (found.outcome, found.headline) == ("failed", "Failed in round 2")
    assert found.reason == "OSError: the network is down"
    assert found.commands[2].command == "promptiter resume runs/r"


def test_commands_can_be_pasted(improved: RunResult) -> None:
    commands = [each.command for each in summarize(improved, Path("my runs/r")).commands]
    shown = "promptiter show 'my runs/r'"
    assert commands == [shown, f"{shown} --diff", "promptiter apply 'my runs/r'"]


def test_calls_of_tools_and_of_functions_are_not_model_calls() -> None:
    model = LedgerEntry(role="judge", model="m", node_id="", spent=Spending(calls=3, cost_usd=0.5))
    tool = LedgerEntry(role="agent", model="tool:search", node_id="n", spent=Spending(calls=7))
    judge = LedgerEntry(role="judge", model="tool:count_words", node_id="judge", spent=Spending(calls=48))
    costs = summarize_costs(LedgerSnapshot((model, tool, judge)))
    assert (costs.models.calls, costs.tools.calls, costs.functions.calls, costs.models.cost_usd) == (3, 7, 48, 0.5)
    assert list(costs.by_role) == ["judge"]
    assert cost_line(costs) == "$0.5000, 3 model calls, 7 tool calls, 48 function calls, 0.0 s"


def test_calls_that_the_cache_answered_are_named_if_there_are_no_others() -> None:
    cached = LedgerEntry(role="agent", model="m", node_id="n", spent=Spending(cache_hits=1_200))
    paid = LedgerEntry(role="judge", model="m", node_id="", spent=Spending(calls=3, cost_usd=0.5))
    assert cost_line(summarize_costs(LedgerSnapshot((cached,)))) == "$0, 0 model calls (1,200 cached), 0.0 s"
    assert cost_line(summarize_costs(LedgerSnapshot((cached, paid)))) == "$0.5000, 3 model calls, 0.0 s"


def test_a_model_of_unknown_price_is_named_with_its_setting() -> None:
    unpriced = Spending(calls=2, cost_usd=None, unpriced_calls=2)
    silent = Spending(calls=2, cost_usd=None, unpriced_calls=2, uncounted_calls=2)  # a price would not help
    entries = [
        LedgerEntry(role="agent", model=model, node_id="n", spent=spent)
        for model, spent in (("a", unpriced), ("b", silent), ("c", Spending(calls=1, cost_usd=0.5)), ("d", unpriced))
    ]
    found = summarize_costs(LedgerSnapshot(tuple(entries))).unpriced
    assert found == ("a", "d")
    assert describe_unknown_prices(found) == ["price unknown: a, d; set `models.NAME.price`"]
    assert describe_unknown_prices(found[:1]) == ["price unknown: a; set `models.a.price`"]
    assert describe_unknown_prices(()) == []


@pytest.mark.slow
def test_a_summary_read_from_a_folder_is_that_of_the_result(tmp_path: Path) -> None:
    run = RunDirectory.begin(tmp_path, desk.engine(desk.DRAFT), desk.request(run_id=""))
    with pytest.raises(SetupError, match="has recorded nothing yet; `promptiter resume"):
        read_summary(run.path)
    result = run.run_sync()
    assert read_summary(run.path) == summarize(result, run.path)


def signal(surface_id: str, text: str = "Dates are dropped.", cases: str = "ab") -> AggregateResult:
    return AggregateResult(surface_id=surface_id, text=text, case_ids=tuple(cases))


def round_with(result: RunResult, number: int, *, accepted: bool | None, **fields: object) -> RoundResult:
    decision = None if accepted is None else AcceptanceDecision(accepted=accepted, delta=0.1, reason="because")
    each = PassResult(**fields)  # type: ignore[arg-type]
    profile = Profile.of(result.structure, {"draft#instruction": f"Draft {number}."})
    candidate = CandidateResult(profile=profile, patches=each.patches, decision=decision)
    return RoundResult(
        round=number,
        input_profile=result.initial_profile,
        candidates=(candidate,) if each.patches else (),
        details=BackpropDetails(passes=(each,), blamed_in=number),
    )


def patch(surface_id: str) -> PatchSet:
    return PatchSet((SurfacePatch(surface_id=surface_id, value="new", reason="the optimizer's reason"),))


def test_a_change_has_the_reasons_of_its_accepted_patches_only(improved: RunResult) -> None:
    draft = "draft#instruction"
    rounds = (
        round_with(improved, 1, accepted=False, signals=(signal(draft, "first"),), patches=patch(draft)),
        round_with(improved, 2, accepted=True, signals=(signal(draft, "second"),), patches=patch(draft)),
        round_with(improved, 3, accepted=True, patches=patch("polish#instruction")),
    )
    changes = {each.surface_id: each for each in summarize(replace(improved, rounds=rounds)).changes}
    assert [(each.round, each.text) for each in changes[draft].reasons] == [(2, "second")]
    assert [each.text for each in changes["polish#instruction"].reasons] == ["the optimizer's reason"]


@pytest.mark.parametrize(("blamed", "said"), [((), ""), (("it drops dates",), "the optimizer's reason")])
def test_a_reason_that_an_edit_repeats_is_given_once(improved: RunResult, blamed: tuple[str, ...], said: str) -> None:
    [one] = patch("draft#instruction")
    edit = PatchEdit(before="old", after="new", reason=one.reason, evidence=PatchEvidence(cases=("a",)))
    each = round_with(
        improved,
        1,
        accepted=True,
        signals=tuple(signal(one.surface_id, text) for text in blamed),
        patches=PatchSet((replace(one, edits=(edit,)),)),
    )
    [reason] = summarize(replace(improved, rounds=(each,))).changes[0].reasons
    assert (reason.text, reason.patch_reason) == (*(blamed or (one.reason,)), "")
    assert [(found.reason, found.case_ids) for found in reason.edits] == [(said, ("a",))]


def test_a_failed_aggregator_is_a_problem(improved: RunResult) -> None:
    failed = replace(signal("draft#instruction"), error="ModelError: no JSON")
    one = round_with(improved, 1, accepted=True, signals=(failed,), patches=patch("draft#instruction"))
    [problem] = summarize(replace(improved, rounds=(one,))).problems
    assert problem == (
        "the aggregator gave no usable answer for draft#instruction, so the blame was not merged by it: "
        "ModelError: no JSON"
    )


def test_the_main_reason_of_a_change_is_that_of_the_most_cases(improved: RunResult) -> None:
    draft = "draft#instruction"
    many = PassResult(signals=(signal(draft, "the code is lost"),), patches=patch(draft))
    few = PassResult(signals=(signal(draft, "a remark on one case", "c"),), patches=patch(draft))
    one = round_with(improved, 1, accepted=True, patches=patch(draft))
    passes = replace(one, details=BackpropDetails(passes=(many, few), blamed_in=1))
    two = round_with(improved, 2, accepted=True, signals=few.signals, patches=patch(draft))

    def list_reasons(*rounds: RoundResult) -> tuple[BlameReason, ...]:
        changes = summarize(replace(improved, rounds=rounds)).changes
        return next(each.reasons for each in changes if each.surface_id == draft)

    assert [each.patched for each in summarize(replace(improved, rounds=(passes,))).rounds[0].passes] == [(draft,)] * 2
    assert [each.text for each in list_reasons(passes)] == ["the code is lost"]
    reasons = list_reasons(passes, two)
    assert [each.text for each in reasons] == ["the code is lost", "a remark on one case"]
    assert find_main_reason(reasons) == reasons[0]
    assert find_main_reason(()) is None


def test_blame_has_an_outcome(improved: RunResult) -> None:
    first = round_with(
        improved,
        1,
        accepted=True,
        signals=(signal("draft#examples"), signal("draft#instruction"), signal("polish#examples")),
        below_support=(signal("polish#model"),),
        patches=PatchSet((*patch("draft#instruction"), *patch("draft#examples"))),
    )
    again = round_with(improved, 2, accepted=False, signals=(signal("draft#instruction", cases="bc"),))
    blame = {each.surface_id: each for each in summarize(replace(improved, rounds=(first, again))).blame}
    assert {surface_id: each.outcome for surface_id, each in blame.items()} == {
        "draft#instruction": "adopted",
        "draft#examples": "rejected",
        "polish#examples": "no_patch",
        "polish#model": "below_support",
    }
    assert blame["draft#instruction"].case_ids == ("a", "b", "c")
    counts = [len(each.case_ids) for each in blame.values()]
    assert counts == sorted(counts, reverse=True) != [counts[0]] * len(counts), "the most cases first"
    [candidate] = first.candidates
    ended = replace(first, candidates=(replace(candidate, decision=None),))
    undecided = {each.surface_id: each.outcome for each in summarize(replace(improved, rounds=(ended,))).blame}
    assert undecided["draft#examples"] == "undecided", "the search ended before a decision"
    assert len(blame["draft#instruction"].reasons) == 2
    assert blame["polish#model"].support == signal("polish#model").support


def test_refused_patches_missing_patches_and_open_rounds_are_rejections(improved: RunResult) -> None:
    refused = Rejection(surface_id="draft#instruction", value="x", reason="it copies a case")
    rounds = (
        round_with(improved, 1, accepted=True, refused=(refused,), notes=("the optimizer failed",)),
        round_with(improved, 2, accepted=None, patches=patch("polish#instruction")),
    )
    found = summarize(replace(improved, rounds=rounds)).rejections
    assert [(each.round, each.surface_ids, each.reason) for each in found] == [
        (1, ("draft#instruction",), "it copies a case"),
        (1, (), "no patch: the optimizer failed"),
        (2, ("polish#instruction",), "ended before a decision"),
    ]
    assert [(change.surface_id, change.after) for each in found for change in each.changes] == [
        ("draft#instruction", "x"),
        ("draft#instruction", "Draft 2."),
    ]


def test_a_round_without_a_candidate_says_why(improved: RunResult) -> None:
    rounds = [
        round_with(improved, 1, accepted=None, notes=("the optimizer failed",)),
        round_with(improved, 2, accepted=None, below_support=(signal("polish#model"),)),
        round_with(improved, 3, accepted=None, signals=(signal("polish#model"),)),
        round_with(improved, 4, accepted=None),
        replace(round_with(improved, 5, accepted=None), details=None),
    ]
    assert [each.skipped for each in summarize(replace(improved, rounds=tuple(rounds))).rounds] == [
        "no patch: the optimizer failed",
        "no patch: the blame is too uncertain",
        "ended before patches were written",
        "no patch: no surface was blamed",
        "ended before a candidate was proposed",
    ]


def test_a_round_without_blame_has_a_reason(improved: RunResult) -> None:
    train = improved.rounds[0].train
    assert train is not None
    failing = round_with(improved, 1, accepted=None)
    untraced = replace(train, rows=tuple(replace(row, trace_digests=()) for row in train.rows))
    texts = {
        name: summarize(
            replace(
                improved,
                rounds=(replace(failing, evaluations=() if each is None else (replace(each, phase="train"),)),),
            )
        ).no_blame
        for name, each in (("failing", train), ("untraced", untraced), ("passing", improved.accepted), ("none", None))
    }
    assert texts == {
        "failing": "the runs failed with errors that no prompt can fix",
        "untraced": NO_TRACE,
        "passing": "no train case failed",
        "none": "",
    }


@pytest.mark.slow
def test_figures_are_given_for_each_eval_set_and_metric() -> None:
    request = desk.request(
        validation=[desk.eval_set("north", 4), desk.eval_set("south", 2)], test=desk.eval_set("held-out", 8)
    )
    found = summarize(desk.engine(desk.DRAFT).run_sync(request))
    assert found.baseline is not None
    assert found.validation is not None
    assert {name: (part.cases, part.metrics) for name, part in found.baseline.eval_sets.items()} == {
        "north": (4, {"careful": 0.0}),
        "south": (2, {"careful": 0.0}),
    }
    assert {name: part.score for name, part in found.validation.eval_sets.items()} == {"north": 0.5, "south": 0.5}
    assert found.test_baseline is not None
    assert found.test is not None
    assert (found.test_baseline.score, found.test.score, found.test.cases) == (0.0, 0.5, 8)
    assert found.test.eval_sets == {}  # the test cases come from one set
    [only] = found.rounds
    [candidate] = only.candidates
    assert candidate.validation is not None
    assert candidate.validation.eval_sets["south"].metrics == {"careful": 0.5}
