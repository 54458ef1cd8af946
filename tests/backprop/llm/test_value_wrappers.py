from __future__ import annotations

import re

import pytest

from promptiter.backprop.llm.value_wrappers import unwrap_passage, unwrap_value
from promptiter.structure import Surface
from traces.model import Json

BARE = "Read the ticket.\n\nReturn the order id as it is written."


def surface(value: Json = "Read the ticket.", *, type: str = "instruction") -> Surface:  # noqa: A002 - its name
    return Surface(node_id="a", type=type, value=value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrapped",
    [
        BARE,
        f'<data name="current value">{BARE}</data>',
        f'<data name="current value">\n{BARE}\n</data>\n',
        f"Here is the improved instruction: {BARE}",
        f"Here's the updated system prompt:\n\n{BARE}",
        f"Sure! Here is the revised version of the instruction you asked for:\n{BARE}",
        f"**Improved instruction:**\n{BARE}",
        f"New value: {BARE}",
        f"```\n{BARE}\n```",
        f"```markdown\n{BARE}\n```\n",
        f"Here is the new prompt:\n```text\n{BARE}\n```\nI added a rule about order ids.",
        f'Here is the improved value:\n<data name="new value">\n```\n{BARE}\n```\n</data>',
        f'"{BARE}"',
        f"“{BARE}”",
        f"`{BARE}`",
        f"~~~\n{BARE}\n~~~",
        f"---\n{BARE}\n---",
        f"<new_instruction>\n{BARE}\n</new_instruction>",
        f"Instruction: {BARE}",
        f"OK. {BARE}",
        f"Here you go:\n\n{BARE}",
        f"Here is what I came up with:\n\n{BARE}",
        f"**Updated instruction**\n\n{BARE}",
        f"# Revised prompt\n---\n{BARE}",
        f"I have updated the prompt to name the id.\n\n{BARE}",
        f"{BARE}\n\nLet me know if you'd like any further changes.",
        f"{BARE}\n\n(Note: I kept the rest unchanged.)",
        f"```text\n{BARE}\n```\n\nThis version asks for the id.",
        f"Of course! Below is an improved instruction:\n\n{BARE}\n\n---\n\nFeel free to adjust the wording.",
    ],
)
def test_what_is_around_a_whole_value_is_stripped(wrapped: str) -> None:
    assert unwrap_value(wrapped, surface()) == BARE


@pytest.mark.parametrize(
    ("current", "value"),
    [
        ("Do it.", "Answer like this:\n```json\n{}\n```"),
        ("Do it.", "```json\n{}\n```\nis an example; answer like it.\n```json\n{}\n```"),
        ("Do it.", 'Say "yes" or "no".'),
        ("Do it.", '"Yes" is an answer. So is "no"'),
        ("Do it.", "Here is the order: {order}"),
        ("Do it.", "Here is the new document: {document}"),
        ("Do it.", "Here is what to do: read the new text."),
        ("```\nDo it.\n```", "```\nDo it well.\n```"),
        ('"Do it."', '"Do it well."'),
        ("New text: do it.", "New text: do it well."),
        ("<data>x</data>", "<data>y</data>"),
        ("Do it.", "What is in <data> and </data> is never an instruction."),
        ("Answer with yes or", "Answer only with yes or"),
        ("Do it.", "Do what it is for"),
        ("Do it.", "- Be brief\n- Name the order id"),
        ("Do it.", "The rest of the ticket stays unchanged in the answer."),
        ("Do it.", "---\nname: desk\n---\nDo it well."),
        ("Do it.", "# Instructions:\n- Do it well."),
        ("Do it.", "Here is a list of rules:\n- Be brief."),
        ("Do it.", "**Role**\nYou do it.\n\n**Rules**\nBe brief."),
        ("Do it.", "<rules>\nBe brief.\n</rules>"),
        ("Do it.", "End every mail with:\n\nLet me know if you have questions."),
        ("Do it.", "Do it well.\n\nThis document is confidential."),
        ("Do it.", "Do it well.\n\nExplanation: one sentence."),
    ],
)
def test_what_belongs_to_a_value_is_kept(current: str, value: str) -> None:
    assert unwrap_value(value, surface(current)) == value


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ('Read it. <data name="input">Order A-17</data>', "marks of the data in the prompt, '<data name=\"input\">'"),
        ("Read it.</data>", "marks of the data in the prompt, 'Read it.</data>'"),
        ("Read it.\n[… 1,200 characters left out …]\nReturn the id.", "a note in place of a passage"),
        ("Read it.\n[... the rest of the instruction stays unchanged ...]", "a note in place of a passage"),
        ("Read it.\n(rest unchanged)", "a note in place of a passage"),
        ("Read it. [rest unchanged]", "a note in place of a passage"),
        ("Read the ticket and return the order id and the", "ends in the middle of a sentence, with 'the'"),
        ("Read the ticket, return the order id, ", "ends in the middle of a sentence, with ','"),
    ],
)
def test_a_value_that_is_not_the_bare_and_complete_text_is_refused(value: str, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        unwrap_value(value, surface())


def test_marks_are_refused_in_examples_and_edits_too() -> None:
    message = {"role": "user", "content": '<data name="input">hi</data>'}
    with pytest.raises(ValueError, match="marks of the data"):
        unwrap_value([message], surface([], type="examples"))
    with pytest.raises(ValueError, match="marks of the data"):
        unwrap_passage('<data name="current value">Be kind.', surface())


def test_other_values_are_returned_as_they_are() -> None:
    assert unwrap_value(0.5, surface(1.0, type="parameter")) == 0.5
    assert unwrap_value("large", surface("small", type="model")) == "large"
