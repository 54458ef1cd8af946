"""OpenTelemetryObserver: a run as a trace, sent to any collector that takes OTLP over HTTP.

run, round, evaluation and case are spans, each within the one before it. Scores are events `gen_ai.evaluation.result`
with the attributes of the GenAI conventions; decisions and the verdict are events of our own names.

Ids follow from the run id and the event, so spans that are sent again have the ids that they had. What was sent is
noted in the folder of the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from promptiter.errors import TrackerError
from promptiter.observers.points import Fact, Point, to_text
from promptiter.observers.tracker import TrackedRun, Tracker, find_report
from traces.files import write_atomically

SENT = "opentelemetry.sent"
"""A file in the folder of a run with the number of the last event whose spans were sent."""

BATCH = 256
LONGEST_TEXT = 4000


class OpenTelemetryObserver(Tracker):
    """Sends runs as traces. Endpoint, headers and the like are those of the variables OTEL_EXPORTER_OTLP_*.

    `endpoint` is a full address, such as http://localhost:4318/v1/traces. With `cases: false`, case runs are left out.
    """

    name = "opentelemetry"
    package = "opentelemetry.exporter.otlp.proto.http"
    noisy_loggers = (
        "opentelemetry.exporter.otlp.proto.http.trace_exporter",
        "opentelemetry.exporter.otlp.common.http",
        "urllib3.connectionpool",
    )

    def __init__(self, *, endpoint: str | None = None, cases: bool = True, timeout_s: float = 30.0) -> None:
        self.endpoint = endpoint
        self.cases = cases
        super().__init__(timeout_s=timeout_s)

    def open_run(self, start: Point, folder: Path | None) -> TrackedRun:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        exporter = OTLPSpanExporter(endpoint=self.endpoint)
        return _Trace(exporter, start, folder=folder, with_cases=self.cases)


@dataclass(slots=True)
class _Span:
    """A span that has not ended."""

    name: str
    key: str
    parent: str
    start: float
    attributes: dict[str, Fact]
    events: list[tuple[str, float, Mapping[str, Fact]]] = field(default_factory=list)


class _Trace:
    def __init__(self, exporter: Any, start: Point, *, folder: Path | None, with_cases: bool) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        self._exporter = exporter
        self._run_id = start.run_id
        self._folder = folder
        self._with_cases = with_cases
        self._resource = Resource.create({"service.name": "promptiter"})
        self._scope = InstrumentationScope("promptiter", str(start.facts["promptiter"]))
        self._open: dict[str, _Span] = {}
        self._ready: list[Any] = []
        self._sent = _read_sent(folder)
        self._seq = 0

    def write(self, point: Point) -> None:
        self._seq = point.seq
        agent = {"gen_ai.agent.name": point.facts.get("agent", "")}
        match point.type:
            case "run_started":
                where = {} if self._folder is None else {"report": find_report(self._folder)}
                self._start(
                    point, f"run {point.facts['agent']}", "run", "", {**agent, **_own({**point.facts, **where})}
                )
            case "round_started":
                self._start(point, f"round {point.round}", f"round {point.round}", "run", _own({"round": point.round}))
            case "evaluation_started":
                parent = f"round {point.round}" if f"round {point.round}" in self._open else "run"
                facts = _own({**point.facts, "phase": point.phase})
                self._start(point, f"evaluation {point.phase}", _key(point), parent, facts)
            case "case" if self._with_cases:
                self._add_case(point)
            case "evaluation_finished":
                self._finish_evaluation(point)
            case "decision":
                self._add_event(f"round {point.round}", "promptiter.decision", point)
            case "round_completed":
                self._end(f"round {point.round}", point, {**point.figures})
                self._export()
            case "final_test" | "conclusion" | "ablation":
                self._add_event("run", f"promptiter.{point.type}", point)
        if len(self._ready) >= BATCH:
            self._export()

    def close(self, end: Point | None) -> None:
        """End the spans that are open. If the run can be resumed, they are sent when they end, and a mark now."""
        if end is not None:
            self._seq = end.seq
            profile = {f"profile.{name}": to_text(value) for name, value in (end.profile or {}).items()}
            facts = {**end.facts, **end.figures, **profile}
            if end.facts["is_final"]:
                self._add_event("run", "promptiter.run_completed", end)
                for key in [key for key in self._open if key != "run"]:
                    self._end(key, end, {})
                self._end("run", end, facts)
            else:
                key = f"interruption {end.seq}"
                self._start(end, "interruption", key, "run", {})
                self._end(key, end, facts)
        self._export()
        self._exporter.shutdown()

    def _add_case(self, point: Point) -> None:
        key = f"case {point.seq}"
        start = point.at - float(point.facts.get("duration_s", 0.0))
        error = {"error.type": str(point.facts["error"]).partition(":")[0]} if "error" in point.facts else {}
        attributes = {**_own(point.facts), **error}
        parent = _key(point)
        span = _Span(f"case {point.facts['case']}", key, parent, start, attributes)
        for score in point.scores:
            result: dict[str, Fact | None] = {
                "gen_ai.evaluation.name": score.metric,
                "gen_ai.evaluation.score.value": score.value,
                "gen_ai.evaluation.score.label": None if score.value is None else "pass" if score.passed else "fail",
                "gen_ai.evaluation.explanation": (score.reason or score.error or "")[:LONGEST_TEXT],
                "error.type": None if score.error is None else score.error.partition(":")[0],
            }
            known = {name: each for name, each in result.items() if each not in (None, "")}
            span.events.append(("gen_ai.evaluation.result", point.at, known))
        self._open[key] = span
        self._end(key, point, {})

    def _finish_evaluation(self, point: Point) -> None:
        key = _key(point)
        for name in ("mean_score", "pass_rate"):
            if name in point.facts and key in self._open:
                facts = {"gen_ai.evaluation.name": name, "gen_ai.evaluation.score.value": point.facts[name]}
                self._open[key].events.append(("gen_ai.evaluation.result", point.at, facts))
        self._end(key, point, {})

    def _start(self, point: Point, name: str, key: str, parent: str, attributes: Mapping[str, Fact]) -> None:
        self._open[key] = _Span(name, key, parent, point.at, dict(attributes))

    def _add_event(self, key: str, name: str, point: Point) -> None:
        span = self._open.get(key) or self._open["run"]
        span.events.append((name, point.at, _own({**point.facts, **point.figures})))

    def _end(self, key: str, point: Point, facts: Mapping[str, Fact]) -> None:
        """End a span. It is sent unless an earlier process has sent it."""
        from opentelemetry.sdk.trace import Event, ReadableSpan
        from opentelemetry.trace import Status, StatusCode

        span = self._open.pop(key, None)
        if span is None or point.seq <= self._sent:
            return
        is_error = "error.type" in span.attributes or point.facts.get("status") == "failed"
        self._ready.append(
            ReadableSpan(
                name=span.name,
                context=self._context(span.key),
                parent=self._context(span.parent) if span.parent else None,
                resource=self._resource,
                attributes={**span.attributes, **_own(facts)},
                events=[Event(name, attributes, _nanoseconds(at)) for name, at, attributes in span.events],
                status=Status(StatusCode.ERROR if is_error else StatusCode.UNSET),
                start_time=_nanoseconds(span.start),
                end_time=_nanoseconds(point.at),
                instrumentation_scope=self._scope,
            )
        )

    def _context(self, key: str) -> Any:
        from opentelemetry.trace import SpanContext, TraceFlags

        trace_id = int.from_bytes(sha256(self._run_id.encode()).digest()[:16])
        span_id = int.from_bytes(sha256(f"{self._run_id}/{key}".encode()).digest()[:8])
        return SpanContext(trace_id, span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))

    def _export(self) -> None:
        from opentelemetry.sdk.trace.export import SpanExportResult

        if not self._ready:
            return
        if self._exporter.export(self._ready) is not SpanExportResult.SUCCESS:
            raise TrackerError("the collector did not take the spans; check OTEL_EXPORTER_OTLP_ENDPOINT")
        self._ready.clear()
        if self._folder is not None:
            with write_atomically(self._folder / SENT) as file:
                file.write(b"%d\n" % self._seq)


def _key(point: Point) -> str:
    return f"evaluation {point.facts['evaluation']}"


def _own(facts: Mapping[str, Fact]) -> dict[str, Fact]:
    """Attributes of our own names."""
    return {
        f"promptiter.{name.replace('/', '.')}": value[:LONGEST_TEXT] if isinstance(value, str) else value
        for name, value in facts.items()
    }


def _read_sent(folder: Path | None) -> int:
    try:
        return -1 if folder is None else int((folder / SENT).read_text())
    except (OSError, ValueError):
        return -1


def _nanoseconds(at: float) -> int:
    return round(at * 1e9)
