"""The rules that the simulated model finds in an instruction, and those that it can follow together.

The model reads ordinary English: instructions can be written without knowing its lexicon, and nothing that writes them
may import it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from random import Random

from promptiter.offline.model.clauses import Clause, read_clauses
from promptiter.offline.model.lexicon import FAMILIES, UNITS

_EXCLUSIVE = (
    frozenset(("verbatim", "date_format")),
    frozenset(("verbatim", "decimals")),
    *(frozenset(("json_only", prose)) for prose in ("prefix", "suffix", "polite", "repeat_request")),
)
"""Families of which an answer can follow only one."""

_SINGLE = frozenset(
    (
        *("prefix", "suffix", "date_format", "decimals", "language", "choose", "value_only"),
        *(f"{bound}_{unit}" for bound in ("max", "min", "exact") for unit in UNITS),
    )
)
"""Families of which an answer can follow only one rule."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A demand of the instruction, in terms of the lexicon. `sentence` is where it was found."""

    family: str
    parameters: tuple[str, ...]
    sentence: str


class RuleBook:
    """The rules that one answer follows."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._by_family: dict[str, list[tuple[str, ...]]] = {}
        for rule in rules:
            self._by_family.setdefault(rule.family, []).append(rule.parameters)

    def __contains__(self, family: object) -> bool:
        return family in self._by_family

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_family)

    def all(self, family: str) -> list[tuple[str, ...]]:
        """The parameters of each rule of the family, in the order of the instruction."""
        return self._by_family.get(family, [])

    def items(self, family: str) -> tuple[str, ...]:
        """The parameters of all rules of the family, one after the other."""
        return tuple(item for parameters in self.all(family) for item in parameters)

    def word(self, family: str) -> str | None:
        """The first parameter of the family's first rule."""
        return next(iter(self.items(family)), None)

    def number(self, family: str) -> int | None:
        word = self.word(family)
        return None if word is None else int(word)


@lru_cache(maxsize=1024)
def find_rules(instruction: str) -> tuple[Rule, ...]:
    """The rules in an instruction, in its order; a repeated rule counts once."""
    found: dict[tuple[str, tuple[str, ...]], Rule] = {}
    for clause in read_clauses(instruction):
        for rule in _find_rules_of_clause(clause):
            found.setdefault((rule.family, rule.parameters), rule)
    return tuple(found.values())


def resolve_conflicts(rules: Iterable[Rule], rng: Random) -> tuple[Rule, ...]:
    """The rules without contradictions: of those that contradict each other, one is kept at random.

    A rule without parameters yields to one of its family that has some.
    """
    kept = list(rules)
    for group in _EXCLUSIVE:
        families = sorted({rule.family for rule in kept if rule.family in group})
        if len(families) > 1:
            winner = rng.choice(families)
            kept = [rule for rule in kept if rule.family == winner or rule.family not in group]
    for family in sorted({rule.family for rule in kept} & _SINGLE):
        rivals = [rule for rule in kept if rule.family == family]
        if len(rivals) > 1:
            winning = rng.choice([rule for rule in rivals if any(rule.parameters)] or rivals)
            kept = [rule for rule in kept if rule.family != family or rule is winning]
    forbidden = {tool for rule in kept if rule.family == "no_tool" for tool in rule.parameters}
    for wish in [rule for rule in kept if rule.family == "call_tool" and not forbidden.isdisjoint(rule.parameters)]:
        loser = "call_tool" if rng.random() < 0.5 else "no_tool"
        kept = [rule for rule in kept if rule.family != loser or set(rule.parameters).isdisjoint(wish.parameters)]
    return tuple(kept)


def _find_rules_of_clause(clause: Clause) -> list[Rule]:
    found: dict[str, Rule] = {}
    for family in FAMILIES:
        if family.name in found or not family.after.isdisjoint(found):
            continue
        parameters = family.find(clause)
        if parameters is not None:
            found[family.name] = Rule(family.name, parameters, clause.sentence)
    if "value_only" in found and re.search(r"\bjson\b", clause.sentence, re.IGNORECASE):
        found["json_only"] = Rule("json_only", (), found.pop("value_only").sentence)
    return list(found.values())
