"""The roles of parts of a run: searches, stages, observers, reviewers, executors; and a check that a part fits one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from promptiter.errors import SetupError, nearest
from promptiter.references import is_reference, load_reference
from promptiter.registry import EXECUTORS, OBSERVERS, SEARCHES, Registry
from promptiter.signatures import find_misfit
from promptiter.wording import shorten


@dataclass(frozen=True, slots=True)
class Role:
    """What a part does: its name, its method with the names of the arguments, and where its names are registered."""

    name: str
    method: str
    arguments: tuple[str, ...]
    registry: Registry[Any] | None = None
    is_async: bool = False

    def load(self, name: str) -> Any:
        """What a name refers to: a class, a function that builds the part, or the part itself."""
        return load_reference(name) if self.registry is None else self.registry.get(name)

    def describe(self) -> str:
        """How its method is defined."""
        return f"{'async ' * self.is_async}def {self.method}({', '.join(('self', *self.arguments))})"

    def describe_need(self, part: object = None) -> str:
        """`a search: it needs ...`, for a part that is not one."""
        methods = [name for name in dir(part) if not name.startswith("_")]
        return f"{self.with_article}: it needs `{self.describe()}`{nearest(self.method, methods)}"

    @property
    def with_article(self) -> str:
        return f"an {self.name}" if self.name[0] in "aeiou" else f"a {self.name}"


SEARCH = Role("search", "search", ("session",), SEARCHES, is_async=True)
OBSERVER = Role("observer", "observe", ("event",), OBSERVERS)
REVIEWER = Role("reviewer", "review", ("request",))
EXECUTOR = Role("executor", "run", ("jobs", "host"), EXECUTORS)
STAGES = {
    name: Role(name, method, ("request",))
    for name, method in (
        ("backwarder", "backward"),
        ("attributor", "attribute"),
        ("aggregator", "aggregate"),
        ("optimizer", "optimize"),
        ("corrector", "correct"),
        ("critic", "diagnose"),
        ("applier", "apply"),
    )
}


def check_stages(*, backwarder: object, aggregator: object, optimizer: object) -> None:
    """Raise SetupError if a stage does not fit its role. An attributor may take the place of the backwarder."""
    if backwarder is not None:
        is_attributor = callable(getattr(backwarder, "attribute", None))
        check_part(backwarder, STAGES["attributor" if is_attributor else "backwarder"])
    if aggregator is not None:
        check_part(aggregator, STAGES["aggregator"])
    if optimizer is not None:
        check_part(optimizer, STAGES["optimizer"])


def check_part(part: object, role: Role) -> None:
    """Raise SetupError if a part lacks the method of a role, or its method takes other arguments or is not async."""
    if not has_method(part, role.method):
        raise SetupError(_describe_wrong_part(part, role))
    method: Callable[..., Any] = getattr(part, role.method)
    name = f"{type(part).__name__}.{role.method}"
    if problem := find_misfit(method, *role.arguments):
        raise SetupError(f"{name} does not fit: {problem}; define it as `{role.describe()}`")
    if role.is_async and not _is_async(inspect.unwrap(method)):
        raise SetupError(f"{name} is not async; define it as `{role.describe()}`")


def has_method(part: object, method: str) -> bool:
    return not isinstance(part, type) and callable(getattr(part, method, None))


def _is_async(method: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(method) or inspect.iscoroutinefunction(type(method).__call__)


def _describe_wrong_part(part: object, role: Role) -> str:
    if isinstance(part, type) and hasattr(part, role.method):
        return f"{part.__name__} is a class, not {role.with_article}; create an object of it: {part.__name__}(...)"
    if isinstance(part, str) and role in STAGES.values() and not is_reference(part):
        return f"{part!r} is not {role.with_article}; give LLM{role.name.capitalize()}({part!r})"
    for other in (*STAGES.values(), SEARCH):
        if has_method(part, other.method):
            return f"{shorten(part)} is {other.with_article}, not {role.with_article}; give it as {other.name}="
    return f"{shorten(part)} is not {role.describe_need(part)}"
