"""Parts with names in a module, as a project has them, for runs that Python began."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any

from promptiter.agents import GraphAgent, ModelNode
from promptiter.engine.session import Session
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.llm.gateway import Gateway
from promptiter.offline import SimulatedModel
from promptiter.profile import PatchSet, Profile, SurfacePatch
from promptiter.runlog.events import Event

agent = GraphAgent(name="echo", nodes=(ModelNode(name="echo", instruction="Repeat the question."),))
gateway = Gateway(models={"simulated": SimulatedModel(compliance=1.0)})


def cases(name: str, *words: str) -> EvalSet:
    found = (EvalCase(id=word, turns=(Turn(user=f"Where is the {word}?", expected=word),)) for word in words)
    return EvalSet(id=name, cases=tuple(found))


def is_short(case: Any, run: Any) -> float:
    return float(len(run.output) < 100)


class AddRule:
    """A search with options, which it stores under their names."""

    def __init__(self, rule: str, *extra: str, times: int = 1) -> None:
        self.rule = rule
        self.extra = extra
        self._times = times

    async def search(self, session: Session) -> None:
        for _ in range(self._times):
            if await session.should_stop():
                return
            await session.begin_round()
            [target] = session.targets
            text = " ".join((str(session.accepted.profile.value(target, session.snapshot)), self.rule, *self.extra))
            await session.validate(PatchSet((SurfacePatch(surface_id=target, value=text, reason="one more rule"),)))
            await session.complete_round()


class Forgetful(AddRule):
    """A search that does not store its arguments."""

    def __init__(self, text: str) -> None:
        super().__init__(text.upper())


class Doubled(AddRule):
    """A search that stores its argument changed."""

    def __init__(self, rule: str, times: int) -> None:
        super().__init__(rule)
        self.times = times * 2


class Renamed(AddRule):
    """A search that stores its argument twice, and one of them changed."""

    def __init__(self, rule: str) -> None:
        super().__init__(rule.upper())
        self.given = rule


class Tripled:
    __slots__ = ("times",)

    def __init__(self, times: int) -> None:
        self.times = times * 3

    async def search(self, session: Session) -> None: ...


@dataclass
class Halved:
    times: int

    def __post_init__(self) -> None:
        self.times //= 2

    async def search(self, session: Session) -> None: ...


class Picky(AddRule):
    """A search that does not accept what it stored."""

    def __init__(self, rule: str) -> None:
        if rule.isupper():
            raise ValueError("do not shout")
        super().__init__(rule.upper())


class Equipped(AddRule):
    """A search with tools of its own, which no two of them share."""

    def __init__(self, rule: str) -> None:
        super().__init__(rule.strip())
        self.lock = Lock()
        self.started = time.perf_counter_ns()
        self.pattern = re.compile(self.rule)
        self.helpers = {"again": [self]}


class Watcher:
    seen: list[str] = []  # noqa: RUF012 - what all watchers saw

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix

    async def observe(self, event: Event) -> None:
        self.seen.append(self.prefix + event.type)


def score_profile(profile: Profile) -> float:
    return 0.5


def make_watcher() -> Any:
    class Local(Watcher):
        pass

    return Local()


def make_function() -> Callable[..., float]:
    def always(case: Any, run: Any) -> float:
        return 1.0

    return always
