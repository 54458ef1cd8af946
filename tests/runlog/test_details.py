from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from promptiter.errors import SetupError
from promptiter.runlog.details import RoundDetails, UnknownDetails, round_details
from promptiter.runlog.results import RoundResult, RunResult
from tests.worlds import desk


@round_details("breeding")
@dataclass(frozen=True, slots=True, kw_only=True)
class Litter(RoundDetails):
    pool: tuple[str, ...] = ()


def read_back(details: RoundDetails) -> RoundResult:
    result = desk.engine(desk.DRAFT).run_sync(desk.request())
    changed = replace(result, rounds=(replace(result.rounds[0], details=details),))
    return RunResult.from_json(changed.to_json()).rounds[0]


def test_details_are_read_back_by_the_name_of_their_search() -> None:
    assert read_back(Litter(pool=("a", "b"))).details == Litter(pool=("a", "b"))


def test_details_of_an_unknown_search_keep_their_data() -> None:
    data = {"search": "not installed", "pool": ["a"]}
    assert read_back(UnknownDetails(data=data)).details == UnknownDetails(data=data)


def test_a_name_is_registered_once() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Other(RoundDetails):
        pass

    with pytest.raises(SetupError, match="the search 'breeding' has the details Litter; choose another name"):
        round_details("breeding")(Other)
