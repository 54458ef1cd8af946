"""RoundDetails: a search's own account of a round, as one record per search.

The events of a round fold into it: each payload that is part of an account says how (`DetailsPayload.add_to`).

    @round_details("evolution")
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Generation(RoundDetails):
        pool: tuple[str, ...] = ()

In JSON an account has the name of its search as `search`. Of a search that is unknown here, the data stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Annotated, Any, ClassVar, TypeAlias, TypeVar

from pydantic import PlainSerializer, PlainValidator

from promptiter.runlog.codec import from_plain, to_plain
from promptiter.runlog.events import Payload
from traces.model import Json


class RoundDetails:
    """A search's own account of a round: a frozen dataclass, registered under the name of the search."""

    __slots__ = ()
    search: ClassVar[str] = ""


class DetailsPayload(Payload):
    """A payload that is part of the account of its round."""

    __slots__ = ()

    def add_to(self, details: RoundDetails | None) -> RoundDetails:
        """The account with this event, None being the account at the start of a round."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownDetails(RoundDetails):
    """The account of a search that is not known here."""

    data: dict[str, Json] = field(default_factory=dict)


D = TypeVar("D", bound=RoundDetails)

_accounts: dict[str, type[RoundDetails]] = {}


def round_details(search: str) -> Callable[[type[D]], type[D]]:
    """Register the account of a search under its name."""

    def register(details: type[D]) -> type[D]:
        details.search = search
        _accounts[search] = details
        return details

    return register


def _as_plain(details: RoundDetails | None) -> Json:
    if details is None or isinstance(details, UnknownDetails):
        return None if details is None else details.data
    return {"search": details.search, **to_plain(details)}


def _of_plain(value: Any) -> RoundDetails | None:
    if value is None or isinstance(value, RoundDetails):
        return value
    data = dict(value)
    if data.get("search") not in _accounts:
        import_module("promptiter.backprop.record")
    known = _accounts.get(str(data.get("search")))
    if known is None:
        return UnknownDetails(data=data)
    data.pop("search")
    details: RoundDetails = from_plain(known, data)
    return details


TaggedDetails: TypeAlias = Annotated[RoundDetails | None, PlainValidator(_of_plain), PlainSerializer(_as_plain)]
"""The account of a round as a field of a record, tagged with the name of its search in JSON."""
