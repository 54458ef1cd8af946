"""How the simulated model writes dates, numbers and amounts, and its stock phrases in each language."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from promptiter.offline.text.dates import rewrite_dates
from traces.model import Json

DEFAULT_DATE_FORMAT = "Month D, YYYY"

_AMOUNT_NAME = re.compile(
    r"amount|total|price|cost|sum|fee|balance|refund|salary|budget|paid|fare|tax|revenue", re.IGNORECASE
)
_ID_NAME = re.compile(
    r"(?:^|_|\b)(?:id|ids|number|no|phone|zip|year|code|postcode|reference|sku|index|version)s?$", re.IGNORECASE
)
_NUMERIC = re.compile(
    r"(?P<sign>-?)(?P<symbol>[€$£¥]?)\s?(?P<digits>\d{1,3}(?:,\d{3})+|\d+)(?P<fraction>\.\d+)?\s?(?P<code>€|£|[A-Z]{3})?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueStyle:
    """How values are written. The defaults are the model's own habits."""

    date_format: str = DEFAULT_DATE_FORMAT
    decimals: int | None = None
    verbatim: bool = False

    def text(self, name: str, value: Json) -> str:
        """The value of a field as it is written in prose."""
        text = plain_text(value)
        if self.verbatim:
            return text
        number = None if _ID_NAME.search(name) or isinstance(value, bool) else _NUMERIC.fullmatch(text.strip())
        if number is None:
            return self.rewrite_dates(text)
        digits, fraction = number["digits"].replace(",", ""), number["fraction"] or ""
        mark = number["symbol"] or number["code"] or ""
        if self.decimals is not None and (mark or fraction or _AMOUNT_NAME.search(name)):
            digits, fraction = f"{float(digits + fraction):.{self.decimals}f}", ""
        written = f"{number['sign']}{digits}{fraction}"
        return f"{written} {mark}" if mark.isalpha() else f"{mark}{written}"

    def json(self, name: str, value: Json) -> Json:
        """The same for a JSON document: a number remains a number unless its writing matters."""
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            return value
        text = self.text(name, value)
        return value if text == plain_text(value) else text

    def rewrite_dates(self, text: str) -> str:
        """The text with every date written in this style."""
        return text if self.verbatim else rewrite_dates(text, self.date_format)


def plain_text(value: Json) -> str:
    """A JSON value as people write it."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6f}".rstrip("0").rstrip(".")
    if isinstance(value, list):
        return ", ".join(plain_text(item) if not isinstance(item, list | dict) else json.dumps(item) for item in value)
    return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Phrases:
    """The model's own words in one language; `{}` is replaced by a value."""

    topic: str
    answer: str
    guess: str
    vague: str
    thanks: str
    filler: str


PHRASES = {
    "en": Phrases(
        topic="This is about {}",
        answer="The answer is {}",
        guess="It is probably {}",
        vague="That depends on the circumstances",
        thanks="Thank you for asking,",
        filler="There is nothing more to add to this point",
    ),
    "de": Phrases(
        topic="Es geht um {}",
        answer="Die Antwort ist {}",
        guess="Es ist wahrscheinlich {}",
        vague="Das kommt auf die Umstände an",
        thanks="Vielen Dank für die Anfrage,",
        filler="Dazu ist sonst nichts zu sagen",
    ),
    "fr": Phrases(
        topic="Il s'agit de {}",
        answer="La réponse est {}",
        guess="C'est probablement {}",
        vague="Cela dépend des circonstances",
        thanks="Merci pour votre demande,",
        filler="Il n'y a rien à ajouter à ce sujet",
    ),
    "es": Phrases(
        topic="Se trata de {}",
        answer="La respuesta es {}",
        guess="Probablemente es {}",
        vague="Eso depende de las circunstancias",
        thanks="Gracias por su consulta,",
        filler="No hay nada más que añadir a este punto",
    ),
}

_OPENERS = tuple(
    text.partition("{}")[0].strip()
    for phrases in PHRASES.values()
    for text in (phrases.topic, phrases.answer, phrases.guess, phrases.thanks)
)
_OPENING = re.compile(rf"^(?:{'|'.join(re.escape(opener) for opener in _OPENERS)})[\s:]*", re.IGNORECASE)


def strip_openers(text: str) -> str:
    """The text without stock phrases at its start, so that a chain of models does not accumulate them."""
    shorter = _OPENING.sub("", text)
    while shorter != text:
        text, shorter = shorter, _OPENING.sub("", shorter)
    return text
