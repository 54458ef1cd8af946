from __future__ import annotations

import pytest

from promptiter.engine.hidden_cases import (
    NEARLY_REPEATED_INPUT,
    REPEATED_ANSWER,
    REPEATED_INPUT,
    HiddenCases,
)
from promptiter.evaluation.data.case import EvalCase, Turn
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
    assert find(user, hidden=(case(LONG),)) == f"message 1 of the examples {REPEATED_INPUT}"


def test_an_input_that_differs_in_a_word_is_found_unless_it_is_that_of_a_train_case() -> None:
    words = [f"word{number}" for number in range(40)]
    nearly, hidden = " ".join(["Hello", *words]), (case(" ".join(["Hi", *words])),)
    assert find(nearly, hidden=hidden).endswith(NEARLY_REPEATED_INPUT)
    assert find(nearly, hidden=hidden, known=(case(nearly),)) == ""


def test_texts_without_spaces_between_words_are_found_in_longer_ones() -> None:
    hidden = (case("我的包裹在哪里", "在里昂仓库里等待取件"), case("可以退款吗", "可以退"))
    assert find("请问我的包裹在哪里呢", hidden=hidden).endswith(REPEATED_INPUT)
    assert find("你好", "它现在在里昂仓库里等待取件。", hidden=hidden).endswith(REPEATED_ANSWER)
    assert find("请问可以退款吗", "这个可以退的", hidden=hidden) == ""  # short ones count as whole messages only
    assert find("可以退款吗", hidden=hidden).endswith(REPEATED_INPUT)


def test_short_inputs_are_found_only_as_whole_messages() -> None:
    hidden = (case("Rome"),)
    assert find("rome!", hidden=hidden).endswith(REPEATED_INPUT)
    assert find("Where is Rome?", hidden=hidden) == ""


def test_an_answer_of_a_hidden_case_is_found_in_an_answer_of_another_question() -> None:
    hidden = (case("Which policy?", "Returns within 45 days of delivery"),)
    found = find("Another question", "We take returns within 45 days of delivery.", hidden=hidden)
    assert found == f"message 2 of the examples {REPEATED_ANSWER}"


def test_labels_and_what_train_cases_expect_may_be_repeated() -> None:
    labels = (case("a first one", "billing"), case("a second one", "billing"))
    assert find("A question", "billing", hidden=labels) == ""
    only = (case("a first one", "Ouagadougou"),)
    assert find("A question", "Ouagadougou", hidden=only).endswith(REPEATED_ANSWER)
    assert find("A question", "Ouagadougou", hidden=only, known=(case("b", "Ouagadougou"),)) == ""


def test_a_bare_number_is_the_answer_to_many_questions() -> None:
    assert find("What is 3 + 4?", "7", hidden=(case("What is 5 + 2?", "7"),)) == ""


def test_texts_in_json_answers_are_found() -> None:
    hidden = (case("Where?", '{"queue": "other", "reply": "We will send a new lamp to Ines."}'),)
    found = find("A question", "Say: we will send a new lamp to Ines", hidden=hidden)
    assert found.endswith(REPEATED_ANSWER)
    assert find("A question", '{"queue": "other"}', hidden=hidden) == ""


def test_messages_of_the_baseline_may_repeat_anything() -> None:
    examples = talk(LONG, "fine")
    assert HiddenCases([case(LONG)]).find_repeat(examples, own=examples) == ""
