"""Text comparison: exact, contains, regex and length, ROUGE, and numbers in the text.

A comparison returns findings; none means a match. A reference that cannot be used (empty under contains, an invalid
pattern, no number) raises MetricError, which makes the case unscored and says what to fix in the eval set.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, InvalidOperation
from itertools import pairwise
from typing import ClassVar, Literal, TypeAlias

from promptiter.errors import MetricError
from promptiter.evaluation.metrics.metric import name_characters
from promptiter.evaluation.score import Finding
from promptiter.patterns import PatternError, check_pattern, search_pattern
from promptiter.wording import shorten

TextMatch: TypeAlias = Literal["exact", "contains", "regex"]
RougeType: TypeAlias = Literal["rouge1", "rouge2", "rougeL"]
NumberChoice: TypeAlias = Literal["last", "first", "only"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextCriterion:
    """How a text is compared with its reference. Under `regex` the reference is the pattern.

    `expected` replaces the references of the cases. `ignore` skips the comparison; the length is still checked.
    """

    match: TextMatch = "exact"
    case_insensitive: bool = False
    min_length: int | None = None
    max_length: int | None = None
    ignore: bool = False
    expected: str | None = None

    def __post_init__(self) -> None:
        if self.min_length is not None and self.max_length is not None and self.min_length > self.max_length:
            raise MetricError(f"length.min {self.min_length} is above length.max {self.max_length}; swap them")
        if self.expected is not None:
            _check_reference(self.expected, self)

    @property
    def needs_reference(self) -> bool:
        return not self.ignore and self.expected is None

    @property
    def has_patterns(self) -> bool:
        return self.match == "regex" and not self.ignore

    @property
    def description(self) -> str:
        bounds = [
            *([f"at least {self.min_length} characters"] if self.min_length is not None else []),
            *([f"at most {self.max_length} characters"] if self.max_length is not None else []),
            *(["in upper or lower case"] if self.case_insensitive else []),
        ]
        return ", ".join([*([] if self.ignore else [_MATCHES[self.match]]), *bounds])


_MATCHES: Mapping[TextMatch, str] = {
    "exact": "the whole text",
    "contains": "text that contains the expected one",
    "regex": "text that matches a pattern",
}


def compare_text(actual: str, reference: str | None, criterion: TextCriterion) -> tuple[Finding, ...]:
    """Compare a text with its reference, which may be None if the criterion needs none."""
    findings = _check_length(actual, criterion)
    if criterion.ignore:
        return findings
    expected = reference if criterion.expected is None else criterion.expected
    if expected is None:
        raise MetricError("there is no reference to compare the text with")
    _check_reference(expected, criterion)
    if criterion.match == "regex":
        return findings + _check_regex(actual, expected, criterion)
    if criterion.match == "contains":
        return findings + _check_contains(actual, expected, criterion)
    return findings + _check_exact(actual, expected, criterion)


@dataclass(frozen=True, slots=True, kw_only=True)
class RougeCriterion:
    """Which ROUGE F1 to use, and the value from which it counts as a match within final_response."""

    type: RougeType = "rouge1"
    threshold: float = 1.0
    needs_reference: ClassVar[bool] = True
    has_patterns: ClassVar[bool] = False

    @property
    def description(self) -> str:
        return f"words shared with the expected answer ({self.type})"


def rouge_f1(actual: str, reference: str, kind: RougeType = "rouge1") -> float:
    """The F1 of shared words (rouge1), word pairs (rouge2), or the longest common subsequence of words (rougeL)."""
    units, wanted = _split_rouge_units(actual, kind), _split_rouge_units(reference, kind)
    if not wanted:
        raise MetricError(f"empty reference: {shorten(reference)} has no words that {kind} could compare")
    if kind == "rougeL":
        shared = _count_common_subsequence(units, wanted)
    else:
        shared = (Counter(units) & Counter(wanted)).total()
    return 2 * shared / (len(units) + len(wanted))


def find_word_differences(actual: str, reference: str, kind: RougeType = "rouge1") -> tuple[Finding, ...]:
    """The missing and the extra words; if only their order differs, one finding with both texts."""
    words, wanted = Counter(split_words(actual)), Counter(split_words(reference))
    findings = []
    if missing := list((wanted - words).elements()):
        findings.append(Finding(kind="missing", expected=missing, predicate=kind))
    if extra := list((words - wanted).elements()):
        findings.append(Finding(kind="unexpected", actual=extra, predicate=kind))
    return tuple(findings) or (Finding(kind="wrong", expected=reference, actual=actual, predicate=kind),)


def split_words(text: str) -> list[str]:
    """The words of a text without case and punctuation. Each Chinese or Japanese character is a word."""
    spaced = []
    for character in unicodedata.normalize("NFKC", text).casefold():
        if any(first <= character <= last for first, last in _CJK):
            spaced.append(f" {character} ")
        else:
            # Combining marks belong to words, in Hindi for example.
            spaced.append(character if unicodedata.category(character)[0] in "LNM" else " ")
    return "".join(spaced).split()


@dataclass(frozen=True, slots=True, kw_only=True)
class NumericCriterion:
    """Which number of a text is compared, and how far it may be off (the larger tolerance applies)."""

    which: NumberChoice = "last"
    tolerance: float = 0.0
    relative_tolerance: float = 0.0
    expected: float | None = None
    has_patterns: ClassVar[bool] = False

    @property
    def needs_reference(self) -> bool:
        return self.expected is None

    @property
    def description(self) -> str:
        return f"the {self.which} number in the text"


def compare_number(actual: str, reference: str | None, criterion: NumericCriterion) -> tuple[Finding, ...]:
    """Compare the number in a text with that of its reference."""
    wanted = _find_expected_number(reference, criterion)
    numbers = find_numbers(actual)
    if not numbers:
        return (Finding(kind="missing", expected=_to_json_number(wanted), predicate="number"),)
    if criterion.which == "only" and len(numbers) > 1:
        found = [_to_json_number(number.value) for number in numbers]
        return (Finding(kind="violated", expected=_to_json_number(wanted), actual=found, predicate="only_number"),)
    number = numbers[0] if criterion.which == "first" else numbers[-1]
    slack = max(
        _to_decimal(criterion.tolerance), _EXACT.multiply(_to_decimal(criterion.relative_tolerance), abs(wanted))
    )
    if number.value == wanted or abs(_EXACT.subtract(number.value, wanted)) <= slack:
        return ()
    return (
        Finding(
            kind="wrong",
            expected=_to_json_number(wanted),
            actual=_to_json_number(number.value),
            where=name_characters(number.start, number.end),
            predicate="number",
        ),
    )


@dataclass(frozen=True, slots=True)
class NumberInText:
    value: Decimal
    start: int
    end: int


def find_numbers(text: str) -> list[NumberInText]:
    """The numbers in a text: `1,234.5`, `-3`, `2e-3`. Digits inside a name (`gpt4`, `v1.2`) do not count."""
    found = []
    for match in _NUMBER.finditer(text):
        try:
            value = Decimal(match[0].replace(",", "").replace("−", "-"))
        except InvalidOperation:  # an exponent beyond what a Decimal can hold
            continue
        found.append(NumberInText(value, match.start(), match.end()))
    return found


_EXACT = Context(prec=60, traps=[])
# Not \w before a number: it may follow a Chinese character. A minus after a digit is a range or a difference.
_NUMBER = re.compile(
    r"(?<![\d.A-Za-z_])[-+−]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)?(?:(?<=\d)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?"
)


def _check_reference(expected: str, criterion: TextCriterion) -> None:
    if criterion.match != "exact" and not expected.strip():
        raise MetricError(f"empty reference: every text passes {criterion.match} {expected!r}; write what is expected")
    if criterion.match == "regex":
        try:
            check_pattern(expected)
        except PatternError as error:
            raise MetricError(
                f"the reference {shorten(expected)} is not a valid regular expression: {error}"
            ) from error


def _check_length(actual: str, criterion: TextCriterion) -> tuple[Finding, ...]:
    length = len(actual)
    if criterion.min_length is not None and length < criterion.min_length:
        return (Finding(kind="violated", expected=criterion.min_length, actual=length, predicate="min_length"),)
    if criterion.max_length is not None and length > criterion.max_length:
        where = name_characters(criterion.max_length, length)
        return (
            Finding(kind="violated", expected=criterion.max_length, actual=length, where=where, predicate="max_length"),
        )
    return ()


def _check_regex(actual: str, pattern: str, criterion: TextCriterion) -> tuple[Finding, ...]:
    # The flag, not lower(): that would turn \S into \s.
    try:
        if search_pattern(pattern, actual, ignore_case=criterion.case_insensitive):
            return ()
    except PatternError as error:
        raise MetricError(str(error)) from error
    return (Finding(kind="violated", expected=pattern, actual=actual, predicate="regex"),)


def _check_contains(actual: str, expected: str, criterion: TextCriterion) -> tuple[Finding, ...]:
    haystack, origins = _fold_case(actual, criterion)
    needle, _ = _fold_case(expected, criterion)
    if needle in haystack:
        return ()
    # The longest prefix of the reference that is present shows where they differ.
    present, absent = 0, len(needle)
    while absent - present > 1:
        middle = (present + absent) // 2
        if needle[:middle] in haystack:
            present = middle
        else:
            absent = middle
    start = haystack.find(needle[:present])
    is_start = present * 2 >= len(needle)  # a shorter one is a coincidence, such as one digit of a date
    where = name_characters(origins[start], origins[start + present]) if is_start else ""
    return (Finding(kind="missing", expected=expected, actual=actual, where=where, predicate="contains"),)


def _check_exact(actual: str, expected: str, criterion: TextCriterion) -> tuple[Finding, ...]:
    got, origins = _fold_case(actual, criterion)
    wanted, _ = _fold_case(expected, criterion)
    if got == wanted:
        return ()
    start = _count_common_prefix(got, wanted)
    same_end = _count_common_prefix(got[start:][::-1], wanted[start:][::-1])
    where = name_characters(origins[start], origins[len(got) - same_end])
    return (Finding(kind="wrong", expected=expected, actual=actual, where=where, predicate="exact"),)


def _count_common_prefix(first: str, second: str) -> int:
    shorter = min(len(first), len(second))
    return next((index for index in range(shorter) if first[index] != second[index]), shorter)


def _fold_case(text: str, criterion: TextCriterion) -> tuple[str, Sequence[int]]:
    """The text as it is compared, and the original position of each character, since ß folds to two letters."""
    if not criterion.case_insensitive:
        return text, range(len(text) + 1)
    folded = [character.casefold() for character in text]
    origins = [index for index, letters in enumerate(folded) for _ in letters]
    return "".join(folded), [*origins, len(text)]


def _split_rouge_units(text: str, kind: RougeType) -> list[str] | list[tuple[str, str]]:
    words = split_words(text)
    return list(pairwise(words)) if kind == "rouge2" else words


def _count_common_subsequence(first: Sequence[object], second: Sequence[object]) -> int:
    """The length of the longest common subsequence, with each row held in the bits of one integer (Hyyrö 2004)."""
    places: dict[object, int] = {}
    for index, item in enumerate(first):
        places[item] = places.get(item, 0) | 1 << index
    everything = (1 << len(first)) - 1
    row = everything
    for item in second:
        kept = row & places.get(item, 0)
        row = ((row + kept) | (row - kept)) & everything
    return len(first) - row.bit_count()


_CJK = (
    ("\u3040", "\u30ff"),
    ("\u3400", "\u4dbf"),
    ("\u4e00", "\u9fff"),
    ("\uf900", "\ufaff"),
    ("\U00020000", "\U0003ffff"),
)


def _find_expected_number(reference: str | None, criterion: NumericCriterion) -> Decimal:
    if criterion.expected is not None:
        return _to_decimal(criterion.expected)
    numbers = find_numbers(reference or "")
    if not numbers:
        raise MetricError(f"the reference {shorten(reference)} has no number")
    if criterion.which == "only" and len(numbers) > 1:
        raise MetricError(
            f"the reference {shorten(reference)} has {len(numbers)} numbers; `which: only` needs exactly one"
        )
    return (numbers[0] if criterion.which == "first" else numbers[-1]).value


def _to_decimal(number: float) -> Decimal:
    """The number as written: 0.3, not 0.299999999999999988897769753748."""
    return Decimal(repr(number))


def _to_json_number(number: Decimal) -> int | float:
    """A number for JSON. Whole numbers keep all their digits."""
    exponent = number.as_tuple().exponent
    is_whole = isinstance(exponent, int) and abs(exponent) < 30 and number == number.to_integral_value()
    return int(number) if is_whole else float(number)
