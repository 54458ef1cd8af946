"""The editor without a model, so that a task runs out of the box. A model does better.

It tries small edits in a fixed order and leaves it to the search to keep those that measure better: what failed cases
expect; numbers and switches of configuration files; other operators and constants in code; and, for ties, parts
of a text that can go.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest

from promptiter.evaluation.score import Finding
from promptiter.search.mutation import MutationRequest, WrittenValues
from promptiter.search.removable_parts import Pieces
from promptiter.structure import Surface

CODE = (".py", ".js", ".ts", ".rb", ".go", ".rs", ".c", ".java", ".sh")
SETTINGS = (".yaml", ".yml", ".json", ".toml", ".ini", ".cfg", ".conf", ".env", ".properties")

MOST_EDITS = 2_000
"""Per file and kind of edit."""
LOOK_AHEAD = 64
"""How far behind the last known edit another one may be that was tried: candidates of a round are decided together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """A new text for one artifact, and why it is tried."""

    path: str
    text: str
    reason: str


def edit_offline(request: MutationRequest) -> WrittenValues:
    """The next edit that was not tried since the profile was accepted; no values if there is none left.

    It follows from the request alone, so that a resumed run continues with the same edit.
    """
    texts = {path: value for path, value in request.values.items() if isinstance(value, str)}
    findings = [
        finding
        for row in request.evaluation.rows
        for score in row.scores
        if row.repeat == 0 and not score.passed
        for finding in score.findings
    ]
    tried = {(path, text) for each in request.rejected for path, text in each.values.items()}
    initial = {surface.part: surface.value for surface in request.structure.surfaces}
    before: list[Edit] = []
    position, seen = 0, set[tuple[str, str]]()
    for edit in list_edits(texts, findings):
        key = (edit.path, edit.text)
        if key in seen or edit.text == texts[edit.path] or {**texts, edit.path: edit.text} == initial:
            continue
        seen.add(key)
        before.append(edit)
        position = len(before) if key in tried else position
        if len(before) >= position + request.number + LOOK_AHEAD:
            break
    left = before[position:]
    if len(left) < request.number:
        return WrittenValues(values=None, reason="no simple edit is left; a model may find more")
    chosen = left[request.number - 1]
    return WrittenValues(values={chosen.path: chosen.text}, reason=chosen.reason)


def list_edits(texts: Mapping[str, str], findings: Sequence[Finding]) -> Iterator[Edit]:
    """Yield the edits of these texts, best first: those that findings suggest, then the rest, file by file in turn.

    Without findings, what is left to improve is often a length, so parts of texts that can go are tried first.
    """
    yield from chain.from_iterable(_answer_finding(each, texts) for each in findings)
    suspects = [finding.where for finding in findings]
    paths = sorted(texts, key=lambda path: (path not in suspects, path))
    shorter = _alternate([_shorten(path, texts[path]) for path in paths if not path.endswith(CODE + SETTINGS)])
    others = _alternate([_vary(path, texts[path]) for path in paths])
    yield from chain(others, shorter) if findings else chain(shorter, others)


def _answer_finding(finding: Finding, texts: Mapping[str, str]) -> Iterator[Edit]:
    """Edits that give a failed case what it expects: its text instead of the wrong one, or added to a file."""
    expected, actual = finding.expected, finding.actual
    if not isinstance(expected, str) or len(expected.strip()) < 2 or expected == "pass":
        return
    for path in sorted(texts, key=lambda path: path != finding.where):
        text = texts[path]
        if isinstance(actual, str) and len(actual) > 2 and text.count(actual) == 1:
            yield Edit(path=path, text=text.replace(actual, expected), reason=f"{finding.predicate} expects it")
        if path.endswith(CODE + SETTINGS) or expected in text:
            continue
        start = text.rstrip("\n")
        yield Edit(
            path=path, text=f"{start}\n\n{expected.strip()}\n".lstrip("\n"), reason=f"{finding.predicate} expects it"
        )


def _vary(path: str, text: str) -> Iterator[Edit]:
    if path.endswith(SETTINGS):
        yield from _limit(_vary_settings(path, text))
    elif path.endswith(CODE):
        yield from _limit(_vary_code(path, text))


def _vary_settings(path: str, text: str) -> Iterator[Edit]:
    """Every number doubled, halved, and one step up and down; every switch turned."""
    numbers = list(_NUMBER.finditer(text))
    steps: tuple[Callable[[float], float], ...] = (
        lambda value: value * 2,
        lambda value: value / 2,
        lambda value: value + 1,
        lambda value: value - 1,
        lambda value: value * 1.1,
        lambda value: value * 0.9,
    )
    switches = list(_SWITCH.finditer(text))
    for match in switches:
        yield _replace(path, text, match, _SWITCHES[match[0]])
    for step in steps:
        for match in numbers:
            new = _format_like(match[0], step(float(match[0])))
            if new != match[0]:
                yield _replace(path, text, match, new)


def _vary_code(path: str, text: str) -> Iterator[Edit]:
    """Every comparison, operator and constant exchanged for a neighbour, outside of comments and strings."""
    places = [match for match in _TOKEN.finditer(text) if match.lastgroup in ("operator", "number", "word")]
    options = [_NEIGHBOURS.get(match[0]) or _list_numbers(match[0]) for match in places]
    for position in range(max(map(len, options), default=0)):
        for match, others in zip(places, options, strict=True):
            if position < len(others):
                yield _replace(path, text, match, others[position])


def _list_numbers(token: str) -> tuple[str, ...]:
    if not token.isdigit():
        return ()
    value = int(token)
    return tuple(str(each) for each in (value + 1, value - 1) if each >= 0)


def _shorten(path: str, text: str) -> Iterator[Edit]:
    """The text without each of its lines and sentences, the longest first; headings stay."""
    pieces = Pieces.of(Surface(node_id="workspace", type="file", part=path, value=text))
    order = sorted(range(len(pieces)), key=lambda number: (-len(pieces.text(number)), number))
    for number in order[:MOST_EDITS]:
        part, start = pieces.text(number), pieces.spans[number][0]
        if text[text.rfind("\n", 0, start) + 1 :].startswith("#"):
            continue
        left = str(pieces.drop([number]))
        if left.strip() and left != text:
            yield Edit(path=path, text=left, reason=f"without {part.strip()[:60]!r}")


def _replace(path: str, text: str, match: re.Match[str], new: str) -> Edit:
    line = text.count("\n", 0, match.start()) + 1
    return Edit(
        path=path,
        text=f"{text[: match.start()]}{new}{text[match.end() :]}",
        reason=f"line {line}: {new} instead of {match[0]}",
    )


def _format_like(token: str, value: float) -> str:
    """A number in the format of another one: whole if that is, otherwise with few digits."""
    if "." not in token and "e" not in token.lower():
        return str(round(value))
    return f"{value:.6g}"


def _limit(edits: Iterator[Edit]) -> Iterator[Edit]:
    yield from (edit for edit, _ in zip(edits, range(MOST_EDITS), strict=False))


def _alternate(sources: Sequence[Iterator[Edit]]) -> Iterator[Edit]:
    """One edit of each source in turn."""
    for several in zip_longest(*sources):
        yield from (each for each in several if each is not None)


_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w.])")
_SWITCHES = {"true": "false", "false": "true", "True": "False", "False": "True", "on": "off", "off": "on"}
_SWITCH = re.compile(r"\b(?:true|false|True|False|on|off)\b")
_TOKEN = re.compile(
    r'(?P<string>"""[\s\S]*?"""|\'\'\'[\s\S]*?\'\'\'|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\')'
    r"|(?P<comment>#[^\n]*|//[^\n]*)"
    r"|(?P<operator>(?<=\s)(?:<=|>=|==|!=|<|>|\+|-|\*\*|\*|//|/|%)(?=\s))"
    r"|(?P<number>(?<![\w.])\d+(?![\w.]))"
    r"|(?P<word>\b(?:and|or|True|False|min|max)\b)"
)
_NEIGHBOURS: Mapping[str, tuple[str, ...]] = {
    "<": ("<=", ">", ">="),
    "<=": ("<", ">=", "=="),
    ">": (">=", "<", "<="),
    ">=": (">", "<=", "=="),
    "==": ("!=", "<=", ">="),
    "!=": ("==",),
    "+": ("-",),
    "-": ("+",),
    "*": ("+", "/"),
    "/": ("//", "*"),
    "//": ("/",),
    "%": ("//",),
    "**": ("*",),
    "and": ("or",),
    "or": ("and",),
    "True": ("False",),
    "False": ("True",),
    "min": ("max",),
    "max": ("min",),
}
