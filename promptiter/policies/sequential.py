"""Sequential decisions: a policy sees a first evaluation of a candidate, then each block of repeats it asks for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from promptiter.policies.acceptance import AcceptancePolicy, decide, find_first_request
from promptiter.policies.evidence import AcceptanceDecision, Evidence, MoreEvidence

MAX_LOOKS = 8
"""The most looks that a policy may take at one candidate."""

Gather: TypeAlias = Callable[[MoreEvidence | None], Awaitable[Evidence]]
"""Returns all evidence so far with the requested repeats; without a request, with the candidate's validation.

Requested repeats are ones that no decision has seen, under both profiles. Their numbers follow those of earlier ones.
"""


async def decide_sequentially(
    policy: AcceptancePolicy, gather: Gather, *, max_looks: int = MAX_LOOKS
) -> AcceptanceDecision:
    """Return what a policy decides after the evidence it asked for. A policy that never decides rejects."""
    evidence = await gather(find_first_request(policy))
    for _ in range(max_looks - 1):
        answer = decide(policy, evidence)
        if isinstance(answer, AcceptanceDecision):
            return answer
        evidence = await gather(answer)
    answer = decide(policy, evidence)
    if isinstance(answer, AcceptanceDecision):
        return answer
    return evidence.reject(f"still undecided after {max_looks} looks: {answer.reason}")
