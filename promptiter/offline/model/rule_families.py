"""How the simulated model recognises a family of rules in a clause, and reads what the rule is about.

In patterns a blank stands for any white space, and a word in angle brackets for what people say in many ways:
`<quoted>` (a text in quotation marks), `<list>` (several of them), `<n>` (a number in digits or words), `<fields>` (a
phrase).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal, TypeAlias

from promptiter.offline.model.clauses import LITERAL, NUMBER_WORDS, Clause, number_of, split_items

Parameters: TypeAlias = tuple[str, ...]
Reader: TypeAlias = Callable[[re.Match[str], Clause], Parameters | None]
"""What a match says; None when it was no rule of this family after all."""

Polarity: TypeAlias = Literal["asks", "forbids", "either"]

CURRENCIES = {"EUR": "€", "USD": "$", "GBP": "£", "CNY": "¥", "JPY": "¥", "CHF": "CHF"}
LANGUAGES = {
    "english": "en",
    "german": "de",
    "deutsch": "de",
    "french": "fr",
    "français": "fr",
    "francais": "fr",
    "chinese": "zh",
    "mandarin": "zh",
    "中文": "zh",
    "spanish": "es",
    "español": "es",
}
DATE_STYLES = {
    "iso": r"\byyyy-mm-dd\b|\biso\b|\byear-month-day\b|\b\d{4}-\d\d-\d\d\b",
    "dmy_dots": r"\bdd?\.mm?\.yyyy\b|\bday\.month\.year\b|\b\d\d?\.\d\d?\.\d{4}\b",
    "dmy_slashes": r"\bdd?/mm?/yyyy\b",
    "mdy_slashes": r"\bmm?/dd?/yyyy\b",
    "long": r"\bmonth dd?, ?(?:yyyy|year)\b|\bmonth (?:name|spelled|in words)|\bspell(?:ed)?[ -]out\b|"
    r"\bname of the month\b|\b[a-z]{3,9} \d\d?, \d{4}\b",
    "day_first": r"\bdd? month (?:yyyy|year)\b|\b\d\d? [a-z]{3,9} \d{4}\b",
}

_CURRENCY_NAMES = {"euro": "EUR", "dollar": "USD", "pound": "GBP", "yuan": "CNY", "yen": "JPY", "franc": "CHF"}
_NUMBER = r"\d+|" + "|".join(sorted((word.replace(" ", r"\s+") for word in NUMBER_WORDS), key=len, reverse=True))
_SHORTHAND = {
    "quoted": rf"(?:{LITERAL})",
    "list": rf"(?P<items>{LITERAL}(?:(?:,\s*|\s+and\s+|,\s+and\s+){LITERAL})*)",
    "n": rf"(?P<n>{_NUMBER})",
    "fields": rf"(?P<items>(?:[\w'/_-]|{LITERAL}|,\s|\s)+?)",
    "name": rf"(?:{LITERAL}|[\w-]+)",
    "phrase": rf"(?:[\w'.,() -]|{LITERAL})",
    "word": r"(?:words?|phrases?|keywords?|terms?|expressions?|text|string|labels?|prefix|suffix|sentence|line)",
    "labels": r"(?:labels|categories|values|options|words|classes|intents|decisions|routes|actions|answers)",
    "currency": r"(?:EUR|USD|GBP|CNY|JPY|CHF|euros?|dollars?|pounds?|yuan|yen|francs?)",
    "language": "(?P<language>" + "|".join(LANGUAGES) + r")(?!\w)",
    "tool": r"(?:tools?|functions?|api)",
    "knowledge": r"(?:answers?|information|evidence|documents?|sources?|context|knowledge|you|nothing|unsure|it|input)",
    "lack": r"(?:know|known|sure|unsure|certain|missing|absent|unknown|find|found|evidence|available|contain|cannot|"
    r"can't|unclear|lacks?|unanswerable|enough|insufficient|empty|supported?|not in|no)",
}
_NOT_A_FIELD = re.compile(
    r"^(?:(?:it|them|this|that|so|you|user)$|"
    r"(?:answer|reply|response|then|which|plain text|(?:ids?|sources?) of|postscript|currency|only|short|brief|polite|"
    r"one|exactly|at)\b.*|.*\b(?:answers?|repl(?:y|ies)|responses?|outputs?|"
    r"calculations?|reasoning|steps?|working|citations?|quotations?|quotes?|json|sentences?|words?|bullets?|lists?|"
    r"titles?|signature|postscript|p\.s|units?|currency|tools?|explanations?|greeting|markdown|fences?|"
    r"blocks?|tags?|decimals?|format|case|letters?|commas?|separators?|placeholders?|sections?|paragraphs?|prose|"
    r"polite|please|thank|thanks|one|characters?|arguments?|parameters?|brackets?|keys?|labels?|headings?|caps|tone|"
    r"unknown|object|brief|concise|everything|anything|nothing|guess\w*|invent\w*|yes|no|prefix|suffix|numbered|"
    r"sources?|source ids?|references?)$)",
    re.IGNORECASE,
)
_FORMATTED = re.compile(r"^(?:dates|amounts|numbers|prices|sums|totals|values|costs|figures|money)$", re.IGNORECASE)
_PHRASE_END = re.compile(
    r"\s+(?:in|into|as|with|using|to|from|at|on|for|before|after|so|by|exactly|verbatim|unchanged|"
    r"through|over|along|such|that|which|they|you|is|are|was|were|of the (?:input|task|request))\b.*$",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Family:
    """Rules of one kind. It is not looked for in a clause where one of `after` was found already."""

    name: str
    patterns: tuple[str, ...]
    read: Reader
    polarity: Polarity
    after: frozenset[str]
    sees_quotes: bool

    def find(self, clause: Clause) -> Parameters | None:
        """What the clause says in this family; None when it says nothing."""
        if self.polarity != "either" and clause.forbids != (self.polarity == "forbids"):
            return None
        text = clause.plain if self.sees_quotes else f"{clause.condition} | {clause.text}"
        for pattern in self.patterns:
            for found in _compiled(pattern).finditer(text):
                parameters = self.read(found, clause)
                if parameters is not None:
                    return parameters
        return None


def family(
    name: str,
    *patterns: str,
    read: Reader | None = None,
    polarity: Polarity = "asks",
    after: str = "",
    sees_quotes: bool = False,
) -> Family:
    """A family as a row of the lexicon. Patterns see `condition | clause` with quotes masked, or `sees_quotes`."""
    return Family(name, patterns, read or nothing_more, polarity, frozenset(after.split()), sees_quotes)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    spelled_out = re.sub(r"(?<!\?P)<(\w+)>", lambda found: _SHORTHAND[found[1]], pattern)
    return re.compile(spelled_out.replace(" ?", r"\s*").replace(" ", r"\s+"), re.IGNORECASE)


def nothing_more(_found: re.Match[str], _clause: Clause) -> Parameters:
    return ()


def quoted(found: re.Match[str], clause: Clause) -> Parameters | None:
    """The quoted text at the end of the match, or else the first in it."""
    literals = re.findall(LITERAL, found[0])
    if not literals:
        return None
    return (clause.literal(literals[-1] if found[0].endswith(literals[-1]) else literals[0]).strip(),)


def unquoted(found: re.Match[str], _: Clause) -> Parameters:
    return (found["text"].strip(),)


def quoted_or(value: str) -> Reader:
    """The first quoted text of the clause, or a stock word."""

    def read(_: re.Match[str], clause: Clause) -> Parameters:
        literal = re.search(LITERAL, clause.text)
        return (clause.literal(literal[0]).strip() if literal else value,)

    return read


def frame(found: re.Match[str], clause: Clause) -> Parameters | None:
    """The fixed beginning of a pattern such as `Answer: <value>`."""
    start = re.split(r"[<{\[(…]|\.\.\.|\b[XN]\b", clause.literal(found[0].split()[-1]), maxsplit=1)
    return (start[0].strip(),) if len(start) > 1 and start[0].strip() else None


def constant(value: str) -> Reader:
    return lambda _found, _clause: (value,)


def items(found: re.Match[str], clause: Clause) -> Parameters | None:
    return tuple(clause.literal(item) for item in split_items(found["items"])) or None


def labels(found: re.Match[str], clause: Clause) -> Parameters | None:
    """An enumeration has at least two members, all short; yes and no are a family of their own."""
    tail = (
        r"\s*(?:\band nothing else\b|\bas (?:your|the) \w+|\bin (?:your|the) \w+|\b(?:for|based on|depending on) .*)$"
    )
    head = r"^(?:(?:this|the|these|following)\s+)*(?:list|set)?\s*:?\s*"
    phrase = re.sub(f"{tail}|{head}", "", found["items"].strip(" ."), flags=re.IGNORECASE)
    listed = tuple(clause.literal(item) for item in split_items(phrase))
    is_enumeration = len(listed) > 1 and all(len(label.split()) <= 4 for label in listed)
    return listed if is_enumeration and {label.lower() for label in listed} != {"yes", "no"} else None


def fields(found: re.Match[str], clause: Clause) -> Parameters | None:
    """What could be fields of the input: not `a short answer`, nor `amounts` in `State amounts with two decimals`."""
    phrase = _PHRASE_END.sub("", found["items"].strip())
    filler = r"\s+(?:fields?|values?)$|^(?:fields?|values?(?: of| for)?(?: the)?)\s+"
    named = (re.sub(filler, "", clause.literal(item)) for item in split_items(phrase))
    kept = (item for item in named if not _NOT_A_FIELD.match(item) and not _FORMATTED.match(item))
    return tuple(item for item in kept if len(item.split()) <= 5) or None


def number(found: re.Match[str], _: Clause) -> Parameters:
    return (str(number_of(found["n"])),)


def one_less(found: re.Match[str], _: Clause) -> Parameters:
    return (str(max(number_of(found["n"]) - 1, 1)),)


def one_more(found: re.Match[str], _: Clause) -> Parameters:
    return (str(number_of(found["n"]) + 1),)


def keys(_: re.Match[str], clause: Clause) -> Parameters:
    """The keys that the clause names for its JSON object; none when it leaves them open."""
    named = re.search(
        r"\b(?:keys?|fields|properties|attributes|members)\b(?:\s+(?:are|named|called|of))?[\s:=]*(.+)",
        clause.text,
        re.IGNORECASE,
    )
    if named and not re.match(r"\W*(?:must|should|in|only|from|that)\b", named[1], re.IGNORECASE):
        end = r"\s+(?:in (?:this|that|your|the)|for|where|each|set|only)\b|\band nothing\b|\.\s*$"
        listed = split_items(re.sub(r"\s*\([^)]*\)", "", re.split(end, named[1])[0]))
        return tuple(clause.literal(item) for item in listed if len(item.split()) <= 3)
    shape = re.search(r"\{(.*)\}", clause.sentence)
    return tuple(re.findall(r"([A-Za-z_]\w*)\W{0,2}\s*:", shape[1])) if shape else ()


def date_style(found: re.Match[str], _: Clause) -> Parameters:
    return (next(style for style, shape in DATE_STYLES.items() if re.search(shape, found[0], re.IGNORECASE)),)


def currency(_: re.Match[str], clause: Clause) -> Parameters:
    """The code or the symbol that was asked for; without a name, the task has to say which currency."""
    sign = re.search(r"[€$£¥]", clause.plain)
    if sign:
        return (sign[0],)
    code = re.search(
        r"\b(EUR|USD|GBP|CNY|JPY|CHF)\b|\b(euro|dollar|pound|yuan|yen|franc)s?\b", clause.plain, re.IGNORECASE
    )
    wants_symbol = re.search(r"\b(?:symbol|sign)\b", clause.plain, re.IGNORECASE)
    if not code:
        return ("symbol" if wants_symbol else "code",)
    name = code[1].upper() if code[1] else _CURRENCY_NAMES[code[2].lower()]
    return (CURRENCIES[name] if wants_symbol else name,)


def language(found: re.Match[str], _: Clause) -> Parameters:
    return (LANGUAGES[found["language"].lower()],)


def citation(_: re.Match[str], clause: Clause) -> Parameters:
    shape = re.search(r"\[([^\]]+)\]", clause.plain)
    if shape and re.fullmatch(r"\d+|n|x|number|#|i", shape[1].strip(), re.IGNORECASE):
        return ("number",)
    return ("id" if shape or re.search(r"\b(?:ids?|identifiers?)\b", clause.plain, re.IGNORECASE) else "any",)


def tools(found: re.Match[str], clause: Clause) -> Parameters | None:
    """Names of tools; an empty name stands for whichever fits."""
    vague = r"^(?:(?:tools?|functions?|available|provided|right|appropriate|suitable)\s*)*$"
    named = [clause.literal(item).removesuffix("()") for item in split_items(found["tool"])] or [""]
    plain = tuple(re.sub(rf"{vague}|\s+(?:tools?|functions?)$", "", name, flags=re.IGNORECASE) for name in named)
    return plain if all(len(name.split()) < 4 for name in plain) else None


def argument(found: re.Match[str], clause: Clause) -> Parameters | None:
    source = split_items(found["source"])
    return (clause.literal(found["argument"]), clause.literal(source[0])) if source else None


def label_and_condition(found: re.Match[str], clause: Clause) -> Parameters | None:
    label = clause.literal(found["label"]).strip()
    reason = clause.literal(found.groupdict().get("reason") or clause.condition).strip(" .")
    is_vague = re.fullmatch(
        r"it|json|so|that|the|an?|and|with|only|in|you|unknown|exactly|tools?", label, re.IGNORECASE
    )
    return (label, reason) if reason and not is_vague else None


def wanted_fields(_: re.Match[str], clause: Clause) -> Parameters:
    """The fields to ask for: those that the clause names, or else its condition."""
    asked = re.search(
        r"\b(?:for|which|request|what)\s+(?:the\s+|missing\s+)*(?P<items>[\w ,'-]+)", clause.text, re.IGNORECASE
    )
    absent = re.search(
        r"^(?:there is )?(?:no|the|an?)?\s*(?P<items>[\w ,'-]+?)\s+(?:is|are|was|were)\b",
        clause.condition,
        re.IGNORECASE,
    )
    vague = re.compile(
        r"\b(?:clarif\w*|fields?|information|details?|input|data|it|request|something|anything)\b", re.IGNORECASE
    )
    for phrase in filter(None, (asked, absent)):
        named = tuple(item for item in fields(phrase, clause) or () if not vague.search(item))
        if named:
            return named
    return ()
