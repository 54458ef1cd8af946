"""Registries of metrics, searches, models and stages, by name or as `module:attr`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar, cast

from promptiter.errors import SetupError, UnknownNameError
from promptiter.references import load_reference

T = TypeVar("T")


class Registry(Generic[T]):
    """Items of one kind by name: registered here, an entry point of an installed package, or `module:attr`.

    `built_in` are promptiter's own items as `module:attr`, so that a low layer can use what a higher one defines.
    """

    def __init__(
        self, what: str, *, entry_point_group: str | None = None, built_in: Mapping[str, str] | None = None
    ) -> None:
        self.what = what
        self._entry_point_group = entry_point_group
        self._built_in = dict(built_in or {})
        self._items: dict[str, T] = {}

    def register(self, name: str, item: T) -> None:
        """Register an item. Raises SetupError if another item has the name."""
        if ":" in name:
            raise SetupError(f"the {self.what} name {name!r} contains a ':', which means module:attr; choose another")
        if name in self._built_in:
            raise SetupError(f"the {self.what} name {name!r} is taken by {self._built_in[name]!r}; choose another")
        if name in self._items and self._items[name] is not item:
            raise SetupError(f"the {self.what} name {name!r} is taken by {self._items[name]!r}; choose another")
        self._items[name] = item

    @property
    def built_in_names(self) -> tuple[str, ...]:
        """The names of promptiter's own items."""
        return tuple(sorted(self._built_in))

    def __contains__(self, name: str) -> bool:
        return name in self._items or name in self._built_in or name in self._list_installed()

    def names(self) -> tuple[str, ...]:
        """Return the known names, sorted."""
        return tuple(sorted({*self._items, *self._built_in, *self._list_installed()}))

    def get(self, name: str) -> T:
        """Return the item with this name, or raise UnknownNameError with the nearest known name."""
        return self.resolve([name])[name]

    def resolve(self, names: Iterable[str], *, also_known: Iterable[str] = ()) -> dict[str, T]:
        """Return the items of several names. One UnknownNameError lists all unknown names.

        `also_known` are names that the caller handles itself; they only appear in the error.
        """
        found: dict[str, T] = {}
        unknown: list[str] = []
        for name in dict.fromkeys(names):
            if name in self._items:
                found[name] = self._items[name]
            elif ":" in name:
                found[name] = self._import(name)
            elif name in self._built_in:
                found[name] = self._import(self._built_in[name])
            elif name in (installed := self._list_installed()):
                found[name] = self._import(installed[name])
            else:
                unknown.append(name)
        if unknown:
            raise UnknownNameError(self.what, unknown, known={*self.names(), *also_known})
        return found

    def _list_installed(self) -> dict[str, str]:
        """The items that installed packages offer. Only a name that is not known here is looked for among them."""
        if self._entry_point_group is None:
            return {}
        from importlib.metadata import entry_points

        return {point.name: point.value for point in entry_points(group=self._entry_point_group)}

    def _import(self, path: str) -> T:
        return cast("T", load_reference(path))


METRICS: Registry[Callable[..., Any]] = Registry("metric", entry_point_group="promptiter.metrics")
"""Custom metrics: a function `(case, run) -> score`, or a builder `(MetricConfig) -> Metric`."""

AGENTS: Registry[Callable[[], Any]] = Registry("agent", entry_point_group="promptiter.agents")
"""Agents: a function without parameters that returns an agent. `load_agent` calls it, as a worker process does."""

SEARCHES: Registry[Callable[..., Any]] = Registry(
    "search",
    entry_point_group="promptiter.searches",
    built_in={
        "backprop": "promptiter.search.rounds:BackpropRounds",
        "cheaper": "promptiter.search.cheaper:ModelDownsizing",
        "coordinate_descent": "promptiter.search.descent.search:CoordinateDescent",
        "edits": "promptiter.search.edits:EditSearch",
        "few_shot": "promptiter.search.few_shot:FewShotSearch",
        "fewer_tokens": "promptiter.search.shorter:PromptShortening",
        "gepa": "promptiter.search.gepa:GepaSearch",
        "gepa_reflective": "promptiter.search.gepa:GepaSearch",
        "learned_patches": "promptiter.tasks.learned_patches:LearnedPatches",
        "optuna": "promptiter.search.descent.numeric_search:OptunaSearch",
        "random": "promptiter.search.descent.numeric_search:RandomSearch",
    },
)
"""Search algorithms: a class or function that builds a Search. `cheaper` and `fewer_tokens` are for these goals,
`learned_patches` validates what `promptiter learn` wrote. `gepa_reflective` is another name of `gepa`."""

EXECUTORS: Registry[Callable[..., Any]] = Registry(
    "executor",
    entry_point_group="promptiter.executors",
    built_in={
        "local": "promptiter.evaluation.executor:LocalExecutor",
        "thread": "promptiter.evaluation.executor:ThreadExecutor",
        "process": "promptiter.evaluation.process_executor:ProcessExecutor",
    },
)
"""Where cases run: a class or function that builds an Executor."""

OBSERVERS: Registry[Callable[..., Any]] = Registry(
    "observer",
    entry_point_group="promptiter.observers",
    built_in={
        "jsonl": "promptiter.observers.jsonl:JsonlObserver",
        "mlflow": "promptiter.observers.mlflow:MlflowObserver",
        "opentelemetry": "promptiter.observers.opentelemetry:OpenTelemetryObserver",
        "tensorboard": "promptiter.observers.tensorboard:TensorboardObserver",
        "wandb": "promptiter.observers.wandb:WandbObserver",
    },
)
"""Watchers of a run: a class or function that builds an Observer."""

DEFAULT_MODEL = "simulated"
"""The model of a node that names none."""

MODELS: Registry[Any] = Registry("model", built_in={DEFAULT_MODEL: "promptiter.offline:SimulatedModel"})
"""Models that run in this process: a class with a `Settings` model, built with these settings."""

OFFLINE_STAGES: Registry[Callable[..., Any]] = Registry(
    "stage",
    built_in={
        "attributor": "promptiter.offline:EvidenceAttributor",
        "optimizer": "promptiter.offline:RuleOptimizer",
        "corrector": "promptiter.offline:ReferenceCorrector",
        "lost_values": "promptiter.offline:find_values_lost_earlier",
    },
)
"""Stages that need no model, by role; the defaults of stages that are left out."""
