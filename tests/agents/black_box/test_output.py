from __future__ import annotations

from typing import Any

import pytest

from promptiter.agents.black_box.output import TAIL, check_normalize, read_answer, show_tail
from promptiter.errors import AnswerError, SetupError

OUTPUT = '{"a": {"b": ["one", "two"], "c d": {"e": null}}, "f": null}'


@pytest.mark.parametrize(
    ("normalize", "answer", "data"),
    [
        (None, OUTPUT, None),
        ("$.a.b[1]", "two", None),
        ('$.a["c d"]', '{"e":null}', {"e": None}),
        (lambda text: text.upper()[:5], '{"A":', None),
        (lambda text: {"length": len(text)}, '{"length":59}', {"length": 59}),
    ],
)
async def test_the_answer_is_the_output_or_found_by_a_path_or_a_function(
    normalize: Any, answer: str, data: Any
) -> None:
    assert await read_answer(OUTPUT, normalize) == (answer, data)


@pytest.mark.parametrize(
    ("output", "normalize", "message"),
    [
        (OUTPUT, "$.b", r'the output has no \$\["b"\]'),
        (OUTPUT, "$.a.b[2]", r'the output has no \$\["a"\]\["b"\]\[2\]'),
        (OUTPUT, "$.f", r"no answer was found at \$\.f"),
        (OUTPUT, lambda _: None, "no answer was found that normalize returned"),
        ("hello", "$.a", "the output is not JSON"),
    ],
)
async def test_an_output_without_the_answer_is_an_error(output: str, normalize: Any, message: str) -> None:
    with pytest.raises(AnswerError, match=f"^{message}"):
        await read_answer(output, normalize)


@pytest.mark.parametrize("normalize", ["answer", "$.", "$[x]", "$..a", 3])
def test_what_is_neither_a_path_nor_a_function_is_refused(normalize: Any) -> None:
    with pytest.raises(SetupError, match="normalize"):
        check_normalize(normalize)


def test_the_end_of_a_long_output_completes_a_message() -> None:
    assert show_tail(" \n") == ""
    assert show_tail("late\n") == ": late"
    assert show_tail("a" * TAIL + "end") == f": … {'a' * (TAIL - 3)}end"
