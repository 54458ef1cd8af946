"""The little arithmetic that the simulated model can do: expressions, percentages and one-step word problems."""

from __future__ import annotations

import re
from dataclasses import dataclass

from promptiter.offline.model.values import DATE, plain_number

_WORDS = (
    (r"\bplus\b|加上|加", "+"),
    (r"\bminus\b|减去|减", "-"),
    (r"\btimes\b|\bmultiplied by\b|(?<=\d)\s*[x×]\s*(?=\d)|乘以|乘", "*"),
    (r"\bdivided by\b|÷|除以", "/"),
)
_NUMBER = r"\d+(?:\.\d+)?"
_EXPRESSION = re.compile(rf"(?<![\w.-]){_NUMBER}(?:(?:\s*[+*]\s*|\s+[-/]\s+){_NUMBER})+(?![\w-])")
_PERCENT_OF = re.compile(rf"({_NUMBER})\s*(?:%|percent)\s+of\s+(?:the\s+|all\s+)?[€$£¥]?({_NUMBER})", re.IGNORECASE)
_SHARE = re.compile(
    rf"({_NUMBER})\D*?(?:其中|of (?:them|which|these)\D*?)\s*({_NUMBER})\s*(?:%|percent)|(?:其中)\s*({_NUMBER})%",
    re.IGNORECASE,
)
_DISCOUNT = re.compile(
    rf"({_NUMBER})\s*(?:%|percent)\s+(?:off|discount|cheaper|less)|discount of\s+({_NUMBER})\s*(?:%|percent)",
    re.IGNORECASE,
)
_INCREASE = re.compile(
    rf"(?:increase|increases|rises?|grows?|raised|more|tax|tip)\w*\s+(?:by|of)\s+({_NUMBER})\s*(?:%|percent)",
    re.IGNORECASE,
)
_FOLD = re.compile(rf"打\s*({_NUMBER})\s*折")
_ASKS = re.compile(
    r"\bhow (?:many|much|far|long)\b|\bwhat is the (?:total|sum|difference|cost|price)\b|\btotal\b|多少|几",
    re.IGNORECASE,
)
_CUES = (
    ("/", re.compile(r"\b(?:share[sd]?|split|splits|divide[sd]?|equally|evenly|average)\b|平均|分给", re.IGNORECASE)),
    ("*", re.compile(r"\b(?:each|per|every|apiece|rows of|boxes of|packs of|times as)\b|每", re.IGNORECASE)),
    (
        "-",
        re.compile(
            r"\b(?:left|remain\w*|gave|gives|lost|loses|spen[dt]s?|fewer|less|eats?|ate|sold|sells|away)\b|剩|还有",
            re.IGNORECASE,
        ),
    ),
    ("+", re.compile(r"\b(?:total|altogether|in all|sum|together|more|another|and|now)\b|一共|又", re.IGNORECASE)),
)
_UNIT = re.compile(
    r"\bhow (?:many|much)\s+(?!is\b|does\b|do\b|did\b|are\b|in\b)([a-z]+)|多少\s*([^\W\d_])", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Sum:
    """A calculation as it is written, and what comes out."""

    expression: str
    value: float
    unit: str = ""


def find_sum(text: str) -> Sum | None:
    """The calculation that a text asks for; None when it asks for none that the model can do."""
    plain = re.sub(DATE, " ", re.sub(r"(?<=\d),(?=\d{3}\b)", "", text))
    unit = _UNIT.search(plain)
    expression = _expression_in(plain)
    value = None if expression is None else _evaluate(expression)
    if expression is None or value is None:
        return None
    return Sum(expression, value, next((group for group in unit.groups() if group), "") if unit else "")


def _expression_in(text: str) -> str | None:
    spelled = text
    for pattern, sign in _WORDS:
        spelled = re.sub(pattern, f" {sign} ", spelled, flags=re.IGNORECASE)
    found = _EXPRESSION.search(spelled)
    if found:
        return " ".join(re.findall(rf"{_NUMBER}|[-+*/]", found[0]))
    percent = _PERCENT_OF.search(text)
    if percent:
        return f"{percent[2]} * {percent[1]} / 100"
    numbers = re.findall(_NUMBER, text)
    if len(numbers) < 2 or not _ASKS.search(text):
        return None
    return _percentage(text, numbers) or _word_problem(text, numbers)


def _percentage(text: str, numbers: list[str]) -> str | None:
    for pattern, rate in (
        (_DISCOUNT, "{whole} - {whole} * {part} / 100"),
        (_INCREASE, "{whole} + {whole} * {part} / 100"),
    ):
        found = pattern.search(text)
        if found:
            part = next(group for group in found.groups() if group)
            return rate.format(whole=_other(numbers, part), part=part)
    fold = _FOLD.search(text)
    if fold:
        return f"{_other(numbers, fold[1])} * {fold[1]} / 10"
    share = _SHARE.search(text)
    if share:
        part = share[2] or share[3]
        return f"{_other(numbers, part)} * {part} / 100"
    return None


def _word_problem(text: str, numbers: list[str]) -> str | None:
    for sign, cue in _CUES:
        if cue.search(text):
            used = numbers[:2] if sign in "*/" else numbers
            return f" {sign} ".join(used)
    return None


def _other(numbers: list[str], part: str) -> str:
    return next((number for number in numbers if number != part), part)


def _evaluate(expression: str) -> float | None:
    """Products before sums; None for a division by zero."""
    tokens = expression.split()
    total, sign, product = 0.0, 1.0, float(tokens[0])
    for operator, token in zip(tokens[1::2], tokens[2::2], strict=True):
        number = float(token)
        if operator == "*":
            product *= number
        elif operator == "/":
            if number == 0:
                return None
            product /= number
        else:
            total += sign * product
            sign, product = (1.0 if operator == "+" else -1.0), number
    return float(plain_number(total + sign * product))
