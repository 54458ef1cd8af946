"""Recorded text made fit to show: on one line, cut to a length, without control characters."""

from __future__ import annotations

import json
import re

from traces.model import Snapshot

_INDEX_MARKS = re.compile(r"(?:\[[^\[\]]*\]|~\d+| ×[\d,]+)+$")


def one_line(text: str) -> str:
    """Replace line breaks and control characters, which break XML, Mermaid and terminals, with spaces."""
    return text if text.isprintable() else "".join(letter if letter.isprintable() else " " for letter in text)


def cut(text: str, limit: int) -> str:
    """Keep the beginning of a text, at most `limit` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def cut_at_word(text: str, limit: int) -> str:
    """Keep the first words of a text, at most `limit` characters. A word that takes more than half of that is cut."""
    if len(text) <= limit:
        return text
    words, _, _ = text[: limit - 1].rpartition(" ")
    return f"{words.rstrip(' ,;:')} …" if len(words) > limit // 2 else cut(text, limit)


def cut_middle(name: str, limit: int) -> str:
    """Keep both ends of a name, at most `limit` characters. Marks such as `[3]`, `~2` and ` ×8` stay."""
    if len(name) <= limit:
        return name
    marks = _INDEX_MARKS.search(name[-limit:])
    tail = max(limit // 3, len(marks[0]) if marks else 0)
    tail = min(tail, limit - 1)
    return f"{name[: limit - 1 - tail]}…{name[len(name) - tail :]}"


def preview(snapshot: Snapshot, limit: int = 200) -> str:
    """Show the beginning of a snapshot on one line: its text, or its data as JSON."""
    if snapshot.text is not None:
        value = snapshot.text
    elif snapshot.data is not None:
        value = json.dumps(snapshot.data, ensure_ascii=False, default=str)
    else:
        value = ", ".join(f"{blob.media_type}, {blob.size:,} bytes" for blob in snapshot.blobs)
    return cut(" ".join(value[: 4 * limit].split()), limit)


def format_duration(nanoseconds: int) -> str:
    """Write a duration in the unit that suits its size."""
    if nanoseconds < 1_000_000:
        return f"{nanoseconds / 1e3:.0f} µs"
    if nanoseconds < 1_000_000_000:
        return f"{nanoseconds / 1e6:.0f} ms"
    if nanoseconds < 60_000_000_000:
        return f"{nanoseconds / 1e9:.2f} s"
    minutes, rest = divmod(round(nanoseconds / 1e9), 60)
    return f"{minutes} min {rest:02d} s"
