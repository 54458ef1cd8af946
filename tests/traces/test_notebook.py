from __future__ import annotations

from html.parser import HTMLParser

from traces import ExecutionTrace, Failure, Snapshot, Step, Usage
from traces.notebook import MAX_ROWS, html_diff, html_table

SCRIPT = "<script>alert('x')</script>"


class Tags(HTMLParser):
    """The tags and texts of a page; a tag that is not closed is an error."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.text = ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.seen.add(tag)
        assert {name for name, _ in attrs} <= {"style"}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_trace_is_a_table_of_its_steps_and_recorded_text_is_escaped() -> None:
    steps = (
        Step(id="plan", node_id="plan", input=Snapshot(text=SCRIPT), output=Snapshot(data={"wish": SCRIPT})),
        Step(
            id="act",
            node_id="act",
            predecessors=("plan",),
            error=Failure("Broken", SCRIPT),
            usage=Usage(input_tokens=5),
        ),
    )
    page = ExecutionTrace(id=f"t {SCRIPT}", steps=steps)._repr_html_()
    read = Tags(page)
    assert read.seen == {"div", "p", "b", "table", "tr", "th", "td"}
    assert read.text.count(SCRIPT) == 4
    assert "completed, 2 steps, 5 tokens" in read.text
    assert '{"wish":' in read.text


def test_a_large_trace_stays_small() -> None:
    steps = tuple(Step(id=f"s{number}", node_id="s", output=Snapshot(text="x" * 9_000)) for number in range(3_000))
    page = ExecutionTrace(id="t", steps=steps)._repr_html_()
    assert len(page) < 100_000
    assert f"… {3_000 - MAX_ROWS:,} more rows" in Tags(page).text


def test_data_of_any_depth_can_be_shown() -> None:
    deep: list[object] = []
    for _ in range(10_000):
        deep = [deep]
    assert "…" in ExecutionTrace(id="t", steps=(Step(id="s", node_id="s", input=Snapshot(data=deep)),))._repr_html_()


def test_rows_beyond_the_first_are_not_even_made() -> None:
    rows = ((str(number),) for number in range(10**9))
    assert "more rows" in html_table(("n",), rows, count=10**9)


def test_a_diff_is_coloured_by_line_and_long_ones_are_cut() -> None:
    read = Tags(html_diff("bot#instruction", "\n".join(["-old", "+<new>", " same"] * 100)))
    assert "<new>" in read.text
    assert "… 240 more lines" in read.text
