"""The lexicon of the simulated model for what an answer says.

It holds the ordinary English by which each family of rules is understood. A row is a family, what people
say for it, and how its parameters are read. Order matters only where `after` names families that explain the same words
better.
"""

from __future__ import annotations

from promptiter.offline.model.form_lexicon import UNITS
from promptiter.offline.model.rule_families import (
    Family,
    argument,
    citation,
    constant,
    family,
    fields,
    items,
    label_and_condition,
    labels,
    quoted_or,
    tools,
    wanted_fields,
)

_CARRY = (
    r"(?:include|mention|keep|state|give|carry|preserve|retain|repeat|pass|forward|report|provide|show|add|put|copy|"
    r"name|return|list|specify|contain|quote|write|insert|relay|hand|output|have|echo)s?"
)
_ALL = (
    r"(?:everything|(?:all|every|each|any)(?: of)?(?: (?:the|its|these|your))?(?: \w+)? "
    r"(?:fields?|details?|information|data|values?|facts?|contents?|attributes?|keys?|inputs?|entr(?:y|ies))\b"
    r"|(?:the )?(?:whole|full|entire|complete) "
    r"(?:input|record|request|message|data|content|text|question|task|context))"
)
_LOSE = r"(?:omit|drop|lose|remove|leave out|skip|forget|discard|leave)"
_SAY = r"(?:mention|include|use|say|write|reveal|disclose|contain|add|output|repeat|give|state|show|name|avoid)"

CONTENT_FAMILIES: tuple[Family, ...] = (
    family("yes_no", r"\byes\b\W{0,4}(?:or|/|and)\W{0,4}\bno\b", polarity="either", sees_quotes=True),
    family(
        "choose",
        r"\bone (?:of|from|out of|among)(?: these| the)?(?: following)?(?: (?:\w+ )?<labels>)?\W*?(?P<items>[^\s:].+)$",
        r"\b(?:choose|pick|select|decide)\b[^.]*?\b(?:between|among|from)(?: the)?(?: following)?(?: <labels>)?:? "
        r"(?P<items>.+)$",
        r"\b(?:classify|categori[sz]e|label|tag|route)\b[^.]*?\b(?:as|into|to)(?: either| one of)?:? (?P<items>.+)$",
        r"\b(?:allowed|valid|possible|permitted)(?: \w+)?(?: are| is)?:? (?P<items>.+)$",
        r"\b(?:answer|reply|respond|output|return)\b(?: only)?(?: with)? either:? (?P<items>.+)$",
        r"\b(?:labels|categories|classes|options)(?: are)?:? (?P<items>.+)$",
        read=labels,
        after="json yes_no",
    ),
    family(
        "clarify",
        r"\bask\b.*\b(?:clarif\w*|questions?|for|user|customer|which)\b",
        r"\brequest (?:the )?missing\b|\bclarifying question\b",
        read=wanted_fields,
    ),
    family(
        "unknown",
        r"^(?=.*\b<knowledge>\b.*\|)(?=.*\b<lack>\b.*\|).*\| .*"
        r"\b(?:say|answer|reply|write|respond|output|return|state|use|give|admit|tell)\b",
        r"\b(?:admit|refuse|decline)\b",
        read=quoted_or("unknown"),
        after="clarify",
    ),
    family(
        "unknown",
        r"\b(?:missing|absent|empty|not given|unavailable)\b.*\b(?:unknown|n/a|not known|don't know|not available)\b",
        read=quoted_or("unknown"),
        after="clarify unknown",
        sees_quotes=True,
    ),
    family(
        "unknown",
        r"\b(?:guess(?:ing)?|invent(?:ing)?|make up|making up|hallucinate|fabricate|speculate)\b",
        read=quoted_or(""),
        polarity="forbids",
    ),
    family(
        "label_when",
        r"\| .*?\b(?:choose|answer|use|say|reply|output|pick|label(?: it)?|return|respond|select)"
        r"(?: with| as| to| the label)* (?P<label><name>)[.\s]*$",
        r"\| .*?\b(?:classify|route|label|tag|categori[sz]e)\b.*?\b(?:as|to) (?P<label><name>)[.\s]*$",
        r"\| (?P<label><name>) (?:means|applies (?:when|if|to)|is for|stands for) (?P<reason>.+)$",
        read=label_and_condition,
        polarity="either",
        after="choose unknown clarify",
    ),
    family(
        "call_tool",
        r"\|.*\b(?:call|use|invoke|run) (?:the )?(?:tool|function) "
        r"(?P<tool>(?!to\b|before|when|for|if|and|first|with|in\b)<name>)",
        r"\|.*?\b(?:call|use|invoke|run|query|consult|execute|with|via)(?: the| your| an?)?"
        r"(?P<tool>(?: <phrase>*?)??) <tool>\b",
        r"\|.*?\b(?:call|invoke|execute) (?:the )?(?P<tool><name>(?:\(\))?)",
        read=tools,
    ),
    family(
        "no_tool",
        r"\b(?:call|use|using|invoke|run)(?:ing)?(?: the| your| an?| any)?(?P<tool>(?: <phrase>*?)??) <tool>\b",
        read=tools,
        polarity="forbids",
    ),
    family(
        "tool_argument",
        r"\b(?:pass|give|send|supply|provide|use|fill|with) (?:the )?(?P<source><phrase>+?) (?:as|for|to|in|into) "
        r"(?:the |its )?(?P<argument><name>) (?:argument|parameter)\b",
        r"\b(?:set|fill)(?: in)? (?:the )?(?:argument |parameter )?(?P<argument><name>)(?: argument| parameter)? "
        r"(?:to|with|from) (?:the )?(?P<source><phrase>+)",
        r"<tool>\b.*\| .*?\b(?:pass|use|send|give) (?:the )?(?P<source><phrase>+?) as (?:the )?(?P<argument><name>)",
        r"\btool with (?:the )?(?P<source><phrase>+?) as (?:the |its )?(?P<argument><name>)",
        read=argument,
    ),
    family(
        "cite",
        r"\bcit(?:e|ed|ation|ations)\b|\breference the\b",
        r"\b(?:give|name|include|add|state|mention|provide|list|append|show)\b[^.]*\b(?:sources?|references?)\b",
        r"\b(?:mention|say|state|tell|give|name|show|note)\b.*\b(?:documents?|passages?)\b.*\b(?:use|used|supports?)\b",
        read=citation,
        after="json",
    ),
    family("wrap_quotes", r"\bsingle (?:quotes|quotation marks)\b", read=constant("'")),
    family(
        "wrap_quotes", r"\b(?:quotes|quotation marks|inverted commas)\b", read=constant('"'), after="wrap_quotes cite"
    ),
    family(
        "quote",
        r"\bquot(?:e|ing)\b|\b(?:verbatim|direct|literal|exact) quotations?\b|\bsupport\b.*\bquotations?\b",
        after="wrap_quotes",
    ),
    family(
        "show_steps",
        r"\bstep[ -]by[ -]step\b|\bthink\b.*\bbefore\b",
        r"\b(?:show|explain|write|give|state|include)\b.*\b(?:calculations?|working|reasoning|steps|work)\b",
    ),
    family(
        "calculate",
        r"\b(?:calculate|compute|work out|solve|sum up|do the (?:math|arithmetic|calculation))\b",
        r"\b(?:exact|correct|careful) (?:arithmetic|calculation|computation)s?\b",
    ),
    family("summarise", r"\bsummari[sz]e\b|\b(?:an?|one|in|short|brief|as)\b.*\bsummary\b"),
    family(
        "verbatim",
        r"\bverbatim\b|\bunchanged\b|\bunmodified\b|\bword for word\b|\bas is\b",
        r"\bexactly as (?:given|written|provided|received|stated|they|it|in)\b",
    ),
    family("verbatim", r"\b(?:change|alter|modify|reformat|rewrite|rephrase|edit)\b", polarity="forbids"),
    family(
        "carry_all",
        rf"\b(?:{_CARRY}|send)\b[^.]*?\b{_ALL}",
        r"\b(?:pass|forward|hand|send|relay) (?:it|them)\b.*\b(?:on|along|next|unchanged)\b",
        r"\b(?:omit|drop|lose|leave) nothing\b",
        after="cite",
    ),
    family("carry_all", rf"\b{_LOSE}\b.*\b(?:anything|{_ALL}|information)", polarity="forbids"),
    family("include", rf"\b{_LOSE} (?P<items>[^.]+)", read=fields, polarity="forbids", after="carry_all"),
    family(
        "value_only",
        r"\b(?:only|just|nothing but)\b.*?\b(?:the|its) (?P<items>[\w, ]+?)(?: itself)?"
        r"(?:[.,]| and nothing| from| of| without|$)",
        r"\bthe (?P<items>[\w, ]+?) (?:alone|only|and nothing else)\b",
        read=items,
        after="json json_only choose call_tool",
    ),
    family(
        "value_only",
        r"\b(?:explanations?|prose|preamble|(?:extra|additional|other) text|commentary|introduction|anything else)\b",
        read=constant(""),
        polarity="forbids",
    ),
    family("value_only", r"\bnothing else\b", read=constant(""), after="json json_only value_only choose"),
    family("repeat_request", r"\b(?:repeat|restate|echo|copy)\b.*\b(?:question|request|task|prompt|query)\b"),
    family(
        "keyword",
        r"\b(?:include|use|mention|contain|add|insert|say|write|have)s?\b[^.]*?\b<word> <list>",
        r"\b(?:include|mention|contain|insert)s? <list>",
        r"\b(?:include|use|mention|contain|add|insert)s? the (?:word|keyword|term) (?P<items>[\w-]+)",
        read=items,
        after="prefix suffix signature unknown label_when choose polite json",
    ),
    family(
        "include",
        rf"(?<!the\s)(?<!your\s)\b{_CARRY}(?: on| along| over| through)? (?P<items>[^.]+)",
        r"\btell (?:the )?(?:user|customer|reader|client) (?P<items>[^.]+)",
        r"\| (?:(?:make sure|ensure|see to it)(?: that)? )?<fields> "
        r"(?:(?:must|should|has to|have to|needs to|need to|shall|always|is|are|also|be|to)\s+)+"
        r"(?:included|mentioned|appear|appears|present|kept|stated|given|part|carried|preserved|repeated|in)\b",
        read=fields,
        after="carry_all keyword choose label_when clarify unknown json tool_argument prefix suffix sections "
        "value_only repeat_request",
    ),
    family("include", r"\bjson\b.*\b(?:include|with|also|contain)\w* the (?!keys|fields)(?P<items>[^.]+)", read=fields),
    family("no_commas", r"\bcommas\b", polarity="forbids"),
    family("avoid", r"\b(?:omit|exclude|leave out|drop|remove|skip) (?P<items>[^.]+)", read=items, after="carry_all"),
    family(
        "avoid",
        rf"\b{_SAY}(?:ing)?(?: using| mentioning| saying)?(?: the)?(?: <word>)? (?P<items>[^.]+)",
        read=items,
        polarity="forbids",
        after="include carry_all no_json no_thousands no_list no_code_fence no_tool value_only verbatim unknown "
        "decimals lower_case no_commas " + " ".join(f"{bound}_{unit}" for bound in ("max", "min") for unit in UNITS),
    ),
    family(
        "concise",
        r"\b(?:concise(?:ly)?|brief(?:ly)?|terse|succinct(?:ly)?|short|to the point)\b(?! sentences?)",
        after="summarise show_steps",
    ),
)
