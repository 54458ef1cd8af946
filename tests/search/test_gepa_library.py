from __future__ import annotations

import builtins
from random import Random
from typing import Any

import pytest

from promptiter.errors import SetupError
from promptiter.llm.gateway import Gateway
from promptiter.search.gepa import GepaSearch
from promptiter.search.gepa_library import _MergeRandom, check_gepa


def test_the_parent_of_equal_scores_does_not_depend_on_the_order_of_components() -> None:
    rng = _MergeRandom(Random(0), seed=7)
    assert len({rng.choice([1, 2]) for _ in range(20)}) == 1
    assert {rng.choice([1, other]) == 1 for other in range(2, 12)} == {True, False}


def test_other_draws_are_those_of_the_one_stream() -> None:
    assert _MergeRandom(Random(5), seed=7).sample(range(100), 4) == Random(5).sample(range(100), 4)


def test_without_gepa_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *others: Any, **more: Any) -> Any:
        if name.partition(".")[0] == "gepa":
            raise ImportError("No module named 'gepa'")
        return real(name, *others, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    [line] = GepaSearch().find_setup_problems(Gateway())
    assert line.endswith("run `pip install 'promptiter[gepa]'`")
    with pytest.raises(SetupError, match="needs gepa"):
        check_gepa()
