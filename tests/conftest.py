from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# Machines are noisy: a slow example is not a failure. The examples are the same every time, in CI and on a laptop.
settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("steady"), max_examples=15)  # for `make quick`
settings.load_profile("steady")


@pytest.fixture(scope="session", autouse=True)
def hear_ctrl_c() -> Iterator[None]:
    """Python's own SIGINT handler, also where the tests were started with the signal ignored (`make test &`).

    Child processes inherit an ignored signal. promptiter leaves it ignored, as nohup asks, so tests that press Ctrl-C
    would wait forever.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
