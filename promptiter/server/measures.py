"""Measures of a server, in the text format of Prometheus."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(eq=False)
class Measures:
    """Counts of requests by route and status, and how long they took."""

    started: float = field(default_factory=time.time)
    requests: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    buckets: Counter[tuple[str, float]] = field(default_factory=Counter)

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request. Routes are templates, so that there are only a few of them."""
        self.requests[method, route, status] += 1
        self.seconds[route] += seconds  # type: ignore[assignment]
        for limit in BUCKETS_S:
            if seconds <= limit:
                self.buckets[route, limit] += 1

    def render(self, runs: Iterable[tuple[str, str, int]], ended: Iterable[tuple[str, str, int]]) -> str:
        """All measures as text. `runs` are numbers of runs by app and state, `ended` by app and status."""
        lines = [
            "# HELP promptiter_http_requests_total Requests by route and status.",
            "# TYPE promptiter_http_requests_total counter",
        ]
        totals: Counter[str] = Counter()
        for (method, route, status), count in sorted(self.requests.items()):
            labels = f'method="{_quote(method)}",route="{_quote(route)}",status="{status}"'
            lines.append(f"promptiter_http_requests_total{{{labels}}} {count}")
            totals[route] += count
        lines += [
            "# HELP promptiter_http_request_seconds Time until an answer began.",
            "# TYPE promptiter_http_request_seconds histogram",
        ]
        for route, count in sorted(totals.items()):
            name = _quote(route)
            for limit in BUCKETS_S:
                within = self.buckets[route, limit]
                lines.append(f'promptiter_http_request_seconds_bucket{{route="{name}",le="{limit:g}"}} {within}')
            lines.append(f'promptiter_http_request_seconds_bucket{{route="{name}",le="+Inf"}} {count}')
            lines.append(f'promptiter_http_request_seconds_sum{{route="{name}"}} {self.seconds[route]:.6f}')
            lines.append(f'promptiter_http_request_seconds_count{{route="{name}"}} {count}')
        lines += ["# HELP promptiter_runs Runs in this process.", "# TYPE promptiter_runs gauge"]
        lines += [f'promptiter_runs{{app="{_quote(app)}",state="{state}"}} {count}' for app, state, count in runs]
        lines += [
            "# HELP promptiter_runs_ended_total Runs that ended in this process.",
            "# TYPE promptiter_runs_ended_total counter",
        ]
        lines += [
            f'promptiter_runs_ended_total{{app="{_quote(app)}",status="{status}"}} {count}'
            for app, status, count in ended
        ]
        lines += [
            "# HELP process_start_time_seconds When the server started.",
            "# TYPE process_start_time_seconds gauge",
            f"process_start_time_seconds {self.started:.3f}",
        ]
        return "\n".join(lines) + "\n"


def _quote(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
