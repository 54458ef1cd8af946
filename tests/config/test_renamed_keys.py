from __future__ import annotations

from functools import reduce
from pathlib import Path

import pytest

from promptiter.config.file import read_document
from promptiter.config.renamed_keys import KeyPath, drop_key, find_renamed_keys, read_renamed_keys
from traces.model import Json

RENAMED = read_renamed_keys()


def document_with(path: KeyPath) -> dict[str, Json]:
    value: Json = 1
    for key in reversed(path):
        value = {key: value}
    document: dict[str, Json] = value
    return document


@pytest.mark.parametrize(("old", "new"), RENAMED.items(), ids=map(".".join, RENAMED))
def test_an_old_key_is_one_error_that_names_the_new_one(old: KeyPath, new: str) -> None:
    found = read_document(document_with(old), file=Path("promptiter.yaml"), environ={})
    assert f"promptiter.yaml: {'.'.join(old)} is now called {new}; rename it" in found.problems
    assert all("is now called" in problem for problem in found.problems)
    assert {old[0], new.partition(".")[0]} <= found.broken


@pytest.mark.parametrize("new", sorted(set(RENAMED.values())))
def test_every_new_key_exists(new: str) -> None:
    document = document_with(tuple(new.split(".")))
    assert find_renamed_keys(document) == {}
    problems = read_document(document, file=Path("promptiter.yaml"), environ={}).problems
    assert not any("unknown key" in problem for problem in problems)


def test_all_old_keys_are_reported_at_once_and_the_others_are_read() -> None:
    old = [key for (key, *rest) in RENAMED if not rest]
    document = {**dict.fromkeys(old, 1), "evaluation": {"concurrency": 3}}
    found = read_document(document, file=Path("promptiter.yaml"), environ={})
    assert len(found.problems) == len(old) > 3
    assert found.config.evaluation.concurrency == 3


def test_dropping_a_key_leaves_the_others() -> None:
    document = {"a": {"b": 1, "c": 2}, "d": 3}
    assert reduce(drop_key, [("a", "b"), ("d",)], document) == {"a": {"c": 2}}
    assert document == {"a": {"b": 1, "c": 2}, "d": 3}
