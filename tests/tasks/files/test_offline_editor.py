from __future__ import annotations

from promptiter.evaluation.result import Evaluation
from promptiter.evaluation.score import Finding
from promptiter.profile import Profile
from promptiter.search.mutation import MutationRequest, RejectedEdit
from promptiter.structure import Node, StructureSnapshot, Surface
from promptiter.tasks.files.offline_editor import Edit, edit_offline, list_edits


def test_what_a_failed_case_expects_comes_first() -> None:
    wrong = Finding(kind="wrong", predicate="case 1", expected="colour", actual="color", where="b.md")
    texts = {"a.md": "# A\n\nUse color.\n", "b.md": "# B\n\nUse color.\n"}
    edits = list(list_edits(texts, [wrong]))
    assert (edits[0].path, edits[0].text) == ("b.md", "# B\n\nUse colour.\n")
    assert edits[1] == Edit(path="b.md", text="# B\n\nUse color.\n\ncolour\n", reason="case 1 expects it")


def test_switches_and_numbers_of_a_configuration_are_varied() -> None:
    texts = {"c.yaml": "cache: false\nsize: 8\nrate: 0.5\n"}
    found = [each.text for each in list_edits(texts, [])]
    assert found[:3] == [
        "cache: true\nsize: 8\nrate: 0.5\n",
        "cache: false\nsize: 16\nrate: 0.5\n",
        "cache: false\nsize: 8\nrate: 1\n",
    ]
    assert "cache: false\nsize: 9\nrate: 0.5\n" in found


def test_code_is_varied_outside_of_strings_and_comments() -> None:
    text = 'def f(x):\n    # 1 < 2\n    return "1 < 2" if x < 10 else 0\n'
    found = [each.text for each in list_edits({"f.py": text}, [])]
    assert found[0] == text.replace("x < 10", "x <= 10")
    assert all("# 1 < 2" in each and '"1 < 2"' in each for each in found)
    assert text.replace("10", "11") in found


def test_parts_of_a_text_go_when_less_is_better_but_headings_stay() -> None:
    text = "# Skill\n\nWrite plainly. This sentence is very long and says nothing at all.\n"
    found = list(list_edits({"a.md": text}, []))
    assert found[0].text == "# Skill\n\nWrite plainly.\n"
    assert all(each.text.startswith("# Skill") for each in found)


def test_the_order_of_edits_is_always_the_same() -> None:
    texts = {"a.md": "# A\n\nOne. Two.\n", "c.json": '{"n": 3}', "f.py": "x = 1 + 2\n"}
    assert list(list_edits(texts, [])) == list(list_edits(texts, []))


TEXT = "size: 8\nrate: 0.5\ncache: false\n"


def build_request(*rejected: str, number: int = 1) -> MutationRequest:
    surface = Surface(node_id="workspace", type="file", part="c.yaml", value=TEXT)
    structure = StructureSnapshot(nodes=(Node(id="workspace"),), surfaces=(surface,))
    return MutationRequest(
        round=1 + len(rejected),
        profile=Profile.baseline(structure),
        structure=structure,
        evaluation=Evaluation(eval_set_id="scorer", profile_digest="", rows=(), thresholds={}),
        values={"c.yaml": TEXT},
        number=number,
        rejected=tuple(RejectedEdit(round=1, values={"c.yaml": each}, reason="") for each in rejected),
    )


def edit(*rejected: str, number: int = 1) -> str | None:
    values = edit_offline(build_request(*rejected, number=number)).values
    return None if values is None else str(values["c.yaml"])


def test_the_next_edit_follows_from_what_was_rejected_alone() -> None:
    tried: list[str] = []
    while (text := edit(*tried[-20:])) is not None:
        tried.append(text)
    assert len(tried) == len(set(tried)) >= 10
    assert TEXT not in tried


def test_candidates_of_a_round_get_different_edits() -> None:
    several = [edit(number=number) for number in (1, 2, 3)]
    assert len(set(several)) == 3
    assert edit(*(each for each in several if each is not None)) not in several
