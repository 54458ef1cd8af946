"""The requests, instructions and references of the scenarios.

A world is a domain with the choices of one seed: either records with five fields, or questions with documents. The
instructions of nodes that pass fields on have several wordings in ordinary English; the node that answers has one of
many forms.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal, TypeAlias, get_args

from promptiter.evaluation.metrics.builtin import FinalResponseMetric
from promptiter.evaluation.metrics.criteria import FinalResponseCriterion
from promptiter.evaluation.metrics.json_match import JsonCriterion
from promptiter.evaluation.metrics.metric import Metric
from promptiter.evaluation.metrics.text_match import TextCriterion

SPARED = 4
"""A partial fault spares every fourth case."""

CarryKind: TypeAlias = Literal["field", "date", "date_convert", "round"]
AnswerKind: TypeAlias = Literal[
    "json", "json_keys", "date_format", "decimals", "prefix", "case", "label", "length", "citation", "language"
]
Kind: TypeAlias = CarryKind | AnswerKind
"""The kinds of faults of a node that passes fields on, and of the node that answers."""

Form: TypeAlias = Kind | Literal["value"]
"""The form of an answer: one that can have this kind of fault, or a single field."""

ANSWER_KINDS: frozenset[Kind] = frozenset(get_args(AnswerKind))
REASONS: Mapping[Kind, str] = {
    "field": "the step does not hand on the {}",
    "date": "the step rewrites the {} instead of leaving it as it was given",
    "date_convert": "the step converts the {} to DD/MM/YYYY instead of leaving it as it was given",
    "round": "the step rounds the {} instead of leaving it as it was given",
    "json": "the answer is prose and should be a JSON object",
    "json_keys": "the JSON object lacks the {}",
    "date_format": "the {} should be written as DD.MM.YYYY",
    "decimals": "the {} should have two decimals",
    "prefix": "the answer should begin with the name of its field, {}",
    "case": "the {} should be in capital letters",
    "label": "the answer should be one of the known labels",
    "length": "the answer should have at most 60 characters",
    "citation": "the answer should cite its source",
    "language": "the answer is in the wrong language",
}

Row: TypeAlias = dict[str, str]
"""The data of one case: the fields of its request, and facts that are not in the request."""


@dataclass(frozen=True, slots=True)
class Fault:
    """The fault of a node, and the field it is about."""

    kind: Kind
    field: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """An office and its requests: two names for each field, and the values of text fields."""

    office: str
    topic: str
    numbers: tuple[str, str]
    texts: Mapping[tuple[str, str], tuple[str, ...]]
    dates: tuple[str, str]
    amounts: tuple[str, str]
    labels: tuple[str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A domain with the choices of one seed: the fields of a request, and those of a record in an answer."""

    domain: Domain
    fields: tuple[str, ...]
    reported: tuple[str, ...] = ()
    number: str = ""
    texts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    date: str = ""
    amount: str = ""

    @property
    def has_documents(self) -> bool:
        return "documents" in self.fields

    def make_request(self, row: Row) -> str:
        if self.has_documents:
            return f"{row['question']}\n{row['documents']}"
        return "\n".join((self.domain.topic, *(f"{name}: {row[name]}" for name in self.fields if name in row)))

    def make_instruction(self, name: str, rules: str) -> str:
        return f"This is the {name} step at {self.domain.office}. {rules}"

    def choose_field(self, *kinds: Kind, rng: Random, but: str = "") -> str:
        """A field that can have faults of these kinds."""
        if self.has_documents:
            return "documents"
        if not {"date", "date_convert", "date_format"}.isdisjoint(kinds):
            return self.date
        if not {"round", "decimals"}.isdisjoint(kinds):
            return self.amount
        known = [*self.texts] if {"prefix", "case"} & {*kinds} else [*self.texts, self.date, self.amount]
        return rng.choice([name for name in known if name != but])


@dataclass(frozen=True, slots=True)
class Ending:
    """The rules of the node that answers, its rules if it is faulty, and the expected answer."""

    right: str
    wrong: str
    metric: Metric
    expected: Callable[[Row], str]


def make_records(rng: Random, *, has_wish: bool = False) -> World:
    """Requests with five fields; with `has_wish`, the answer can be a label."""
    domain = rng.choice(DOMAINS)
    number, date, amount = (rng.choice(names) for names in (domain.numbers, domain.dates, domain.amounts))
    texts = {rng.choice(names): values for names, values in domain.texts.items()}
    rest = [*texts, date, amount, *(["wish"] if has_wish else [])]
    rng.shuffle(rest)
    fields = (number, *rest)
    return World(domain=domain, fields=fields, reported=fields, number=number, texts=texts, date=date, amount=amount)


def make_questions(rng: Random) -> World:
    """Requests with a question and documents, one of which has the answer."""
    return World(domain=rng.choice(DOMAINS), fields=("question", "documents"))


def make_rows(
    world: World, faults: Collection[Fault], *, count: int, rng: Random, is_partial: bool = False
) -> list[Row]:
    """The data of `count` cases. A partial fault does not affect the spared ones."""
    if world.has_documents:
        return [_make_question_row(rng) for _ in range(count)]
    rows = [_make_record_row(world, code, rng) for code in rng.sample(range(1000, 10000), count)]
    for number, row in enumerate(rows):
        is_spared = is_partial and number % SPARED == 0
        for fault in faults:
            if is_spared:
                _spare(row, fault)
            elif fault.kind == "decimals":
                row[fault.field] = f"{row[fault.field].partition('.')[0]}{rng.choice(('', '.5'))}"
    return rows


def _make_record_row(world: World, code: int, rng: Random) -> Row:
    label = rng.choice(world.domain.labels)
    return {
        world.number: f"{rng.choice('ABKTX')}-{code}",
        **{name: rng.choice(values) for name, values in world.texts.items()},
        world.date: f"2026-{rng.randint(1, 12):02}-{rng.randint(13, 28)}",
        world.amount: f"{rng.randint(20, 900)}.{rng.choice((25, 40, 75, 95))}",
        "wish": f"they would like a {label} soon",
        "label": label,
    }


def _make_question_row(rng: Random) -> Row:
    people, places = rng.sample(PEOPLE, 3), rng.sample(PLACES, 3)
    sentences = [f"{people[each]} looks after {places[each]} {rng.choice(TAILS)}." for each in range(3)]
    asked = rng.randrange(3)
    return {
        "question": f"Who looks after {places[asked]}?",
        "documents": "\n".join(f"[D{number}] {sentence}" for number, sentence in enumerate(sentences, 1)),
        "source": f"D{asked + 1}",
        "person": people[asked],
    }


def _spare(row: Row, fault: Fault) -> None:
    """Change a row so that the fault does not affect it: the field is missing, or has the faulty form already."""
    if fault.kind == "field":
        del row[fault.field]
    elif fault.kind == "case":
        row[fault.field] = row[fault.field].upper()
    elif fault.kind in ("date", "date_convert"):
        day = datetime.date.fromisoformat(row[fault.field])
        row[fault.field] = f"{day:%d/%m/%Y}" if fault.kind == "date_convert" else f"{day:%B} {day.day}, {day.year}"


def make_carrying_rules(fields: Sequence[str], world: World, *, fault: Fault | None, rng: Random) -> tuple[str, str]:
    """The rules of a node that passes fields on, and its rules if it is faulty."""
    plain, exact = rng.choice(WORDINGS[:-1] if world.has_documents else WORDINGS)

    def rules(wording: str, names: Sequence[str]) -> str:
        return wording.format(fields=_join_names(f"the {name}" for name in names), keys=_join_names(map(_key, names)))

    right = rules(exact, fields)
    if fault is None:
        return right, ""
    match fault.kind:
        case "field":
            return right, rules(exact, [name for name in fields if name != fault.field])
        case "date":
            return right, rules(plain, fields)
        case "date_convert":
            return right, f"{rules(plain, fields)} Write dates as DD/MM/YYYY."
        case "round":
            iso = " Write dates as YYYY-MM-DD." if world.date in fields else ""
            return right, f"{rules(plain, fields)}{iso} Round amounts to whole numbers."
        case _:
            raise ValueError(f"only the last node can have the fault {fault.kind!r}")


def make_ending(form: Form, world: World, *, field: str, rng: Random) -> Ending:
    """The ending in this form; a fault, if any, is of that kind and about the field."""
    if world.has_documents:
        return _make_document_ending(form, rng)
    if form in ("value", "prefix", "case", "label"):
        return _make_value_ending(form, world, field)
    return _make_record_ending(form, world, field)


def _make_document_ending(form: Form, rng: Random) -> Ending:
    answer = "Answer the question from the documents."
    if form == "length":
        return Ending(f"{answer} Use at most 60 characters.", answer, SHORT_ANSWER, lambda row: row["person"])
    if form == "citation":
        right = f"{answer} Cite the source in square brackets, such as [D1]."
        return Ending(right, answer, CONTAINS, lambda row: f"[{row['source']}]")
    language, phrase = rng.choice(LANGUAGES)
    return Ending(f"{answer} Answer in {language}.", answer, EXACT_MATCH, lambda row: phrase.format(row["person"]))


def _make_value_ending(form: Form, world: World, field: str) -> Ending:
    only, name = f"Give only the {field}.", field.capitalize()
    if form == "label":
        right = f"Answer with exactly one of these labels: {_join_names(world.domain.labels, 'or')}."
        return Ending(right, "Say what is wanted.", EXACT_MATCH, lambda row: row["label"])
    if form == "prefix":
        return Ending(f"{only} Begin with '{name}:'.", only, EXACT_MATCH, lambda row: f"{name}: {row[field]}")
    if form == "case":
        return Ending(f"{only} Write it in capital letters.", only, EXACT_MATCH, lambda row: row[field].upper())
    return Ending(f"{only} Copy it exactly as given.", only, EXACT_MATCH, lambda row: row[field])


def _make_record_ending(form: Form, world: World, field: str) -> Ending:
    def asking(names: Iterable[str]) -> str:
        return f"Reply only with a JSON object with the keys {_join_names(map(_key, names))}."

    def record(row: Row, **other: str) -> str:
        return json.dumps({_key(name): row.get(name) for name in world.reported} | other)

    def dotted(row: Row) -> str:
        return record(row, **{_key(field): ".".join(reversed(row[field].split("-")))})

    def to_the_cent(row: Row) -> str:
        return record(row, **{_key(field): f"{float(row[field]):.2f}"})

    asked, exactly = asking(world.reported), "Copy the values exactly as given."
    if form == "date_format":
        return Ending(f"{asked} Write dates as DD.MM.YYYY.", asked, JSON_MATCH, dotted)
    if form == "decimals":
        iso = f"{asked} Write dates as YYYY-MM-DD."
        return Ending(f"{iso} State amounts with two decimals.", iso, JSON_MATCH, to_the_cent)
    prose = f"State {_join_names(f'the {name}' for name in world.reported)}."
    wrong = prose if form == "json" else asking(name for name in world.reported if name != field)
    return Ending(f"{asked} {exactly}", f"{wrong} {exactly}", JSON_MATCH, record)


def _join_names(names: Iterable[str], word: str = "and") -> str:
    *most, last = names
    return f"{', '.join(most)} {word} {last}" if most else last


def _key(name: str) -> str:
    return name.replace(" ", "_")


EXACT_MATCH = FinalResponseMetric(name="exact_match", criterion=FinalResponseCriterion(text=TextCriterion()))
JSON_MATCH = FinalResponseMetric(name="json_match", criterion=FinalResponseCriterion(json=JsonCriterion()))
CONTAINS = FinalResponseMetric(name="contains", criterion=FinalResponseCriterion(text=TextCriterion(match="contains")))
SHORT_ANSWER = FinalResponseMetric(
    name="short_answer", criterion=FinalResponseCriterion(text=TextCriterion(match="contains", max_length=60))
)
WORDINGS = (
    ("Pass on {fields}.", "Pass on {fields} exactly as given."),
    ("Keep {fields} in your note.", "Keep {fields} in your note. Leave the values unchanged."),
    ("Your note must contain {fields}.", "Your note must contain {fields}, word for word."),
    ("Never drop {fields}.", "Never drop {fields}. Do not change the values."),
    ("Report {fields}.", "Report {fields}. Copy the values verbatim."),
    (
        "Reply only with a JSON object with the keys {keys}.",
        "Reply only with a JSON object with the keys {keys}. Copy the values exactly as given.",
    ),
)
"""How nodes are asked to pass fields on, and to leave them unchanged. The last wording does not fit documents."""

LANGUAGES = (
    ("German", "Die Antwort ist {}."),
    ("French", "La réponse est {}."),
    ("Spanish", "La respuesta es {}."),
)
PEOPLE = ("Okafor", "Lindqvist", "Moreau", "Castellano", "Brandt", "Nakamura", "Petrova", "Yilmaz", "Duarte", "Keller")
PLACES = (
    *("the harbour depot", "the cold store", "the paper archive", "the repair bench", "the loading ramp"),
    *("the map room", "the key cabinet", "the sorting hall", "the roof garden", "the spare van"),
)
TAILS = (
    "together with two colleagues of the late shift",
    "and keeps the only spare key in the top drawer",
    "on all working days between seven and four",
)
CITIES = ("Lyon", "Porto", "Graz", "Turku", "Ghent", "Bergen", "Cork", "Trieste")
CLIENTS = ("Mia Weber", "Omar Haddad", "Lena Novak", "Paul Fischer", "Aiko Tanaka", "Rosa Lopez")
DOMAINS = (
    Domain(
        office="a parcel service",
        topic="Please send this parcel.",
        numbers=("parcel id", "order id"),
        texts={
            ("city", "destination"): CITIES,
            ("product", "content"): ("Blue kettle", "Desk lamp", "Oak chair", "Wool rug"),
        },
        dates=("delivery date", "dispatch date"),
        amounts=("shipping cost", "declared price"),
        labels=("refund", "replacement", "repair"),
    ),
    Domain(
        office="a help desk",
        topic="Please look into this problem.",
        numbers=("ticket id", "incident number"),
        texts={
            ("caller", "customer"): CLIENTS,
            ("device", "appliance"): ("Laptop", "Printer", "Router", "Tablet", "Scanner"),
        },
        dates=("reporting date", "purchase date"),
        amounts=("repair cost", "service fee"),
        labels=("callback", "visit", "voucher"),
    ),
    Domain(
        office="an accounts office",
        topic="Please book this invoice.",
        numbers=("invoice id", "voucher number"),
        texts={
            ("supplier", "vendor"): ("Nordwind", "Calder Mills", "Ortega", "Blue Harbour"),
            ("department", "team"): ("Research", "Facilities", "Marketing", "Fleet"),
        },
        dates=("due date", "posting date"),
        amounts=("net amount", "invoice total"),
        labels=("reminder", "correction", "transfer"),
    ),
    Domain(
        office="a travel agency",
        topic="Please arrange this trip.",
        numbers=("booking code", "reservation id"),
        texts={("destination", "airport"): CITIES, ("traveller", "guest"): CLIENTS},
        dates=("departure date", "travel date"),
        amounts=("fare", "ticket price"),
        labels=("upgrade", "cancellation", "rebooking"),
    ),
    Domain(
        office="a laboratory",
        topic="Please register this sample.",
        numbers=("sample id", "specimen number"),
        texts={
            ("material", "substance"): ("River water", "Garden soil", "Sea salt", "Copper wire"),
            ("station", "site"): ("Mill Creek", "North Pier", "Hill Farm", "Old Quarry"),
        },
        dates=("sampling date", "arrival date"),
        amounts=("analysis fee", "testing cost"),
        labels=("retest", "disposal", "certificate"),
    ),
)
