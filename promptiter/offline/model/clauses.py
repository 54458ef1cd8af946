"""How the simulated model takes an instruction apart: lines, sentences, and clauses that each say one thing.

Quoted text is taken out first and put back by whoever reads a clause, so that `Begin with 'Use JSON.'` is one clause
and says nothing about JSON. A clause knows whether it forbids (`Do not …`, `… without prose`) and under which condition
it stands (`If the id is missing, …`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

LITERAL = "\ue000\\d+\ue001"
"""Matches a quoted text inside `Clause.text`."""

LONGEST_SENTENCE = 800
"""Characters above which a sentence is not understood: it is data, or says too much at once."""

NUMBER_WORDS = {
    "a single": 1,
    "single": 1,
    "one": 1,
    "two": 2,
    "three": 3,
    "four": 4,
    "five": 5,
    "six": 6,
    "seven": 7,
    "eight": 8,
    "nine": 9,
    "ten": 10,
    "twelve": 12,
    "fifteen": 15,
    "twenty": 20,
    "thirty": 30,
    "forty": 40,
    "fifty": 50,
    "sixty": 60,
    "eighty": 80,
    "a hundred": 100,
    "one hundred": 100,
}

_IMPERATIVES = (
    "add|address|admit|answer|append|apply|ask|avoid|be|begin|calculate|call|capitalize|capitalise|carry|categorize|"
    "categorise|check|choose|cite|classify|close|compute|conclude|consult|contain|convert|copy|decide|decline|determine|"
    "display|do|don't|drop|echo|emphasize|emphasise|enclose|end|ensure|enumerate|exclude|execute|explain|express|extract|fill|finish|format|"
    "forward|give|group|guess|hand|highlight|identify|include|insert|invoke|keep|label|leave|limit|list|look|make|"
    "mark|mention|name|never|note|number|offer|omit|open|output|pass|pick|place|preface|prefix|prepend|preserve|print|produce|"
    "provide|put|query|quote|read|reason|refer|refrain|refuse|relay|remove|repeat|reply|report|request|respond|restate|"
    "retain|return|reveal|round|route|run|say|search|select|send|separate|set|show|sign|skip|solve|sort|speak|specify|"
    "spell|start|state|stay|stick|structure|sum|summarize|summarise|support|surround|tag|tell|terminate|thank|think|"
    "translate|treat|use|work|wrap|write"
)
_CLAUSE_VERBS = (
    "add|always|append|ask|avoid|begin|call|choose|cite|classify|do not|don't|end|ensure|finish|format|give|include|"
    "keep|make|mention|never|output|pick|put|reply|respond|return|say|start|use|wrap|write"
)
_COMPARED = r"(?!\s+(?:more|longer|fewer|less|later|greater|only)\b)"
_NEGATION = (
    rf"\b(?:do not|don't|does not|doesn't|never|avoid|must not|mustn't|should not|shouldn't|may not|cannot|can't|"
    rf"refrain from|without|instead of|rather than|not|(?<!or )no(?= (?!or\b)\w)){_COMPARED}\b"
)
_QUOTED = re.compile(
    r"(?<!\w)'((?:[^'\n]|(?<=\w)'(?=\w))+)'(?!\w)|\"([^\"\n]+)\"|“([^”\n]+)”|`([^`\n]+)`|«\s*([^»\n]+?)\s*»|「([^」\n]+)」"
)
_LINE_MARK = re.compile(r"^\s*(?:[-*•]|\d+[.)])\s+")
_LIST_HEAD = re.compile(
    r"\b(?:one of|keys|fields|labels|categories|values|sections|options|headings|include|mention|contain|order)\b",
    re.IGNORECASE,
)
_RULES_HEAD = re.compile(r"\b(?:rules|instructions|guidelines|steps|requirements|constraints|format)\b", re.IGNORECASE)
_SENTENCE_END = re.compile(
    r"(?<=[.!?。！？])(?<!e\.g\.)(?<!i\.e\.)(?<!max\.)(?<!min\.)(?<!etc\.)(?<!P\.S\.)\s+(?=\S)|(?<=[。！？])"
)
_CLAUSE_END = re.compile(
    rf"\s*;\s*|(?<!nothing),?\s+but\s+|,?\s+(?:and\s+then|and|then)\s+(?=(?:{_CLAUSE_VERBS}|no|not)\b{_COMPARED})"
    rf"|,\s*(?=(?:{_CLAUSE_VERBS}|no|not)\b{_COMPARED})"
    r"|,?\s+(?=(?:without|with no|with nothing|instead of|rather than)\b(?! (?:guess|invent|making)))",
    re.IGNORECASE,
)
_INSIDE_A_LIST = re.compile(
    r"\b(?:keys?|fields?|properties|one of|labels?|between|among|sections?|headings)\b[^;]*$", re.IGNORECASE
)
_CONDITION = r"(?:if|when|whenever|in case|as long as|unless|where)"
_LEADING_CONDITION = re.compile(
    rf"^{_CONDITION}\b(?P<condition>.+?),\s*(?:then\s+)?"
    rf"(?=(?:please|always|just|simply|you|your|the|it|only|{_IMPERATIVES})\b)(?P<main>.+)$",
    re.IGNORECASE | re.DOTALL,
)
_TRAILING_CONDITION = re.compile(rf"^(?P<main>.+?),?\s+{_CONDITION}\b(?P<condition>.+)$", re.IGNORECASE | re.DOTALL)
_NEGATED = re.compile(_NEGATION, re.IGNORECASE)
_FILLER = (
    r"(?:please|always|also|then|first|finally|next|only|just|simply|and|or|but|instead|besides|in addition|moreover|"
    r"furthermore|in your \w+|in the \w+|every time|important|note|remember to|be sure to|make sure to|try to|strictly|"
    r"carefully|briefly|you(?:'ll| must| should| will| can| may| need to| have to| are to| shall)?)"
)
_INSTRUCTS = re.compile(
    rf"^\W*(?:{_FILLER}[\s,:]+)*(?:{_IMPERATIVES})\b"
    r"|\b(?:must|should|shall|needs? to|has to|have to|ought to|(?:is|are) to|will|(?:is|are) required)\b"
    r"|\b(?:is|are) (?:always |never )?(?:written|given|stated|formatted|kept|allowed|forbidden|included|expressed)\b"
    r"|^\W*(?:your|the|every|each|all)?\s*(?:final )?(?:answers?|outputs?|repl(?:y|ies)|responses?)\b"
    r"|^\W*(?:all (?:lower|upper|caps|small|capital)|in (?:lower|upper|all|english|german|french|json))\w*\b"
    r"|^\W*(?:the )?(?:allowed|valid|possible|permitted|output|tone|style|language|format|labels?|categories)\b"
    r"|^\W*(?:for (?:each|every|all|any)|no|not|without|before|at most|at least|exactly|maximum|max|only|one)\b"
    rf"|^\W*{_CONDITION}\b|\bonly\W*$"
    r"|^\W*you are\b.*\b(?:who|that)\b|\b(?:means|applies)\b|[用请不须要]",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Clause:
    """One thing that a sentence says. In `text` and `condition` quoted parts are masked; `literal` shows them again."""

    text: str
    condition: str
    forbids: bool
    sentence: str
    quotes: tuple[str, ...]

    def literal(self, masked: str) -> str:
        """The masked text with its quoted parts, without their quotation marks."""
        return _unmask(masked, self.quotes)

    @property
    def plain(self) -> str:
        """Condition and clause, unmasked."""
        return self.literal(f"{self.condition} {self.text}".strip())


def read_clauses(instruction: str) -> Iterator[Clause]:
    """The clauses of all sentences that ask for something; questions and descriptions are left out."""
    for line in _logical_lines(instruction.replace("’", "'").replace("‘", "'")):
        quotes: list[tuple[str, str]] = []
        for masked in _SENTENCE_END.split(_mask(re.sub(r"`{3}\w*", " code fence ", line), quotes)):
            sentence = masked.strip()
            if len(sentence) > LONGEST_SENTENCE or sentence.endswith(("?", "？")):
                continue
            if sentence and _INSTRUCTS.search(sentence):
                yield from _clauses_of(sentence, quotes)


def split_items(phrase: str) -> tuple[str, ...]:
    """`the order id, the date and the amount` as its members, without articles."""
    separator = r"\s*(?:,\s*(?:and|or)\s+|,|;|\s+(?:and|or|as well as|along with|plus)\s+|\s+&\s+|、|和)\s*"
    parts = [part for part in re.split(separator, phrase) if part]
    if len(parts) == 1:
        parts = re.split(r"\s*[/|]\s*", phrase)
    article = r"^(?:(?:either|the|an?|all|both|its|their|your|any|every|each|also|of|following)\s+)+"
    cleaned = (re.sub(article, "", part.strip(" \t\n.:!()[]{}<>"), flags=re.IGNORECASE) for part in parts)
    return tuple(part.replace("'s ", " ") for part in cleaned if part)


def number_of(text: str) -> int:
    """20 for `20` and for `twenty`."""
    return int(text) if text.isdigit() else NUMBER_WORDS[" ".join(text.lower().split())]


def _logical_lines(text: str) -> Iterator[str]:
    """Lines with wrapped ones joined, and a list of names under `…:` joined to its head."""
    pending, in_list = "", False
    for line in [*text.splitlines(), ""]:
        is_marked = bool(_LINE_MARK.match(line))
        content = _LINE_MARK.sub("", line).strip()
        if in_list and is_marked and content:
            name, _, meaning = content.partition(":")
            pending += f"{' ' if pending.endswith(':') else ', '}{name.rstrip('.,;')}"
            if meaning.strip():
                yield f"{name} means {meaning.strip()}"
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
    """The line with its quoted parts replaced; each goes to `quotes`, without and with its quotation marks."""

    def hide(found: re.Match[str]) -> str:
        quoted = next(group for group in found.groups() if group is not None)
        quotes.append((quoted, found[0]))
        ends_here = quoted[-1] in ".!?" and re.match(r"\s+[A-Z]", line[found.end() :])
        return f"\ue000{len(quotes) - 1}\ue001{'.' if ends_here else ''}"

    return _QUOTED.sub(hide, line)


def _unmask(masked: str, quotes: Sequence[str]) -> str:
    return re.sub("\ue000(\\d+)\ue001", lambda found: quotes[int(found[1])], masked)


def _clauses_of(sentence: str, quotes: Sequence[tuple[str, str]]) -> Iterator[Clause]:
    leading = _LEADING_CONDITION.match(sentence)
    condition, main = (leading["condition"], leading["main"]) if leading else ("", sentence)
    original = _unmask(sentence, [marked for _, marked in quotes])
    bare = tuple(quoted for quoted, _ in quotes)
    for text in _split(main):
        trailing = _TRAILING_CONDITION.match(text)
        if trailing and not condition:
            text, own_condition = trailing["main"], trailing["condition"]
        else:
            own_condition = condition
        yield Clause(text.strip(), own_condition.strip(" ."), bool(_NEGATED.search(text)), original, bare)


def _split(main: str) -> list[str]:
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
