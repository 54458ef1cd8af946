"""Findings taken apart into atoms: single values that can be looked for, and forms that can be judged.

An answer that is wrong as a whole is seldom wrong in all its parts. What the expected answer has and the actual one
lacks is missing, what only the actual one has is unexpected, and what both have in another writing, or what all
expected answers share (a first word, JSON), is a matter of form: no step had to carry it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from promptiter.evaluation.metrics.json_match import NotJsonError, parse_json
from promptiter.evaluation.score import Finding
from promptiter.offline.attribution.format_rules import (
    Form,
    json_form,
    other_wording,
    shared_forms,
    violated_form,
    writing_form,
    written_otherwise,
)
from promptiter.offline.attribution.references import References
from promptiter.offline.attribution.value_search import (
    FoldedText,
    Value,
    field_of,
    fold,
    from_plain,
    parts_of,
    plain_words,
)
from promptiter.stages.losses import Loss
from traces.model import Json

MOST_ATOMS = 20
"""So many atoms of one loss are followed."""

MOST_SWAPPED = 3
"""Where an answer has as many words of its own as it lacks, at most these, each may stand for one that it lacks."""

LIMITS = frozenset(("max_duration_s", "max_cost_usd"))
"""Predicates of the whole run, not of its answer."""

AtomKind: TypeAlias = Literal["missing", "unexpected"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Atom:
    """A value that the answer lacks, or has and should not have.

    A weak one (a small number, a common word) may show anywhere by chance, so it counts only where no strong one does.
    `counterpart` is what stands in its place in the answer, `labels` what else could.
    """

    kind: AtomKind
    value: Value
    finding: Finding
    field: str = ""
    is_strong: bool = True
    counterpart: Value | None = None
    labels: frozenset[str] = frozenset()

    def parts(self) -> list[Atom]:
        """The atoms of a longer text, all of them weak."""
        values = [value for value in _distinct(parts_of(self.value.text)) if not _is_noise(value)]
        return [
            replace(self, value=value, finding=replace(self.finding, expected=value.text), is_strong=False)
            for value in values[:MOST_ATOMS]
        ]


@dataclass(slots=True)
class Atoms:
    """What one loss comes down to; `tools` and `limits` are findings that have no values.

    `needed` is all that the answer should hold, missing or not.
    """

    loss: Loss
    values: list[Atom] = field(default_factory=list)
    needed: list[Value] = field(default_factory=list)
    forms: list[Form] = field(default_factory=list)
    tools: list[Finding] = field(default_factory=list)
    limits: list[Finding] = field(default_factory=list)

    def of_kind(self, kind: AtomKind, *, is_strong: bool | None = None) -> list[Atom]:
        """The atoms to follow, each value once."""
        known: dict[tuple[str, str], Atom] = {}
        for atom in self.values:
            if atom.kind == kind and is_strong in (None, atom.is_strong):
                known.setdefault(atom.value.key, atom)
        return list(known.values())[:MOST_ATOMS]


def take_apart(loss: Loss, references: References, *, output: str, request: str) -> Atoms:
    """The atoms of a loss on a step with this output; `request` is what the user said."""
    reading = _Reading(loss, references, output=output, request=request)
    for finding in loss.findings:
        reading.read(finding)
    if not loss.findings and loss.category != "error":
        reading.compare_loosely(Finding(kind="wrong"))
    return reading.atoms


def leaves_of(value: Json, name: str) -> Iterator[tuple[str, Json]]:
    """The single values of a JSON value in its order, each with the name of the field it stands in."""
    waiting: list[tuple[str, Json]] = [(name, value)]
    while waiting:
        name, item = waiting.pop()
        if isinstance(item, dict):
            waiting += reversed([(plain_words(str(key)), inner) for key, inner in item.items()])
        elif isinstance(item, list):
            waiting += reversed([(name, inner) for inner in item])
        elif item is not None:
            yield name, item


class _Reading:
    """Reads the findings of a loss, one after the other."""

    def __init__(self, loss: Loss, references: References, *, output: str, request: str) -> None:
        self.output = output
        self.references = references
        self.request = request
        wanted = [(name, from_plain(leaf)) for name, leaf in _values_of(loss.expected or "")]
        self.atoms = Atoms(loss, needed=[value for name, value in wanted if self._is_content(name, value)])

    def read(self, finding: Finding) -> None:
        predicate = finding.predicate
        if predicate.startswith("tool_") or finding.where.startswith("tool call"):
            self.atoms.tools.append(finding)
        elif predicate in LIMITS:
            self.atoms.limits.append(finding)
        elif finding.kind == "violated":
            self._read_violation(finding)
        elif predicate in ("json", "number"):
            self._read_value(finding)
        elif predicate in ("exact", "contains"):
            self._compare_strictly(finding, str(finding.expected))
        else:
            self.compare_loosely(finding)

    def compare_loosely(self, finding: Finding) -> None:
        """What the answer lacks of the reference, where only its sense counts, not its wording."""
        wanted = finding.expected if self.atoms.loss.expected is None else self.atoms.loss.expected
        if isinstance(wanted, list):  # words that ROUGE misses
            wanted = " ".join(map(str, wanted))
        if isinstance(wanted, str):
            self._compare(finding, wanted, FoldedText(self.output))

    def _read_violation(self, finding: Finding) -> None:
        form = violated_form(finding)
        if form is not None:
            self.atoms.forms.append(form)
        reference = self.atoms.loss.expected
        if finding.predicate == "regex":
            pattern = str(finding.expected)
            wanted = _literals_of(pattern) if reference in (None, pattern) else reference
            self._compare(finding, wanted or "", FoldedText(self.output))
        elif form is None or finding.predicate == "valid_json":
            self.compare_loosely(replace(finding, expected=None))

    def _read_value(self, finding: Finding) -> None:
        """A number, or a part of a JSON document."""
        if finding.kind == "unexpected":
            self.atoms.forms.append(Form(rule=f"the answer must not have {finding.where}", finding=finding))
            return
        whole = FoldedText(self.output)
        leaves = list(leaves_of(finding.expected, _last_key(finding.where)))
        instead = [from_plain(leaf) for _, leaf in leaves_of(finding.actual, "")]
        elsewhere = [(name, leaf) for name, leaf in leaves if whole.shows(from_plain(leaf))]
        missed = self._miss(finding, [pair for pair in leaves if pair not in elsewhere], came=whole, others=instead)
        if len(missed) == 1 and len(instead) == 1:
            self.atoms.values.append(replace(missed[0], counterpart=instead[0]))
        else:
            self.atoms.values += missed
        if not missed and elsewhere:
            place = finding.where or "the answer"
            rule = f"{place} must be {finding.expected!r:.120}, not {finding.actual!r:.120}"
            other = instead[0] if len(instead) == 1 else None
            self.atoms.forms.append(writing_form(finding, from_plain(elsewhere[0][1]), rule=rule, other=other))

    def _compare_strictly(self, finding: Finding, expected: str) -> None:
        """What parts two texts of which every character counts, or one that the other must contain."""
        came = FoldedText(finding.actual if isinstance(finding.actual, str) else self.output)
        missed = self._compare(finding, expected, came)
        forms: list[Form] = []
        if _document(expected) is not None and _document(came.raw) is None:
            forms.append(json_form(finding))
        if finding.predicate == "exact":
            forms += shared_forms(finding, came, references=self.references)
        forms += written_otherwise(finding, came, expected=expected)
        if not missed and not forms:
            forms.append(other_wording(finding, came, expected=expected))
        self.atoms.forms += forms

    def _compare(self, finding: Finding, expected: str, came: FoldedText) -> list[Atom]:
        """Keep as atoms what is in only one of two texts; those that are missing are given back."""
        others: list[Value] = []
        if _document(expected) is None:
            reference = FoldedText(expected)
            others = [value for value in _distinct(parts_of(came.raw)) if not reference.shows(value)]
        missed = self._miss(finding, _values_of(expected), came=came, others=others)
        spare = [value for value in others if not _is_noise(value)]
        if len(missed) == len(spare) <= MOST_SWAPPED:
            pairs = zip(missed, spare, strict=True)
            missed = [replace(atom, counterpart=other) if _are_alike(atom, other) else atom for atom, other in pairs]
        self.atoms.values += missed
        for value in others:
            if value.kind not in ("word", "text"):
                told = replace(finding, kind="unexpected", expected=None, actual=value.text)
                is_strong = self._is_strong(value, is_leaf=False)
                self.atoms.values.append(Atom(kind="unexpected", value=value, finding=told, is_strong=is_strong))
        return missed

    def _miss(
        self, finding: Finding, wanted: Iterable[tuple[str, Json]], *, came: FoldedText, others: Sequence[Value]
    ) -> list[Atom]:
        """The wanted values that did not come, each with what came in its place; what all references share is form."""
        missed = []
        for name, leaf in wanted:
            value = from_plain(leaf)
            if came.shows(value) or not self._is_content(name, value):
                continue
            labels = self.references.labels_of(name, leaf)
            missed.append(
                Atom(
                    kind="missing",
                    value=value,
                    finding=replace(finding, kind="missing", expected=leaf, actual=None),
                    field=name,
                    is_strong=self._is_strong(value, is_leaf=bool(name) and not labels),
                    counterpart=next((other for other in others if _could_replace(other, value, labels)), None),
                    labels=labels,
                )
            )
        return missed

    def _is_content(self, name: str, value: Value) -> bool:
        """Whether a value is a case's own: not a word of every text, nor what all references share.

        What a field of its own holds (`"country": "DE"`, `"paid": true`) is no word of every text.
        """
        is_told = bool(value.folded) if name else not _is_noise(value)
        return is_told and not self.references.is_common(name, value)

    def _is_strong(self, value: Value, *, is_leaf: bool) -> bool:
        """Whether a value is unlikely to show by chance; a word is, if it is a field's, or a name in the request."""
        if value.kind == "number":
            return sum(character.isdigit() for character in value.text) >= (2 if is_leaf else 3)
        if value.kind == "word":
            is_name = value.text[0].isupper() and value.text in self.request
            return len(value.text) > 2 and (is_leaf or is_name or bool(field_of(value, self.request)))
        return len(value.folded) > 2


def _could_replace(other: Value, value: Value, labels: frozenset[str]) -> bool:
    return fold(other.text) in labels or (other.kind == value.kind and value.kind != "word")


def _are_alike(atom: Atom, other: Value) -> bool:
    """Whether a word may stand for another: a name for a name."""
    value = atom.value
    return value.kind == other.kind and value.text[:1].isupper() == other.text[:1].isupper()


def _last_key(path: str) -> str:
    """`city` of `$.addresses[2].city`."""
    keys = re.findall(r"\.(\w+)|\['([^']*)'\]", path)
    return plain_words("".join(keys[-1])) if keys else ""


def _document(text: str) -> Json:
    """The JSON object or list of a text, or None."""
    try:
        value = parse_json(text)
    except NotJsonError:
        return None
    return value if isinstance(value, dict | list) else None


def _values_of(expected: str) -> list[tuple[str, Json]]:
    """The values of a reference: the fields of JSON, or the parts of a text, which have no names."""
    document = _document(expected)
    if document is not None:
        return list(leaves_of(document, ""))
    return [("", value.text) for value in _distinct(parts_of(expected))]


def _literals_of(pattern: str) -> str:
    """What a regular expression asks for word by word, as far as its text shows."""
    plain = re.sub(r"\\([^A-Za-z0-9])", r"\1", re.sub(r"\\[A-Za-z]|\[[^\]]*\]|\(\?[:!=<]*", " ", pattern))
    return re.sub(r"[\^$*+?{}\[\]|()\\]", " ", plain)


def _distinct(values: Iterable[Value]) -> list[Value]:
    known: dict[tuple[str, str], Value] = {}
    for value in values:
        known.setdefault(value.key, value)
    return list(known.values())


def _is_noise(value: Value) -> bool:
    """Whether a value is one of those that stand in every text, or that no text shows as such."""
    if value.kind == "word":
        return value.folded in _SMALL_WORDS or (len(value.text) < 3 and value.text.isascii())
    return not value.folded


_SMALL_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a about above after all also am an and any are as at be because been before but by can could did do does for "
        "from had has have he her here him his how i if in into is it its just let may me more most my no not now null "
        "of on one only or our out over own she should so some such than that the their them then there these they "
        "this those to too true false under up us was we were what when where which while who whom whose why will with "
        "would you your",
    )
)
