from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from promptiter.errors import SetupError, StructureMismatchError, SurfaceValueError, UnknownSurfaceError
from promptiter.profile import PatchEdit, PatchEvidence, PatchSet, Profile, SurfacePatch
from promptiter.structure import Limits, Node, StructureSnapshot, Surface

SNAPSHOT = StructureSnapshot(
    nodes=(Node(id="a", kind="llm"), Node(id="b", kind="llm")),
    surfaces=(
        Surface(node_id="a", type="instruction", value="Be kind.\nBe brief.", limits=Limits(max_chars=40)),
        Surface(node_id="b", type="parameter", part="k", value=3),
    ),
)
BASELINE = Profile.baseline(SNAPSHOT)


def patch(surface_id: str, value: object) -> SurfacePatch:
    return SurfacePatch(surface_id=surface_id, value=value, reason="test")


def test_a_profile_overrides_some_values_and_the_rest_is_the_baseline() -> None:
    profile = Profile.of(SNAPSHOT, {"a#instruction": "Be bold."})
    assert profile.value("a#instruction", SNAPSHOT) == "Be bold."
    assert profile.value("b#parameter.k", SNAPSHOT) == 3
    assert BASELINE.value("a#instruction", SNAPSHOT) == "Be kind.\nBe brief."


def test_applying_patches_returns_a_new_profile() -> None:
    one = BASELINE.apply([patch("a#instruction", "One.")], SNAPSHOT)
    two = one.apply(PatchSet((patch("b#parameter.k", 5),)), SNAPSHOT)
    assert dict(one.overrides) == {"a#instruction": "One."}
    assert dict(two.overrides) == {"a#instruction": "One.", "b#parameter.k": 5}
    assert dict(BASELINE.overrides) == {}


def test_a_value_equal_to_the_baseline_is_not_stored() -> None:
    back = Profile.of(SNAPSHOT, {"b#parameter.k": 5}).apply([patch("b#parameter.k", 3)], SNAPSHOT)
    assert back == BASELINE
    assert back.digest == BASELINE.digest


def test_a_folder_is_not_a_profile(tmp_path: Path) -> None:
    with pytest.raises(
        SetupError, match=r"cannot be read: Is a directory; give the file profiles/best\.json of a run$"
    ):
        Profile.load(tmp_path)


def test_every_profile_of_an_agent_has_the_values_that_are_bound_to_it() -> None:
    first, second = SNAPSHOT.surfaces
    bound = replace(SNAPSHOT, surfaces=(first, replace(second, value=7, is_bound=True)))
    assert dict(Profile.baseline(bound).overrides) == {"b#parameter.k": 7}
    patched = Profile.of(bound, {"a#instruction": "One.", "b#parameter.k": 8})
    assert dict(patched.apply([patch("b#parameter.k", 7)], bound).overrides) == {
        "a#instruction": "One.",
        "b#parameter.k": 7,
    }


def test_the_digest_is_of_the_content() -> None:
    ways = [
        Profile.of(SNAPSHOT, {"a#instruction": "x", "b#parameter.k": 5}),
        Profile.of(SNAPSHOT, {"b#parameter.k": 5}).apply([patch("a#instruction", "x")], SNAPSHOT),
    ]
    assert ways[0].digest == ways[1].digest
    assert ways[0].digest != BASELINE.digest


def test_of_two_patches_of_a_surface_the_later_value_counts_and_the_evidence_of_both() -> None:
    def make(value: str, case: str, *edits: PatchEdit) -> SurfacePatch:
        known = PatchEvidence(cases=(case, "c"), steps=(f"{case}/s",), gradients=(f"{case}/1",))
        return replace(patch("a#instruction", value), reason=f"for {case}", evidence=known, edits=edits)

    one, two = PatchEdit(before="kind", after="bold"), PatchEdit(before="brief", after="calm")
    first = PatchSet((patch("b#parameter.k", 5), make("Be bold.", "x", one)))
    untouched, both = first.compose(PatchSet((make("Be calm.", "y", two),)))
    assert untouched == patch("b#parameter.k", 5)
    assert (both.value, both.reason, both.edits) == ("Be calm.", "for x; for y", (one, two))
    assert both.evidence == PatchEvidence(cases=("x", "c", "y"), steps=("x/s", "y/s"), gradients=("x/1", "y/1"))
    [_, rewritten] = first.compose(PatchSet((make("Be calm.", "y"),)))
    assert rewritten.edits == (), "what a rewritten text has of the earlier edits is unknown"


def test_patches_are_checked() -> None:
    with pytest.raises(UnknownSurfaceError):
        BASELINE.apply([patch("c#instruction", "x")], SNAPSHOT)
    with pytest.raises(SurfaceValueError, match="at most 40"):
        BASELINE.apply([patch("a#instruction", "x" * 41)], SNAPSHOT)
    with pytest.raises(SetupError, match="at most once"):
        PatchSet((patch("a#instruction", "x"), patch("a#instruction", "y")))


def test_changes_are_shown_as_a_diff() -> None:
    other = Profile.of(SNAPSHOT, {"a#instruction": "Be kind.\nBe exact.", "b#parameter.k": 4})
    text, number = BASELINE.changes(other, SNAPSHOT)
    assert text.as_text() == "@@ -1,2 +1,2 @@\n Be kind.\n-Be brief.\n+Be exact."
    assert number.as_text() == "-3\n+4"
    assert BASELINE.changes(BASELINE, SNAPSHOT) == ()


def test_a_profile_survives_its_file(tmp_path: Path) -> None:
    profile = Profile.of(SNAPSHOT, {"a#instruction": "Grüße\n"})
    profile.save(tmp_path / "p.json")
    assert Profile.load(tmp_path / "p.json") == profile
    with pytest.raises(SetupError, match="cannot be read"):
        Profile.load(tmp_path / "none.json")
    for bad in (b"{", b"[]", b'{"values": {}}', b'{"structure_id": 1, "values": {}}'):
        with pytest.raises(SetupError, match="this is not a profile"):
            Profile.from_json(bad)


def test_a_profile_of_another_structure_is_refused_by_name() -> None:
    renamed = replace(SNAPSHOT, surfaces=(SNAPSHOT.surfaces[0], replace(SNAPSHOT.surfaces[1], part="top_k")))
    with pytest.raises(StructureMismatchError) as caught:
        Profile.of(SNAPSHOT, {"b#parameter.k": 5}).check(renamed)
    assert "the agent has no b#parameter.k" in str(caught.value)
    assert "the profile does not know b#parameter.top_k" in str(caught.value)
    edited = replace(SNAPSHOT, surfaces=(replace(SNAPSHOT.surfaces[0], value="New."), SNAPSHOT.surfaces[1]))
    Profile.of(SNAPSHOT, {"b#parameter.k": 5}).check(edited)  # an edited prompt does not orphan it


def test_a_profile_with_a_wrong_value_or_name_is_refused_when_it_is_used() -> None:
    for overrides in ({"a#instruction": 5}, {"z#instruction": "typo"}):
        with pytest.raises(SetupError):
            Profile(structure_id=SNAPSHOT.structure_id, overrides=overrides).check(SNAPSHOT)


def test_a_file_that_is_not_a_profile_is_named_with_where_profiles_are(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    result.write_text('{"verdict": "improved"}')
    with pytest.raises(SetupError, match=r"result\.json: this is not a profile: .*profiles/best\.json$"):
        Profile.load(result)
