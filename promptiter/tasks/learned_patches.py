"""LearnedPatches: a search that starts with patches which were learned from production, and goes on as usual.

All of them are validated together, because failures may have several causes. If they are rejected, each is validated by
itself, the best supported first. Then come backprop rounds: traces do not show a fault that hides behind another, and
with the live agent it shows.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import orjson
from pydantic import TypeAdapter, ValidationError

from promptiter.engine.outline import SearchOutline
from promptiter.engine.session import Session
from promptiter.errors import SetupError
from promptiter.llm.gateway import Gateway
from promptiter.profile import PatchSet
from promptiter.search.gradient_check import GradientCheck
from promptiter.search.rounds import BackpropRounds
from promptiter.stages.contracts import Aggregator, Attributor, Backwarder
from promptiter.stages.optimizer import Optimizer


class LearnedPatches:
    """The search `learned_patches`. `patches` is a file that `promptiter learn` has written.

    The stages are those of the rounds that follow; see BackpropRounds.
    """

    def __init__(
        self,
        backwarder: Backwarder | Attributor | None = None,
        aggregator: Aggregator | None = None,
        optimizer: Optimizer | None = None,
        *,
        patches: str | os.PathLike[str],
        check: GradientCheck | Literal["auto"] | None = "auto",
    ) -> None:
        self.patches = read_patches(patches)
        self.rounds = BackpropRounds(backwarder, aggregator, optimizer, check=check)

    async def search(self, session: Session) -> None:
        await self._validate(session)
        await self.rounds.search(session)

    async def _validate(self, session: Session) -> None:
        unknown = self.patches.surface_ids - session.targets
        if unknown:
            session.report(f"the patches of {', '.join(sorted(unknown))} are not for targets of this run: left out")
        known = PatchSet(tuple(patch for patch in self.patches if patch.surface_id in session.targets))
        waiting = [known] if known else []
        while waiting:
            if await session.should_stop():
                return
            group = waiting.pop(0)
            await session.begin_round()
            decision = await session.validate(group)
            await session.complete_round()
            if not decision.accepted and len(group) > 1:
                waiting += [PatchSet((patch,)) for patch in group]

    def outline(self) -> SearchOutline:
        """What the search may call, for the forecast."""
        return self.rounds.outline()

    def find_setup_problems(self, gateway: Gateway) -> list[str]:
        return self.rounds.find_setup_problems(gateway)


def write_patches(path: str | os.PathLike[str], patches: PatchSet) -> None:
    """Write patches as a file that the search `learned_patches` reads."""
    plain = TypeAdapter(PatchSet).dump_python(patches, mode="json")
    Path(path).write_bytes(orjson.dumps({"schema_version": 1, **plain}, option=orjson.OPT_INDENT_2) + b"\n")


def read_patches(path: str | os.PathLike[str]) -> PatchSet:
    """Read such a file. Raises SetupError if it is not one."""
    try:
        document = orjson.loads(Path(path).read_bytes())
        return TypeAdapter(PatchSet).validate_python({"patches": document["patches"]})
    except OSError as error:
        raise SetupError(f"{os.fspath(path)!r} cannot be read: {error.strerror}; check the path") from error
    except (ValueError, TypeError, KeyError, ValidationError) as error:
        raise SetupError(f"{os.fspath(path)!r} is not a file of patches as `promptiter learn` writes it") from error
