"""The stock phrases of the simulated model, in the languages it speaks."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Phrases:
    """What the model says of its own accord. `{}` is where a value goes."""

    topic: str
    answer: str
    guess: str
    vague: str
    yes: str
    no: str
    thanks: str
    please: str
    ask: str
    steps: str
    filler: str


PHRASES = {
    "en": Phrases(
        topic="This is about {}",
        answer="The answer is {}",
        guess="It is probably {}",
        vague="That depends on the circumstances",
        yes="Yes",
        no="No",
        thanks="Thank you for asking,",
        please="Please note that",
        ask="Could you please tell me the {}?",
        steps="First I read the request, then I work through it",
        filler="There is nothing more to add to this point",
    ),
    "de": Phrases(
        topic="Es geht um {}",
        answer="Die Antwort ist {}",
        guess="Es ist wahrscheinlich {}",
        vague="Das kommt auf die Umstände an",
        yes="Ja",
        no="Nein",
        thanks="Vielen Dank für die Anfrage,",
        please="Bitte beachten Sie,",
        ask="Können Sie mir bitte diese Angabe nennen, nämlich {}?",
        steps="Zuerst lese ich die Anfrage, dann bearbeite ich sie",
        filler="Dazu ist sonst nichts zu sagen",
    ),
    "fr": Phrases(
        topic="Il s'agit de {}",
        answer="La réponse est {}",
        guess="C'est probablement {}",
        vague="Cela dépend des circonstances",
        yes="Oui",
        no="Non",
        thanks="Merci pour votre demande,",
        please="Veuillez noter que",
        ask="Pourriez-vous me donner cette information, {}?",
        steps="D'abord je lis la demande, puis je la traite",
        filler="Il n'y a rien à ajouter à ce sujet",
    ),
    "es": Phrases(
        topic="Se trata de {}",
        answer="La respuesta es {}",
        guess="Probablemente es {}",
        vague="Eso depende de las circunstancias",
        yes="Sí",
        no="No",
        thanks="Gracias por su consulta,",
        please="Por favor tenga en cuenta que",
        ask="¿Podría decirme este dato, {}?",
        steps="Primero leo la consulta, luego la resuelvo",
        filler="No hay nada más que añadir a este punto",
    ),
    "zh": Phrases(
        topic="这是关于 {}",
        answer="答案是 {}",
        guess="可能是 {}",
        vague="这要看具体情况",
        yes="是",
        no="否",
        thanks="谢谢您的提问，",
        please="请注意，",
        ask="请问 {} 是什么？",
        steps="首先阅读问题，然后逐步处理",
        filler="关于这一点没有更多可补充的",
    ),
}

_OPENERS = tuple(
    opener
    for phrases in PHRASES.values()
    for opener in (
        *(text.partition("{}")[0].strip() for text in (phrases.topic, phrases.answer, phrases.guess)),
        phrases.thanks,
        phrases.please,
    )
)
_OPENING = re.compile(rf"^(?:{'|'.join(re.escape(opener) for opener in _OPENERS)})[\s:]*", re.IGNORECASE)


def without_openers(text: str) -> str:
    """The text without the stock phrases before it, so that a chain of models does not pile them up."""
    shorter = _OPENING.sub("", text)
    while shorter != text:
        text, shorter = shorter, _OPENING.sub("", shorter)
    return text
