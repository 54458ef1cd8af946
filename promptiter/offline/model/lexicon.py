"""The lexicon of the simulated model: the English by which it understands each family of rules.

A row is a family, phrases for it, and how its parameters are read. Order matters only where `after` names families
that explain the same words better.
"""

from __future__ import annotations

from promptiter.offline.model.rule_families import (
    Family,
    family,
    read_argument,
    read_citation,
    read_constant,
    read_date_format,
    read_fields,
    read_items,
    read_keys,
    read_label_and_condition,
    read_labels,
    read_language,
    read_number_of,
    read_quoted,
    read_tools,
)
from promptiter.offline.text.dates import DATE_FORMATS

UNITS = {"words": r"words?", "sentences": r"sentences?", "characters": r"(?:characters?|letters?)"}
"""The units in which a length is given."""


def _lengths(unit: str, noun: str) -> tuple[Family, ...]:
    count = rf"<n>[ -](?:[a-z]+[ -])??{noun}\b"
    return (
        family(
            f"max_{unit}",
            rf"\b(?:at most|(?:no|not) (?:more|longer) than|up to|within) {count}",
            rf"\b(?:limit|keep|shorten|cut)\b[^.]*?\bto {count}",
            rf"\b{count} (?:or (?:less|fewer)|at most)\b",
            read=read_number_of,
        ),
        family(f"max_{unit}", rf"\b(?:exceed|more than) {count}", read=read_number_of, polarity="forbids"),
        family(
            f"min_{unit}",
            rf"\b(?:at least|(?:no|not) (?:fewer|less) than) {count}",
            rf"\b{count} (?:or more|at least)\b",
            read=read_number_of,
        ),
        family(f"min_{unit}", rf"\b(?:fewer|less) than {count}", read=read_number_of, polarity="forbids"),
        family(f"exact_{unit}", rf"\b{count}", read=read_number_of, after=f"max_{unit} min_{unit}"),
    )


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
    family(
        "prefix",
        r"\b(?:begin|start|open|prefix)\b.*?\b(?:with|by)\b.*?<quoted>|\bfirst (?:words?|line)\b.*?<quoted>",
        r"<quoted>.*\b(?:at|in) the (?:very )?(?:beginning|start|top)\b",
        read=read_quoted,
    ),
    family(
        "suffix",
        r"\b(?:end|finish|close|conclude)\b.*?\b(?:with|by)\b.*?<quoted>|\blast (?:words?|line)\b.*?<quoted>",
        r"<quoted>.*\b(?:at|to) the (?:very )?end\b",
        read=read_quoted,
    ),
    family("date_format", rf"\b(?:{'|'.join(DATE_FORMATS)}|iso)\b", read=read_date_format, sees_quotes=True),
    family("decimals", r"\b<n>[ -](?:decimals?\b|decimal (?:places?|digits?)|digits? after)", read=read_number_of),
    family("decimals", r"\bround(?:ed)?\b.*\b(?:whole|integers?)\b", read=read_constant("0"), after="decimals"),
    family("decimals", r"\bdecimals?\b", read=read_constant("0"), polarity="forbids"),
    family("upper_case", r"\bupper[ -]?case\b|\ball[ -]caps\b|\bcapital letters\b|\bcapitals\b"),
    family(
        "language",
        r"\b(?:in|into|to|use|speak|be|is|language:?) (?:the )?(?:\w+ )??<language>",
        r"\b<language> (?:only|language)\b",
        read=read_language,
    ),
    family("no_code_fence", r"\bcode[ -](?:fences?|blocks?)\b|\bfences?\b|\bmarkdown\b", polarity="forbids"),
    family("polite", r"\bpolite(?:ly)?\b|\bfriendly\b|\bthank\b", after="prefix suffix", sees_quotes=True),
    *(row for unit, noun in UNITS.items() for row in _lengths(unit, noun)),
    # What an answer says.
    family(
        "choose",
        r"\bone (?:of|from|out of|among)(?: these| the)?(?: following)?(?: (?:\w+ )?<labels>)?\W*?(?P<items>[^\s:].+)$",
        r"\b(?:choose|pick|select|decide)\b[^.]*?\b(?:between|among|from)(?: the)?(?: following)?(?: <labels>)?:? "
        r"(?P<items>.+)$",
        r"\b(?:classify|label)\b[^.]*?\b(?:as|into)(?: either| one of)?:? (?P<items>.+)$",
        r"\b(?:labels|categories)(?: are)?:? (?P<items>.+)$",
        read=read_labels,
        after="json",
    ),
    family(
        "label_when",
        r"\| .*?\b(?:choose|answer|use|say|reply|output|pick|label(?: it)?|return|respond|select)"
        r"(?: with| as| to| the label)* (?P<label><name>)[.\s]*$",
        r"\| .*?\b(?:classify|label)\b.*?\b(?:as|to) (?P<label><name>)[.\s]*$",
        r"\| (?P<label><name>) (?:means|applies (?:when|if|to)|is for) (?P<reason>.+)$",
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
        r"<tool>\b.*\| .*?\b(?:pass|use|send|give) (?:the )?(?P<source><phrase>+?) as (?:the )?(?P<argument><name>)",
        r"\btool with (?:the )?(?P<source><phrase>+?) as (?:the |its )?(?P<argument><name>)",
        read=read_argument,
    ),
    family(
        "cite",
        r"\bcit(?:e|ed|ation|ations)\b|\bname the document\b",
        r"\b(?:give|name|include|add|state|mention)\b[^.]*\bsources?\b",
        read=read_citation,
        after="json",
    ),
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
    family("value_only", r"\bnothing else\b", read=read_constant(""), after="json json_only value_only choose"),
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
        r"\| (?:(?:make sure|ensure)(?: that)? )?<fields> "
        r"(?:(?:must|should|has to|have to|needs to|need to|always|is|are|also|be|to)\s+)+"
        r"(?:included|mentioned|appear|appears|present|kept|stated|given|in)\b",
        read=read_fields,
        after="carry_all keyword choose label_when json tool_argument prefix suffix value_only repeat_request",
    ),
    family(
        "include", r"\bjson\b.*\b(?:include|with|contain)\w* the (?!keys|fields)(?P<items>[^.|]+)", read=read_fields
    ),
    family("concise", r"\b(?:concise(?:ly)?|brief(?:ly)?|short)\b(?! sentences?)"),
)
