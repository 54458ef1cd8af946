from __future__ import annotations

from pathlib import Path

import pytest

from promptiter.errors import EvalSetError
from promptiter.tasks.feedback import Feedback, FeedbackFile, load_feedback, normalize_id

ID = "0af7651916cd43dd8448eb211c80319c"
BASE64 = "CvdlGRbNQ92ESOshHIAxnA=="


def write(tmp_path: Path, text: str, name: str = "feedback.csv") -> Path:
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    return file


def test_thumbs_scores_and_texts_by_trace_and_conversation(tmp_path: Path) -> None:
    text = (
        f"trace_id,conversation_id,rating,comment,expected\n{ID},,👍,,\n,talk-1,down,too slow,\nt2,,,,Fourteen days\n"
    )
    found = load_feedback(write(tmp_path, text))
    assert found.rows == (
        Feedback(trace_id=ID, is_good=True),
        Feedback(conversation_id="talk-1", is_good=False, comment="too slow"),
        Feedback(trace_id="t2", is_good=False, expected="Fourteen days"),
    )
    assert found.find([ID], None) == found.rows[0]
    assert found.find(["other"], "talk-1") == found.rows[1]
    assert found.find(["other"], None) is None


@pytest.mark.parametrize("written", [ID.upper(), f"0x{ID}", "0af76519-16cd-43dd-8448-eb211c80319c", f" {ID} ", BASE64])
def test_ids_are_found_however_they_are_written(written: str) -> None:
    assert normalize_id(written) == ID
    assert FeedbackFile([Feedback(trace_id=ID, is_good=True)]).find([written], None) is not None


def test_ids_that_are_not_of_opentelemetry_keep_their_letters() -> None:
    assert normalize_id("Case-A") == "Case-A"


@pytest.mark.parametrize(
    ("scores", "good_from", "good"),
    [
        ("0.4 0.5 1", None, [False, True, True]),
        ("3 4 5", None, [False, True, True]),
        ("6 7 10", None, [False, True, True]),
        ("69 70 100", None, [False, True, True]),
        ("3 4 5", 5.0, [False, False, True]),
        ("-1 1", None, [False, True]),
    ],
)
def test_the_scale_decides_which_scores_are_good(
    tmp_path: Path, scores: str, good_from: float | None, good: list[bool]
) -> None:
    lines = "\n".join(f"t{number};{score}" for number, score in enumerate(scores.split()))
    found = load_feedback(write(tmp_path, f"run_id;stars\n{lines}\n"), good_from=good_from)
    assert [row.is_good for row in found.rows] == good


def test_of_several_rows_about_a_run_those_that_found_something_wrong_count() -> None:
    rows = [
        Feedback(trace_id="t", is_good=True, comment="nice"),
        Feedback(trace_id="t", is_good=False, comment="wrong year", score=2),
        Feedback(trace_id="t", is_good=False, comment="no source", score=1, expected="1977"),
    ]
    assert FeedbackFile(rows).find(["t"], None) == Feedback(
        trace_id="t", is_good=False, comment="wrong year\nno source", score=1, expected="1977"
    )


def test_json_lines_and_lists(tmp_path: Path) -> None:
    lines = load_feedback(
        write(tmp_path, '{"trace_id": "t", "score": 1}\n\n{"trace_id": "u", "rating": "bad"}\n', "f.jsonl")
    )
    assert [row.is_good for row in lines.rows] == [True, False]
    listed = load_feedback(write(tmp_path, '[{"session": "s", "verdict": true, "ideal": {"a": 1}}]', "f.json"))
    assert listed.rows == (Feedback(conversation_id="s", is_good=True, expected='{"a": 1}'),)


def test_a_comment_with_line_breaks_and_a_byte_order_mark(tmp_path: Path) -> None:
    found = load_feedback(write(tmp_path, '\ufefftrace_id,comment\nt,"two\nlines"\n'))
    assert found.rows[0].comment == "two\nlines"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("trace_id,rating\n", "has no rows of feedback"),
        ("name,rating\nx,up\n", "needed are trace_id or conversation_id, and one of rating, score, comment, expected"),
        ("trace_id,ratng\nt,up\n", "did you mean 'rating'"),
        ("trace_id,rating\nt,perhaps\n", "line 2: the rating 'perhaps' is not known"),
        ("trace_id,rating\n,up\n", "line 2: has neither a trace_id nor a conversation_id"),
        ("trace_id,score\nt,many\n", "line 2: the score 'many' is not a number"),
        ("trace_id,score\nt,NaN\n", "line 2: the score 'NaN' is not a number"),
        ("trace_id,score\nt,1700\n", "scores up to 1700; say which are good, with --good-from"),
    ],
)
def test_mistakes_are_shown_with_their_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(EvalSetError) as raised:
        load_feedback(write(tmp_path, text))
    assert message in str(raised.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(EvalSetError, match="cannot be read"):
        load_feedback(tmp_path / "none.csv")
    with pytest.raises(EvalSetError, match="not valid JSON"):
        load_feedback(write(tmp_path, '{"trace_id": ', "f.jsonl"))
    (tmp_path / "latin.csv").write_bytes("trace_id,comment\nt,süß\n".encode("latin-1"))
    with pytest.raises(EvalSetError, match="not UTF-8"):
        load_feedback(tmp_path / "latin.csv")


def test_files_of_excel(tmp_path: Path) -> None:
    text = f'\ufeffsep=;\r\nTrace ID;Score;Comment\r\n{ID};4,5;"good; really"\r\nt2;1,5;"two\r\nlines"\r\n'
    found = load_feedback(write(tmp_path, text))
    assert [(row.score, row.is_good) for row in found.rows] == [(4.5, True), (1.5, False)]
    assert found.rows[0].comment == "good; really"


@pytest.mark.parametrize("word", ["Thumbs Up", "thumbs-up", "THUMBS_UP", "+1", "👍"])
def test_ratings_are_understood_however_they_are_written(tmp_path: Path, word: str) -> None:
    assert load_feedback(write(tmp_path, f"trace-id,Thumbs\nt,{word}\n")).rows[0].is_good is True


def test_the_usual_name_of_a_column_counts_before_others(tmp_path: Path) -> None:
    found = load_feedback(write(tmp_path, "feedback,rating,trace_id\nnot what I asked,down,t\n"))
    assert found.rows == (Feedback(trace_id="t", is_good=False),)
