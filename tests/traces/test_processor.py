from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Link, Span, Status, StatusCode, set_span_in_context

from tests.traces.strategies import traces
from traces import CycleError, ExecutionTrace, TraceError, TraceProcessor
from traces.otel.write import build_spans


def provider_for(processor: TraceProcessor) -> TracerProvider:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(processor)
    return provider


def emit(trace: ExecutionTrace, provider: TracerProvider) -> None:
    """Live SDK spans for a trace, as an application that is instrumented with our attributes makes them."""
    tracer = provider.get_tracer("app")
    live: dict[str, Span] = {}
    made = list(build_spans(trace))
    for span in made:
        links = [
            Link(live[link.span_id].get_span_context(), link.attributes) for link in span.links if link.span_id in live
        ]
        parent = set_span_in_context(live[span.parent_id]) if span.parent_id in live else None
        started = tracer.start_span(
            span.name, parent, attributes=span.attributes, links=links, start_time=span.start_ns
        )
        live[span.span_id] = started
    for span in reversed(made):
        if span.is_error:
            live[span.span_id].set_status(Status(StatusCode.ERROR, span.status_message))
        live[span.span_id].end(span.end_ns)


@settings(max_examples=25)
@given(traces(max_steps=6, rich=False))
def test_live_spans_become_the_trace(trace: ExecutionTrace) -> None:
    collected: list[ExecutionTrace] = []
    emit(trace, provider_for(TraceProcessor(collected.append)))
    assert collected == [trace]


def test_traces_are_delivered_when_their_last_span_ends_in_any_thread() -> None:
    collected: list[ExecutionTrace] = []
    tracer = provider_for(TraceProcessor(collected.append)).get_tracer("app")

    def run(number: int) -> None:
        with tracer.start_as_current_span("run", attributes={"promptiter.trace.id": f"run-{number}"}):
            with tracer.start_as_current_span("plan", attributes={"promptiter.node.id": "plan"}) as plan:
                pass
            link = Link(plan.get_span_context())
            with tracer.start_as_current_span("answer", attributes={"promptiter.node.id": "answer"}, links=[link]):
                pass

    threads = [threading.Thread(target=run, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(trace.id for trace in collected) == sorted(f"run-{number}" for number in range(20))
    assert all([step.id for step in trace.steps] == ["plan", "answer"] for trace in collected)
    assert all(trace.steps[1].predecessors == ("plan",) for trace in collected)


def test_spans_of_other_libraries_are_ignored() -> None:
    collected: list[ExecutionTrace] = []
    tracer = provider_for(TraceProcessor(collected.append)).get_tracer("http")
    with tracer.start_as_current_span("GET /"):
        pass
    assert collected == []


def test_a_broken_trace_is_reported_and_the_application_continues(caplog: pytest.LogCaptureFixture) -> None:
    errors: list[TraceError] = []
    for processor in (TraceProcessor(print, on_error=errors.append), TraceProcessor(print)):
        tracer = provider_for(processor).get_tracer("app")
        attributes = {"promptiter.node.id": "a", "promptiter.step.predecessors": ["a"]}
        with tracer.start_as_current_span("a", attributes=attributes):
            pass
    assert isinstance(errors[0], CycleError)
    assert "dropped a trace: step 'a' depends on itself" in caplog.text


def test_traces_with_open_spans_are_delivered_at_shutdown() -> None:
    collected: list[ExecutionTrace] = []
    provider = provider_for(TraceProcessor(collected.append))
    tracer = provider.get_tracer("app")
    root = tracer.start_span("run", attributes={"promptiter.trace.id": "run"})
    tracer.start_span("a", set_span_in_context(root), attributes={"promptiter.node.id": "a"}).end()
    provider.force_flush()
    assert collected == []
    provider.shutdown()
    assert [(trace.status, len(trace.steps)) for trace in collected] == [("incomplete", 1)]


def test_a_failing_callback_does_not_break_the_application(caplog: pytest.LogCaptureFixture) -> None:
    def broken(trace: ExecutionTrace) -> None:
        raise ZeroDivisionError(trace.id)

    tracer = provider_for(TraceProcessor(broken)).get_tracer("app")
    with tracer.start_as_current_span("a", attributes={"promptiter.node.id": "a"}):
        pass
    assert "on_trace failed" in caplog.text


def test_an_exception_in_a_live_span_is_a_failed_trace_with_its_type() -> None:
    collected: list[ExecutionTrace] = []
    tracer = provider_for(TraceProcessor(collected.append)).get_tracer("app")

    def run() -> None:
        run_span = tracer.start_as_current_span("run", attributes={"promptiter.trace.id": "r1"})
        with run_span, tracer.start_as_current_span("plan", attributes={"promptiter.node.id": "plan"}):
            raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        run()
    assert collected[0].status == "failed"
    error = collected[0].steps[0].error
    assert error is not None
    assert error.type == "ValueError"
