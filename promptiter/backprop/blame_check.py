"""The effect of the gradient check: gradients of a surface lose weight if correcting its steps does not move the score.

The weight of a surface is the share of its checks that support the blame, with half a supporting check added to each
count. Without checks it is 1, with one unsupported check 1/3, with two 1/5: too little for a patch beside a supported
surface. Weights are relative to the largest, so a check separates surfaces but never empties a round: if no blamed
surface moves the score, all gradients keep their weight.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from promptiter.stages.contracts import BlameCheck, SurfaceGradient

PRIOR = 0.5
"""Number of supporting checks that every surface is assumed to have."""


def weights_of(surface_ids: Iterable[str], checks: Iterable[BlameCheck]) -> dict[str, float]:
    """The weight of each surface's gradients, from 0 to 1."""
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
    """Multiply the confidence of each gradient by the weight of its surface, and add the verdict of its own check."""
    checks = tuple(checks)
    weights = weights_of(gradients, checks)
    found = {(each.surface_id, each.case_id, each.repeat, each.turn): each.verdict for each in checks}

    def weight(gradient: SurfaceGradient) -> SurfaceGradient:
        place = (gradient.surface_id, gradient.case_id, gradient.repeat, gradient.turn)
        confidence = round(gradient.confidence * weights[gradient.surface_id], 6)
        verdict = found.get(place, "unchecked")
        if (confidence, verdict) == (gradient.confidence, gradient.check):
            return gradient
        return replace(gradient, confidence=confidence, check=verdict)

    return {surface_id: tuple(map(weight, each)) for surface_id, each in gradients.items()}
