"""Which lines of a Markdown file are headings, and where their sections end."""

from __future__ import annotations

import pytest

from promptiter.sources.markdown_section import MarkdownSection, list_headings

NOT_HEADINGS = {
    "a preformatted block": "<pre>\n# no heading\n</pre>",
    "an HTML block": "<div>\n# no heading\n</div>",
    "a rule below a list": "- one\n  two\n---\nfoot",
    "an empty item of a list": "- one\n-\n- two",
    "two rules": "one\n\n---\n---\n\ntwo",
    "a fence that begins in a list": "- ```sh\n  # no heading\n  ```\n- two",
    "a heading in a list": "- one\n\n  # inner\n- two",
    "a heading in a quote": "> # inner\n> text",
    "a line with a form feed": "one\x0c# no heading",
    "a comment": "<!--\n# no heading\n-->",
}


@pytest.mark.parametrize("name", NOT_HEADINGS)
def test_a_section_reaches_over_what_is_not_a_heading_of_the_page(name: str) -> None:
    text = f"# Actor\n\n{NOT_HEADINGS[name]}\n\n# Critic\n\nFind faults.\n"
    assert [each.text for each in list_headings(text)] == ["Actor", "Critic"]
    assert MarkdownSection("Actor").read(text) == NOT_HEADINGS[name]
    assert MarkdownSection("Actor").replace(text, "New.") == "# Actor\n\nNew.\n\n# Critic\n\nFind faults.\n"


def test_headings_keep_their_marks_and_join_their_lines() -> None:
    text = "---\n# not: this\n---\nTwo\nlines\n=====\r\n## [Link](a.md) *here* ##\rtext"
    assert [(each.level, each.text) for each in list_headings(text)] == [(1, "Two lines"), (2, "[Link](a.md) *here*")]
    assert MarkdownSection("[Link](a.md) *here*").read(text) == "text"
