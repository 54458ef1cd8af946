"""What checks of blame say, and what that does to gradients: blame that does not move the score loses weight.

A surface's gradients are weighted by the share of its checks that support it, as if half a check more had: nothing
checked is weight 1, one unsupported check a third, two a fifth, which is below what a patch needs beside a surface that
is supported. The weights are relative to the best of them, so a check tells surfaces apart and never silences a round:
if nothing that is blamed moves the score, blame stays as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from promptiter.stages.contracts import BlameCheck, SurfaceGradient

PRIOR = 0.5
"""So many checks a surface is taken to have passed before any."""


def weights_of(surface_ids: Iterable[str], checks: Iterable[BlameCheck]) -> dict[str, float]:
    """What the gradients of each surface count, from 0 to 1."""
    supported = dict.fromkeys(surface_ids, 0)
    checked = dict.fromkeys(supported, 0)
    for check in checks:
        if check.surface_id in checked and check.verdict in ("supported", "unsupported"):
            checked[check.surface_id] += 1
            supported[check.surface_id] += check.verdict == "supported"
    shares = {each: (supported[each] + PRIOR) / (checked[each] + PRIOR) for each in checked}
    best = max(shares.values(), default=1.0)
    return {each: share / best for each, share in shares.items()}


def weight_gradients(
    gradients: Mapping[str, tuple[SurfaceGradient, ...]], checks: Iterable[BlameCheck]
) -> dict[str, tuple[SurfaceGradient, ...]]:
    """Gradients by surface, each as sure as its surface's checks leave it, and marked with its own."""
    checks = tuple(checks)
    weights = weights_of(gradients, checks)
    found = {(each.surface_id, each.case_id, each.repeat, each.turn): each.verdict for each in checks}

    def weight(gradient: SurfaceGradient) -> SurfaceGradient:
        place = (gradient.surface_id, gradient.case_id, gradient.repeat, gradient.turn)
        confidence = round(gradient.confidence * weights[gradient.surface_id], 6)
        return replace(gradient, confidence=confidence, check=found.get(place, "unchecked"))

    return {surface_id: tuple(map(weight, each)) for surface_id, each in gradients.items()}
