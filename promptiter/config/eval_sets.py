"""Loads the eval sets of promptiter.yaml: `train` and `validation`, `cases` for both, `data` to split, and `test`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from promptiter.config.file import RunConfig
from promptiter.config.problems import Problems
from promptiter.engine.request_checks import merge_eval_sets
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.data.evalset import load_eval_set
from promptiter.evaluation.data.splits import split
from promptiter.wording import join_names

_SETS = ("train", "validation")


@dataclass(frozen=True, slots=True)
class EvalSets:
    """The eval sets of a run, by their keys in the request."""

    train: tuple[EvalSet, ...] = ()
    validation: tuple[EvalSet, ...] = ()
    cases: tuple[EvalSet, ...] = ()
    test: tuple[EvalSet, ...] = ()


@dataclass(frozen=True, slots=True)
class EvalSetLoader:
    """Loads the eval sets of one configuration. Each method returns None if it adds to the problems."""

    problems: Problems

    @property
    def config(self) -> RunConfig:
        return self.problems.parsed.config

    def load(self) -> EvalSets | None:
        """Load the sets of a run."""
        config = self.config
        if config.scorer is not None:
            return self._check_scorer()
        if "data" in self.problems.parsed.broken:
            return None
        if not config.data:
            wanted = self._choose_sets()
            loaded = {key: self._load(getattr(config, key), place=key) for key in (*wanted, "test")}
            is_whole = wanted and loaded["test"] is not None and all(loaded[key] for key in wanted)
            return EvalSets(**{key: sets or () for key, sets in loaded.items()}) if is_whole else None
        if config.train or config.validation or config.cases or config.test:
            self.problems.add("data: is split into train, validation and test; give either data or the sets")
            return None
        cases = self._load(config.data, place="data")
        return None if cases is None else self.problems.attempt(lambda: _split(cases, config), place="data")

    def load_one(self, name: str) -> EvalSet | None:
        """Load the cases of one of the configuration's sets, or of a file."""
        if name not in (*_SETS, "cases", "test"):
            return self.problems.attempt(partial(load_eval_set, name))
        if self.config.cases and name in _SETS:
            name = "cases"
        sets = self.load() if self.config.data else None
        chosen = getattr(sets, name) if sets else self._load(getattr(self.config, name), place=name)
        if not chosen:
            if not self.problems.found:
                self.problems.add(f"{name}: is missing; name its eval set, or pass --eval-set FILE")
            return None
        return merge_eval_sets(chosen, name=name)

    def _check_scorer(self) -> EvalSets | None:
        """A run with a scorer has no sets. Adds those that are given to the problems."""
        given = [key for key in (*_SETS, "cases", "test", "data", "metrics") if getattr(self.config, key)]
        if given:
            self.problems.add(f"scorer: scores without cases and metrics; remove {join_names(given, limit=5)}")
        return None if given else EvalSets()

    def _choose_sets(self) -> tuple[str, ...]:
        """The keys of the sets to learn from and to validate on; none if some are missing or too many are given."""
        config = self.config
        if not config.cases and "cases" not in self.problems.parsed.broken:
            wanted = "name its eval set, or give `cases` to use one set for both, or `data` to split"
            given = [self.problems.require(key, wanted=wanted) for key in _SETS]
            return _SETS if all(given) else ()
        if config.train or config.validation:
            self.problems.add("cases: are used as train and validation set; give either cases or the two sets")
            return ()
        return ("cases",) if config.cases else ()

    def _load(self, files: Iterable[Path], *, place: str) -> tuple[EvalSet, ...] | None:
        loaded = [self.problems.attempt(partial(load_eval_set, file), place=place) for file in files]
        sets = tuple(each for each in loaded if each is not None)
        return sets if len(sets) == len(loaded) else None


def _split(cases: tuple[EvalSet, ...], config: RunConfig) -> EvalSets:
    shares = config.split
    whole = merge_eval_sets(cases, name="data")
    parts = split(whole, train=shares.train, validation=shares.validation, test=shares.test, seed=shares.seed)
    test = (parts.test,) if parts.test.cases else ()
    return EvalSets(train=(parts.train,), validation=(parts.validation,), test=test)
