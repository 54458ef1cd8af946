from __future__ import annotations

from promptiter.profile import SurfaceChange
from promptiter.value_text import describe_value

TALK = [{"role": "user", "content": "Where is my lamp?"}, {"role": "assistant", "content": "amber"}]


def test_examples_read_like_a_conversation() -> None:
    assert describe_value(TALK) == "user: Where is my lamp?\nassistant: amber"
    assert describe_value([]) == ""


def test_other_values_are_texts_or_json() -> None:
    assert describe_value("Be brief.") == "Be brief."
    assert describe_value(3) == "3"
    assert describe_value([{"role": "user"}]) == '[\n  {\n    "role": "user"\n  }\n]'


def test_the_diff_of_examples_shows_the_messages_that_are_new() -> None:
    more = [*TALK, {"role": "user", "content": "And my desk?"}, {"role": "assistant", "content": "teal"}]
    assert SurfaceChange("n#examples", TALK, more).as_text() == (
        "@@ -1,2 +1,4 @@\n user: Where is my lamp?\n assistant: amber\n+user: And my desk?\n+assistant: teal"
    )
