from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from promptiter.backprop.blame_check import weight_gradients, weights_of
from promptiter.backprop.support_aggregator import support_of
from promptiter.stages.contracts import BlameCheck, BlameVerdict, SurfaceGradient

SURFACES = ("a#instruction", "b#instruction", "c#instruction")


def check(surface_id: str, verdict: BlameVerdict, case_id: str = "c1") -> BlameCheck:
    return BlameCheck(surface_id=surface_id, case_id=case_id, step_ids=("s",), verdict=verdict, reason="")


def gradient(surface_id: str, case_id: str = "c1", confidence: float = 1.0) -> SurfaceGradient:
    return SurfaceGradient(surface_id=surface_id, case_id=case_id, step_id="s", text="t", confidence=confidence)


def test_a_surface_counts_by_the_share_of_its_checks_that_support_it() -> None:
    good, mixed, bad = SURFACES
    checks = [check(good, "supported"), check(mixed, "supported"), check(mixed, "unsupported")]
    found = weights_of((*SURFACES, "d#instruction"), [*checks, check(bad, "unsupported"), check(bad, "unsupported")])
    assert {each: round(weight, 3) for each, weight in found.items()} == {
        good: 1.0,
        mixed: 0.6,
        bad: 0.2,
        "d#instruction": 1.0,
    }


def test_failed_checks_do_not_count() -> None:
    assert weights_of(SURFACES[:1], [check(SURFACES[0], "unknown")]) == {SURFACES[0]: 1.0}
    assert weights_of((), []) == {}


def test_gradients_keep_their_weight_if_no_blamed_surface_moves_the_score() -> None:
    assert weights_of(SURFACES[:2], [check(each, "unsupported") for each in SURFACES[:2]]) == dict.fromkeys(
        SURFACES[:2], 1.0
    )


def test_unsupported_gradients_are_marked_and_their_surface_loses_support() -> None:
    good, bad = SURFACES[:2]
    gradients = {good: (gradient(good),), bad: (gradient(bad), gradient(bad, "c2", 0.5))}
    found = weight_gradients(gradients, [check(good, "supported"), check(bad, "unsupported")])
    assert [(each.check, each.confidence) for each in found[bad]] == [
        ("unsupported", 0.333333),
        ("unchecked", 0.166667),
    ]
    assert found[good] == (replace(gradients[good][0], check="supported"),)
    assert support_of(found[bad]) == 0.5


@given(st.lists(st.builds(check, st.sampled_from(SURFACES), st.sampled_from(["supported", "unsupported", "unknown"]))))
def test_weights_are_from_0_to_1_and_the_best_is_1(checks: list[BlameCheck]) -> None:
    found = weights_of(SURFACES, checks)
    assert max(found.values()) == 1.0
    assert min(found.values()) > 0.0
