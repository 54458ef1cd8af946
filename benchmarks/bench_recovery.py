"""How well recovery finds who followed whom in runs of random agents, beside reference figures (F1 over all edges).

The spans say nothing about it but texts and times. `hidden` is the share of edges whose text the follower does not
show. Consensus is over several runs of one agent, asynchronous and by time only.

    python -m benchmarks.bench_recovery [--seeds 60]
"""

from __future__ import annotations

import argparse

from tests.worlds.random_runs import Regime, score_recovery

HIDDEN = (0, 0.2, 0.5, 1)
REFERENCE: dict[Regime, tuple[float, ...]] = {
    "asynchronous": (0.91, 0.85, 0.80, 0.79),
    "supersteps": (0.88, 0.80, 0.72, 0.72),
}
CONSENSUS = {1: 0.80, 5: 0.91, 10: 0.94, 50: 0.98}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=60, help="how many random agents")
    seeds = range(parser.parse_args().seeds)
    print(f"{'runs of random agents':<28}{'hidden':>8}{'F1':>8}{'reference':>11}")
    for regime, references in REFERENCE.items():
        for hidden, reference in zip(HIDDEN, references, strict=True):
            score = score_recovery(regime, hidden, seeds=seeds)
            print(f"{regime:<28}{hidden:>8}{score.f1:>8.3f}{reference:>11.2f}")
    print(f"\n{'consensus, time only':<28}{'runs':>8}{'F1':>8}{'reference':>11}")
    for runs, reference in CONSENSUS.items():
        score = score_recovery("asynchronous", 1, seeds=seeds, runs=runs)
        print(f"{'asynchronous':<28}{runs:>8}{score.f1:>8.3f}{reference:>11.2f}")


if __name__ == "__main__":
    main()
