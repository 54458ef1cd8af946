"""How the simulated model splits an instruction into lines, sentences and clauses that each make one demand.

Quoted text is masked first, so that `Begin with 'Use JSON.'` is one clause and demands no JSON. A clause knows whether
it forbids (`Do not …`, `… without prose`) and on what condition it applies (`If the id is missing, …`, `Otherwise …`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

LITERAL = "\ue000\\d+\ue001"
"""Matches a quoted text inside `Clause.text`."""

MAX_SENTENCE_CHARACTERS = 800
"""Longer sentences are ignored: they are data, or demand too much at once."""

OTHERWISE = "otherwise"
"""The condition of a clause that applies if no other does."""

_DIGITS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
NUMBER_WORDS = {word: count for count, word in enumerate(_DIGITS, 1)} | {"single": 1, "a single": 1, "twenty": 20}

_IMPERATIVES = (
    "add|answer|append|ask|assign|avoid|be|begin|call|carry|choose|cite|classify|close|conclude|contain|convert|copy|decide|determine|do|don't|"
    "drop|echo|end|express|extract|fill|finish|format|forward|give|hand|include|insert|invoke|keep|label|leave|limit|"
    "list|look|make|mark|mention|name|never|note|omit|open|output|pass|pick|place|preserve|print|produce|provide|put|"
    "quote|refer|relay|repeat|reply|report|reproduce|respond|restate|retain|return|round|route|run|say|select|send|set|show|"
    "sort|speak|start|state|support|take|tell|thank|translate|use|work|write"
)
_CLAUSE_VERBS = (
    "add|always|append|ask|avoid|begin|call|choose|cite|classify|do not|don't|end|ensure|finish|format|give|include|"
    "keep|make|mention|never|output|pick|put|reply|respond|return|say|start|use|write"
)
_NOT_A_COMPARISON = r"(?!\s+(?:more|longer|fewer|less|later|greater|only)\b)"
_NEGATION = (
    rf"\b(?:do not|don't|does not|never|avoid|must not|should not|may not|cannot|can't|without|instead of|rather than|"
    rf"not|(?<!or )no(?= (?!or\b)\w)){_NOT_A_COMPARISON}\b"
)
_QUOTED = re.compile(r"(?<!\w)'((?:[^'\n]|(?<=\w)'(?=\w))+)'(?!\w)|\"([^\"\n]+)\"|“([^”\n]+)”|`([^`\n]+)`")
_LINE_MARK = re.compile(r"^\s*(?:[-*•]|\d+[.)])\s+")
_LIST_HEAD = re.compile(
    r"\b(?:one of|keys|fields|labels|categories|values|options|include|mention|contain)\b", re.IGNORECASE
)
_RULES_HEAD = re.compile(r"\b(?:rules|instructions|guidelines|steps|requirements|format)\b", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)(?<!etc\.)\s+(?=\S)")
_CLAUSE_END = re.compile(
    rf"\s*;\s*|(?<!nothing),?\s+but\s+"
    rf"|,?\s+(?:and\s+then|and|then)\s+(?=(?:{_CLAUSE_VERBS}|no|not)\b{_NOT_A_COMPARISON})"
    rf"|,\s*(?=(?:{_CLAUSE_VERBS}|no|not)\b{_NOT_A_COMPARISON})"
    r"|,?\s+(?=(?:without|with no|with nothing|instead of|rather than)\b)",
    re.IGNORECASE,
)
_INSIDE_A_LIST = re.compile(r"\b(?:keys?|fields?|one of|labels?|between|among)\b[^;]*$", re.IGNORECASE)
_CONDITION = r"(?:if|when|whenever|in case|unless|where)"
_LEADING_CONDITION = re.compile(
    rf"^{_CONDITION}\b(?P<condition>.+?),\s*(?:then\s+)?"
    rf"(?=(?:please|always|just|simply|you|your|the|it|only|{_IMPERATIVES})\b)(?P<main>.+)$",
    re.IGNORECASE | re.DOTALL,
)
_TRAILING_CONDITION = re.compile(rf"^(?P<main>.+?),?\s+{_CONDITION}\b(?P<condition>.+)$", re.IGNORECASE | re.DOTALL)
_OTHERWISE = (
    r"(?:otherwise|else|if not|by default|in (?:all|any|every) other cases?|"
    r"for (?:anything|everything|all) (?:else|others?))"
)
_LAST_RESORT = re.compile(
    rf"^(?:(?P<first>.*?)(?:[,;]\s*(?:and\s+|or\s+|but\s+)?|(?<=\w)\s+or\s+))?{_OTHERWISE}\b[\s,:]*(?P<rest>\S.*)$"
    rf"|^(?P<late>.+?)[,\s]+(?:otherwise|by default|in (?:all|any|every) other cases?)\W*$",
    re.IGNORECASE | re.DOTALL,
)
_NEXT_CONDITION = re.compile(rf"\s*;\s*(?:and\s+)?(?={_CONDITION}\b)", re.IGNORECASE)
_NEXT_ANSWER = re.compile(
    rf"(?:,\s*(?:and\s+|or\s+)?|\s+(?:and|or)\s+)(?:to\s+|as\s+)?(?={LITERAL}\s+{_CONDITION}\b)", re.IGNORECASE
)
_NEGATED = re.compile(_NEGATION, re.IGNORECASE)
_FILLER = (
    r"(?:please|always|also|then|first|finally|next|only|just|simply|and|or|but|in your \w+|in the \w+|"
    r"be sure to|make sure to|you(?: must| should| will| can| may| need to| have to)?)"
)
_INSTRUCTS = re.compile(
    rf"^\W*(?:{_FILLER}[\s,:]+)*(?:{_IMPERATIVES})\b"
    r"|\b(?:must|should|shall|needs? to|has to|have to|(?:is|are) to|will|(?:is|are) required)\b"
    r"|\b(?:is|are) (?:always |never )?(?:written|given|stated|formatted|kept|allowed|included)\b"
    r"|^\W*(?:your|the|every|each|all)?\s*(?:final )?(?:answers?|outputs?|repl(?:y|ies)|responses?)\b"
    r"|^\W*(?:the )?(?:allowed|valid|possible|language|format|labels?|categor(?:y|ies))\b"
    rf"|^\W*it is {LITERAL}|^\W*{_OTHERWISE}\b"
    r"|^\W*(?:for (?:each|every|all|any)|no|not|without|before|at most|at least|exactly|only|one)\b"
    rf"|^\W*{_CONDITION}\b|\bonly\W*$"
    r"|^\W*you are\b.*\b(?:who|that)\b",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Clause:
    """One demand of a sentence. Quotes are masked in `text` and `condition`; `literal` unmasks them."""

    text: str
    condition: str
    forbids: bool
    sentence: str
    quotes: tuple[str, ...]

    def literal(self, masked: str) -> str:
        """The masked text with its quoted texts, without their quotation marks."""
        return _unmask(masked, self.quotes)

    @property
    def plain(self) -> str:
        """Condition and clause, unmasked."""
        return self.literal(f"{self.condition} {self.text}".strip())


def read_clauses(instruction: str) -> Iterator[Clause]:
    """The clauses of all sentences that instruct; questions and descriptions are left out."""
    for line in _iterate_logical_lines(instruction.replace("’", "'").replace("‘", "'")):
        quotes: list[tuple[str, str]] = []
        for masked in _SENTENCE_END.split(_mask(re.sub(r"`{3}\w*", " code fence ", line), quotes)):
            sentence = masked.strip()
            if len(sentence) > MAX_SENTENCE_CHARACTERS or sentence.endswith("?"):
                continue
            if is_instruction(sentence):
                yield from _split_sentence(sentence, quotes)


def is_instruction(sentence: str) -> bool:
    """Whether a sentence asks for something."""
    return _INSTRUCTS.search(sentence) is not None


def split_items(phrase: str) -> tuple[str, ...]:
    """The members of `the order id, the date and the amount`, without articles."""
    separator = r"\s*(?:,\s*(?:and|or)\s+|,|;|\s+(?:and|or|as well as|along with|plus)\s+)\s*"
    parts = [part for part in re.split(separator, phrase) if part]
    article = r"^(?:(?:either|the|an?|all|both|its|their|your|any|every|each|also|of|following)\s+)+"
    cleaned = (re.sub(article, "", part.strip(" \t\n.:!()[]{}<>"), flags=re.IGNORECASE) for part in parts)
    return tuple(part.replace("'s ", " ") for part in cleaned if part)


def read_number(text: str) -> int:
    """20 for `20` and for `twenty`."""
    return int(text) if text.isdigit() else NUMBER_WORDS[" ".join(text.lower().split())]


def _iterate_logical_lines(text: str) -> Iterator[str]:
    """Lines, with wrapped lines joined and a list of names appended to its head `…:`."""
    pending, in_list = "", False
    for line in [*text.splitlines(), ""]:
        is_marked = bool(_LINE_MARK.match(line))
        content = _LINE_MARK.sub("", line).strip()
        if in_list and is_marked and content:
            pending += f"{' ' if pending.endswith(':') else ', '}{content.partition(':')[0].rstrip('.,;')}"
            continue
        if content and pending and not is_marked and pending[-1] not in ".:!?;" and content[0].islower():
            pending += f" {content}"
            continue
        if pending:
            yield pending
        pending = "" if content.startswith("#") else content
        in_list = content.endswith(":") and bool(_LIST_HEAD.search(content)) and not _RULES_HEAD.search(content)
    if pending:
        yield pending


def _mask(line: str, quotes: list[tuple[str, str]]) -> str:
    """The line with its quoted texts replaced; `quotes` receives each without and with its quotation marks."""

    def hide(found: re.Match[str]) -> str:
        quoted = next(group for group in found.groups() if group is not None)
        quotes.append((quoted, found[0]))
        ends_here = quoted[-1] in ".!?" and re.match(r"\s+[A-Z]", line[found.end() :])
        return f"\ue000{len(quotes) - 1}\ue001{'.' if ends_here else ''}"

    return _QUOTED.sub(hide, line)


def _unmask(masked: str, quotes: Sequence[str]) -> str:
    return re.sub("\ue000(\\d+)\ue001", lambda found: quotes[int(found[1])], masked)


def _split_sentence(sentence: str, quotes: Sequence[tuple[str, str]]) -> Iterator[Clause]:
    original = _unmask(sentence, [marked for _, marked in quotes])
    bare = tuple(quoted for quoted, _ in quotes)
    for text, condition in _split_conditions(sentence):
        yield Clause(text.strip(), condition.strip(" ."), bool(_NEGATED.search(text)), original, bare)


def _split_conditions(sentence: str) -> Iterator[tuple[str, str]]:
    """The clauses of a sentence, each with its condition."""
    last_resort = _LAST_RESORT.match(sentence)
    conditional = sentence if last_resort is None else last_resort["first"] or ""
    for part in _NEXT_CONDITION.split(conditional):
        first, *others = _NEXT_ANSWER.split(part)
        for each in (first, *(f"answer {other}" for other in others)):
            yield from _split_condition(each)
    if last_resort is not None:
        rest = last_resort["rest"] or last_resort["late"]
        for text in _split_clauses(rest if is_instruction(rest) else f"answer {rest}"):
            yield text, OTHERWISE


def _split_condition(sentence: str) -> Iterator[tuple[str, str]]:
    leading = _LEADING_CONDITION.match(sentence)
    condition, main = (leading["condition"], leading["main"]) if leading else ("", sentence)
    for text in _split_clauses(main):
        trailing = None if condition else _TRAILING_CONDITION.match(text)
        yield (trailing["main"], trailing["condition"]) if trailing else (text, condition)


def _split_clauses(main: str) -> list[str]:
    clauses: list[str] = []
    start = 0
    for end in _CLAUSE_END.finditer(main):
        forbids_next = _NEGATED.match(main, end.end())
        if _INSIDE_A_LIST.search(main[start : end.start()]) and not forbids_next and ";" not in end[0]:
            continue
        clauses.append(main[start : end.start()])
        start = end.end()
    clauses.append(main[start:])
    return [clause for clause in clauses if clause.strip()]
