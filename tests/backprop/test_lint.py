from __future__ import annotations

import random
import re
import string
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptiter.backprop.copied_text import RARE, RUN_CHARACTERS, RUN_WORDS, SHORTEST_INPUT
from promptiter.backprop.lint import Linter, LintRule
from promptiter.backprop.patch_writing import lint_patch
from promptiter.errors import SetupError
from promptiter.evaluation.data.case import EvalCase, ExpectedToolCall, Scenario, Turn
from promptiter.llm.messages import Message
from promptiter.profile import SurfacePatch
from promptiter.stages.optimizer import Rejection
from promptiter.structure import Limits, Surface, SurfaceType
from traces.model import Json

CURRENT = "Answer the question about the order in one short sentence."
BETTER = f"{CURRENT} Always name the day of delivery."


def surface(value: Json = CURRENT, type: SurfaceType = "instruction", **limits: Any) -> Surface:  # noqa: A002
    return Surface(node_id="writer", type=type, value=value, limits=Limits(**limits))


def problems(
    value: Json,
    on: Surface | None = None,
    *,
    rejected: tuple[Rejection, ...] = (),
    cases: tuple[EvalCase, ...] = (),
) -> list[tuple[LintRule, str]]:
    on = on or surface()
    patch = SurfacePatch(surface_id=on.id, value=value, reason="because")
    found = Linter(cases).find_problems(patch, surface=on, rejected=rejected)
    return [(problem.rule, problem.message) for problem in found]


def rules(value: Json, on: Surface | None = None, **given_: Any) -> list[LintRule]:
    return [rule for rule, _ in problems(value, on, **given_)]


def case(user: str, expected: str | None = None, *, case_id: str = "a", **fields: Any) -> EvalCase:
    return EvalCase(id=case_id, turns=(Turn(user=user, expected=expected),), **fields)


def test_a_better_text_has_no_problems() -> None:
    assert problems(BETTER) == []
    assert problems("A first text.", surface("")) == []
    assert problems(0.5, surface(0.3, "parameter", kind="number", maximum=1)) == []
    assert problems([{"role": "user", "content": "hi"}], surface([], "examples")) == []


def test_a_patch_of_another_surface_is_refused() -> None:
    patch = SurfacePatch(surface_id="writer#tool.search", value="x", reason="because")
    with pytest.raises(SetupError, match=r"for 'writer#tool.search', but the surface given is 'writer#instruction'"):
        Linter().find_problems(patch, surface=surface())


@pytest.mark.parametrize(
    ("value", "on", "message"),
    [
        (BETTER, surface(max_chars=60), "at most 60 are allowed"),
        (BETTER, surface(f"{CURRENT} Be kind.", locked=("Be kind.",)), "the locked part 'Be kind.' is missing"),
        ("Say {b}.", surface("Say {a}, {b}.", placeholders=("a",)), "the placeholder {a} is missing"),
        ({"text": BETTER}, surface(), "it must be text"),
        (2, surface(0.3, "parameter", kind="number", maximum=1), "not between"),
        ("opus", surface("haiku", "model", choices=("haiku", "sonnet")), "'opus' is not one of"),
        ([{"role": "system", "content": "x"}], surface([], "examples"), "must be text by one of"),
    ],
)
def test_limit_problems_are_reported_in_the_words_of_the_surface(value: Json, on: Surface, message: str) -> None:
    found = dict(problems(value, on))
    assert message in found["limits"]


@pytest.mark.parametrize(
    ("current", "new", "messages"),
    [
        ("Order {order_id}.", "The order {order_id}!", []),
        ("Order {order_id}.", "The order.", ["the placeholder {order_id} is gone; keep it"]),
        (
            "Order {order_id}.",
            "Order {order}.",
            [
                "the placeholder {order_id} is gone; keep it",
                "the placeholder {order} is new and nothing fills it; write it without braces",
            ],
        ),
        ("Pay {price:.2f} on {when!r}.", "On {when} pay {price}.", []),
        ("Hello {{ user.name }}", "Hi {{user.name}}", []),
        ("Hello {{name}}", "Hi {name}", ["the placeholder {{name}} is gone; keep it", "the placeholder {name} is new"]),
        ('Give {"city": "{city}"}.', 'Give {"town": "{city}", "n": {"a": 1}}.', []),
        ('Give {"city": {city}}.', 'Give {"city": 1}.', ["the placeholder {city} is gone"]),
        ("Plain.", 'Give {"a": {}}, {1}, {a, b}, {city: string}, { spaced } or {"x"}.', []),
        ("Plain.", r"Write \boxed{answer}, \frac{a}{b} or match \d{n}.", []),
        ("Plain.", "Write {a} and {a}.", ["the placeholder {a} is new"]),
    ],
)
def test_placeholders_must_stay_and_new_ones_are_refused(current: str, new: str, messages: list[str]) -> None:
    found = problems(new, surface(current))
    assert [rule for rule, _ in found] == ["placeholder"] * len(messages)
    assert all(found_message.startswith(message) for (_, found_message), message in zip(found, messages, strict=True))


def test_a_placeholder_named_in_the_limits_is_not_new() -> None:
    assert rules("Say {b}, {a}.", surface("Say {a}.", placeholders=("a", "b"))) == []


def test_the_braces_of_a_file_are_code() -> None:
    assert rules('print(f"{total}")', surface('print(f"{count}")', "file")) == []


@given(st.text(string.ascii_letters + "{}\"' :,", max_size=30), st.text("abcxyz_", min_size=1, max_size=6))
def test_keeping_all_text_and_adding_to_it_loses_no_placeholder(text: str, name: str) -> None:
    current = f"{text} {{{name}}} "
    assert "placeholder" not in rules(f"{current} and more", surface(current))
    assert "placeholder" in rules(current.replace(f"{{{name}}}", name), surface(current))


spaces = st.text(" \t\n\u00a0", min_size=1, max_size=3)


@given(st.lists(st.text(string.printable.strip(), min_size=1, max_size=6), max_size=8), st.data())
def test_an_unchanged_or_only_respaced_text_is_a_no_op(words: list[str], data: st.DataObject) -> None:
    current = " ".join(words)
    assert rules(current, surface(current)) == ["no_op"]
    respaced = "".join(word + data.draw(spaces) for word in words)
    assert "no_op" in rules(data.draw(st.just("") | spaces) + respaced, surface(current))


@given(st.lists(st.text("ab ", min_size=1, max_size=4), max_size=4), st.lists(st.text("ab ", max_size=4), max_size=4))
def test_a_text_is_a_no_op_only_if_its_words_are_the_same(before: list[str], after: list[str]) -> None:
    current, new = " ".join(before), " ".join(after)
    assert ("no_op" in rules(new, surface(current))) == (current.split() == new.split())


def test_equal_values_of_any_type_are_no_ops() -> None:
    examples = [{"role": "user", "content": "hi there"}]
    assert rules([{"role": "user", "content": " hi\nthere"}], surface(examples, "examples")) == ["no_op"]
    assert rules([{"role": "user", "content": "hi"}], surface(examples, "examples")) == []
    assert rules(0.3, surface(0.3, "parameter")) == ["no_op"]
    assert rules(CURRENT.upper()) == []


def rejection(value: Json, *, on: str = "writer#instruction", reason: str = "gain -0.10") -> Rejection:
    return Rejection(surface_id=on, value=value, reason=reason)


def test_a_rejected_value_is_not_tried_again_whatever_its_case_and_spaces() -> None:
    again = (rejection(BETTER, reason="old"), rejection(f"  {BETTER.upper()}\n"), rejection("other"))
    assert problems(BETTER, rejected=again) == [
        ("repeat", "this value was rejected before (gain -0.10); try another"),
    ]
    temperature = surface(0.3, "parameter")
    assert rules(0.7, temperature, rejected=(rejection(0.7, on=temperature.id),)) == ["repeat"]


def test_a_value_that_is_repeated_often_has_the_original_reason() -> None:
    first = rejection(BETTER)
    again = lint_patch(
        Linter(),
        SurfacePatch(surface_id=first.surface_id, value=BETTER, reason="because"),
        surface(CURRENT),
        tried=(first,),
    )
    assert again is not None
    assert again.kind == "repeated"
    assert problems(BETTER, rejected=(first, again)) == [
        ("repeat", "this value was rejected before (gain -0.10); try another"),
    ]


def test_a_repeated_value_with_a_problem_of_its_own_is_refused_for_that_problem() -> None:
    patch = SurfacePatch(surface_id=surface().id, value="", reason="")
    first = lint_patch(Linter(), patch, surface())
    assert first is not None
    again = lint_patch(Linter(), patch, surface(), tried=(first,))
    assert again is not None
    assert (again.reason, again.kind) == (first.reason, "repeated")
    assert first.reason == "the text is empty; write the complete new text"


def test_other_values_and_values_of_other_surfaces_are_not_repeats() -> None:
    assert rules(BETTER, rejected=(rejection(f"{BETTER} Or not."), rejection(BETTER, on="critic#instruction"))) == []


def test_a_text_may_not_be_emptied() -> None:
    assert rules(" \n") == ["empty"]
    assert rules(" \n", surface("")) == ["no_op"]
    assert rules([], surface([{"role": "user", "content": "hi"}], "examples")) == []


def test_a_text_may_grow_but_not_run_away() -> None:
    most = 4 * len(CURRENT) + 2_000
    assert rules("y" * most) == []
    assert rules("y" * (most + 1)) == ["growth"]


SHIPPING = ExpectedToolCall(name="ship", arguments={"to": "41 Castle Lane"})
LONG = "My parcel with the blue garden chairs has not arrived since last Tuesday, please help."


def test_examples_may_repeat_a_train_case_and_an_instruction_may_not() -> None:
    source = case("My parcel with the blue garden chairs has not arrived since last Tuesday", "We send them again.")
    shown = [{"role": "user", "content": source.turns[0].user}, {"role": "assistant", "content": "We send them again."}]
    assert rules(shown, surface([], "examples"), cases=(source,)) == []
    assert set(rules(f"{BETTER} {source.turns[0].user}: We send them again.", cases=(source,))) == {"copied"}


def test_a_long_run_of_words_from_a_case_is_copied() -> None:
    quoting = f"{BETTER} If the blue garden chairs has NOT arrived since last tuesday - please say so."
    ((rule, message),) = problems(quoting, cases=(case(LONG, case_id="c7"), case("Where is my order?", case_id="c8")))
    assert rule == "copied"
    assert message == (
        "'the blue garden chairs has NOT arrived since last tuesday - please' is copied from case 'c7'; "
        "say the rule behind it, not what a case says"
    )


@pytest.mark.parametrize("before", range(9))
def test_a_run_is_found_wherever_it_begins_in_a_case(before: int) -> None:
    run = "the blue garden chairs have not arrived yet"
    source = case(" ".join([*(f"w{number}" for number in range(before)), run, "and more"]))
    assert rules(f"{BETTER} Say that {run}, then.", cases=(source,)) == ["copied"]


def copies(new: str, source: EvalCase) -> list[str]:
    """The messages about passages that are copied word for word."""
    return [message for _, message in problems(new, cases=(source,)) if " is copied from " in message]


def test_fewer_words_or_words_in_another_order_are_not_copied() -> None:
    assert copies(f"{BETTER} Think of the blue garden chairs that has not come.", case(LONG)) == []
    assert copies(f"{BETTER} {' '.join(reversed(LONG.split()))}", case(LONG)) == []
    assert rules(f"{BETTER} It is to be in or at a.", cases=(case("so it is to be in or at a"),)) == []


def test_passages_of_the_current_text_are_not_copied() -> None:
    current = f"{CURRENT} For example: {LONG} Order ORD-2024-00017."
    copies = (case(f"{LONG} ORD-2024-00017", "Sorry for the delay"),)
    assert rules(f"{current} Be kind.", surface(current), cases=copies) == []
    assert rules(f"{current} Sorry for the delay.", surface(current), cases=copies) == ["copied"]


def test_a_run_ends_with_its_text() -> None:
    new = f"{BETTER} See the blue garden chairs over there today."
    assert copies(new, case("please see the blue garden", "chairs over there today or later")) == []
    assert len(copies(new, case("see the blue garden chairs over there today"))) == 1


@pytest.mark.parametrize(
    ("copied", "source"),
    [
        ("Sorry for the delay", case("Where is it?", "Sorry for the delay!")),
        ("Miriam Hollander", case("Who?", '{"customer": {"names": ["Miriam Hollander"]}}')),
        ("ORD-2024-00017", case("My order (ORD-2024-00017) is late.")),
        ("jane@example.org", case("Write to jane@example.org, please.")),
        (
            "41 Castle Lane",
            EvalCase(id="a", turns=(Turn(user="go", expected_tool_calls=(SHIPPING,)),)),
        ),
        (LONG, EvalCase(id="a", scenario=Scenario(starting_prompt="Hello", plan=LONG))),
        (LONG, case("Well?", context=(Message("user", LONG),))),
        ("北京市朝阳区建国路八十八号现代城一号楼", case("送到北京市朝阳区建国路八十八号现代城一号楼可以吗")),
    ],
)
def test_references_arguments_and_odd_names_of_a_case_are_copied(copied: str, source: EvalCase) -> None:
    assert rules(f"{BETTER} Say: {copied}.", cases=(source,)) == ["copied"]
    assert rules(BETTER, cases=(source,)) == []
    many = tuple(replace(source, id=str(number)) for number in range(RARE + 1))
    assert rules(f"{BETTER} Say: {copied}.", cases=many) == []


def test_short_answers_and_plain_long_words_are_not_copied() -> None:
    common = (case("Is it approximately right, unfortunately?", "refund now"), case("And this?", "yes"))
    assert rules(f"{BETTER} Say yes, refund now or unfortunately.", cases=common) == []


def test_few_shot_examples_may_be_made_of_cases() -> None:
    examples = [{"role": "user", "content": LONG}, {"role": "assistant", "content": "Sorry for the delay"}]
    assert rules(examples, surface([], "examples"), cases=(case(LONG, "Sorry for the delay"),)) == []


def test_at_most_three_passages_are_reported() -> None:
    names = [f"ORD-2024-0001{number}" for number in range(6)]
    found = problems(f"{BETTER} {'; '.join(names)}", cases=tuple(case(f"about {name}") for name in names))
    assert [message.split(" is ")[0] for _, message in found] == [repr(name) for name in names[:3]]


names = st.text(string.ascii_lowercase, min_size=1, max_size=5)


@given(st.lists(names, min_size=1, max_size=14), st.lists(names, max_size=3), st.integers(RARE + 1, 6))
def test_passages_that_many_cases_share_are_never_copied(shared: list[str], around: list[str], count: int) -> None:
    text = " ".join(shared)
    cases = tuple(case(f"{' '.join(around)} {text} {number}", text, case_id=str(number)) for number in range(count))
    assert "copied" not in rules(f"{CURRENT} {text}", cases=cases)


@given(
    st.lists(st.lists(st.sampled_from("abcd"), max_size=24), min_size=1, max_size=4),
    st.lists(st.sampled_from("abcd"), max_size=24),
)
def test_runs_are_found_as_by_reading_every_case(texts: list[list[str]], new: list[str]) -> None:
    """The oracle looks for every run of the new text in every case, and for every whole input in the new text."""
    spell = {letter: letter * 4 for letter in "abcd"}
    said = [" ".join(spell[letter] for letter in letters) for letters in texts]
    words = [spell[letter] for letter in new]
    runs = {" ".join(words[at : at + RUN_WORDS]) for at in range(len(words) - RUN_WORDS + 1)}
    assert all(len(run) >= RUN_CHARACTERS for run in runs)
    runs |= {text for text in said if len(text.split()) >= SHORTEST_INPUT and text in " ".join(words)}
    copied = any(1 <= sum(run in text for text in said) <= RARE for run in runs)
    cases = tuple(case(text, case_id=str(number)) for number, text in enumerate(said))
    found = problems(" ".join(words), surface("x"), cases=cases)
    assert any("is copied from case" in message for _, message in found) == copied


@given(st.text(max_size=40), st.text(max_size=40), st.text(max_size=40), st.text(max_size=40))
def test_any_texts_can_be_linted(current: str, new: str, user: str, expected: str) -> None:
    found = problems(new, surface(current), cases=(case(user, expected), case(f"{new} {user}", new)))
    assert all(message for _, message in found)
    assert found == problems(new, surface(current), cases=(case(user, expected), case(f"{new} {user}", new)))


def test_problems_come_in_a_fixed_order() -> None:
    value = f"{LONG} {'y' * 5_000}"
    found = rules(value, surface("Say {a}.", max_chars=9), rejected=(rejection(value),), cases=(case(LONG),))
    assert found == ["limits", "placeholder", "repeat", "growth", "copied"]


@pytest.mark.long
def test_a_linter_of_10_000_cases_lints_a_patch_in_milliseconds() -> None:
    rng = random.Random(7)
    vocabulary = ["".join(rng.choices(string.ascii_lowercase, k=6)) for _ in range(800)]
    cases = [case(" ".join(rng.choices(vocabulary, k=40)), case_id=str(number)) for number in range(10_000)]
    linter = Linter(cases)
    on = surface()
    patches = [
        SurfacePatch(surface_id=on.id, value=" ".join(rng.choices(vocabulary, k=250)), reason="because")
        for _ in range(20)
    ]
    started = time.thread_time()
    assert [linter.find_problems(patch, surface=on) for patch in patches] == [()] * 20
    assert (time.thread_time() - started) / 20 < 0.1
    copying = SurfacePatch(surface_id=on.id, value=f"{BETTER} {cases[77].turns[0].user}", reason="because")
    (found,) = linter.find_problems(copying, surface=on)
    assert re.search(r"copied from case '77';", found.message)
