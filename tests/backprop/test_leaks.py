from __future__ import annotations

from collections.abc import Sequence

import pytest

from promptiter.backprop.lint import Linter
from promptiter.evaluation.data.evalset import build_eval_set
from promptiter.profile import SurfacePatch
from promptiter.structure import Surface
from tests.worlds.leak_corpus import lint_samples, make_good_patches, make_leaks
from traces.model import Json

CURRENT = "You answer tickets. Return a JSON object with the keys queue, order_id and refund_days."
ROWS: Sequence[dict[str, Json]] = (
    {
        "input": "Hello,\nmy kettle started to leak after a week, I want to return it. Order KX-4821.\nRegards, Ines",
        "expected": {"queue": "defect", "order_id": "KX-4821", "refund_days": 45},
    },
    {
        "input": "Dear team,\nthe drill is too heavy for me. I would like to send it back.\nRegards, Oksana",
        "expected": {"queue": "other", "order_id": "unknown", "refund_days": 60},
    },
    {
        "input": "The headphones gave me an electric shock! I want to return them at once, HP-9034.\nRegards, Maren",
        "expected": {"queue": "defect", "order_id": "HP-9034", "refund_days": 10},
    },
    {
        "input": "Hi, where is the parcel with the saw? I never got a tracking link. SW-7070\nBest, Yuki",
        "expected": {"queue": "shipping", "order_id": "SW-7070", "refund_days": None},
    },
    {
        "input": "The rain jacket has not arrived, order RJ-1175, since Monday.\nCheers, Bilal",
        "expected": {"queue": "shipping", "order_id": "RJ-1175", "refund_days": None},
    },
    {
        "input": "Will the wool coat be on sale again next month?\nRegards, Petra",
        "expected": {"queue": "other", "order_id": "unknown", "refund_days": None},
    },
)


def find_leaks(added: str, current: str = CURRENT, rows: Sequence[dict[str, Json]] = ROWS) -> list[str]:
    """Why a patch that adds a text is refused as a leak."""
    surface = Surface(node_id="reply", type="instruction", value=current)
    patch = SurfacePatch(surface_id=surface.id, value=f"{current} {added}", reason="because")
    linter = Linter(build_eval_set("train", list(rows)).cases)
    return [problem.message for problem in linter.find_problems(patch, surface=surface) if problem.rule == "copied"]


@pytest.mark.parametrize(
    "added",
    [
        "If Ines writes, order_id is KX-4821 and refund_days 45. If Maren writes, HP-9034 and 10.",
        "kettle 45 days, drill 60 days, headphones 10 days",
        "Take special care with KX-4821.",
        "Take special care with order kx4821.",
        "Numbers such as 4821 belong to order_id.",
        "refund_days is 45 or 60.",
        "Kettles can be returned for 45 days.",
        "For Maren, the queue is defect.",
        "If a saw was sent without a tracking link and the parcel is gone, the queue is shipping.",
        "Someone asks whether the wool coat is on sale next month. The answer is other.",
        "The rain jacket: shipping. The wool coat: other.",
        "| saw | shipping |\n| headphones | defect |",
        "Q: Will the wool coat be on sale again next month?",
        "Kettles that leak after a week go to defect.",
        "Think of 'the drill is too heavy for me' and the like.",
        "La sierra que no llega es de la cola shipping.",
    ],
)
def test_ids_values_tables_and_retold_cases_are_leaks(added: str) -> None:
    assert find_leaks(added)


@pytest.mark.parametrize(
    "added",
    [
        "Queues are shipping, defect and other.",
        "Copy the order number as it is, two letters and four digits, such as AB-1234.",
        "refund_days is a whole number, never more than 60, or null.",
        "If a product leaks or may hurt people, the queue is defect.",
        "Tickets about a parcel or its tracking belong to shipping.",
        "Look up how many days the customer has to return the product, and never guess.",
        "Greet the customer by name and answer in 2 or 3 sentences.",
        "Use ISO 8601 for dates, and the 24-hour clock for times, such as 10:45.",
        "If the customer wants to return something or send it back, fill refund_days.",
        "Leaks, shocks and heavy damage are defect; parcels that were never sent are shipping.",
        "Wer auf Deutsch schreibt, bekommt eine Antwort auf Deutsch.",
    ],
)
def test_general_rules_labels_and_numbers_of_no_case_are_not_leaks(added: str) -> None:
    assert find_leaks(added) == []


def test_a_leak_names_what_gives_the_case_away() -> None:
    assert find_leaks("Ask about KX-4821. Be kind.") == [
        "'KX-4821' gives away case 'train-1'; say the rule behind it, not what a case says"
    ]


def test_a_value_in_a_language_that_neither_prompt_nor_cases_have_is_a_leak() -> None:
    added = "Una tetera con fugas es defect."
    (message,) = find_leaks(added)
    assert message.startswith(f"'{added}' says in another language what answers case 'train-1' and 'train-3'; ")
    assert find_leaks(added, "Clasifica los mensajes para la tienda. Las colas son defect y shipping.") == []


def test_a_name_that_only_one_case_expects_is_a_leak() -> None:
    rows: list[dict[str, Json]] = [
        {"input": "Which river flows through Ljubljana?", "expected": "Ljubljanica"},
        {"input": "Which lake is the deepest?", "expected": "Baikal"},
        {"input": "How many islands form the Azores?", "expected": "9"},
    ]
    assert find_leaks("Do not forget Baikal.", "Answer in one word.", rows)
    assert find_leaks("A lake is named without the word lake, such as Victoria.", "Answer in one word.", rows) == []
    assert find_leaks("There are 9 islands in the Azores.", "Answer in one word.", rows)
    assert find_leaks("Write at most 9 words.", "Answer in one word.", rows) == []


def test_what_the_current_text_says_is_not_a_leak() -> None:
    current = f"{CURRENT} Kettles have 45 days. An order is written as KX-4821."
    assert find_leaks("Kettles have 45 days, written as KX-4821.", current) == []
    assert find_leaks("Drills have 60 days.", current)


def test_names_of_labels_are_not_leaks_even_if_one_case_has_them() -> None:
    rows = [{"input": f"text {word}", "expected": f"{word}_of_card"} for word in ("loss", "theft", "delivery")]
    assert find_leaks("Answer loss_of_card, theft_of_card or delivery_of_card.", "Name the intent.", rows) == []


def test_short_codes_and_plain_words_are_not_leaks_even_if_one_case_expects_them() -> None:
    rows = [
        {"input": "The gate is stuck", "expected": {"priority": "P1", "team": "facility management"}},
        {"input": "A new laptop", "expected": {"priority": "P4", "team": "desktop"}},
    ]
    added = "Priorities go from P1 to P4. Buildings belong to facility management, equipment to desktop."
    assert find_leaks(added, "Sort incidents.", rows) == []


def test_an_id_that_several_cases_have_is_not_a_leak() -> None:
    """Rules that cases name may be added to a prompt: another case can name them again."""
    rows = [
        {"input": f"c{number} needs RULE-{number % 3}07", "expected": f"c{number} | RULE-{number % 3}07 | good"}
        for number in range(6)
    ]
    assert find_leaks("Always follow RULE-007. Always follow RULE-107 and RULE-207.", "Edit.", rows) == []
    assert find_leaks("Always follow RULE-007.", "Edit.", rows[:3])


MEMBERS: Sequence[dict[str, Json]] = (
    {"input": "I am a Premium member and my bag did not arrive in Oslo.", "expected": "priority"},
    {"input": "As a Premium customer I want a seat at the aisle.", "expected": "priority"},
    {"input": "My stroller was damaged in Lima.", "expected": "claims"},
    {"input": "The strap of my suitcase was torn off in Malaga.", "expected": "claims"},
    {"input": "Mr Okonkwo needs a wheelchair in Bergen.", "expected": "assistance"},
    {"input": "My grandmother flies alone to Porto.", "expected": "assistance"},
)


def test_the_name_of_a_product_that_several_cases_with_one_answer_have_is_not_a_leak() -> None:
    assert find_leaks("Premium members go to priority.", "Name the team.", MEMBERS) == []
    assert len(find_leaks("Mr Okonkwo goes to assistance.", "Name the team.", MEMBERS)) == 1


def test_names_are_known_beside_many_other_names_but_not_in_german() -> None:
    shipped = (
        "tiles from Porto to Graz via Lyon for Mrs Haugland",
        "oil to Turku for Almeida",
        "a harp to Cork, Ireland",
    )
    rows = [{"input": f"Ship {each}.", "expected": "Baltia"} for each in shipped]
    assert len(find_leaks("Mrs Haugland has Baltia.", "Name the carrier.", rows)) == 1
    said = ("die Rechnung von der Bank nicht", "die Uhr im Haus", "den Brief von der Bank")
    german: list[dict[str, Json]] = [{"input": f"Ich habe {each}.", "expected": "Konto"} for each in said]
    assert find_leaks("Eine Rechnung gehört zu Konto.", "Nenne das Thema.", german) == []


def test_a_table_is_found_even_if_its_rows_have_words_of_their_own() -> None:
    rows = "| saw parcel missing | shipping |\n| kettle leaks already | defect |"
    assert len(find_leaks(rows)) == 2


def test_years_and_round_numbers_are_leaks_only_if_a_case_expects_them() -> None:
    rows = [{"input": "Founded in 1998 with 5000 people", "expected": "1998"}, {"input": "And now?", "expected": "7"}]
    assert find_leaks("The year is 1998.", "Edit.", rows)
    assert find_leaks("Use at most 5000 characters.", "Edit.", rows) == []


def test_a_number_that_many_cases_have_is_not_a_value_of_one_case() -> None:
    """Each expected number is in the inputs of the others."""
    rows = [{"input": "24 hours, 60 minutes, 365 days?", "expected": str(number)} for number in (24, 60, 365)]
    assert find_leaks("A day has 24 hours, an hour 60 minutes.", "Edit.", rows) == []


@pytest.mark.slow
def test_a_sample_of_the_corpus_is_told_apart() -> None:
    """`python -m benchmarks.bench_leaks` measures all of it."""
    assert sum(map(bool, lint_samples(make_leaks(60)).values())) >= 57
    assert sum(map(bool, lint_samples(make_good_patches(60)).values())) <= 1
