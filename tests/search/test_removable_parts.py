from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as some

from promptiter.search.removable_parts import Pieces
from promptiter.structure import Surface
from traces.model import Json

TEXT = """You are a clerk. Be kind.

Rules:
- Reply in French. Be short.
- End with a greeting.
Answer as JSON:
```json
{"city": "Rome",
 "id": 1}
```
The shape is {
  "a": [1,
        2]
}
Done."""


def pieces(value: Json, kind: str = "instruction") -> Pieces:
    return Pieces.of(Surface(node_id="n", type=kind, value=value))  # type: ignore[arg-type]


def test_sentences_items_and_blocks_are_pieces() -> None:
    found = pieces(TEXT)
    assert [found.text(number) for number in range(len(found))] == [
        "You are a clerk.",
        "Be kind.",
        "Rules:",
        "Reply in French.",
        "Be short.",
        "End with a greeting.",
        "Answer as JSON:",
        '```json\n{"city": "Rome",\n "id": 1}\n```',
        'The shape is {\n  "a": [1,\n        2]\n}',
        "Done.",
    ]


@pytest.mark.parametrize(
    ("gone", "expected"),
    [
        ((), "A one. B two.\n\n- C three. D four.\n- E five.\n"),
        ((0,), "B two.\n\n- C three. D four.\n- E five.\n"),
        ((1,), "A one.\n\n- C three. D four.\n- E five.\n"),
        ((2,), "A one. B two.\n\n- D four.\n- E five.\n"),
        ((2, 3), "A one. B two.\n\n- E five.\n"),
        ((0, 1), "- C three. D four.\n- E five.\n"),
        ((4,), "A one. B two.\n\n- C three. D four.\n"),
        ((0, 1, 2, 3, 4), ""),
    ],
)
def test_a_text_without_pieces_still_reads_well(gone: tuple[int, ...], expected: str) -> None:
    assert pieces("A one. B two.\n\n- C three. D four.\n- E five.\n").drop(gone) == expected


def test_the_last_line_leaves_no_line_break_behind() -> None:
    assert pieces("One.\n\nTwo.").drop([1]) == "One."
    assert pieces("One.\n\nTwo.\n\nThree.").drop([1]) == "One.\n\nThree."


def test_examples_are_removed_with_their_answers() -> None:
    talk = [{"role": role, "content": f"{role} {at}"} for at in range(3) for role in ("user", "assistant")]
    found = pieces(talk, "examples")
    assert len(found) == 3
    assert found.text(1) == "user 1\nassistant 1"
    assert found.drop([1]) == [*talk[:2], *talk[4:]]
    assert found.drop([0, 1, 2]) == []
    assert len(pieces([], "examples")) == 0


def test_other_surfaces_have_no_pieces() -> None:
    assert len(pieces(3, "parameter")) == 0
    assert len(pieces("gpt", "model")) == 0


@given(some.lists(some.sampled_from(("A b.", "C d!", "\n", " ", "- x y.", "{", "}", "```", "\t", "é。")), max_size=20))
def test_pieces_cover_the_text_and_removing_none_changes_nothing(parts: list[str]) -> None:
    text = "".join(parts)
    found = pieces(text)
    assert found.drop(()) == text
    spans = found.spans
    assert all(one[1] <= other[0] for one, other in pairwise(spans))
    assert all(text[start:end].strip() for start, end in spans)
    for number in range(len(found)):
        kept = found.drop([number])
        assert len(kept) < len(text)
        assert all(found.text(other) in kept for other in range(len(found)) if other != number)
