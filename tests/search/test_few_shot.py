from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from promptiter.agents.edges import Edge
from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import ModelNode
from promptiter.backprop.iteration_record import get_iteration
from promptiter.engine.engine import Engine
from promptiter.engine.session import Search, Session
from promptiter.errors import RequestError, SetupError
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import Message, ModelReply, ModelRequest
from promptiter.llm.models import ScriptedModel
from promptiter.profile import PatchSet, SurfacePatch
from promptiter.registry import SEARCHES
from promptiter.runlog.journal import MemoryJournal
from promptiter.search.few_shot import FewShotSearch
from promptiter.search.gepa import GepaSearch
from promptiter.search.rounds import BackpropRounds
from promptiter.search.session_examples import SessionExamples
from tests.marks import take_some
from tests.worlds import convention
from tests.worlds.convention import CueWriter, build_agent, build_evaluator, build_request, has_reached, run_search
from tests.worlds.desk import Watcher
from traces.model import Json

pytestmark = pytest.mark.slow

EXAMPLES, INSTRUCTION = "sorter#examples", "sorter#instruction"


async def test_examples_teach_a_convention_that_no_rule_does() -> None:
    watcher = Watcher()
    engine = Engine(build_agent(), build_evaluator(0), search=FewShotSearch())
    result = await engine.run(build_request(0, targets=[EXAMPLES]), observers=[watcher])
    assert has_reached(result)
    assert (result.baseline_score or 0) < 0.4
    [change] = result.changes
    assert change.surface_id == EXAMPLES
    train = {case.turns[0].user: case.turns[0].expected for case in convention.build_sets(0)[0].cases}
    shown = [each["content"] for each in change.after]
    assert all(train[user] == desk for user, desk in zip(shown[::2], shown[1::2], strict=True))
    assert {event.phase for event in watcher.events if event.type == "evaluation_started"} >= {"train", "screening"}
    assert "on 24 train cases" in " ".join(str(each.decision) for each in result.rounds[0].candidates)


async def test_sets_of_examples_are_screened_on_cases_that_none_of_them_shows() -> None:
    result = await run_search(FewShotSearch(k=4), 1, targets=[EXAMPLES], max_rounds=1)
    [only] = result.rounds
    shown = {case for each in only.candidates for patch in each.patches for case in patch.evidence.cases}
    screened = {row.case_id for each in only.all_evaluations if each.phase == "screening" for row in each.rows}
    assert screened
    assert not screened & shown


async def test_rewriting_does_not_reach_what_examples_do() -> None:
    for search in (BackpropRounds(), BackpropRounds(optimizer=CueWriter())):
        assert not has_reached(await run_search(search, 0, targets=[INSTRUCTION]))


async def test_backprop_patches_examples_of_a_blamed_node_together_with_its_instruction() -> None:
    result = await run_search(BackpropRounds(), 1, targets=[INSTRUCTION, EXAMPLES])
    assert has_reached(result)
    assert EXAMPLES in {change.surface_id for change in result.changes}
    [first] = result.rounds
    shown = next(patch.evidence.cases for patch in first.patches if patch.surface_id == EXAMPLES)
    [rerun] = [each for each in first.all_evaluations if each.phase == "rerun"]
    assert not {row.case_id for row in rerun.rows} & set(shown)


async def test_gepa_changes_examples_and_does_not_show_the_cases_of_its_gate() -> None:
    search = GepaSearch(reflection_minibatch_size=12)
    result = await run_search(search, 1, targets=[INSTRUCTION, EXAMPLES])
    assert has_reached(result)
    for each in result.rounds:
        iteration = get_iteration(each)
        assert iteration is not None
        shown = {case for patch in each.patches if patch.surface_id == EXAMPLES for case in patch.evidence.cases}
        assert not shown & set(iteration.minibatch)


async def test_gepa_selects_examples_where_a_model_rewrites_the_texts() -> None:
    def keep(request: ModelRequest) -> ModelReply:
        raise AssertionError(f"no model is asked for examples: {request}")

    search = GepaSearch(reflection_model="editor", reflection_minibatch_size=12)
    evaluator = build_evaluator(1)
    evaluator.gateway.add_model("editor", ScriptedModel(keep))
    asked = build_request(1, targets=[EXAMPLES], max_rounds=2)
    result = await Engine(build_agent(), evaluator, search=search).run(asked)
    assert "there are no train cases yet that new examples could show" in str(result.rounds[0].decision)
    assert [change.surface_id for change in result.changes] == [EXAMPLES]


@pytest.mark.long
async def test_examples_reach_in_nine_of_ten_seeds_and_rewriting_in_at_most_three() -> None:
    async def count(build: Callable[[], Search], *targets: str) -> int:
        return sum([has_reached(await run_search(build(), seed, targets=targets)) for seed in range(10)])

    assert await count(FewShotSearch, EXAMPLES) >= 9
    assert await count(BackpropRounds, INSTRUCTION, EXAMPLES) >= 9
    assert await count(lambda: GepaSearch(reflection_minibatch_size=12), INSTRUCTION, EXAMPLES) >= 9
    assert await count(lambda: FewShotSearch(strategy="random"), EXAMPLES) < 9
    rewriting: list[Callable[[], Search]] = [
        BackpropRounds,
        GepaSearch,
        lambda: BackpropRounds(optimizer=CueWriter()),
        lambda: GepaSearch(optimizer=CueWriter(), reflection_minibatch_size=12),
    ]
    assert all([await count(each, INSTRUCTION) <= 3 for each in rewriting])


@pytest.mark.slow
@pytest.mark.parametrize("search", take_some(["few_shot", "optuna", "backprop", "gepa"], ["few_shot"]))
async def test_a_run_resumes_at_any_event_with_the_same_result(search: str) -> None:
    async def run(journal: MemoryJournal) -> object:
        searches: dict[str, Search] = {
            "few_shot": FewShotSearch(trials=4, batch_size=2),
            "optuna": FewShotSearch(strategy="optuna", trials=6, batch_size=2),
            "backprop": BackpropRounds(),
            "gepa": GepaSearch(reflection_minibatch_size=12),
        }
        engine = Engine(build_agent(), build_evaluator(3), search=searches[search])
        asked = build_request(3, targets=[INSTRUCTION, EXAMPLES], max_rounds=2, stop=None)
        return await engine.run(asked, journal=journal)

    whole = MemoryJournal()
    expected = await run(whole)
    events = list(whole.events)
    for count in range(1, len(events), max(1, len(events) // 6)):
        journal = MemoryJournal()
        for event in events[:count]:
            await journal.append(event)
        assert await run(journal) == expected


class _Leak:
    """A search that proposes a validation case as an example."""

    def __init__(self, case: EvalCase) -> None:
        self._turn = case.turns[0]

    async def search(self, session: Session) -> None:
        await session.begin_round()
        messages: Json = [
            {"role": "user", "content": self._turn.user},
            {"role": "assistant", "content": self._turn.expected},
        ]
        assert session.find_hidden_repeat(messages)
        await session.validate(PatchSet((SurfacePatch(surface_id=EXAMPLES, value=messages, reason="leaked"),)))
        await session.complete_round()


async def test_a_session_rejects_examples_that_repeat_validation_or_test_cases_without_running_them() -> None:
    _, validation, test = convention.build_sets(0)
    for case in (validation.cases[0], test.cases[0]):
        result = await run_search(_Leak(case), 0, targets=[EXAMPLES])
        [only] = result.rounds
        assert only.decision is not None
        assert only.decision.reason == (
            "sorter#examples: message 1 of the examples has the input of a validation or test case; "
            "it would be judged by an answer that it was shown"
        )
        assert result.changes == ()
        assert {each.phase for each in only.all_evaluations} == set()


async def test_train_cases_that_repeat_validation_cases_are_not_shown() -> None:
    train, validation, _ = convention.build_sets(0)
    repeated = replace(train.cases[0], id="repeated", context=(Message("user", "Hello"),))
    more = replace(validation, cases=(*validation.cases, repeated))
    asked = build_request(0, targets=[EXAMPLES], validation=more, max_rounds=1)
    pools: list[SessionExamples] = []

    class Collect:
        async def search(self, session: Session) -> None:
            examples = SessionExamples(session)
            evaluation = await session.evaluate(session.train, session.accepted.profile, phase="train")
            await examples.add(evaluation, session.train, session.accepted.profile)
            pools.append(examples)

    await Engine(build_agent(), build_evaluator(0), search=Collect()).run(asked)
    [found] = pools
    pool = found.build_writer().pool
    shown = {each.case_id for each in pool.list_exchanges("sorter")}
    assert {case.id for case in train.cases} - shown == {train.cases[0].id}


async def test_examples_of_the_users_own_stay_if_they_show_a_train_case() -> None:
    turn = convention.build_sets(0)[0].cases[0].turns[0]
    own = [Message("user", turn.user), Message("assistant", "amber, as I say")]
    agent = build_agent(examples=own)
    asked = build_request(0, targets=[EXAMPLES])
    result = await Engine(agent, build_evaluator(0), search=FewShotSearch(strategy="length")).run(asked)
    [change] = result.changes
    users = [each["content"] for each in change.after if each["role"] == "user"]
    assert [each["content"] for each in change.after[:2]] == [each.content for each in own]
    assert users.count(turn.user) == 1
    assert len(users) > 2


async def test_a_study_searches_examples_as_a_baseline() -> None:
    result = await run_search(FewShotSearch(strategy="optuna", trials=8), 0, targets=[EXAMPLES], max_rounds=2)
    assert (result.accepted_score or 0) > (result.baseline_score or 0) + 0.3
    first = result.rounds[0]
    assert [each.type for each in first.notes] == ["examples_asked"]
    assert len(first.candidates) == 4
    again = await run_search(FewShotSearch(strategy="optuna", trials=8), 0, targets=[EXAMPLES], max_rounds=2)
    assert again == result


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "k is 0"),
        ({"trials": 0}, "trials is 0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"strategy": "best"}, "strategy is 'best'; give 'coverage'"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(SetupError, match=message):
        FewShotSearch(**options)  # type: ignore[arg-type]


async def test_a_run_without_examples_among_its_targets_says_what_to_add() -> None:
    with pytest.raises(RequestError, match="add sorter#examples to the targets"):
        await run_search(FewShotSearch(), 0, targets=[INSTRUCTION])


@pytest.mark.parametrize(
    ("search", "targets", "kept"),
    [
        (FewShotSearch(trials=1), [INSTRUCTION, EXAMPLES], [INSTRUCTION]),
        (GepaSearch(), ["sorter#model", INSTRUCTION], ["sorter#model"]),
        (FewShotSearch(trials=1), [EXAMPLES], []),
        (BackpropRounds(), [INSTRUCTION, EXAMPLES], []),
    ],
)
async def test_a_run_reports_targets_that_its_search_cannot_change(
    search: Search, targets: list[str], kept: list[str]
) -> None:
    result = await run_search(search, 0, targets=targets, max_rounds=1)
    found = [each for each in result.problems if "cannot change" in each]
    assert found == [f"this search cannot change some targets, so they keep their values: {name}" for name in kept]


async def test_a_run_with_one_set_is_refused() -> None:
    cases = convention.build_sets(0)[0]
    with pytest.raises(RequestError, match="give a validation set of its own"):
        await run_search(FewShotSearch(), 0, targets=[EXAMPLES], train=None, validation=None, test=None, cases=cases)


async def test_a_search_without_usable_cases_says_why() -> None:
    train, *_ = convention.build_sets(0)
    cases = tuple(replace(each, turns=(Turn(user="x" * 2000 + each.id, expected="amber"),)) for each in train.cases)
    result = await run_search(FewShotSearch(), 0, targets=[EXAMPLES], train=replace(train, cases=cases))
    assert "no examples could be made of the train cases" in str(result.rounds[0].decision)


async def test_nodes_get_examples_of_their_own_steps() -> None:
    """A reader passes a number on; a clerk answers like its examples, and gets its input from the reader."""

    def answer(request: ModelRequest) -> ModelReply:
        *shown, asked = request.messages
        if request.model == "reader":
            return ModelReply(text=asked.content.rpartition(" ")[2])
        return ModelReply(text=f"#{asked.content}" if len(shown) > 1 else asked.content)

    nodes = (
        ModelNode(name="reader", model="reader", instruction="Read."),
        ModelNode(name="clerk", model="clerk", instruction="Answer."),
    )
    agent = GraphAgent(name="pair", nodes=nodes, edges=(Edge("reader", "clerk"),))

    def cases(name: str, start: int) -> tuple[EvalCase, ...]:
        turns = [Turn(user=f"{name} number {start + at}", expected=f"#{start + at}") for at in range(8)]
        return tuple(EvalCase(id=f"{name}{at}", turns=(each,)) for at, each in enumerate(turns))

    train, validation = (
        EvalSet(id=name, cases=cases(name, start)) for name, start in (("train", 10), ("validation", 50))
    )
    targets = ["clerk#examples", "reader#examples"]
    asked = build_request(0, targets=targets, train=train, validation=validation, test=None)
    evaluator = build_evaluator(0)
    evaluator = type(evaluator)(
        evaluator.metrics, gateway=Gateway(models=dict.fromkeys(("reader", "clerk"), ScriptedModel(answer)))
    )
    result = await Engine(agent, evaluator, search=FewShotSearch()).run(asked)
    assert result.accepted_score == 1.0
    [change] = result.changes  # no run passes, and the reader does not give the answer
    assert change.surface_id == "clerk#examples"
    user, assistant = change.after[0]["content"], change.after[1]["content"]
    assert assistant == f"#{user}"


def test_the_search_is_registered() -> None:
    assert SEARCHES.get("few_shot") is FewShotSearch
