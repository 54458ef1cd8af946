"""Sequential decisions: a policy sees a first evaluation of a candidate, then each block of repeats it asks for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from promptiter.policies.acceptance import AcceptancePolicy, decide, opening_of
from promptiter.policies.evidence import AcceptanceDecision, Evidence, MoreEvidence

MOST_LOOKS = 8
"""So often a policy may look at one candidate."""

Gather: TypeAlias = Callable[[MoreEvidence | None], Awaitable[Evidence]]
"""All evidence so far and what was wished for; without a wish, the candidate's validation.

The repeats of a wish are ones that no decision has seen, under both profiles; they are numbered on from those before.
"""


async def decided(policy: AcceptancePolicy, gather: Gather, *, most_looks: int = MOST_LOOKS) -> AcceptanceDecision:
    """What a policy decides, once it has seen what it asked for. A policy that never has enough rejects."""
    evidence = await gather(opening_of(policy))
    for _ in range(most_looks - 1):
        answer = decide(policy, evidence)
        if isinstance(answer, AcceptanceDecision):
            return answer
        evidence = await gather(answer)
    answer = decide(policy, evidence)
    if isinstance(answer, AcceptanceDecision):
        return answer
    return evidence.reject(f"still undecided after {most_looks} looks: {answer.reason}")
