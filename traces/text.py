"""Recorded text made fit to show: on one line, cut to a length, without control characters."""

from __future__ import annotations

from traces.model import Snapshot


def one_line(text: str) -> str:
    """Replace line breaks and control characters, which break XML, Mermaid and terminals, by spaces."""
    return text if text.isprintable() else "".join(letter if letter.isprintable() else " " for letter in text)


def cut(text: str, limit: int) -> str:
    """Keep the beginning of a text, at most `limit` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def preview(snapshot: Snapshot, limit: int = 200) -> str:
    """Show the beginning of a snapshot on one line."""
    value = snapshot.text if snapshot.text is not None else "" if snapshot.data is None else str(snapshot.data)
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
