"""Reads back what trackers stored, and servers on the loopback that stand in for theirs."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

BLOCK = 1 << 15
WANDB_HEADER = 7


class Collector:
    """A collector of OTLP over HTTP. `spans` are those that it took, in order."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                request = ExportTraceServiceRequest.FromString(body)
                collector.spans += [
                    span for each in request.resource_spans for scope in each.scope_spans for span in scope.spans
                ]
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named by http.server
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"

    def __enter__(self) -> Collector:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def hanging_server() -> Iterator[str]:
    """A server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def find_closed_port() -> str:
    """An address where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}"


def read_attributes(holder: Any) -> dict[str, Any]:
    """The attributes of a span or an event."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in holder.attributes}


def read_scalars(folder: Path) -> list[tuple[str, int, float]]:
    """The points in TensorBoard's event files, as TensorBoard reads them: name, step, value."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0}).Reload()
    return [(name, each.step, each.value) for name in events.Tags()["scalars"] for each in events.Scalars(name)]


def read_texts(folder: Path) -> dict[str, list[str]]:
    """The texts in TensorBoard's event files, by name."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0}).Reload()
    return {
        name: [each.tensor_proto.string_val[0].decode() for each in events.Tensors(name)]
        for name in events.Tags()["tensors"]
    }


def read_wandb(file: Path) -> list[Any]:
    """The records of a .wandb file: a log in the format of LevelDB."""
    from wandb.proto.wandb_internal_pb2 import Record

    raw, at, parts, records = file.read_bytes(), WANDB_HEADER, b"", []
    while at + 7 <= len(raw):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        length, kind = int.from_bytes(raw[at + 4 : at + 6], "little"), raw[at + 6]
        parts += raw[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # the whole of a record, or its last part
            records.append(Record.FromString(parts))
            parts = b""
    return records
