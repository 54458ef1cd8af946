"""References: objects by the name under which another process can import them, such as `my_agent:agent`."""

from __future__ import annotations

import re
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from importlib import import_module
from importlib.util import find_spec
from inspect import isclass, isroutine
from pathlib import Path
from types import ModuleType
from typing import Any

from promptiter.errors import SetupError, nearest

_importing: ContextVar[str | None] = ContextVar("importing", default=None)
_factories: dict[int, tuple[object, str]] = {}
_found: dict[int, tuple[weakref.ref[object], str | None]] = {}
"""What was looked for, by id: going through all modules takes some hundredths of a second."""


def is_reference(text: str) -> bool:
    """Whether a text is `module:attr` and not a model name, which may contain colons too: `ollama/llama3:8b`."""
    return re.fullmatch(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*(?:\.[^\W\d]\w*)*", text) is not None


def refuse_while_importing() -> None:
    """Raise SetupError if a module that was named is starting a run while it is imported, which would run it twice."""
    if (name := _importing.get()) is not None:
        raise SetupError(
            f"the module {name!r} starts a run when it is imported; start it under `if __name__ == '__main__':`"
        )


def load_reference(path: str, *, what: str = "") -> Any:
    """Import the object that `module:attr` names. SetupError if that fails, also by an error of the module itself.

    `what` it is, for messages whose place does not say it.
    """
    module_name, colon, attribute = path.partition(":")
    prefix = f"the {what} {path!r}: " if what else ""
    if not colon or not module_name or not attribute:
        raise SetupError(f"{path!r} must have the form module:attr, such as my_agent:agent")
    importing = _importing.set(module_name)
    try:
        found: Any = import_module(module_name)
    except Exception as error:
        reason = str(error) if isinstance(error, SetupError) else f"{type(error).__name__}: {error}"
        advice = ""
        if isinstance(error, ModuleNotFoundError):
            advice = "; run in the folder of the module, or name that folder as python_path in promptiter.yaml"
        raise SetupError(f"{prefix}cannot import {module_name!r}: {reason}{advice}") from error
    finally:
        _importing.reset(importing)
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise SetupError(f"{prefix}{module_name!r} has no {attribute!r}{nearest(part, dir(found))}") from error
    return found


def find_reference(item: object) -> str | None:
    """The `module:attr` that names an object in every process, or None if it has none.

    A function or class is found by its own name, any other object among the attributes of the imported modules.
    """
    if isclass(item) or isroutine(item):
        module, name = sys.modules.get(getattr(item, "__module__", None) or ""), item.__qualname__
        holder: Any = module
        for part in name.split("."):
            holder = getattr(holder, part, None)
        if module is None:
            return None
        if getattr(holder, "__wrapped__", None) is item:  # the name is that of its decorated form
            name = f"{name}.__wrapped__"
            holder = item
        return _name(module, name) if holder is item else None
    known, reference = _found.get(id(item), (None, None))
    if known is None or known() is not item:
        reference = next(_list_references(item), None)
        with suppress(TypeError):  # not every object can be watched
            _found[id(item)] = weakref.ref(item), reference
    return reference


def is_of_script(reference: str) -> bool:
    """Whether a reference names something in the module that this process was started with."""
    script = sys.modules.get("__main__")
    return script is not None and _name(script, "") == f"{reference.partition(':')[0]}:"


def _list_references(item: object) -> Iterator[str]:
    """List all references to an object. Those of the script come last: other processes may not execute all of it."""
    script = sys.modules.get("__main__")
    others = [module for module in list(sys.modules.values()) if module is not script]
    for module in others if script is None else [*others, script]:
        for name, value in list(getattr(module, "__dict__", {}).items()):  # sys.modules may hold any object
            if value is item and (reference := _name(module, name)) is not None:
                yield reference


def call_factory(factory: Callable[[], Any], *, what: str) -> Any:
    """Call a function without parameters that creates `what`, and note its `module:attr`. SetupError if it fails."""
    try:
        item = factory()
    except Exception as error:
        raise SetupError(f"{what} could not be created: {type(error).__name__}: {error}") from error
    if (importable := find_reference(factory)) is not None:
        _factories[id(item)] = (item, importable)
    return item


def find_factory(item: object) -> str | None:
    """The `module:attr` of the function that made an object, if it was noted."""
    made, reference = _factories.get(id(item), (None, None))
    return reference if made is item else None


def _name(module: ModuleType, attribute: str) -> str | None:
    """The reference to an attribute; None if other processes cannot import its module."""
    spec = getattr(module, "__spec__", None)
    if spec is not None:
        return f"{spec.name}:{attribute}"
    file = getattr(module, "__file__", None)
    name = Path(file or "").stem
    if module is not sys.modules.get("__main__") or file is None or not name.isidentifier():
        return None
    script = find_spec(name)  # in the first folder of sys.path
    is_same = script is not None and script.origin is not None and Path(script.origin).samefile(file)
    return f"{name}:{attribute}" if is_same else None
