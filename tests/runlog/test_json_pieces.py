"""result.json, written piece by piece."""

from __future__ import annotations

from io import BytesIO

import orjson

from promptiter.runlog.codec import to_plain
from promptiter.runlog.events import SCHEMA_VERSION
from promptiter.testing.small_run import SmallRun


class CountingFile(BytesIO):
    """A file that knows the longest piece that was written to it."""

    longest = 0

    def write(self, raw: bytes) -> int:  # type: ignore[override]
        self.longest = max(self.longest, len(raw))
        return super().write(raw)


async def test_a_result_is_written_as_one_document_would_be_without_ever_holding_it_as_a_whole() -> None:
    small = SmallRun()
    result = await small.engine.run(small.request)
    file = CountingFile()
    result.write_json(file)
    document = {"schema_version": SCHEMA_VERSION, **to_plain(result)}
    assert file.getvalue() == orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n"
    assert len(result.rounds) > 1
    assert file.longest < len(file.getvalue()) / 10
