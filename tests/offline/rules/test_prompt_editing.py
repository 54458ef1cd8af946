from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptiter.offline.rules.prompt_editing import Ask, Prompt, add_sentence
from promptiter.offline.rules.rule_templates import phrase_rule
from promptiter.sentences import split_sentences

EDITED: list[tuple[str, Ask, str]] = [
    ("Keep the date and the amount.", Ask("field_carried", ("order id",)),
     "Keep the date, the amount and the order id."),
    ("Keep the date.", Ask("field_carried", ("order id", "city")), "Keep the date, the order id and the city."),
    ("Always pass on the date and amount to the next step.", Ask("field_carried", ("order id",)),
     "Always pass on the date, amount and the order id to the next step."),
    ("Never leave out the date.", Ask("field_carried", ("order id",)), "Never leave out the date and the order id."),
    ("Do not mention the order id.", Ask("field_carried", ("order id",)),
     phrase_rule("field_carried", ("order id",))[0]),
    ("Do not mention the date.", Ask("field_carried", ("order id",)),
     f"Do not mention the date. {phrase_rule('field_carried', ('order id',))[0]}"),
    ("Answer in at most 100 words.", Ask("max_length", ("30", "words")), "Answer in at most 30 words."),
    ("Write at least five sentences.", Ask("min_length", ("2", "sentences")), "Write at least 2 sentences."),
    ("Be detailed.", Ask("max_length", ("30", "words")), "Answer in at most 30 words."),
    ("Round to 3 decimal places.", Ask("decimals", ("2",)), "Write amounts with exactly 2 decimal places."),
    ("Write dates as MM/DD/YYYY.", Ask("date_format", ("YYYY-MM-DD",)), "Write dates as YYYY-MM-DD."),
    ("Reply in English, please.", Ask("language", ("French",)), "Reply in French, please."),
    ("Use bullet points.", Ask("json_object"), "Answer with a JSON object."),
    ("Write in lower case.", Ask("upper_case"), "Write your answer in upper case."),
    ('Start your reply with "Hi".', Ask("prefix", ("Dear",)), 'Begin your answer with "Dear".'),
    ("Answer in full sentences.", Ask("value_only"), "Give only the answer itself, with no other text."),
    ("Do not call search.", Ask("call_tool", ("search",)), "Call the search tool before you answer."),
    ('Answer "play" if the input mentions "drink".', Ask("label_cue", ("bar", "drink")),
     'Answer "bar" when the input mentions "drink".'),
    ('If it mentions "tea", "drink" or "cake", answer "play".', Ask("label_cue", ("bar", "drink")),
     'If it mentions "tea" or "cake", answer "play". Answer "bar" when the input mentions "drink".'),
    ("Route it to play if it mentions a drink or a drama.", Ask("label_cue", ("bar", "drink")),
     'Route it to play if it mentions a drama. Answer "bar" when the input mentions "drink".'),
    ('Answer "play" if the input mentions "drama".', Ask("label_cue", ("bar", "drink")),
     'Answer "play" if the input mentions "drama". Answer "bar" when the input mentions "drink".'),
    ("You serve drinks and a drink.", Ask("label_cue", ("bar", "drink")),
     'You serve drinks and a drink. Answer "bar" when the input mentions "drink".'),
    ("You are a clerk.", Ask("language", ("French",)), "You are a clerk. Answer in French."),
    ("The customer speaks German.", Ask("upper_case"), "The customer speaks German. Write your answer in upper case."),
]  # fmt: skip


@pytest.mark.parametrize(("text", "wish", "expected"), EDITED)
def test_a_sentence_on_the_same_subject_is_edited(text: str, wish: Ask, expected: str) -> None:
    known = ("amount", "city", "date", "order id")
    ways = Prompt(text=f"You help. {text}", known_fields=known).list_ways(wish)
    assert ways[0] == f"You help. {expected}"
    assert len(ways) == len(set(ways))
    assert f"You help. {text}" not in ways


def test_a_sentence_on_two_subjects_is_kept() -> None:
    text = "Answer in lower case and in JSON."
    assert Prompt(text=text).list_ways(Ask("upper_case"))[0] == f"{text} Write your answer in upper case."


def test_locked_sentences_are_kept() -> None:
    text = "Answer in at most 100 words. Be kind."
    ways = Prompt(text=text, locked=("at most 100 words",)).list_ways(Ask("max_length", ("30", "words")))
    assert ways[0] == f"{text} Answer in at most 30 words."


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "Go."),
        ("You help.", "You help. Go."),
        ("You help", "You help\nGo."),
        ("You help.\n", "You help. Go.\n"),
        ("Rules:\n- Be kind.\n- Be quick.", "Rules:\n- Be kind.\n- Be quick.\n- Go."),
        ("1. Be kind.\n2. Be quick", "1. Be kind.\n2. Be quick\n3. Go."),
        ("  * one", "  * one\n  * Go."),
        ("You help.\n\nQuestion: {input}", "You help. Go.\n\nQuestion: {input}"),
        ("{input}", "{input}\nGo."),
        ("Read {input}.", "Read {input}. Go."),
    ],
)
def test_a_sentence_is_added_where_it_belongs(text: str, expected: str) -> None:
    assert add_sentence(text, "Go.") == expected


@given(st.text('aB .!?\n-*1)#"{}', max_size=60))
def test_sentences_are_where_they_say(text: str) -> None:
    sentences = split_sentences(text)
    assert all(text[each.start : each.end] == each.text for each in sentences)
    assert all(first.end <= second.start for first, second in pairwise(sentences))
    gone = "".join(each.text for each in sentences)
    assert gone.replace(" ", "").replace("\n", "") in text.replace(" ", "").replace("\n", "") or len(sentences) > 1
