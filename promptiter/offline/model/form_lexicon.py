"""The lexicon of the simulated model for what an answer looks like.

It holds the ordinary English by which each family of rules is understood. A row is a family, what people
say for it, and how its parameters are read. Order matters only where `after` names families that explain the same words
better.
"""

from __future__ import annotations

from promptiter.offline.model.rule_families import (
    DATE_STYLES,
    Family,
    constant,
    currency,
    date_style,
    family,
    frame,
    keys,
    labels,
    language,
    number,
    one_less,
    one_more,
    quoted,
    quoted_or,
    unquoted,
)

UNITS = {
    "words": r"words?",
    "sentences": r"sentences?",
    "characters": r"(?:characters?|letters?|chars)",
    "bullets": r"(?:bullet points?|bullets?)",
    "items": r"(?:items?|points?|entries|elements)",
    "paragraphs": r"paragraphs?",
    "placeholders": r"placeholders?",
}


def _lengths() -> tuple[Family, ...]:
    rows: list[Family] = []
    for unit, noun in UNITS.items():
        counted = "min_bullets max_bullets exact_bullets" if unit == "items" else ""
        count = rf"(?:a total of |about )?<n>[ -](?:[a-z]+[ -])??{noun}\b"
        rows += (
            family(
                f"max_{unit}",
                rf"\b(?:at most|(?:no|not) (?:more|longer|greater) than|up to|within) {count}",
                rf"\b(?:a )?(?:max(?:imum|\.)?|limit)(?: of| is|:)? {count}",
                rf"\b(?:limit|keep|restrict|shorten|cut|reduce|hold|cap)(?:ed|ted)?\b[^.]*?\b(?:to|at) {count}",
                rf"\b{count} (?:or (?:less|fewer)|at most|max(?:imum)?|tops|limit)\b",
                read=number,
            ),
            family(
                f"max_{unit}",
                rf"(?<!no\s)(?<!not\s)\b(?:fewer than|less than|under|below|shorter than) {count}",
                read=one_less,
            ),
            family(
                f"max_{unit}",
                rf"\b(?:exceed|exceeds|exceeding|more than|longer than|over) {count}",
                read=number,
                polarity="forbids",
            ),
            family(
                f"min_{unit}",
                rf"\b(?:at least|(?:a )?min(?:imum|\.)?(?: of| is|:)?|(?:no|not) (?:fewer|less|shorter) than) {count}",
                rf"\b{count} (?:or more|at least|minimum)\b",
                read=number,
            ),
            family(
                f"min_{unit}",
                rf"\b(?:more than|over|longer than) {count}",
                read=one_more,
                after=f"max_{unit} min_{unit}",
            ),
            family(f"min_{unit}", rf"\b(?:fewer|less|shorter) than {count}", read=number, polarity="forbids"),
            family(f"exact_{unit}", rf"\b{count}", read=number, after=f"max_{unit} min_{unit} {counted}"),
        )
    return tuple(rows)


_QUANTITY = r"\b(?:amounts?|prices?|sums?|totals?|costs?|money)\b"

FORM_FAMILIES: tuple[Family, ...] = (
    family("json", r"\bjson\b", r"\b(?:use|with|have|has|include|contain)\b[^.]*\bkeys\b", read=keys),
    family(
        "json_only",
        r"\bonly\b.*\bjson\b|\bjson\b.*\b(?:only|nothing else)\b|\bnothing (?:but|except) (?:\w+ ){0,3}json\b",
    ),
    # Not in `no text before or after the JSON`, `nothing around it`, `only the JSON, with no text …`.
    family(
        "no_json",
        r"^(?!.*\b(?:around|outside|besides?|before|after|only|except|but)\b.*\bjson\b).*\bjson\b(?!.*\b(?:no|without) "
        r"(?:text|prose|explanation|code|markdown|anything))",
        polarity="forbids",
    ),
    family(
        "prefix",
        r"\b(?:begin|start|open|preface|prefix|lead|prepend)\b.*?\b(?:with|by|as)\b.*?<quoted>",
        r"\bprepend <quoted>|\bfirst (?:words?|line)\b.*?<quoted>",
        r"<quoted>.*\b(?:at|in) the (?:very )?(?:beginning|start|front|top)\b",
        read=quoted,
    ),
    family(
        "prefix",
        r"\b(?:begin|start|open|preface|prefix)\b.*?\bwith (?:the <word> )?(?P<text>[\w-]+:)",
        r"\b(?:begin|start)\b.*?\bwith the (?:word|label|prefix) (?P<text>\w+)",
        read=unquoted,
        after="prefix",
    ),
    family("prefix", r"\b(?:form|format|pattern|template|as|like)\b[^.]*? <quoted>", read=frame, after="prefix"),
    family("signature", r"\bsign(?:ed)?(?: off)?\b.*?<quoted>|\bsignature\b.*?<quoted>", read=quoted),
    family("postscript", r"\bpostscript\b|\bP\.? ?S\.", sees_quotes=True),
    family(
        "suffix",
        r"\b(?:end|finish|close|conclude|terminate)\b.*?\b(?:with|by|in)\b.*?<quoted>",
        r"\bappend (?:the <word> )?<quoted>|\blast (?:words?|line|sentence)\b.*?<quoted>",
        r"<quoted>.*\b(?:at|to) the (?:very )?end\b",
        read=quoted,
        after="postscript signature",
    ),
    family("date_format", "|".join(DATE_STYLES.values()), read=date_style, sees_quotes=True),
    family(
        "decimals",
        r"\b<n>[ -](?:decimals?\b|decimal (?:places?|digits?)|fraction digits|digits? after|places? after)",
        read=number,
    ),
    family("decimals", r"\bto the cent\b|\bwith cents\b", read=constant("2"), after="decimals"),
    family("decimals", r"\bround(?:ed)?\b.*\b(?:whole|integers?)\b", read=constant("0"), after="decimals"),
    family("decimals", r"\bdecimals?\b", read=constant("0"), polarity="forbids"),
    family(
        "thousands",
        r"\bthousands?[ -]separators?\b|\bdigit grouping\b|\bgroup(?:ing)?\b.*\b(?:digits|thousands)\b",
        r"\bcommas?\b.*\bthousands?\b|\bthousands?\b.*\bcommas?\b|\bseparate (?:the )?thousands\b",
    ),
    family(
        "no_thousands",
        r"\bthousands?\b|\bdigit (?:grouping|separators?)\b|\bgroup(?:ing)? digits\b",
        polarity="forbids",
    ),
    family(
        "currency",
        r"\bcurrency\b",
        rf"{_QUANTITY}.*[€$£¥]",
        rf"{_QUANTITY}.*\b<currency>\b",
        read=currency,
        sees_quotes=True,
    ),
    family(
        "unit",
        r"\b(?:in|as|use|using|unit) (?P<text>km|kilometers|kilometres|miles|kg|kilograms|grams|celsius|fahrenheit|"
        r"hours|minutes|seconds|meters|metres|liters|litres)\b",
        read=unquoted,
    ),
    family("unit", r"\bunits?\b(?! (?:argument|parameter|price|to))", read=quoted_or(""), after="unit"),
    family("upper_case", r"\bupper[ -]?case\b|\ball[ -]caps\b|\bcapital letters\b|\bcapitals\b|\bblock letters\b"),
    family("lower_case", r"\blower[ -]?case\b|\bsmall letters\b"),
    family("lower_case", r"\bcapital letters\b|\bupper[ -]?case\b|\bcapitals\b", polarity="forbids"),
    family(
        "title_case",
        r"\btitle[ -]case\b|\b(?:each|every) word\b.*\bcapital\b",
        r"\bcapitali[sz]e (?:each|every|all|the first letter of (?:each|every)) words?\b",
    ),
    family(
        "language",
        r"\b(?:in|into|to|use|speak|auf|en|be|is|language:?) (?:the )?(?:\w+ )??<language>",
        r"\b<language> (?:only|language)\b",
        r"用<language>",
        read=language,
    ),
    family("numbered", r"\bnumbered\b|\bnumber (?:the|each|your)\b|\benumerated? list\b|\bordered list\b"),
    family("bullets", r"\bbullet(?:s|ed)?\b|\bdashed list\b", after="numbered"),
    family(
        "comma_separated",
        r"\bcomma[ -](?:separated|delimited)\b|\bseparat\w+ (?:\w+ ){0,3}(?:by|with) (?:a )?commas?\b|\bcsv\b",
        after="thousands",
    ),
    family("no_list", r"\b(?:bullets?|lists?|bullet points|markdown)\b", polarity="forbids"),
    family(
        "key_value",
        r"\b(?:key|name|field)[ :/-]+value (?:lines|pairs|list|format)\b|\bone field per line\b",
        r"\b(?:each|every) field on (?:its own|a separate|a new) line\b",
    ),
    family(
        "sections",
        r"\b(?:sections?|headings?|parts)(?: (?:named|called|titled|are))?:? (?P<items>.+?)"
        r"(?: in (?:this|that) order)?\.?$",
        r"\bin (?:this|the following) order:? (?P<items>.+?)\.?$",
        read=labels,
        after="json",
    ),
    family(
        "wrap_tag",
        r"<(?P<text>[a-z]\w*)>(?!>)(?=.*(?:\btags?\b|</))",
        r"\b(?:wrap|put|enclose|surround|place)\b.*?\b(?:in|inside|between|with)\b.*?(?<!<)<(?P<text>[a-z]\w*)>(?!>)",
        r"\b(?:xml|html) (?:tag|element)s? (?:named |called )?(?P<text>\w+)",
        read=unquoted,
        sees_quotes=True,
    ),
    family("code_fence", r"\bcode[ -](?:fences?|blocks?)\b|\bfenced\b|\btriple backticks\b"),
    family(
        "no_code_fence",
        r"\bcode[ -](?:fences?|blocks?)\b|\bfenc(?:es?|ed)\b|\bbackticks\b|\bmarkdown\b",
        polarity="forbids",
    ),
    family(
        "title",
        r"\btitle\b.*(?:<<|double angular|double angle)|<<\s*title",
        r"\b(?:begin|start|give|add|put|provide|include|write) (?:\w+ ){0,3}title\b",
        after="title_case",
    ),
    family("polite", r"\bsay please\b|\bthe words? please\b", read=constant("please"), sees_quotes=True),
    family(
        "polite",
        r"\bpolite(?:ly|ness)?\b|\bcourteous(?:ly)?\b|\bfriendly\b|\bthank\b|\bkind(?:ly)? tone\b",
        read=constant("thanks"),
        after="polite prefix suffix",
        sees_quotes=True,
    ),
    family("highlight", r"\b(?:highlight|bold|emphasi[sz]e)\b"),
    *_lengths(),
)
