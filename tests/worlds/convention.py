"""A ticket desk with a convention that only examples convey, and a small model that imitates what it is shown.

A message is about two of four things that can be wrong with a delivery, each in one of several wordings, and the desk
that gets it depends on the pair: six desks with names that say nothing. No single word decides, so a rule per word is
wrong two times out of three.

The task model is like a small language model. It answers like the most similar example, where two words for the same
thing are similar. Of an instruction it follows `If the message mentions "x", answer "y"`, one word at a time, and which
answers there are. It slips now and then.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from random import Random

from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import ModelNode
from promptiter.engine.engine import Engine
from promptiter.engine.request import RunRequest
from promptiter.engine.session import Search
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.metrics.builtin import build_metrics
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import Message, ModelReply, ModelRequest
from promptiter.policies.acceptance import MinGain
from promptiter.policies.stopping import TargetScore
from promptiter.profile import SurfacePatch
from promptiter.runlog.results import RunResult
from promptiter.stages.optimizer import OptimizeRequest, PatchResult
from tests.worlds.planted_world import TaskModel

TOPICS: Mapping[str, tuple[str, ...]] = {
    "late": ("late", "overdue", "delayed", "behind schedule"),
    "damaged": ("damaged", "broken", "dented", "smashed"),
    "price": ("price", "invoice", "billed amount", "charge"),
    "address": ("address", "street", "doorstep", "postcode"),
}
DESKS = ("amber", "cobalt", "indigo", "olive", "russet", "teal")
RULE = dict(zip(combinations(TOPICS, 2), DESKS, strict=True))
INSTRUCTION = "You sort messages of customers. Answer with the desk that gets the message: " + ", ".join(DESKS) + "."
TRAIN, VALIDATION, TEST = 36, 24, 24
REACHED = 0.9
SLIP = 0.02
FEWEST = 3
"""A rule for a word needs this number of messages."""


_OPENINGS = ("Hello,", "Dear team,", "Hi,", "Good morning,", "Please help:", "To whom it may concern:")
_PHRASES = (
    "there is something about the {one} and also about the {two}",
    "I am writing because of the {one}, and then there is the {two}",
    "first the {one}, now the {two}",
    "could you look at the {one} and at the {two}",
    "it began with the {one} and ended with the {two}",
)
_GOODS = ("lamp", "desk", "kettle", "chair", "clock", "mirror", "shelf", "rug", "vase", "stool")


def build_agent(*, examples: Sequence[Message] = ()) -> GraphAgent:
    node = ModelNode(name="sorter", model="small", instruction=INSTRUCTION, examples=tuple(examples))
    return GraphAgent(name="sorter", nodes=(node,))


def build_sets(seed: int) -> tuple[EvalSet, EvalSet, EvalSet]:
    """Train, validation and test cases: the desks are about as frequent in each."""
    rng = Random(f"convention {seed}")
    seen: set[str] = set()
    return (
        _build_set("train", TRAIN, rng, seen),
        _build_set("validation", VALIDATION, rng, seen),
        _build_set("test", TEST, rng, seen),
    )


def build_task_model(seed: int, *, slip: float = SLIP) -> TaskModel:
    return TaskModel(answer=lambda request, rng: _answer(request, rng, slip=slip), seed=seed)


def build_evaluator(seed: int, *, slip: float = SLIP, task: TaskModel | None = None) -> Evaluator:
    models = {"small": task or build_task_model(seed, slip=slip)}
    return Evaluator(build_metrics([{"metric_name": "exact_match"}]), gateway=Gateway(models=models, seed=seed))


def build_request(seed: int, *, targets: Sequence[str], **changes: object) -> RunRequest:
    train, validation, test = build_sets(seed)
    values: dict[str, object] = {
        "train": train,
        "validation": validation,
        "test": test,
        "targets": tuple(targets),
        "acceptance": MinGain(0.005),
        "stop": TargetScore(REACHED),
        "final_test": None,
        "run_id": f"convention-{seed}",
        "max_rounds": 8,
    }
    return RunRequest(**(values | changes))  # type: ignore[arg-type]


async def run_search(search: Search, seed: int, *, targets: Sequence[str], **changes: object) -> RunResult:
    engine = Engine(build_agent(), build_evaluator(seed), search=search)
    return await engine.run(build_request(seed, targets=targets, **changes))


class CueWriter:
    """An optimizer that writes all the rules that the model follows: for each word, the desk that it goes with most.

    It sees the wanted desk of every failing message. The rules of the most telling words come first.
    """

    async def optimize(self, request: OptimizeRequest) -> PatchResult:
        counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for each in (*request.failing, *request.passing):
            for word in set(_WORD.findall(each.input.casefold())):
                counts[word][each.expected or ""] += 1
        telling = [
            (count / found.total(), count, word, desk)
            for word, found in counts.items()
            for desk, count in found.most_common(1)
            if count >= FEWEST
        ]
        rules = [f'Answer "{desk}" when the input mentions "{word}".' for _, _, word, desk in sorted(telling)[::-1]]
        for most in (len(rules), 24, 12, 6, 3):
            value = " ".join([INSTRUCTION, *rules[:most]])
            if value not in [each.value for each in request.rejected]:
                patch = SurfacePatch(surface_id=request.surface.id, value=value, reason="what each word goes with")
                return PatchResult(patch=patch)
        return PatchResult(patch=None, reason="no other rules")


def find_desk(message: str) -> str:
    """The desk that gets a message."""
    topics = _find_topics(message)
    return RULE[next(pair for pair in RULE if set(pair) <= topics)]


def has_reached(result: RunResult) -> bool:
    return (result.accepted_score or 0.0) >= REACHED


def _build_set(name: str, count: int, rng: Random, seen: set[str]) -> EvalSet:
    pairs = list(RULE)
    cases: list[EvalCase] = []
    while len(cases) < count:
        pair = pairs[len(cases) % len(pairs)]
        text = _write_message(pair, rng)
        if text not in seen:
            seen.add(text)
            cases.append(EvalCase(id=f"{name}-{len(cases)}", turns=(Turn(user=text, expected=RULE[pair]),)))
    rng.shuffle(cases)
    return EvalSet(id=name, cases=tuple(cases))


def _write_message(pair: tuple[str, str], rng: Random) -> str:
    one, two = (rng.choice(TOPICS[each]) for each in rng.sample(pair, 2))
    phrase = rng.choice(_PHRASES).format(one=one, two=two)
    return f"{rng.choice(_OPENINGS)} {phrase}. It is a {rng.choice(_GOODS)}, order {rng.randrange(1000, 9999)}."


def _answer(request: ModelRequest, rng: Random, *, slip: float) -> ModelReply:
    system, *shown, asked = request.messages
    if rng.random() < slip:
        return ModelReply(text=rng.choice(DESKS))
    examples = [(one.content, two.content) for one, two in zip(shown[::2], shown[1::2], strict=True)]
    if examples:
        return ModelReply(text=_imitate(asked.content, examples))
    for desk, cue in _read_rules(system.content):
        if cue in asked.content.casefold():
            return ModelReply(text=desk)
    return ModelReply(text=Random(asked.content).choice(DESKS))


def _read_rules(instruction: str) -> Iterator[tuple[str, str]]:
    """The rules of an instruction: sentences that name one desk and a word that a message mentions or is about."""
    for sentence in re.split(r"(?<=[.!?])\s+", instruction):
        desks = [desk for desk in DESKS if re.search(rf"\b{desk}\b", sentence)]
        cue = _CUE.search(sentence)
        if len(desks) == 1 and cue:
            yield desks[0], cue[1].casefold().strip()


def _imitate(text: str, examples: Sequence[tuple[str, str]]) -> str:
    """The answer of the most similar example, the last one of several."""
    return max(reversed(examples), key=lambda each: _compare(text, each[0]))[1]


def _compare(one: str, other: str) -> float:
    """How similar two messages are to the model: what they are about counts, then the words."""
    first, second = _find_topics(one), _find_topics(other)
    words, more = set(_WORD.findall(one.casefold())), set(_WORD.findall(other.casefold()))
    return len(first & second) + len(words & more) / (1 + len(words | more))


def _find_topics(text: str) -> set[str]:
    return {name for name, words in TOPICS.items() if any(word in text.casefold() for word in words)}


_CUE = re.compile(r"""\b(?:mentions?|about|says?|contains?)\s+["']?([^"'.,]+)""", re.IGNORECASE)
_WORD = re.compile(r"\w+")
