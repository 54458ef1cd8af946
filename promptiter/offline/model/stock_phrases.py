"""The stock phrases of the simulated model, in the languages it writes."""

from __future__ import annotations

import re
from dataclasses import dataclass


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
