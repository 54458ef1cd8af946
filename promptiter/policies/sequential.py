"""Sequential decisions: a policy sees a first evaluation of a candidate, then each block of repeats it asks for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from promptiter.policies.acceptance import AcceptancePolicy, decide, find_first_request
from promptiter.policies.evidence import AcceptanceDecision, Answer, Evidence, MoreEvidence

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
    evidence, looks = await gather(find_first_request(policy)), 1
    while isinstance(answer := decide_at_look(policy, evidence, look=looks, max_looks=max_looks), MoreEvidence):
        evidence, looks = await gather(answer), looks + 1
    return answer


def decide_at_look(policy: AcceptancePolicy, evidence: Evidence, *, look: int, max_looks: int = MAX_LOOKS) -> Answer:
    """Return the answer of a policy at a look, counted from 1: after the last one there is no more evidence."""
    answer = decide(policy, evidence)
    if isinstance(answer, MoreEvidence) and look >= max_looks:
        return evidence.reject(f"still undecided after {max_looks} looks: {answer.reason}")
    return answer
