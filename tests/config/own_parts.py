"""Parts as users write them, right and wrong, named in test_parts.py."""

from __future__ import annotations

from typing import Any, Literal

from promptiter.evaluation.executor import LocalExecutor
from promptiter.evaluation.scorer import Scorer
from promptiter.profile import Profile
from promptiter.runlog.events import Event
from promptiter.search import Session
from promptiter.stages import OptimizeRequest, PatchResult


class OneRule:
    """A search that adds one sentence to each target."""

    def __init__(self, rule: str, *, times: int = 1, how: Literal["end", "start"] = "end") -> None:
        self.rule = rule
        self.times = times
        self.how = how

    async def search(self, session: Session) -> None:
        raise NotImplementedError


class Limited(OneRule):
    def __init__(self, limit: int | Literal["none"] = "none") -> None:
        super().__init__(str(limit))


class WithStages(OneRule):
    def __init__(self, rule: str = "", *, optimizer: object = "mine") -> None:
        super().__init__(rule)
        self.optimizer = optimizer


class NoSearch:
    def serach(self) -> None: ...


class SyncSearch:
    def search(self, session: Session) -> None: ...


class OtherArguments:
    async def search(self) -> None: ...


class Demanding:
    def __init__(self, depth: int = 1) -> None:
        raise ValueError(f"depth {depth} is too little")

    async def search(self, session: Session) -> None: ...


def make_search(rule: str = "Be brief.") -> OneRule:
    return OneRule(rule)


async def make_search_async() -> OneRule:
    return OneRule("")


def make_nothing() -> None:
    return None


async def search_function(session: Session) -> None: ...


built_search = OneRule("built")
seven = 7


class OwnOptimizer:
    def __init__(self, sentence: str = "Be careful.") -> None:
        self.sentence = sentence

    async def optimize(self, request: OptimizeRequest) -> PatchResult:
        raise NotImplementedError


class SilentStages:
    """Stages that forget to return their result."""

    async def backward(self, request: object) -> None: ...
    def attribute(self, request: object) -> None: ...
    def aggregate(self, request: object) -> None: ...
    async def optimize(self, request: object) -> None: ...


class SilentBackwarder:
    def backward(self, request: object) -> None: ...


class OwnBackwarder:
    async def backward(self, request: object) -> object: ...


class Collector:
    """An observer that remembers the types of events."""

    seen: list[str] = []  # noqa: RUF012 - what all collectors saw

    def __init__(self, token: str = "") -> None:
        self.token = token

    async def observe(self, event: Event) -> None:
        self.seen.append(event.type)


class OwnExecutor(LocalExecutor):
    def __init__(self, *, cluster: str, concurrency: int = 1) -> None:
        super().__init__(concurrency=concurrency)
        self.cluster = cluster


def score_length(profile: Profile, *, longest: int = 100) -> float:
    return min(1.0, len(str(profile)) / longest)


def score_two(profile: Profile, other: object) -> float:
    return 0.0


def score_nothing() -> float:
    return 0.0


scorer = Scorer(score_length, {"length": 0.5})


def brevity(case: Any, run: Any, *, longest: int) -> float:
    return float(len(run.output) <= longest)


def own_model(messages: object) -> str:
    """A model of one's own."""
    return f"an answer to {messages}"
