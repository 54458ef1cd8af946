"""Simulated final tests of patches without a true gain, so that a reported improvement is a false claim.

Each scenario samples the runs of one final test, of cases in both arms, and returns what it claims and what it takes.
In `SCENARIOS` a claim is about these cases; in `RESHUFFLES` and `SKEWED` it is about new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TypeAlias

from promptiter.evaluation.stats.final_test import BLOCKS, count_repeats, decide_for_these_cases, fit_to_cases
from promptiter.evaluation.stats.new_cases import decide_for_new_cases
from promptiter.evaluation.stats.non_inferiority import decide_non_inferiority
from promptiter.evaluation.stats.permutation import PairedScores
from promptiter.evaluation.stats.saving import decide_saving
from promptiter.evaluation.stats.validation_use import ValidationUse, find_acceptance_share
from tests.worlds.chances import BETA

ALPHA = 0.05
REPEATS = sum(block.repeats for block in BLOCKS)
ROUNDS = (1, 2, 3, 4, 5, 6)
MARGIN = 0.1
"""The loss that goals other than the score allow: without run noise, 12 cases can exclude it."""


@dataclass(frozen=True, slots=True)
class Tested:
    """What a final test claims, and what it takes."""

    is_claimed: bool
    case_runs: int
    judge_calls: int = 0


Scenario: TypeAlias = Callable[[int, Random], Tested]
"""Simulates a final test on this number of cases."""

Score: TypeAlias = Callable[[Random], float]
"""Samples the score of one run."""


def find_claim(pairs: Sequence[PairedScores], *, judges: bool = False) -> Tested:
    """Decide for these cases."""
    result = decide_for_these_cases(pairs, blocks=fit_to_cases(BLOCKS, len(pairs)))
    runs = 2 * result.looks[-1].repeats * len(pairs)
    return Tested(result.is_shown, runs, runs if judges else 0)


def flip(chance: float) -> Score:
    return lambda random: float(random.random() < chance)


def always(score: float) -> Score:
    return lambda _: score


def pair(
    before: Sequence[Score], after: Sequence[Score], random: Random, *, repeats: int = REPEATS
) -> list[PairedScores]:
    return [
        PairedScores(
            case_id=f"{at:03}",
            before=tuple(first(random) for _ in range(repeats)),
            after=tuple(second(random) for _ in range(repeats)),
        )
        for at, (first, second) in enumerate(zip(before, after, strict=True))
    ]


def simulate_noisy_agent(size: int, random: Random) -> Tested:
    cases = [flip(random.betavariate(*BETA)) for _ in range(size)]
    return find_claim(pair(cases, cases, random))


def simulate_noisy_judge(size: int, random: Random) -> Tested:
    """The agent always gives the same answer, which its judge passes or fails by a coin flip, in each repeat again."""
    cases = [flip(0.5)] * size
    return find_claim(pair(cases, cases, random), judges=True)


def simulate_drifting_model(size: int, random: Random, *, drift: float = 0.05) -> Tested:
    """The model improves all the time. The arms are interleaved: both run a case in turn, in random order."""
    chances = [random.betavariate(*BETA) for _ in range(size)]
    scores: list[tuple[list[float], list[float]]] = [([], []) for _ in range(size)]
    halves = 0.0
    for block in BLOCKS:
        order = [at for at in range(size) for _ in range(block.repeats)]
        random.shuffle(order)
        for at in order:
            for arm in random.sample(scores[at], 2):
                arm.append(float(random.random() < chances[at] + drift * halves))
                halves += 1 / len(order)
    return find_claim(
        [PairedScores(case_id=f"{at:03}", before=tuple(b), after=tuple(a)) for at, (b, a) in enumerate(scores)]
    )


def simulate_outages(size: int, random: Random, *, lost: float = 0.2) -> Tested:
    """The service fails on a share of the baseline's runs; their pairs are left out."""
    cases = [flip(random.betavariate(*BETA)) for _ in range(size)]
    found = []
    for each in pair(cases, cases, random):
        kept = tuple(at for at in range(REPEATS) if random.random() >= lost)
        if kept:
            before, after = (tuple(arm[at] for at in kept) for arm in (each.before, each.after))
            found.append(PairedScores(case_id=each.case_id, before=before, after=after, numbers=kept))
    return find_claim(found)


def simulate_equal_means(size: int, random: Random, *, before: Score, after: Score) -> Tested:
    return find_claim(pair([before] * size, [after] * size, random))


def simulate_rare_harm(size: int, random: Random) -> Tested:
    """A patch that raises a third of the cases by 0.2, and breaks the others in 10% of their runs."""
    helped = size // 3
    harmed = 2 * helped
    before = [flip(0.6)] * helped + [always(1.0)] * harmed + [flip(0.5)] * (size - helped - harmed)
    after = [flip(0.8)] * helped + [flip(0.9)] * harmed + [flip(0.5)] * (size - helped - harmed)
    return find_claim(pair(before, after, random))


def simulate_saving(size: int, random: Random, *, expensive: float = 0.0) -> Tested:
    """Every run scores 1 and takes as many tokens on average as before, with heavy tails around each case.

    `expensive` is the share of the candidate's runs that take twice as much, while the others take less.
    """
    amounts, scores = [], []
    for at in range(size):
        length = random.lognormvariate(6, 0.7)
        before, after = (
            [round(length * random.lognormvariate(0, 0.0 if expensive else 0.4)) + 1 for _ in range(REPEATS)]
            for _ in range(2)
        )
        if expensive:
            after = [round(length * (2 if random.random() < expensive else _offset(expensive))) + 1 for _ in after]
        amounts.append(PairedScores(case_id=f"{at:03}", before=tuple(before), after=tuple(after)))
        scores.append(PairedScores(case_id=f"{at:03}", before=(1.0,) * REPEATS, after=(1.0,) * REPEATS))
    saving, no_loss = decide_saving(amounts), decide_non_inferiority(scores, margin=MARGIN)
    repeats = max(saving.looks[-1].repeats, no_loss.looks[-1].repeats)
    return Tested(saving.is_shown and no_loss.is_shown, 2 * repeats * size)


def _offset(expensive: float) -> float:
    return (1 - 2 * expensive) / (1 - expensive)


SCENARIOS: dict[str, Scenario] = {
    "noisy agent": simulate_noisy_agent,
    "noisy judge over a steady agent": simulate_noisy_judge,
    "drifting model": simulate_drifting_model,
    "outages on 20% of one arm": simulate_outages,
    "equal mean, symmetric noise": partial(
        simulate_equal_means, before=always(0.8), after=lambda random: random.choice((0.6, 1.0))
    ),
    **{
        f"equal mean, {score:g} or 1-or-0": partial(simulate_equal_means, before=always(score), after=flip(score))
        for score in (0.9, 0.95, 0.99)
    },
    "equal mean, 1-or-0 or 0.05": partial(simulate_equal_means, before=flip(0.05), after=always(0.05)),
    "helps a third, harms the rest rarely": simulate_rare_harm,
    "fewer_tokens, noisy tokens": simulate_saving,
    "cheaper, rare expensive runs": partial(simulate_saving, expensive=0.05),
}


def simulate_reshuffles(size: int, random: Random, *, rounds: int, deterministic: bool = True) -> Tested:
    """A search among rewrites that reshuffle which cases pass stops at its first acceptance.

    Its result is claimed for new cases by the rule for validation cases: at what its answers leave of alpha.
    """

    def rewrite() -> list[Score]:
        chances = (random.betavariate(*BETA) for _ in range(size))
        return [always(float(random.random() < chance)) if deterministic else flip(chance) for chance in chances]

    use = ValidationUse(acceptance_share=find_acceptance_share(rounds))
    baseline, runs = rewrite(), size
    for _ in range(rounds):
        candidate = rewrite()
        gained = sum(score(random) for score in candidate) > sum(score(random) for score in baseline)
        use, runs = use.add_decision(accepted=gained), runs + 2 * size
        if gained:
            on_these, found = find_gain_for_new_cases(baseline, candidate, use, random)
            return Tested(found, runs + on_these.case_runs)
    return Tested(False, runs)


def find_gain_for_new_cases(
    before: Sequence[Score], after: Sequence[Score], use: ValidationUse, random: Random
) -> tuple[Tested, bool]:
    """Test on these cases, and, if they show a gain, for new ones on the runs of all but the extra block."""
    pairs = pair(before, after, random)
    on_these = find_claim(pairs)
    if not on_these.is_claimed:
        return on_these, False
    seen = [case.first(count_repeats(BLOCKS)) for case in pairs]
    return on_these, decide_for_new_cases(seen, alpha=use.find_alpha(ALPHA)).is_shown


RESHUFFLES: dict[str, Scenario] = {
    **{f"deterministic agent, rounds {rounds}": partial(simulate_reshuffles, rounds=rounds) for rounds in ROUNDS},
    **{
        f"noisy agent, rounds {rounds}": partial(simulate_reshuffles, rounds=rounds, deterministic=False)
        for rounds in (1, 6)
    },
}


def simulate_skewed_changes(size: int, random: Random, *, rise: float) -> Tested:
    """Most test cases rise a little, and the rest lose as much on average; 2 runs in each arm."""
    changes = [rise if random.random() < 1 - rise else rise - 1 for _ in range(size)]
    pairs = [
        PairedScores(case_id=f"{at:03}", before=(max(0.0, -each),) * 2, after=(max(0.0, each),) * 2)
        for at, each in enumerate(changes)
    ]
    return Tested(decide_for_new_cases(pairs).is_shown, 4 * size)


def simulate_half_changes(size: int, random: Random) -> Tested:
    """Some cases pass one run more of two, half as many lose both."""
    changes = [random.choices((0.5, -1.0, 0.0), (0.4, 0.2, 0.4))[0] for _ in range(size)]
    pairs = [
        PairedScores(case_id=f"{at:03}", before=(float(each < 0), float(each < 0)), after=(float(each > 0), 0.0))
        for at, each in enumerate(changes)
    ]
    return Tested(decide_for_new_cases(pairs).is_shown, 4 * size)


SKEWED: dict[str, Scenario] = {
    "+0.1 in 90%, -0.9 in 10%": partial(simulate_skewed_changes, rise=0.1),
    "+0.05 in 95%, -0.95 in 5%": partial(simulate_skewed_changes, rise=0.05),
    "+0.5 in 40%, -1 in 20%": simulate_half_changes,
}
