from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import ModelNode
from promptiter.engine.engine import Engine
from promptiter.engine.hidden_cases import (
    ANSWER,
    INPUT,
    NEAR_INPUT,
    HiddenCases,
    PhraseIndex,
    ShingleIndex,
)
from promptiter.evaluation.data.case import EvalCase, Turn
from promptiter.evaluation.data.near_duplicates import NEAR
from promptiter.llm.messages import Message
from promptiter.testing.small_run import SmallRun
from traces.model import Json

LONG = "My parcel with the blue lamp has not arrived yet, where is it?"


def case(user: str, expected: str | None = None) -> EvalCase:
    return EvalCase(id=user, turns=(Turn(user=user, expected=expected),))


def talk(user: str, assistant: str) -> list[Json]:
    return [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]


def find(user: str, assistant: str = "fine", *, hidden: tuple[EvalCase, ...], known: tuple[EvalCase, ...] = ()) -> str:
    return HiddenCases(hidden, known).find_repeat(talk(user, assistant))


@pytest.mark.parametrize("user", [LONG, f"  {LONG.upper()} ", f"Ticket: {LONG}\nThanks"])
def test_an_example_with_the_input_of_a_hidden_case_is_found(user: str) -> None:
    assert find(user, hidden=(case(LONG),)) == f"message 1 of the examples has {INPUT}"


def test_an_input_that_differs_in_a_word_is_found_unless_it_is_that_of_a_train_case() -> None:
    words = [f"word{number}" for number in range(40)]
    nearly, hidden = " ".join(["Hello", *words]), (case(" ".join(["Hi", *words])),)
    assert find(nearly, hidden=hidden).endswith(NEAR_INPUT)
    assert find(nearly, hidden=hidden, known=(case(nearly),)) == ""


def test_texts_without_spaces_between_words_are_found_in_longer_ones() -> None:
    hidden = (case("我的包裹在哪里", "在里昂仓库里等待取件"), case("可以退款吗", "可以退"))
    assert find("请问我的包裹在哪里呢", hidden=hidden).endswith(INPUT)
    assert find("你好", "它现在在里昂仓库里等待取件。", hidden=hidden).endswith(ANSWER)
    assert find("请问可以退款吗", hidden=hidden) == ""  # a short input alone counts as a whole message only
    assert find("请问可以退款吗", "这个可以退的", hidden=hidden).endswith(ANSWER)
    assert find("可以退款吗", hidden=hidden).endswith(INPUT)


def test_short_inputs_are_found_only_as_whole_messages() -> None:
    hidden = (case("Rome"),)
    assert find("rome!", hidden=hidden).endswith(INPUT)
    assert find("Where is Rome?", hidden=hidden) == ""


def test_an_answer_of_a_hidden_case_is_found_in_an_answer_of_another_question() -> None:
    hidden = (case("Which policy?", "Returns within 45 days of delivery"),)
    found = find("Another question", "We take returns within 45 days of delivery.", hidden=hidden)
    assert found == f"message 2 of the examples has {ANSWER}"


def test_labels_and_what_train_cases_expect_may_be_repeated() -> None:
    labels = (case("a first one", "billing"), case("a second one", "billing"))
    assert find("A question", "billing", hidden=labels) == ""
    only = (case("a first one", "Ouagadougou"),)
    assert find("A question", "Ouagadougou", hidden=only).endswith(ANSWER)
    assert find("A question", "Ouagadougou", hidden=only, known=(case("b", "Ouagadougou"),)) == ""


def test_a_bare_number_is_the_answer_to_many_questions() -> None:
    assert find("What is 3 + 4?", "7", hidden=(case("What is 5 + 2?", "7"),)) == ""


def test_texts_in_json_answers_are_found() -> None:
    hidden = (case("Where?", '{"queue": "other", "reply": "We will send a new lamp to Ines."}'),)
    found = find("A question", "Say: we will send a new lamp to Ines", hidden=hidden)
    assert found.endswith(ANSWER)
    assert find("A question", '{"queue": "other"}', hidden=hidden) == ""


def test_messages_of_the_baseline_may_repeat_anything() -> None:
    examples = talk(LONG, "fine")
    assert HiddenCases([case(LONG)]).find_repeat(examples, own=examples) == ""


ORDER = "Where is order K4711 of Ines?"


@pytest.mark.parametrize(
    "messages",
    [
        talk("Order K4711", "lost"),
        talk("A question", "For order k4711 we say: lost."),
        talk("Say lost if the order is K4711", "fine"),
    ],
)
def test_an_id_of_a_hidden_case_with_its_answer_is_found_even_if_the_answer_is_a_label(messages: list[Json]) -> None:
    known = (case("Where is order K1234?", "lost"),)
    found = HiddenCases([case(ORDER, "lost"), case("Where is order K9999?", "lost")], known).find_repeat(messages)
    assert found == f"messages 1 to 2 of the examples together have {ANSWER}"


def test_an_id_without_the_answer_and_an_id_that_train_cases_have_may_be_shown() -> None:
    hidden = (case(ORDER, "lost"),)
    assert find("Order K4711", "sent", hidden=hidden, known=(case("Where is order K1234?", "lost"),)) == ""
    assert find("Order K4711", "lost", hidden=hidden, known=(case("Pay K4711", "lost"),)) == ""


def test_the_words_that_only_a_hidden_case_has_with_its_answer_are_found() -> None:
    hidden = (case("What is the capital of Burkina Faso?", "Ouagadougou"),)
    known = (case("What is the capital of France?", "Paris"),)
    answer = "Burkina is where Faso was, and people say that its largest city by far is called Ouagadougou"
    assert find("A question", answer, hidden=hidden, known=known).endswith(ANSWER)
    assert find("What is the capital of France?", "Paris", hidden=hidden, known=known) == ""


def test_a_short_answer_is_found_in_a_short_sentence_unless_train_cases_have_its_words() -> None:
    hidden = (case("Which town?", "Ouagadougou"), case("Is it?", "yes"))
    assert find("A question", "It is Ouagadougou.", hidden=hidden).endswith(ANSWER)
    assert find("A question", "It is Ouagadougou.", hidden=hidden, known=(case("In Ouagadougou?", "no"),)) == ""
    assert find("A question", "Yes, that can be done.", hidden=hidden) == ""


@pytest.mark.parametrize(
    "user",
    [
        '{"text": "My parcel with the blue lamp\\nhas not arrived yet, where is it?"}',
        "My par\u200bcel with the blue lamp has\u00a0not arrived yet -- where is it",
        "My parcel with the \uff42\uff4c\uff55\uff45 lamp has not arrived yet, where is it?",
        "My parcel with the bl\\u0075e lamp has not arrived yet, where is it?",
    ],
)
def test_encoded_and_differently_spaced_inputs_are_found(user: str) -> None:
    assert find(user, hidden=(case(LONG),)).endswith(INPUT)


def test_a_text_in_an_input_that_is_json_is_found_unless_a_train_case_has_it() -> None:
    hidden = (case(f'{{"from": "Ines", "text": "{LONG}"}}'),)
    assert find(LONG, hidden=hidden).endswith(INPUT)
    assert find(LONG, hidden=hidden, known=(case(f"Read: {LONG}"),)) == ""


def test_an_input_that_is_split_over_messages_is_found() -> None:
    halves = LONG[:28], LONG[28:]
    assert find(*halves, hidden=(case(LONG),)) == f"messages 1 to 2 of the examples together have {INPUT}"


def test_every_label_in_one_set_may_be_repeated_with_the_inputs_of_train_cases() -> None:
    labels = ("yes", "no", "unclear")
    known = tuple(case(f"Train question {at} about the garden", label) for at, label in enumerate(labels))
    hidden = tuple(case(f"Other question {at} about the house", label) for at, label in enumerate(labels))
    guard = HiddenCases(hidden, known)
    examples = [message for each in known for message in talk(each.turns[0].user, str(each.turns[0].expected))]
    assert guard.find_repeat(examples) == ""


WORDS = st.lists(st.sampled_from("abc"), min_size=1, max_size=6).map(lambda words: f" {' '.join(words)} ")


@given(st.lists(WORDS, max_size=8), WORDS)
def test_the_index_finds_the_phrases_that_a_text_has(phrases: list[str], text: str) -> None:
    assert PhraseIndex(phrases).find_all(text) == {each for each in phrases if each in text}


NUMBERS = st.frozensets(st.integers(0, 11), min_size=1)


@given(st.lists(NUMBERS, max_size=6), NUMBERS)
def test_the_index_finds_whether_a_set_is_near(sets: list[frozenset[int]], wanted: frozenset[int]) -> None:
    near = any(len(each & wanted) / len(each | wanted) >= NEAR for each in sets)
    assert ShingleIndex(sets).has_near(wanted) == near


async def test_own_examples_that_repeat_a_validation_case_are_reported() -> None:
    small = SmallRun()
    for question, is_repeated in (("validation question 1", True), ("another question", False)):
        examples = (Message("user", question), Message("assistant", "Yes, please."))
        node = ModelNode(name="clerk", instruction="Answer.", model="scripted", examples=examples)
        agent = GraphAgent(name="desk", nodes=(node,))
        engine = Engine(agent, small.engine.evaluator, search=small.engine.search)
        result = await engine.run(small.request)
        problem = (
            "clerk#examples: message 1 of the examples has the input of a validation or test case; the scores of that "
            "case say nothing, so remove one of them"
        )
        found = [each for each in result.measured.problems if each.startswith("clerk#examples")]
        assert found == [problem] * is_repeated
