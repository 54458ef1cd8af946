"""Damaged files of a run: it is resumed with the same result, or refused with an error that says why."""

from __future__ import annotations

import random
import shutil
from collections import Counter, defaultdict
from contextlib import suppress
from pathlib import Path

import pytest

from promptiter.errors import PromptiterError
from promptiter.runs.listing import list_runs
from promptiter.runs.summary import read_summary
from promptiter.testing.store_hooks import Killed
from tests.worlds.results import read_unmeasured
from tests.worlds.starter import SmallShop, kill_runs_at
from traces import TraceError

pytestmark = pytest.mark.slow

KILL_AT = 45
CHANGES = 12


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A finished run, and one that was killed."""
    whole, killed = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("killed")
    SmallShop().run(whole)
    with kill_runs_at(KILL_AT), suppress(Killed):
        SmallShop().run(killed)
    return whole, killed


def damage(raw: bytes, rng: random.Random) -> bytes:
    """Flip a bit at the start of a line or anywhere, write a zero, cut the end off, or repeat the beginning."""
    starts = [0, *(place + 1 for place, byte in enumerate(raw[:-1]) if byte == ord("\n"))]
    near = min(len(raw) - 1, rng.choice(starts) + rng.randrange(24))
    place = rng.choice([near, rng.randrange(len(raw))])
    match rng.randrange(6):
        case 0:
            return raw[:place]
        case 1:
            return raw + raw[:place]
        case 2:
            return raw[:place] + b"\0" + raw[place + 1 :]
        case _:
            return raw[:place] + bytes([raw[place] ^ 1 << rng.randrange(8)]) + raw[place + 1 :]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_file_is_survived_or_refused(seed: int, runs: tuple[Path, Path], tmp_path: Path) -> None:
    rng, outcomes = random.Random(seed), Counter[str]()
    for number in range(CHANGES):
        source = runs[number % 2]
        folder = tmp_path / str(number)
        shutil.copytree(source, folder)
        [run] = [path.parent for path in folder.glob("*/run.json")]
        kinds = defaultdict(list)
        for path in sorted(run.rglob("*")):
            if path.is_file() and path.stat().st_size:
                kinds[path.relative_to(run).parts[0]].append(path)
        path = rng.choice(kinds[rng.choice(sorted(kinds))])
        path.write_bytes(damage(path.read_bytes(), rng))
        list_runs(folder)
        with suppress(PromptiterError, TraceError):
            read_summary(run)
        try:
            SmallShop().run(folder)
        except (PromptiterError, TraceError):
            outcomes["refused"] += 1
            continue
        outcomes["resumed"] += 1
        if source is runs[1] or path.name in ("calls.jsonl", "journal.jsonl"):
            traces = path.name != "traces.jsonl.gz"  # a damaged trace that nothing needs stays damaged
            assert read_unmeasured(folder, traces=traces) == read_unmeasured(runs[0], traces=traces), path
    assert outcomes["resumed"] > 0
