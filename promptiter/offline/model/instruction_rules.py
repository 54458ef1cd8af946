"""What the simulated model makes of an instruction: rules, and which of them it follows.

The model reads ordinary English; nobody needs to know its lexicon to be understood, and nothing that writes
instructions may import it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from random import Random

from promptiter.offline.model.clauses import Clause, read_clauses
from promptiter.offline.model.content_lexicon import CONTENT_FAMILIES
from promptiter.offline.model.form_lexicon import FORM_FAMILIES, UNITS

_ONE_OF = (
    frozenset(("upper_case", "lower_case", "title_case")),
    frozenset(("json", "bullets", "numbered", "comma_separated", "sections", "key_value")),
    frozenset(("json", "no_json")),
    frozenset(("thousands", "no_thousands")),
    frozenset(("code_fence", "no_code_fence")),
    frozenset(("choose", "yes_no")),
    frozenset(("verbatim", "date_format")),
    frozenset(("verbatim", "decimals")),
    *(
        frozenset(("json_only", prose))
        for prose in ("prefix", "suffix", "signature", "postscript", "title", "code_fence", "polite", "repeat_request")
    ),
    *(frozenset(("no_list", shape)) for shape in ("bullets", "numbered")),
)
"""Families of which only one can be obeyed in the same answer."""

_SINGLE = frozenset(
    (
        *(
            "prefix",
            "suffix",
            "signature",
            "date_format",
            "decimals",
            "currency",
            "unit",
            "language",
            "sections",
            "cite",
        ),
        *("choose", "unknown", "wrap_quotes", "wrap_tag", "value_only", "polite"),
        *(f"{bound}_{unit}" for bound in ("max", "min", "exact") for unit in UNITS),
    )
)
"""Families that can be obeyed once only: two rules with other parameters are in conflict."""

_OPPOSED = (("include", "avoid"), ("keyword", "avoid"), ("call_tool", "no_tool"))
"""Families that ask for and forbid the same thing."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Something the instruction asks for, in words of the lexicon. `sentence` is where it was read."""

    family: str
    parameters: tuple[str, ...]
    sentence: str


class RuleBook:
    """The rules that are followed in one answer."""

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
def understood_rules(instruction: str) -> tuple[Rule, ...]:
    """The rules that the model finds in an instruction, in its order; what is said twice counts once."""
    found: dict[tuple[str, tuple[str, ...]], Rule] = {}
    for clause in read_clauses(instruction):
        for rule in _rules_of(clause):
            found.setdefault((rule.family, rule.parameters), rule)
    return tuple(found.values())


def without_conflicts(rules: Iterable[Rule], rng: Random) -> tuple[Rule, ...]:
    """The rules that can be obeyed together: of those that contradict each other one stays, by chance.

    A rule that leaves open what another of its family says gives way to that one.
    """
    kept = list(rules)
    for group in _ONE_OF:
        families = sorted({rule.family for rule in kept if rule.family in group})
        if len(families) > 1:
            winner = rng.choice(families)
            kept = [rule for rule in kept if rule.family == winner or rule.family not in group]
    for family in sorted({rule.family for rule in kept} & _SINGLE):
        rivals = [rule for rule in kept if rule.family == family]
        if len(rivals) > 1:
            winning = rng.choice([rule for rule in rivals if any(rule.parameters)] or rivals)
            kept = [rule for rule in kept if rule.family != family or rule is winning]
    for asking, forbidding in _OPPOSED:
        kept = _without_opposites(kept, asking, forbidding, rng)
    for unit in sorted(UNITS):
        kept = _within_bounds(kept, unit, rng)
    return tuple(kept)


def _rules_of(clause: Clause) -> list[Rule]:
    found: dict[str, Rule] = {}
    for family in (*FORM_FAMILIES, *CONTENT_FAMILIES):
        if family.name in found or not family.after.isdisjoint(found):
            continue
        parameters = family.find(clause)
        if parameters is not None:
            found[family.name] = Rule(family.name, parameters, clause.sentence)
    if "value_only" in found and re.search(r"\bjson\b", clause.sentence, re.IGNORECASE):
        found["json_only"] = Rule("json_only", (), found.pop("value_only").sentence)
    return list(found.values())


def _without_opposites(rules: list[Rule], asking: str, forbidding: str, rng: Random) -> list[Rule]:
    kept = list(rules)
    for wish in [rule for rule in rules if rule.family == asking]:
        against = [rule for rule in kept if rule.family == forbidding and set(rule.parameters) & set(wish.parameters)]
        if against:
            losers = [wish] if rng.random() < 0.5 else against
            kept = [rule for rule in kept if rule not in losers]
    return kept


def _within_bounds(rules: list[Rule], unit: str, rng: Random) -> list[Rule]:
    """The rules without those that no text can obey: at least 50 and at most 10 words."""
    bounds = {rule.family: int(rule.parameters[0]) for rule in rules if rule.family in _bounds_of(unit)}
    minimum, maximum, exact = (bounds.get(name) for name in _bounds_of(unit))
    rivals: list[str] = []
    if minimum is not None and maximum is not None and minimum > maximum:
        rivals = [f"min_{unit}", f"max_{unit}"]
    elif exact is not None and minimum is not None and exact < minimum:
        rivals = [f"min_{unit}", f"exact_{unit}"]
    elif exact is not None and maximum is not None and exact > maximum:
        rivals = [f"max_{unit}", f"exact_{unit}"]
    if not rivals:
        return rules
    loser = rng.choice(rivals)
    return [rule for rule in rules if rule.family != loser]


def _bounds_of(unit: str) -> tuple[str, str, str]:
    return f"min_{unit}", f"max_{unit}", f"exact_{unit}"
