from __future__ import annotations

from hypothesis import HealthCheck, settings

# Machines are noisy: a slow example is no failure. The same examples every time, so that CI says what a laptop said.
settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")
