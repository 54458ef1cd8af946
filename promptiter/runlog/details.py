"""RoundDetails: what a search records of a round, as one record per search.

Events fold into it: each payload of the details says how (`DetailsPayload.add_to`).

    @round_details("evolution")
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Generation(RoundDetails):
        pool: tuple[str, ...] = ()

In JSON the details have the name of their search as `search`. Those of an unknown search keep their data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import entry_points
from typing import Annotated, Any, ClassVar, TypeAlias, TypeVar

from pydantic import PlainSerializer, PlainValidator

from promptiter.errors import SetupError
from promptiter.runlog.codec import from_plain, to_plain
from promptiter.runlog.events import Payload
from traces.model import Json


class RoundDetails:
    """What a search records of a round: a frozen dataclass, registered under the name of the search."""

    __slots__ = ()
    search: ClassVar[str] = ""


class DetailsPayload(Payload):
    """A payload that is part of the details of its round."""

    __slots__ = ()

    def add_to(self, details: RoundDetails | None) -> RoundDetails:
        """Return the details with this event; they are None at the start of a round."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownDetails(RoundDetails):
    """The details of a search that is not known here."""

    data: dict[str, Json] = field(default_factory=dict)


D = TypeVar("D", bound=RoundDetails)

_known: dict[str, type[RoundDetails]] = {}


def round_details(search: str) -> Callable[[type[D]], type[D]]:
    """Register the details of a search under its name."""

    def register(details: type[D]) -> type[D]:
        taken = _known.get(search)
        if taken is not None and (taken.__module__, taken.__qualname__) != (details.__module__, details.__qualname__):
            raise SetupError(f"the search {search!r} has the details {taken.__qualname__}; choose another name")
        details.search = search
        _known[search] = details
        return details

    return register


def _find(search: str) -> type[RoundDetails] | None:
    """Find the details of a search, importing it if it is promptiter's own or an entry point."""
    if search not in _known:
        for module in ("iteration_record", "trial_record"):
            import_module(f"promptiter.backprop.{module}")
        for point in entry_points(group="promptiter.searches", name=search):
            point.load()
    return _known.get(search)


def _as_plain(details: RoundDetails | None) -> Json:
    if details is None or isinstance(details, UnknownDetails):
        return None if details is None else details.data
    return {"search": details.search, **to_plain(details)}


def _of_plain(value: Any) -> RoundDetails | None:
    if value is None or isinstance(value, RoundDetails):
        return value
    data = dict(value)
    known = _find(str(data.get("search")))
    if known is None:
        return UnknownDetails(data=data)
    data.pop("search")
    details: RoundDetails = from_plain(known, data)
    return details


TaggedDetails: TypeAlias = Annotated[RoundDetails | None, PlainValidator(_of_plain), PlainSerializer(_as_plain)]
"""The details of a round as a field of a record, tagged with the name of their search in JSON."""
