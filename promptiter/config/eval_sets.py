"""Loads the eval sets of promptiter.yaml: `train` and `validation`, `cases` for both, `data` to split, and `test`.

What is wrong is added to the problems of the configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeAlias

from promptiter.config.file import RunConfig
from promptiter.config.problems import Problems
from promptiter.engine.request import SETS
from promptiter.engine.request_checks import merge_eval_sets
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.data.evalset import load_eval_set
from promptiter.evaluation.data.splits import split
from promptiter.wording import join_names

SetsByKey: TypeAlias = Mapping[str, tuple[EvalSet, ...]]
"""Eval sets by their keys in the request, those with cases."""

PAIR = ("train", "validation")


def load_eval_sets(problems: Problems) -> SetsByKey | None:
    """Load the sets of a run; None if there are problems."""
    config = problems.parsed.config
    if config.scorer is not None:
        return _check_scorer(problems)
    if "data" in problems.parsed.broken:
        return None
    if not config.data:
        if "split" in config.model_fields_set:
            problems.add("split: there is no `data` to split; name eval sets as data, or remove split")
        wanted = _choose_sets(problems)
        loaded = {key: _load_files(problems, key) for key in (*wanted, "test")}
        is_whole = wanted and loaded["test"] is not None and all(loaded[key] for key in wanted)
        return {key: sets for key, sets in loaded.items() if sets} if is_whole else None
    if any(getattr(config, key) for key in SETS):
        problems.add("data: is split into train, validation and test; give either data or the sets")
        return None
    cases = _load_files(problems, "data")
    return None if cases is None else problems.attempt(lambda: _split(cases, config), place="data")


def load_one_set(problems: Problems, name: str) -> EvalSet | None:
    """Load the cases of one of the configuration's sets, or of a file; None if there are problems."""
    config = problems.parsed.config
    if name not in SETS:
        return problems.attempt(partial(load_eval_set, name))
    if config.cases and name in PAIR:
        name = "cases"
    sets = load_eval_sets(problems) if config.data else None
    chosen = sets.get(name) if sets else _load_files(problems, name)
    if not chosen:
        if not problems.found:
            problems.add(f"{name}: is missing; name its eval set, or pass --eval-set FILE")
        return None
    return merge_eval_sets(chosen, name=name)


def _check_scorer(problems: Problems) -> SetsByKey | None:
    """A run with a scorer has no sets. Adds those that are given to the problems."""
    given = [key for key in (*SETS, "data", "metrics") if getattr(problems.parsed.config, key)]
    if given:
        problems.add(f"scorer: scores without cases and metrics; remove {join_names(given, limit=5)}")
    return None if given else {}


def _choose_sets(problems: Problems) -> tuple[str, ...]:
    """The keys of the sets to learn from and to validate on; none if some are missing or too many are given."""
    config = problems.parsed.config
    if not config.cases and "cases" not in problems.parsed.broken:
        if config.agent.yaml is not None and not (config.train and config.validation):
            return ()  # the checks of agent.yaml say what is missing
        wanted = "name its eval set, or give `cases` to use one set for both, or `data` to split"
        given = [problems.require(key, wanted=wanted) for key in PAIR]
        return PAIR if all(given) else ()
    if config.train or config.validation:
        problems.add("cases: are used as train and validation set; give either cases or the two sets")
        return ()
    return ("cases",) if config.cases else ()


def _load_files(problems: Problems, key: str) -> tuple[EvalSet, ...] | None:
    files: Iterable[Path] = getattr(problems.parsed.config, key)
    loaded = [problems.attempt(partial(load_eval_set, file), place=key) for file in files]
    sets = tuple(each for each in loaded if each is not None)
    return sets if len(sets) == len(loaded) else None


def _split(cases: tuple[EvalSet, ...], config: RunConfig) -> SetsByKey:
    shares = config.split
    whole = merge_eval_sets(cases, name="data")
    parts = split(whole, train=shares.train, validation=shares.validation, test=shares.test, seed=shares.seed)
    sets = {"train": (parts.train,), "validation": (parts.validation,)}
    return {**sets, "test": (parts.test,)} if parts.test.cases else sets
