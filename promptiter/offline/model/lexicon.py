"""The lexicon of the simulated model: the English by which it understands each family of rules.

A row is a family, patterns for it, and how its parameters are read. Order matters only where `after` names families
that explain the same words better. In patterns a blank matches any white space, and a name in angle brackets is
shorthand: `<quoted>` (a text in quotation marks), `<list>` (several of them), `<n>` (a number in digits or words),
`<fields>` (a phrase), `<name>` (a word).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal, TypeAlias

from promptiter.offline.model.clauses import LITERAL, NUMBER_WORDS, Clause, read_number, split_items
from promptiter.offline.text.dates import DATE_FORMATS

Parameters: TypeAlias = tuple[str, ...]
Reader: TypeAlias = Callable[[re.Match[str], Clause], Parameters | None]
"""Reads the parameters from a match; None if the match is not a rule of the family after all."""

Polarity: TypeAlias = Literal["asks", "forbids", "either"]

LANGUAGES = {"english": "en", "german": "de", "french": "fr", "spanish": "es"}

_NUMBER = r"\d+|" + "|".join(sorted((word.replace(" ", r"\s+") for word in NUMBER_WORDS), key=len, reverse=True))
_SHORTHAND = {
    "quoted": rf"(?:{LITERAL})",
    "list": rf"(?P<items>{LITERAL}(?:(?:,\s*|\s+and\s+|,\s+and\s+){LITERAL})*)",
    "n": rf"(?P<n>{_NUMBER})",
    "fields": rf"(?P<items>(?:[\w'/_-]|{LITERAL}|,\s|\s)+?)",
    "name": rf"(?:{LITERAL}|[\w-]+)",
    "phrase": rf"(?:[\w'.,() -]|{LITERAL})",
    "word": r"(?:words?|phrases?|keywords?|terms?|text|labels?|sentence|line)",
    "names": rf"(?P<items>(?:{LITERAL}|[\w-]+)(?:,\s*(?:{LITERAL}|[\w-]+))*,?\s+or\s+(?:{LITERAL}|[\w-]+))",
    "request": r"(?:it|this|them|(?:the|each|every|this) "
    r"(?:request|message|ticket|question|input|case|email|user|customer))",
    "labels": r"(?:labels|categories|values|options|words|classes|answers)",
    "language": "(?P<language>" + "|".join(LANGUAGES) + r")(?!\w)",
    "tool": r"(?:tools?|functions?)",
}
_NOT_A_FIELD = re.compile(
    r"^(?:(?:it|them|this|that|so|you|user)$|"
    r"(?:answer|reply|response|then|which|plain text|(?:ids?|sources?) of|only|short|brief|polite|"
    r"one|exactly|at)\b.*|.*\b(?:answers?|repl(?:y|ies)|responses?|outputs?|reasoning|steps?|citations?|quotations?|"
    r"json|sentences?|words?|lists?|tools?|explanations?|markdown|fences?|blocks?|decimals?|format|case|letters?|prose|"
    r"polite|please|thanks?|one|characters?|arguments?|parameters?|brackets?|keys?|labels?|caps|tone|"
    r"object|brief|concise|everything|anything|nothing|yes|no|prefix|suffix|sources?|source ids?|references?)$)",
    re.IGNORECASE,
)
_NOT_A_LABEL = re.compile(
    r"it|json|so|that|the|an?|and|with|only|in|you|exactly|tools?|them|yourself|nothing|"
    r"(?:direct|polite|brief|concise|normal|usual|according|formal|careful|correct|clear|honest|kind|short|ful|simp)ly",
    re.IGNORECASE,
)
_FORMATTED = re.compile(r"^(?:dates|amounts|numbers|prices|sums|totals|values|costs|figures)$", re.IGNORECASE)
_PHRASE_END = re.compile(
    r"\s+(?:in|into|as|with|using|to|from|at|on|for|before|after|so|by|exactly|verbatim|unchanged|"
    r"through|over|along|such|that|which|they|you|is|are|was|were|of the (?:input|task|request))\b.*$",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Family:
    """Rules of one kind. A clause in which one of `after` was found is not searched for this family."""

    name: str
    patterns: tuple[str, ...]
    read: Reader
    polarity: Polarity
    after: frozenset[str]
    sees_quotes: bool

    def find(self, clause: Clause) -> Parameters | None:
        """The parameters of the rule of this family in the clause; None if it has no such rule."""
        if self.polarity != "either" and clause.forbids != (self.polarity == "forbids"):
            return None
        text = clause.plain if self.sees_quotes else f"{clause.condition} | {clause.text}"
        for pattern in self.patterns:
            for found in _compile(pattern).finditer(text):
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
    """A row of the lexicon. Patterns are matched with `condition | clause`, with quotes masked unless `sees_quotes`."""
    return Family(name, patterns, read or read_nothing, polarity, frozenset(after.split()), sees_quotes)


@cache
def _compile(pattern: str) -> re.Pattern[str]:
    spelled_out = re.sub(r"(?<!\?P)<(\w+)>", lambda found: _SHORTHAND[found[1]], pattern)
    return re.compile(spelled_out.replace(" ?", r"\s*").replace(" ", r"\s+"), re.IGNORECASE)


def read_nothing(_found: re.Match[str], _clause: Clause) -> Parameters:
    return ()


def read_constant(value: str) -> Reader:
    return lambda _found, _clause: (value,)


def read_quoted(found: re.Match[str], clause: Clause) -> Parameters | None:
    """The quoted text at the end of the match, or else the first in it."""
    literals = re.findall(LITERAL, found[0])
    if not literals:
        return None
    return (clause.literal(literals[-1] if found[0].endswith(literals[-1]) else literals[0]).strip(),)


def read_count(found: re.Match[str], _: Clause) -> Parameters:
    return (str(read_number(found["n"])),)


def read_items(found: re.Match[str], clause: Clause) -> Parameters | None:
    return tuple(clause.literal(item) for item in split_items(found["items"])) or None


def read_labels(found: re.Match[str], clause: Clause) -> Parameters | None:
    """An enumeration has at least two members, all short."""
    tail = r"\s*(?:\band nothing else\b|\bas (?:your|the) \w+|\bin (?:your|the) \w+|\b(?:for|based on) .*)$"
    head = r"^(?:(?:this|the|these|following)\s+)*(?:list|set)?\s*:?\s*"
    phrase = re.sub(f"{tail}|{head}", "", found["items"].strip(" ."), flags=re.IGNORECASE)
    labels = tuple(clause.literal(item) for item in split_items(phrase))
    return labels if len(labels) > 1 and all(len(label.split()) <= 4 for label in labels) else None


def read_fields(found: re.Match[str], clause: Clause) -> Parameters | None:
    """Possible fields of the input: not `a short answer`, nor `amounts` in `State amounts with two decimals`."""
    phrase = _PHRASE_END.sub("", found["items"].strip())
    filler = r"\s+(?:fields?|values?)$|^(?:fields?|values?(?: of| for)?(?: the)?)\s+"
    named = (re.sub(filler, "", clause.literal(item)) for item in split_items(phrase))
    kept = (item for item in named if not _NOT_A_FIELD.match(item) and not _FORMATTED.match(item))
    return tuple(item for item in kept if len(item.split()) <= 5) or None


def read_keys(_: re.Match[str], clause: Clause) -> Parameters:
    """The keys that the clause names for its JSON object; empty if it names none."""
    named = re.search(r"\b(?:keys?|fields)\b(?:\s+(?:are|named|called))?[\s:=]*(.+)", clause.text, re.IGNORECASE)
    if named and not re.match(r"\W*(?:must|should|in|only|from|that)\b", named[1], re.IGNORECASE):
        end = r"\s+(?:in (?:this|that|your|the)|for|where|each|set|only)\b|\band (?:nothing|no)\b|\.\s*$"
        keys = split_items(re.sub(r"\s*\([^)]*\)", "", re.split(end, named[1])[0]))
        return tuple(clause.literal(item) for item in keys if len(item.split()) <= 3)
    shape = re.search(r"\{(.*)\}", clause.sentence)
    return tuple(re.findall(r"([A-Za-z_]\w*)\W{0,2}\s*:", shape[1])) if shape else ()


def read_date_format(found: re.Match[str], _: Clause) -> Parameters:
    return (next((name for name in DATE_FORMATS if name.lower() == found[0].lower()), "YYYY-MM-DD"),)


def read_language(found: re.Match[str], _: Clause) -> Parameters:
    return (LANGUAGES[found["language"].lower()],)


def read_tools(found: re.Match[str], clause: Clause) -> Parameters | None:
    """Names of tools; an empty name means whichever fits."""
    vague = r"^(?:(?:tools?|functions?|available|provided|right|appropriate|suitable)\s*)*$"
    named = [clause.literal(item).removesuffix("()") for item in split_items(found["tool"])] or [""]
    plain = tuple(re.sub(rf"{vague}|\s+(?:tools?|functions?)$", "", name, flags=re.IGNORECASE) for name in named)
    return plain if all(len(name.split()) < 4 for name in plain) else None


def read_argument(found: re.Match[str], clause: Clause) -> Parameters | None:
    """The name of an argument, and the field or text to fill it with."""
    source = split_items(found["source"])
    return (clause.literal(found["argument"]), clause.literal(source[0])) if source else None


def read_label_and_condition(found: re.Match[str], clause: Clause) -> Parameters | None:
    label, reason = clause.literal(found["label"]).strip(), clause.literal(clause.condition).strip(" .")
    return (label, reason) if reason and not _NOT_A_LABEL.fullmatch(label) else None


def _list_length_families(unit: str, noun: str) -> tuple[Family, ...]:
    count = rf"<n>[ -](?:[a-z]+[ -])??{noun}\b"
    most = rf"\b(?:at most|(?:no|not) (?:more|longer) than|up to|limit\b[^.]*? to) {count}"
    least = rf"\b(?:at least|(?:no|not) (?:fewer|less) than) {count}"
    return (
        family(f"max_{unit}", most, read=read_count),
        family(f"min_{unit}", least, read=read_count),
        family(f"exact_{unit}", rf"\b{count}", read=read_count, after=f"max_{unit} min_{unit}"),
    )


UNITS = {"words": r"words?", "sentences": r"sentences?", "characters": r"(?:characters?|letters?)"}
"""The units in which a length is given."""

_CARRY = (
    r"(?:include|mention|keep|state|give|carry|preserve|retain|repeat|pass|forward|report|provide|show|add|put|copy|"
    r"name|return|list|contain|quote|write|insert|relay|hand|output|have|echo)s?"
)
_ALL = (
    r"(?:everything|(?:all|every|each|any)(?: of)?(?: (?:the|its|these|your))?(?: \w+)? "
    r"(?:fields?|details?|information|data|values?|facts?|contents?|inputs?)\b"
    r"|(?:the )?(?:whole|full|entire|complete) "
    r"(?:input|record|request|message|data|content|text|question|task|context))"
)
_LOSE = r"(?:omit|drop|lose|remove|leave out|skip|forget|discard|leave)"

FAMILIES: tuple[Family, ...] = (
    # What an answer looks like.
    family("json", r"\bjson\b", read=read_keys),
    family(
        "json_only",
        r"\bonly\b.*\bjson\b|\bjson\b.*\b(?:only|nothing else)\b|\bnothing (?:but|except) (?:\w+ ){0,3}json\b",
    ),
    family("prefix", r"\b(?:begin|start|open)\b.*?\bwith\b.*?<quoted>|\bfirst words?\b.*?<quoted>", read=read_quoted),
    family("suffix", r"\b(?:end|finish|close)\b.*?\bwith\b.*?<quoted>|\blast words?\b.*?<quoted>", read=read_quoted),
    family("date_format", rf"\b(?:{'|'.join(DATE_FORMATS)}|iso)\b", read=read_date_format, sees_quotes=True),
    family("decimals", r"\b<n>[ -](?:decimals?\b|decimal (?:places?|digits?)|digits? after)", read=read_count),
    family("decimals", r"\bround(?:ed)?\b.*\b(?:whole|integers?)\b", read=read_constant("0"), after="decimals"),
    family("decimals", r"\bdecimals?\b", read=read_constant("0"), polarity="forbids"),
    family("upper_case", r"\bupper[ -]?case\b|\ball[ -]caps\b|\bcapital letters\b|\bcapitals\b"),
    family("language", r"\b(?:in|into|use|speak|be|is) (?:the )?(?:\w+ )??<language>", read=read_language),
    family("no_code_fence", r"\bcode[ -](?:fences?|blocks?)\b|\bfences?\b|\bmarkdown\b", polarity="forbids"),
    family("polite", r"\bpolite(?:ly)?\b|\bfriendly\b|\bthank\b", after="prefix suffix", sees_quotes=True),
    *(row for unit, noun in UNITS.items() for row in _list_length_families(unit, noun)),
    # What an answer says.
    family(
        "choose",
        r"\bone (?:of|from|out of|among)(?: these| the)?(?: following)?(?: (?:\w+ )?<labels>)?\W*?(?P<items>[^\s:].+)$",
        r"\b(?:classify|label)\b[^.]*?\b(?:as|into)(?: either| one of)?:? (?P<items>.+)$",
        r"\| (?:\w+ )?(?:answer|reply|respond|choose|pick|select)(?: with)?(?: either)?:? <names>[. ]*$",
        r"\b(?:choose|pick|select|decide) between (?P<items>.+)$",
        r"\b(?:decide|determine|say) whether [^.|]*?\b(?:is|are|belongs)(?: about| for| to)? <names>[. ]*$",
        r"\b(?:route|send|forward|assign|hand) <request> to(?: either)?:? <names>[. ]*$",
        r"\b(?:one|a single) (?:word|label|category): <names>[. ]*$",
        read=read_labels,
        after="json",
    ),
    family(
        "label_when",
        r"\| .*?\b(?:choose|answer|use|say|reply|output|pick|label(?: it)?|return|respond|select)"
        r"(?: with| as| to| the label)* (?P<label><name>)[.\s]*$",
        r"\| (?:it|the (?:answer|label|category|class)) is (?P<label><quoted>)[.\s]*$",
        r"\| (?:the )?(?:answer|label|category|class) is (?P<label><name>)[.\s]*$",
        r"\| .*?\b(?:route|send|forward|assign|hand|classify) <request> (?:to|as) (?:the )?(?P<label><name>)"
        r"(?: team| department| desk| queue| node| branch)?[.\s]*$",
        read=read_label_and_condition,
        polarity="either",
        after="choose",
    ),
    family(
        "call_tool",
        r"\|.*?\b(?:call|use|invoke|run|with)(?: the| your| an?)?(?P<tool>(?: <phrase>*?)??) <tool>\b",
        r"\|.*?\b(?:call|invoke) (?:the )?(?P<tool><name>(?:\(\))?)",
        read=read_tools,
    ),
    family(
        "no_tool",
        r"\b(?:call|use|using|invoke|run)(?:ing)?(?: the| your| an?| any)?(?P<tool>(?: <phrase>*?)??) <tool>\b",
        read=read_tools,
        polarity="forbids",
    ),
    family(
        "tool_argument",
        r"\b(?:set|fill)(?: in)? (?:the )?(?:argument |parameter )?(?P<argument><name>)(?: argument| parameter)? "
        r"(?:to|with|from) (?:the )?(?P<source><phrase>+)",
        read=read_argument,
    ),
    family("cite", r"\bcit(?:e|ed|ation|ations)\b|\bname the document\b", after="json"),
    family(
        "verbatim",
        r"\bverbatim\b|\bunchanged\b|\bunmodified\b|\bword for word\b|\bas is\b",
        r"\bexactly as (?:given|written|provided|received|stated|they|it|in)\b",
    ),
    family("verbatim", r"\b(?:change|alter|modify|reformat|rewrite|rephrase|edit)\b", polarity="forbids"),
    family("carry_all", rf"\b{_CARRY}\b[^.]*?\b{_ALL}", after="cite"),
    family("carry_all", rf"\b{_LOSE}\b.*\b(?:anything|{_ALL}|information)", polarity="forbids"),
    family("include", rf"\b{_LOSE} (?P<items>[^.|]+)", read=read_fields, polarity="forbids", after="carry_all"),
    family(
        "value_only",
        r"\b(?:only|just|nothing but)\b.*?\b(?:the|its) (?P<items>[\w, ]+?)(?: itself)?"
        r"(?:[.,]| and nothing| from| of| without|$)",
        r"\bthe (?P<items>[\w, ]+?) (?:alone|only|and nothing else)\b",
        read=read_items,
        after="json json_only choose call_tool",
    ),
    family(
        "value_only",
        r"\b(?:explanations?|prose|preamble|(?:extra|additional|other) text|anything else)\b",
        read=read_constant(""),
        polarity="forbids",
    ),
    family("repeat_request", r"\b(?:repeat|restate|echo|copy)\b.*\b(?:question|request|task|prompt|query)\b"),
    family(
        "keyword",
        r"\b(?:include|use|mention|contain|add|insert|say|write|have)s?\b[^.]*?\b<word> <list>",
        r"\b(?:include|mention|contain|insert)s? <list>",
        read=read_items,
        after="prefix suffix label_when choose polite json",
    ),
    family(
        "include",
        rf"(?<!the\s)(?<!your\s)\b{_CARRY}(?: on| along| over| through)? (?P<items>[^.|]+)",
        read=read_fields,
        after="carry_all keyword choose label_when json tool_argument prefix suffix value_only repeat_request",
    ),
    family(
        "include", r"\bjson\b.*\b(?:include|with|contain)\w* the (?!keys|fields)(?P<items>[^.|]+)", read=read_fields
    ),
    family("concise", r"\b(?:concise(?:ly)?|brief(?:ly)?|short)\b(?! sentences?)"),
)
