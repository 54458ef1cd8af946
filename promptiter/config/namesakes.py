"""Refuses the modules of a project that have the names of another project's: a process has one module of each name.

Without this, the agent of the second project of a server would import the helpers of the first.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from promptiter.errors import SetupError
from promptiter.references import is_reference
from traces.model import Json


def claim_modules(module: str, folders: Iterable[Path]) -> None:
    """Note a module that is about to be imported, with what it imports from the folders of its project.

    Raises SetupError if another project has a module of the same name. Imports in functions count, too; those by a name
    that is computed are not seen.
    """
    folders = tuple(folder.resolve() for folder in folders)
    own = _projects.get(module, {})
    if not _is_imported(module, own) or own[module] != _find_first(module, folders):
        own = _list_modules(module, folders)
    _folders.update(folders)
    for name, file in own.items():
        imported = _find_imported(name)
        if imported not in (None, file) and (name == module or _find_root(name) in _folders):
            raise SetupError(
                f"the module {name!r} was already imported from {imported}; {file} has the same name, {_ADVICE}"
            )
        for other, modules in _projects.items():
            if _is_imported(other, modules) and modules.get(name, file) != file:
                raise SetupError(
                    f"{other!r} imports the module {name!r} from {modules[name]}; {file} has the same name, {_ADVICE}"
                )
    if own:
        _projects[module] = own


_ADVICE = "so rename one of them, or use a process for each"
_projects: dict[str, Mapping[str, Path]] = {}
"""The files of the modules that each module needs, by their full names."""
_folders: set[Path] = set()
"""The folders of all projects."""


def refuse_namesake(module: str, folders: Iterable[Path]) -> None:
    """Raise SetupError if another module of this name was imported, such as the agent of another configuration."""
    imported = _find_imported(module)
    meant = _find_first(module, tuple(folder.resolve() for folder in folders))
    if None not in (imported, meant) and imported != meant:
        raise SetupError(
            f"the module {module!r} was already imported from {imported}; {meant} has the same name, {_ADVICE}"
        )


def list_references(value: Json) -> Iterator[str]:
    """The `module:attr` in a document."""
    if isinstance(value, str) and is_reference(value):
        yield value
    elif isinstance(value, Mapping | list):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from list_references(each)


def _is_imported(module: str, modules: Mapping[str, Path]) -> bool:
    """Whether the module that a project begins with is the one that is imported."""
    return module in modules and _find_imported(module) == modules[module]


def _find_imported(name: str) -> Path | None:
    file = getattr(sys.modules.get(name), "__file__", None)
    return None if file is None else Path(file).resolve()


def _find_root(name: str) -> Path | None:
    """The folder of sys.path from which a module was imported."""
    file = _find_imported(name)
    if file is None:
        return None
    place = file.parent if file.stem == "__init__" else file
    return place.parents[name.count(".")]


def _list_modules(module: str, folders: tuple[Path, ...]) -> dict[str, Path]:
    """The modules of the folders that a module needs, itself first, with their files."""
    found: dict[str, Path] = {}
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        waiting += [name.rpartition(".")[0]] if "." in name else []
        file = _find_first(name, folders)
        if file is not None:
            found[name] = file
            waiting += _list_imports(file, name)
    return found


def _find_first(module: str, folders: tuple[Path, ...]) -> Path | None:
    """The file that a module has in the first of the folders that have one."""
    return next((file for folder in folders if (file := _find_file(folder, module)) is not None), None)


def _find_file(folder: Path, module: str) -> Path | None:
    place = folder.joinpath(*module.split("."))
    return next((each for each in (place / "__init__.py", place.with_suffix(".py")) if each.is_file()), None)


def _list_imports(file: Path, module: str) -> Iterator[str]:
    """The full names of what a file imports. What is imported from a module may be a module, too."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return  # the import itself says what is wrong
    parts = module.split(".")
    package = parts if file.name == "__init__.py" else parts[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            if base:
                yield base
            yield from (f"{base}.{each.name}".removeprefix(".") for each in node.names)
