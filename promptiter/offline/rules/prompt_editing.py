"""How a rule gets into a prompt: an existing sentence about the same subject is edited before a new one is added.

A list of fields in it gets longer; a date format or a language in it is replaced; a sentence about nothing else is
replaced, and so is one that gives a word to another label. Otherwise a sentence is added where such sentences are.
Locked parts are not edited.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from promptiter.offline.rules.rule_templates import phrase_rule, with_article
from promptiter.offline.text.dates import DATE_FORMATS
from promptiter.sentences import Sentence, split_sentences

MAX_REPLACED_WORDS = 30


@dataclass(frozen=True, slots=True)
class Ask:
    """A rule to ask for."""

    family: str
    parameters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A text to edit, with its `locked` parts. `known_fields` are the names of fields in the inputs."""

    text: str
    locked: tuple[str, ...] = ()
    known_fields: tuple[str, ...] = ()

    def ask(self, ask: Ask, *, turn: int) -> Prompt:
        """The prompt with a rule in it; `turn` chooses the phrasing."""
        ways = self.list_ways(ask)
        return replace(self, text=ways[turn % len(ways)])

    def asks(self, ask: Ask) -> bool:
        """Whether the prompt has a rule already, in one of our own phrasings."""
        phrasings = phrase_rule(ask.family, ask.parameters)
        return any(sentence.text in phrasings for sentence in split_sentences(self.text))

    def ask_briefly(self, ask: Ask) -> Prompt:
        """The prompt with a rule in its shortest phrasing."""
        return replace(self, text=min(self.list_ways(ask), key=len))

    def list_ways(self, ask: Ask) -> list[str]:
        """The possible texts with the rule, the best first."""
        return self.list_placements(ask, phrase_rule(ask.family, ask.parameters))

    def list_placements(self, ask: Ask, phrasings: Sequence[str]) -> list[str]:
        """The texts with one of these sentences, which ask for the rule; or with a sentence that is edited to do so.

        If the prompt has one of the sentences already, it did not help, and the next one replaces it.
        """
        sentences = [sentence for sentence in split_sentences(self.text) if not self._is_locked(sentence)]
        for sentence in sentences if ask.family == "label_cue" else ():
            if (shorter := _take_from_another_label(sentence.text, *ask.parameters)) != sentence.text:
                return replace(self, text=self._replace(sentence, shorter)).list_placements(ask, phrasings)
        own = next((sentence for sentence in sentences if sentence.text in phrasings), None)
        if own is not None:
            turn = phrasings.index(own.text)
            return [self._replace(own, other) for other in (*phrasings[turn + 1 :], *phrasings[:turn])]
        edits = (self._replace(sentence, text) for sentence in sentences if (text := self._edit(sentence.text, ask)))
        rivals = [sentence for sentence in sentences if _is_about(sentence.text, ask)]
        new = [self._replace_all(rivals, each) if rivals else add_sentence(self.text, each) for each in phrasings]
        edited = [text for text in edits if text != self.text][:1]
        return list(dict.fromkeys((*edited, *new)))

    def _is_locked(self, sentence: Sentence) -> bool:
        for part in self.locked:
            start = self.text.find(part)
            if start != -1 and sentence.start < start + len(part) and start < sentence.end:
                return True
        return False

    def _replace(self, sentence: Sentence, text: str) -> str:
        return f"{self.text[: sentence.start]}{text}{self.text[sentence.end :]}"

    def _replace_all(self, rivals: Sequence[Sentence], text: str) -> str:
        """The text with one sentence in place of the first rival, without the others."""
        first, *others = rivals
        shorter = self.text
        for rival in reversed(others):
            rest = shorter[rival.end :]
            shorter = shorter[: rival.start].rstrip(" ") + (rest if rest[:1] != " " or rival.start else rest[1:])
        return replace(self, text=shorter)._replace(first, text)

    def _edit(self, sentence: str, ask: Ask) -> str | None:
        if ask.family == "field_carried":
            return _add_fields(sentence, ask.parameters, self.known_fields)
        return _exchange_value(sentence, ask)


def asks_to_copy(text: str) -> bool:
    """Whether a text asks to copy values as they are written."""
    return _COPIES.search(text) is not None


def find_changed_passage(before: str, after: str) -> tuple[str, str]:
    """The passage in which two texts differ, in whole sentences, as it was and as it is."""
    old, new = ([each.text for each in split_sentences(text)] for text in (before, after))
    start = _count_common(old, new)
    end = _count_common(old[start:][::-1], new[start:][::-1])
    return " ".join(old[start : len(old) - end]), " ".join(new[start : len(new) - end])


def _count_common(one: Sequence[str], other: Sequence[str]) -> int:
    """How many sentences two lists begin with in common."""
    pairs = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return sum(1 for _ in pairs)


def add_sentence(text: str, sentence: str) -> str:
    """The text with one more sentence: as the next item of a list, before a line with a placeholder, or last."""
    body = text.rstrip()
    tail = text[len(body) :]
    if not body:
        return sentence
    head, _, last = body.rpartition("\n")
    if head.strip() and re.search(r"\{[\w. -]+\}\W*$", last):
        before = head.rstrip()
        return f"{add_sentence(before, sentence)}{body[len(before) : len(body) - len(last)]}{last}{tail}"
    mark = re.match(r"(\s*)([-*•]|\d+(?=[.)]))([.)]?\s+)", last)
    if mark:
        item = str(int(mark[2]) + 1) if mark[2].isdecimal() else mark[2]
        return f"{body}\n{mark[1]}{item}{mark[3]}{sentence}{tail}"
    return f"{body}{' ' if last[-1] in '.!?' else chr(10)}{sentence}{tail}"


_COPIES = re.compile(
    r"\b(?<!not )(?<!never )(?:verbatim|unchanged|unmodified|as[ -]is|word for word|exactly as|cop(?:y|ies)|repeat|"
    r"echo|(?:not|never|without) (?:chang|alter|modif|reformat|rewrit|rephras|edit)\w*)\b",
    re.IGNORECASE,
)
_KEEPS = re.compile(
    r"\b(?:keep|include|carry|pass|mention|preserve|repeat|state|retain|copy|contain|forward|report|hand|give)\b",
    re.IGNORECASE,
)
_LOSES = re.compile(r"\b(?:leave out|drop|omit|forget|lose|skip)\b", re.IGNORECASE)
_DENIES = re.compile(r"\b(?:do not|don't|never|without|avoid|must not|should not)\b", re.IGNORECASE)


def _add_fields(sentence: str, names: Sequence[str], known: Iterable[str]) -> str | None:
    """The sentence with more fields in its list: `Keep the date and the amount.` → `Keep the date, the amount and …`"""
    if not _asks_to_keep(sentence) or any(_find_mention(sentence, name) for name in names):
        return None
    mentions = [mention for name in known if (mention := _find_mention(sentence, name))]
    if not mentions:
        return None
    last = max(mentions, key=lambda mention: (mention.end(), -mention.start()))
    before, after = sentence[: last.start()], sentence[last.end() :]
    joint = re.search(r",?\s+and\s+$", before)
    items = [*([last[0]] if joint else []), *map(with_article, names)]
    start = before[: joint.start()] if joint else f"{before}{last[0]}"
    more = "".join(f", {item}" for item in items[:-1])
    return f"{start}{more} and {items[-1]}{after}"


def _asks_to_keep(sentence: str) -> bool:
    if _LOSES.search(sentence):
        return _DENIES.search(sentence) is not None
    return _KEEPS.search(sentence) is not None and _DENIES.search(sentence) is None


def _find_mention(sentence: str, name: str) -> re.Match[str] | None:
    words = r"[\s_-]".join(map(re.escape, name.split()))
    return re.search(rf"\b(?:(?:the|its|their|all|every|each|any)\s+)?{words}\b", sentence, re.IGNORECASE)


def _exchange_value(sentence: str, ask: Ask) -> str | None:
    """The sentence with another date format or language in place of its own."""
    if ask.family == "date_format":
        return _FORMAT.sub(ask.parameters[0], sentence) if len(_FORMAT.findall(sentence)) == 1 else None
    if ask.family == "language" and _SUBJECTS["language"].search(sentence) and len(_LANGUAGE.findall(sentence)) == 1:
        return _LANGUAGE.sub(ask.parameters[0], sentence)
    return None


_LANGUAGE = re.compile(r"\b(?:English|German|French|Spanish)\b")
_FORMAT = re.compile("|".join(map(re.escape, (*DATE_FORMATS, "ISO 8601", "MM/DD/YY", "DD-MM-YYYY"))))
_SUBJECTS: Mapping[str, re.Pattern[str]] = {
    subject: re.compile(pattern, re.IGNORECASE)
    for subject, pattern in {
        "shape": r"\bjson\b|\byaml\b|\bxml\b|\bbullet|\bnumbered list\b|\bcomma[- ]separated\b|\bprose\b",
        "length": r"\b(?:words?|sentences?|characters?|paragraphs?)\b|\b(?:brief|short|concise|detail|length)\w*\b",
        "date": r"\bdates?\b.*(?:\bformat|\bwr[io]te|\bas\b|YYYY)|YYYY",
        "decimals": r"\bdecimals?\b|\bround(?:ed)?\b|\bwhole numbers?\b",
        "letters": r"\b(?:upper|lower|title)[- ]?case\b|\bcapital|\ball caps\b|\bsmall letters\b",
        "language": rf"\b(?:answer|write|reply|respond|output|speak|use)\b.*{_LANGUAGE.pattern}",
        "labels": r"\bone of\b|\blabels?\b|\bclassify\b|\bcategor(?:y|ies)\b|\byes or no\b",
        "start": r"\b(?:begin|start|open)s?\b.*\bwith\b",
        "end": r"\b(?:end|finish|close)s?\b.*\bwith\b",
        "source": r"\bcit(?:e|es|ations?)\b",
        "frame": r"\b(?:full|complete) sentences?\b|\bexplain your\b|\bexplanations?\b|\bonly the (?:answer|value)\b",
    }.items()
}
_SUBJECT_OF: Mapping[str, str] = {
    **dict.fromkeys(("json_object", "json_keys"), "shape"),
    **dict.fromkeys(("max_length", "min_length"), "length"),
    **dict.fromkeys(("decimals", "whole_numbers"), "decimals"),
    "upper_case": "letters",
    "enumeration": "labels",
    "cite": "source",
    "value_only": "frame",
    "field_only": "frame",
    "date_format": "date",
    "language": "language",
    "prefix": "start",
    "suffix": "end",
}
"""The subject of each family's rules: a prompt should not have two rules on one subject."""


def _is_about(sentence: str, ask: Ask) -> bool:
    """Whether the sentence is about the subject of the rule and nothing else, so that the rule may replace it."""
    if len(sentence.split()) > MAX_REPLACED_WORDS or re.search(r"\{[\w. -]+\}", sentence):
        return False
    is_denied = _DENIES.search(sentence) is not None
    if ask.family == "field_carried":
        is_ruled_out = is_denied and _KEEPS.search(sentence) is not None and _LOSES.search(sentence) is None
        return is_ruled_out and any(_find_mention(sentence, name) for name in ask.parameters)
    if ask.family in ("call_tool", "call_tool_when", "no_tool"):
        return is_denied != (ask.family == "no_tool") and _find_mention(sentence, ask.parameters[0]) is not None
    if ask.family == "label_cue":
        return _gives_to_another_label(sentence, *ask.parameters)
    if ask.family == "keyword":
        return is_denied and f'"{ask.parameters[0]}"' in sentence
    subject = _SUBJECT_OF.get(ask.family)
    found = {name for name, pattern in _SUBJECTS.items() if pattern.search(sentence)}
    if ask.family == "verbatim":
        return bool(found) and found <= {"date", "decimals"}
    if subject == "frame":
        found.discard("length")
    return subject is not None and found == {subject}


def _gives_to_another_label(sentence: str, label: str, cue: str) -> bool:
    """Whether a sentence says what to answer if the input mentions the cue, and that is not the label."""
    has_label = _find_mention(sentence, label) is not None
    return _CONDITION.search(sentence) is not None and _find_mention(sentence, cue) is not None and not has_label


def _take_from_another_label(sentence: str, label: str, cue: str) -> str:
    """The sentence without the cue, if it gives another label to several: `"drama" or "drink"` → `"drama"`."""
    if not _gives_to_another_label(sentence, label, cue):
        return sentence
    item = rf"(?:(?:an?|the)\s+)?([\"“]?){re.escape(cue)}[\"”]?(?!\w)"
    later = re.sub(rf"(?<=[\w\"”])(?:\s*,?\s+or\s+|\s*,\s*(?=[\"“])){item}", "", sentence, flags=re.IGNORECASE)
    return re.sub(rf"(?<!\w){item}(?:\s*,?\s+or\s+|\s*,\s*(?=[\"“]))", "", later, flags=re.IGNORECASE)


_CONDITION = re.compile(r"\b(?:if|when|whenever|for)\b", re.IGNORECASE)
