from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from promptiter.errors import EvalSetError
from promptiter.evaluation.data.case import EvalCase, Turn
from promptiter.evaluation.data.labels import load_labels

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(header: str, *rows: str, fill: int = 12) -> Path:
        """A file of labels, filled up with rows that pass and fail."""
        filled = [f"q{n},a{n},{'pass' if n % 2 else 'fail'}" for n in range(fill - len(rows))]
        file = tmp_path / "labels.csv"
        file.write_text("\n".join([header, *rows, *filled]) + "\n")
        return file

    return write


def test_words_are_verdicts_and_other_columns_are_ignored(write: Write) -> None:
    file = write(
        "input,output,label,note", 'What?,"It, too.",Pass,x', "Who?,He.,no,y", *(f"q{n},a,{n % 2},z" for n in range(10))
    )
    found = load_labels(file)
    assert [answer.label for answer in found.answers[:4]] == [1.0, 0.0, 0.0, 1.0]
    assert (found.answers[0].output, found.answers[0].case.turns) == ("It, too.", (Turn(user="What?"),))
    assert not found.is_graded


def test_numbers_between_are_grades_and_a_scale_is_mapped_to_0_to_1(write: Write) -> None:
    grades = [f"q,a,{grade}" for grade in (0, 0.25, 1)]
    assert load_labels(write("question,answer,label", *grades)).is_graded
    stars = [f"q{n},a,{n % 5 + 1}" for n in range(10)]
    found = load_labels(write("input,output,label", *stars, fill=10), scale=(1, 5))
    assert [answer.label for answer in found.answers[:5]] == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_a_case_of_an_eval_set_gives_input_and_reference(write: Write) -> None:
    known = EvalCase(id="kettle", turns=(Turn(user="When?", expected="On Monday."),))
    rows = [f"kettle,answer {n},{'pass' if n % 2 else 'fail'}" for n in range(10)]
    file = write("case,output,label", *rows, fill=10)
    assert all(answer.case is known for answer in load_labels(file, cases=[known]).answers)
    with pytest.raises(EvalSetError, match=r"line 2: there is no case 'kettle'.* add a column 'input'"):
        load_labels(file)


def test_references_are_those_of_the_column_expected(write: Write) -> None:
    rows = [f"q{n},a,{n % 2},right" for n in range(10)]
    found = load_labels(write("input,output,label,reference", *rows, fill=10))
    assert {answer.case.turns[0].expected for answer in found.answers} == {"right"}


@pytest.mark.parametrize(
    ("header", "row", "problem"),
    [
        ("input,output", "a,b", "line 1: there is no column 'label', only 'input', 'output'; the columns are"),
        ("text,output,label", "a,b,pass", "there is no column 'input', only"),
        ("input,output,lable", "a,b,pass", "there is no column 'label', only 'input', 'output', 'lable'"),
        ("input,output,label", "a,b,maybe", "line 2: the label 'maybe' is not known; write pass or fail, or a number"),
        ("input,output,label", "a,b,", "line 2: the label '' is not known"),
        ("input,output,label", "a,b,4", r"the label 4 is not from 0 to 1; give .* as the scale, such as --scale 1-5"),
        ("input,output,label", ",b,pass", "line 2: the input is empty"),
        ("input,output,label,label", "a,b,1,0", "the column 'label' occurs twice"),
        ("input;output;label", "a;b;1", "line 1: the cells are separated by semicolons; save the file with commas"),
        ("input\toutput\tlabel", "a\tb\t1", "line 1: the cells are separated by tabs; save the file with commas"),
    ],
)
def test_wrong_files_are_refused_with_the_line(write: Write, header: str, row: str, problem: str) -> None:
    with pytest.raises(EvalSetError, match=problem):
        load_labels(write(header, row))


def test_an_answer_counts_once_for_each_label(write: Write) -> None:
    found = load_labels(write("input,output,label", "q1,a1,pass", "q3,a3,fail", "q4,other,fail", fill=15))
    assert (len(found.answers), found.repeated, found.contradicted) == (14, 1, 1)


def test_a_file_in_another_encoding_is_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("input,output,label\nWhy?,Für dich.,pass\n", encoding="latin-1")
    with pytest.raises(EvalSetError, match=r"labels.csv' is not UTF-8; save it as UTF-8$"):
        load_labels(tmp_path / "labels.csv")


def test_too_few_labels_or_only_one_verdict_say_nothing(write: Write, tmp_path: Path) -> None:
    with pytest.raises(EvalSetError, match="has 9 labels; a judge is checked with at least 10, better with 50 or more"):
        load_labels(write("input,output,label", fill=9))
    with pytest.raises(EvalSetError, match="all labels are the same"):
        load_labels(write("input,output,label", *(f"q{n},a,pass" for n in range(12))))
    with pytest.raises(EvalSetError, match="cannot be read: No such file"):
        load_labels(tmp_path / "none.csv")
