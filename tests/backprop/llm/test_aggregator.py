from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptiter.backprop.llm.aggregator import MOST_BATCHES, LLMAggregator, pack_points
from promptiter.backprop.llm.feedback_points import collect_points
from promptiter.backprop.llm.prompts import MAX_PROMPT_TOKENS, MIN_PROMPT_TOKENS, compute_points_room
from promptiter.backprop.llm.truncation import approximate_tokens
from promptiter.errors import BudgetEndedError, ModelUnavailableError
from promptiter.llm.budget import Budget
from promptiter.llm.gateway import Gateway
from promptiter.llm.litellm import LiteLLMModel
from promptiter.llm.messages import Message, ModelReply, ModelRequest
from promptiter.llm.models import ScriptedModel
from promptiter.llm.retries import Retries
from promptiter.stages.contracts import AggregateRequest, SurfaceGradient
from promptiter.stages.losses import Category, Severity
from tests.backprop.llm.test_prompts import INSTRUCTION, prompt_tokens
from tests.worlds.model_server import CONTENT_FAULTS, LoopbackServer, run_server

RULES = ("Repeat the order id in the answer.", "Give dates in ISO form.", "Name the carrier of the parcel.")


def gradient(text: str, case_id: str = "c1", **fields: Any) -> SurfaceGradient:
    return SurfaceGradient(surface_id="writer#instruction", case_id=case_id, step_id="writer", text=text, **fields)


def request(*gradients: SurfaceGradient) -> AggregateRequest:
    return AggregateRequest(surface=INSTRUCTION, gradients=gradients, failed_cases=9, all_cases=10)


def aggregator(script: Any, **options: Any) -> tuple[LLMAggregator, ScriptedModel]:
    model = ScriptedModel(script)
    retries = Retries(attempts=1)
    return LLMAggregator("m", gateway=Gateway(models={"m": model}, retries=retries), **options), model


def answer(text: str, *joins: int) -> str:
    return json.dumps({"points": [{"text": text, "joins": joins}]})


async def test_a_single_gradient_is_the_signal_without_a_call() -> None:
    stage, _ = aggregator([])
    result = await stage.aggregate(request(gradient("Repeat the id.", severity="P2", category="format")))
    assert (result.surface_id, result.text, result.severity) == ("writer#instruction", "Repeat the id.", "P2")
    assert (result.categories, result.case_ids, result.support) == ({"format": 1}, ("c1",), 1.0)


async def test_a_text_that_all_gradients_share_is_the_signal_without_a_call() -> None:
    stage, _ = aggregator([])
    result = await stage.aggregate(request(*(gradient("Repeat  the id.", f"c{n}") for n in range(37))))
    assert result.text == "Repeat  the id."
    assert result.support == 37.0


async def test_no_gradients_make_an_empty_signal() -> None:
    stage, _ = aggregator([])
    result = await stage.aggregate(request())
    assert (result.text, result.support, result.case_ids) == ("", 0.0, ())


async def test_several_points_take_one_call_with_their_counts() -> None:
    stage, model = aggregator([answer(" Repeat the id. ")])
    said = [gradient(RULES[0], f"c{n}", severity="P1") for n in range(37)]
    said += [gradient(RULES[1], "c1", severity="P0", category="format"), gradient(RULES[2], "c2", severity="P3")]
    result = await stage.aggregate(request(*said))
    assert result.text == "Repeat the id."
    assert result.error is None
    (asked,) = model.requests
    assert [
        as_line for as_line in asked.text.splitlines() if as_line[:1].isdigit() and "case" in as_line and "P" in as_line
    ] == [
        f"1. 1 case, P0, format: {RULES[1]}",
        f"2. ×37, 37 cases, P1, other: {RULES[0]}",
        f"3. 1 case, P3, other: {RULES[2]}",
    ]
    assert "9 of 10 cases failed." in asked.text
    assert INSTRUCTION.value in asked.text


async def test_the_reasons_of_the_metrics_are_shown_each_once_with_the_points_behind_them() -> None:
    stage, model = aggregator([answer("Repeat the id.")])
    late, short = "tone: it comes too late", "judge: it speaks of parental leave"
    said = [
        gradient(rule, f"c{n}", reasons=(each,))
        for n, (rule, each) in enumerate(zip(RULES, (late, short, late), strict=True))
    ]
    await stage.aggregate(request(*said))
    (asked,) = model.requests
    lines = [line.partition(". ")[2] for line in asked.text.splitlines()]
    assert (lines.count(late), lines.count(short)) == (1, 1)


async def test_the_order_of_gradients_makes_no_difference() -> None:
    said = [gradient(rule, f"c{n}", severity=severity) for n, rule in enumerate(RULES) for severity in ("P0", "P2")]
    asked = []
    for seed in range(3):
        random.Random(seed).shuffle(said)
        stage, model = aggregator([answer("text")])
        await stage.aggregate(request(*said))
        asked.append(model.requests[0].digest)
    assert len(set(asked)) == 1


def test_near_equal_texts_are_one_point_with_the_most_frequent_wording() -> None:
    base = "The answer has to repeat the order id that the customer gave in the first message"
    said = [gradient(base, "c1"), gradient(base, "c2"), gradient(base + " again", "c3", severity="P0")]
    (point,) = collect_points([*said, gradient(base.upper() + "!", "c4")])
    assert (point.text, point.count, len(point.case_ids), point.severity) == (base, 4, 4, "P0")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            "Use the ISO form for all of the dates in an answer",
            "Do not use the ISO form for all of the dates in an answer",
        ),
        ("回答时请务必使用客户提供的订单编号并注明日期", "回答时请务必不使用客户提供的订单编号并注明日期"),
        ("Repeat the id.", "Repeat the date."),
    ],
)
def test_opposite_texts_are_never_merged(one: str, other: str) -> None:
    assert len(collect_points([gradient(one), gradient(other)])) == 2


LONG_RULE = "When the customer writes about a return, the answer has to follow {} before it says anything about refunds"


@pytest.mark.parametrize(
    "names",
    [
        [f"R{number:02}" for number in range(12)],
        [f"rule {number}" for number in range(12)],
        [f'"{word}"' for word in "abcdefghijkl"],
        [f"check_{word}" for word in "abcdefghijkl"],
        ["kettle", "lamp", "drill", "jacket", "phones", "blender", "saw", "coat", "speaker", "tent", "stove", "desk"],
    ],
)
def test_long_texts_that_differ_in_the_name_of_a_rule_are_different_points(names: list[str]) -> None:
    said = [gradient(LONG_RULE.format(name), f"c{number}") for number, name in enumerate(names * 2)]
    points = collect_points(said)
    assert [len(point.case_ids) for point in points] == [2] * 12


def test_texts_that_differ_in_the_form_of_a_word_or_in_added_words_are_one_point() -> None:
    text = LONG_RULE.format("the terms")
    for other in (text.replace("refunds", "refunding"), f"{text} at all"):
        assert len(collect_points([gradient(text), gradient(other, "c2")])) == 1


async def test_each_point_of_the_signal_has_the_evidence_of_the_points_that_it_joins() -> None:
    replies = {"points": [{"text": "Name ids.", "joins": [1, 3, 99]}, {"text": "Use ISO dates.", "joins": [2]}]}
    stage, _ = aggregator([json.dumps(replies)])
    said = [gradient(rule, f"c{number}", id=f"g{number}") for number, rule in enumerate(RULES)]
    result = await stage.aggregate(request(*said, gradient(RULES[0], "c9", id="g9")))
    assert result.text == "1. Name ids. (3 cases)\n2. Use ISO dates. (1 case)"
    assert [(point.text, point.case_ids, point.gradient_ids) for point in result.points] == [
        ("Name ids.", ("c0", "c2", "c9"), ("g0", "g9", "g2")),
        ("Use ISO dates.", ("c1",), ("g1",)),
    ]


async def test_an_answer_of_plain_text_rests_on_all_gradients() -> None:
    stage, _ = aggregator([json.dumps({"text": "Be exact."})])
    result = await stage.aggregate(request(*(gradient(rule, rule[:4], id=rule[:4]) for rule in RULES)))
    assert (result.text, len(result.points), len(result.points[0].gradient_ids)) == ("Be exact.", 1, 3)


async def test_a_model_that_joins_nothing_is_not_asked_forever() -> None:
    def keep(asked: ModelRequest) -> str:
        lines = [line for line in asked.messages[1].content.splitlines() if " case" in line and ": " in line]
        texts = [line.partition(": ")[2] for line in lines]
        return json.dumps({"points": [{"text": text, "joins": [n]} for n, text in enumerate(texts, 1)]})

    stage, model = aggregator(keep, max_prompt_tokens=MIN_PROMPT_TOKENS)
    gradients = distinct(40, words=60)
    result = await stage.aggregate(request(*gradients))
    assert len(result.points) == 40
    assert len(model.requests) < 40


def test_a_lone_surrogate_is_escaped() -> None:
    texts = {point.text for point in collect_points([gradient("half \ud83d"), gradient("whole 😀 of it")])}
    assert texts == {"half \\ud83d", "whole 😀 of it"}


def test_near_equal_chinese_texts_are_one_point() -> None:
    text = "回答时请务必使用客户提供的订单编号并注明日期"
    assert len(collect_points([gradient(text), gradient(text + "吧")])) == 1


async def test_counts_are_of_cases_and_weigh_each_by_its_best_confidence() -> None:
    said: list[tuple[str, Severity, Category, float]] = [
        ("c2", "P3", "format", 0.5),
        ("c2", "P1", "format", 0.25),
        ("c1", "P2", "response", 0.5),
        ("c1", "P2", "format", 0.125),
    ]
    gradients = [
        gradient(f"Rule number {n}", case, severity=severity, category=category, confidence=confidence)
        for n, (case, severity, category, confidence) in enumerate(said)
    ]
    stage, _ = aggregator([answer("text")])
    result = await stage.aggregate(request(*gradients))
    assert result.case_ids == ("c1", "c2")
    assert result.support == 1.0
    assert result.severity == "P1"
    assert result.categories == {"format": 2, "response": 1}
    assert list(result.categories) == ["format", "response"]


async def test_one_outlier_among_many_cases_does_not_set_the_severity() -> None:
    stage, _ = aggregator([answer("text")] * 2)
    freak = gradient(RULES[1], "freak", severity="P0")
    few = await stage.aggregate(request(freak, *(gradient(RULES[0], f"c{n}", severity="P2") for n in range(8))))
    many = await stage.aggregate(request(freak, *(gradient(RULES[0], f"c{n}", severity="P2") for n in range(99))))
    assert (few.severity, many.severity) == ("P0", "P2")


@pytest.mark.parametrize("empty", [answer(""), answer("  \n")])
async def test_an_empty_answer_falls_back_to_the_points(empty: str) -> None:
    stage, _ = aggregator([empty])
    result = await stage.aggregate(request(gradient(RULES[0]), gradient(RULES[1])))
    assert result.text == f"1. {RULES[1]} (1 case)\n2. {RULES[0]} (1 case)"
    assert result.error is None


async def test_a_failing_model_leaves_the_points_and_the_error() -> None:
    stage, _ = aggregator(["no JSON"] * 4)
    result = await stage.aggregate(request(gradient(RULES[0]), gradient(RULES[1])))
    assert RULES[0] in result.text
    assert result.error is not None
    assert result.error.startswith("BadAnswerError: 'm' gave no usable answer")


async def test_the_end_of_the_budget_is_not_a_failed_batch() -> None:
    gateway = Gateway(models={"m": ScriptedModel([])}, budget=Budget(max_tokens=10))
    stage = LLMAggregator("m", gateway=gateway)
    with pytest.raises(BudgetEndedError):
        await stage.aggregate(request(*(gradient(f"{word} " * 99, word) for word in WORDS[:500])))


WORDS = [f"{first}{second}{third}" for first in "bdfgklmn" for second in "aeiou" for third in "bcdfghjklmnprst"]


def distinct(count: int, *, words: int, seed: int = 0) -> list[SurfaceGradient]:
    rng = random.Random(seed)
    return [
        gradient(" ".join(rng.choices(WORDS, k=words)), f"c{n % 997}", severity=rng.choice(("P0", "P1", "P2")))
        for n in range(count)
    ]


def count_points(most: int) -> Callable[[ModelRequest], str]:
    """A model that refuses a prompt above the limit, and says how many points it saw."""

    def reply(asked: ModelRequest) -> str:
        assert prompt_tokens(asked.messages) <= most
        points = asked.messages[1].content.split('<data name="points">')[1].count(" case")
        return answer(f"{asked.digest[:8]} merged {points} points")

    return reply


@pytest.mark.long
@pytest.mark.parametrize(("count", "words", "limit"), [(10_000, 8, MAX_PROMPT_TOKENS), (2_000, 90, 2_500)])
async def test_ten_thousand_gradients_fit_and_take_a_bounded_number_of_calls(
    count: int, words: int, limit: int
) -> None:
    gradients = distinct(count, words=words)
    stage, model = aggregator(count_points(limit), max_prompt_tokens=limit)
    result = await stage.aggregate(request(*gradients))
    assert result.error is None
    assert "merged" in result.text
    assert len(result.case_ids) == 997
    assert 2 < len(model.requests) <= MOST_BATCHES + MOST_BATCHES // 2
    again, other = aggregator(count_points(limit), max_prompt_tokens=limit)
    assert await again.aggregate(request(*gradients[::-1])) == result
    assert sorted(each.digest for each in other.requests) == sorted(each.digest for each in model.requests)


async def test_ten_thousand_gradients_with_few_distinct_texts_take_one_call() -> None:
    rng = random.Random(1)
    stage, model = aggregator([answer("text")])
    await stage.aggregate(request(*(gradient(rng.choice(RULES), f"c{n}") for n in range(10_000))))
    assert len(model.requests) == 1


async def test_a_batch_that_fails_is_replaced_by_its_own_texts() -> None:
    def reply(asked: ModelRequest) -> str | ModelReply:
        if "word-0 " in asked.text:
            raise ModelUnavailableError("no connection")
        return answer("merged")

    stage, model = aggregator(reply, max_prompt_tokens=MIN_PROMPT_TOKENS)
    texts = [f"word-{n} " + " ".join(random.Random(n).choices(WORDS, k=60)) for n in range(30)]
    result = await stage.aggregate(request(*(gradient(text, f"c{n:02}") for n, text in enumerate(texts))))
    assert result.error is not None
    assert "no connection" in result.error
    assert len(result.case_ids) == 30
    assert len(model.requests) > 3
    assert result.text == "merged" or "word-0" in result.text


async def test_a_custom_prompt_gets_the_whole_request() -> None:
    def render(asked: AggregateRequest) -> tuple[Message, ...]:
        return (Message("user", "\n".join(each.text for each in asked.gradients)),)

    stage, model = aggregator([answer("all")], render=render)
    whole = request(*distinct(1_000, words=30))
    assert (await stage.aggregate(whole)).text == "all"
    assert model.requests[0].messages == render(whole)


@pytest.mark.slow
@given(st.lists(st.integers(1, 900), max_size=60), st.sampled_from((MIN_PROMPT_TOKENS, 5_000)))
def test_batches_keep_all_points_in_order_and_fit(lengths: list[int], limit: int) -> None:
    points = collect_points([gradient(f"n{n}x " * length) for n, length in enumerate(lengths)])
    room = compute_points_room(limit=limit)
    batches, left_out = pack_points(points, room=room)
    assert left_out == 0
    assert sum(map(len, batches)) == len(points)
    assert [point.case_ids for batch in batches for point in batch] == [point.case_ids for point in points]
    for batch in batches:
        assert approximate_tokens("\n".join(point.as_line() for point in batch)) <= room
    assert all(len(batch) > 1 for batch in batches[:-1])


@pytest.mark.long
async def test_faults_of_a_real_server_change_no_signal() -> None:
    def respond(body: dict[str, Any]) -> str:
        shown = body["messages"][1]["content"]
        return answer(f"first: {shown.split('1. 1 case, ')[1].splitlines()[0]}")

    async def signals(server: LoopbackServer) -> list[str]:
        model = LiteLLMModel(api_base=server.url, api_key="sk-loopback", timeout_s=10)
        retries = Retries(attempts=8, first_delay_s=0.01, max_delay_s=0.05)
        stage = LLMAggregator("openai/local", gateway=Gateway(models={"openai/local": model}, retries=retries))
        wholes = [request(gradient(f"Rule {n} of many."), gradient(RULES[0], "c2")) for n in range(24)]
        results = [await stage.aggregate(whole) for whole in wholes]
        assert {result.error for result in results} == {None}
        return [result.text for result in results]

    with run_server(LoopbackServer(respond)) as server:
        expected = await signals(server)
    with run_server(LoopbackServer(respond, fault_rate=0.5, seed=3)) as server:
        assert await signals(server) == expected
        assert set(CONTENT_FAULTS) <= set(server.faults)


@pytest.mark.slow
async def test_points_with_the_fewest_cases_are_left_out_first() -> None:
    rare = distinct(1_500, words=60, seed=4)
    shared = [gradient("Shared by many: " + RULES[0], f"s{n}", severity="P0") for n in range(50)]
    stage, model = aggregator(count_points(MIN_PROMPT_TOKENS), max_prompt_tokens=MIN_PROMPT_TOKENS)
    await stage.aggregate(replace(request(*rare, *shared), failed_cases=0, all_cases=0))
    first = next(each for each in model.requests if "Shared by many" in each.text)
    assert "×50, 50 cases, P0" in first.text
    assert "points of fewer cases are left out." in first.text
