"""Python literals: a value in the source of a Python module. Only the literal changes, and nothing is imported.

A path names a literal by what holds it: `PLANNER`, `Planner.prompt`, `agent.nodes.0.instruction`,
`planner.@agent.instruction` for the argument of a decorator, `planner.__doc__`. If something is there twice, the second
one is `PLANNER~2`.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from promptiter.errors import SetupError, nearest
from promptiter.sources.field import is_same, join_path
from promptiter.sources.python_text import list_string_tokens, parse_python, write_strings, write_value
from promptiter.sources.whitespace import refit
from promptiter.wording import shorten
from traces.model import Json

_READERS: dict[str, Callable[[str], str]] = {
    "dedent": textwrap.dedent,
    "cleandoc": inspect.cleandoc,
    "strip": str.strip,
    "lstrip": str.lstrip,
    "rstrip": str.rstrip,
}


@dataclass(frozen=True, slots=True)
class PythonLiteral:
    """A literal of a Python module: text, a number, true, false, none, or a list or dict of them."""

    path: str

    @property
    def name(self) -> str:
        return f":{self.path}"

    def read(self, text: str) -> Json:
        value, _ = _evaluate(self._find(_parse(text)).node)
        return value

    def replace(self, text: str, value: Json) -> str:
        tree = _parse(text)
        place = self._find(tree)
        _evaluate(place.node)  # refuses what is not a literal
        literal, readers = place.peel()
        start, end = _find_span(text, literal)
        old = text[start:end]
        written = _write_text(old, literal, readers, value) if isinstance(value, str) else write_value(old, value)
        changed = text[:start] + written + text[end:]
        again = _parse(changed)
        found = self._find(again)
        if not is_same(_evaluate(found.node)[0], value) or _dump_without(again, found) != _dump_without(tree, place):
            raise SetupError("Python source cannot hold this value here; change it by hand")
        return changed

    def _find(self, tree: ast.Module) -> Expression:
        places = dict(list_expressions(tree))
        if self.path not in places:
            raise SetupError(
                f"there is no {self.path!r} in this module{nearest(self.path, places)}; name what holds the literal, "
                "such as PROMPT or Planner.prompt"
            )
        return places[self.path]


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression, and the field of the syntax tree that holds it."""

    node: ast.expr
    parent: ast.AST
    field: str
    index: int | None

    def peel(self) -> tuple[ast.expr, list[Callable[[str], str]]]:
        """The literal in calls such as `textwrap.dedent(...)`, and their functions, the first one first."""
        node = self.node
        readers: list[Callable[[str], str]] = []
        while (inner := _find_inner(node)) is not None:
            node, reader = inner
            readers.insert(0, reader)
        return node, readers


def list_expressions(tree: ast.Module) -> Iterator[tuple[str, Expression]]:
    """All expressions of a module that may be literals, by path."""
    seen: Counter[str] = Counter()
    for names, expression in _walk(tree, ()):
        path = join_path(names)
        seen[path] += 1
        yield (path if seen[path] == 1 else f"{path}~{seen[path]}"), expression


def list_strings(text: str) -> Iterator[tuple[str, str]]:
    """The path and the value of every string literal of a module, also of those that cannot be replaced."""
    try:
        tree = _parse(text)
    except SetupError:
        return
    for path, expression in list_expressions(tree):
        try:
            value, _ = _evaluate(expression.node)
        except SetupError:
            value = _fold(expression.node)
        if isinstance(value, str):
            yield path, value


def _parse(text: str) -> ast.Module:
    try:
        return parse_python(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise SetupError(f"the file is not valid Python: {error}") from error


def _walk(node: ast.AST, names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Expression]]:
    """All expressions below a node, with the names that lead to them, in the order of the source."""
    for field, value in ast.iter_fields(node):
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(child, ast.AST):
                continue
            inner = (*names, *_name_child(node, field, index, child))
            if isinstance(child, ast.expr) and _is_value(node, field):
                yield inner, Expression(child, node, field, index)
                if _find_inner(child) is not None or isinstance(child, ast.JoinedStr):
                    continue
            yield from _walk(child, inner)


def _is_value(node: ast.AST, field: str) -> bool:
    """Whether a field holds values, not what is compared, a function, the target of an assignment or an annotation."""
    if isinstance(node, ast.Compare | ast.MatchValue):
        return False
    return field not in ("func", "target", "targets", "annotation", "returns", "keys", "slice")


def _name_child(node: ast.AST, field: str, index: int | None, child: ast.AST) -> tuple[str, ...]:
    """The names that a child adds to the path."""
    match node, child:
        case ((ast.Module() | ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef()), ast.Expr()) if (
            field == "body" and index == 0 and isinstance(child.value, ast.Constant)
        ):
            return ("__doc__",)
        case ast.Assign(targets=[target, *_]), _ if field == "value":
            return _name_target(target)
        case ((ast.AnnAssign(target=target) | ast.NamedExpr(target=target) | ast.AugAssign(target=target)), _) if (
            field == "value"
        ):
            return _name_target(target)
        case _, (ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef()):
            return (child.name,)
        case _, ast.keyword(arg=str(name)):
            return (name,)
        case ((ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef()), _) if field == "decorator_list":
            function = child.func if isinstance(child, ast.Call) else child
            return (f"@{_name_target(function)[-1]}",) if _name_target(function) else ()
        case ast.Call(), _ if field == "args":
            return (str(index),)
        case ((ast.List() | ast.Tuple()), _) if field == "elts":
            return (str(index),)
        case ast.Dict(keys=keys), _ if field == "values" and index is not None:
            key = keys[index]
            return (str(key.value),) if isinstance(key, ast.Constant) and str(key.value) else (str(index),)
        case ast.arguments(), _ if field in ("defaults", "kw_defaults") and index is not None:
            return (_name_default(node, field, index),)
        case ast.Expr(), ast.Call(func=function) if _name_target(function):
            return (_name_target(function)[-1],)
    return ()


def _name_target(target: ast.AST) -> tuple[str, ...]:
    match target:
        case ast.Name(id=name):
            return (name,)
        case ast.Attribute(value=inner, attr=name):
            return (*_name_target(inner), name)
        case ast.Subscript(value=inner, slice=ast.Constant(value=key)) if str(key):
            return (*_name_target(inner), str(key))
    return ()


def _name_default(node: ast.arguments, field: str, index: int) -> str:
    if field == "kw_defaults":
        return node.kwonlyargs[index].arg
    positional = [*node.posonlyargs, *node.args]
    return positional[len(positional) - len(node.defaults) + index].arg


def _find_inner(node: ast.expr) -> tuple[ast.expr, Callable[[str], str]] | None:
    """What is inside of `textwrap.dedent(...)` or `(...).strip()`, if that is a literal, and the function."""
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[inner], keywords=[]) if name in (
            "dedent",
            "cleandoc",
        ):
            pass
        case ast.Call(func=ast.Attribute(value=inner, attr=name), args=[], keywords=[]) if name.endswith("strip"):
            pass
        case _:
            return None
    is_literal = isinstance(inner, ast.Constant) and isinstance(inner.value, str)
    if name not in _READERS or not (is_literal or _find_inner(inner) is not None):
        return None
    return inner, _READERS[name]


def _evaluate(node: ast.expr) -> tuple[Json, ast.expr]:
    """The value of a literal. SetupError says what else it is, and what to do."""
    if (inner := _find_inner(node)) is not None:
        value, literal = _evaluate(inner[0])
        return inner[1](str(value)), literal
    if isinstance(node, ast.JoinedStr):
        raise SetupError("the value is an f-string; write it as a plain string, and fill it in with str.format")
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError) as error:
        what = {ast.BinOp: "a concatenation or another operation", ast.Call: "a call", ast.Name: "a variable"}
        found = what.get(type(node), "an expression")
        raise SetupError(
            f"the value is {found}, not a literal; write it as one plain string, or name its place"
        ) from error
    return _to_json(value), node


def _to_json(value: object) -> Json:
    if isinstance(value, list | tuple):
        return [_to_json(each) for each in value]
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return {name: _to_json(each) for name, each in value.items()}
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise SetupError(f"the value is {shorten(value)}, which JSON cannot hold; name another place")


def _fold(node: ast.expr) -> str | None:
    """The text of a concatenation or f-string of literals, if it can be known."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            parts: Sequence[ast.expr] = (left, right)
        case ast.JoinedStr(values=values):
            parts = values
        case _:
            return None
    texts = [_fold(each) for each in parts]
    return None if None in texts else "".join(each for each in texts if each is not None)


def _write_text(old: str, literal: ast.expr, readers: Sequence[Callable[[str], str]], value: str) -> str:
    if not (isinstance(literal, ast.Constant) and isinstance(literal.value, str)):
        return write_value(old, value)

    def read(text: str) -> str:
        for each in readers:
            text = each(text)
        return text

    stored = refit(literal.value, value, [read]) if readers else value
    if stored is None:
        raise SetupError("the functions around the literal do not return this value; change it by hand")
    return write_strings(list_string_tokens(old), old, stored)


def _find_span(text: str, node: ast.expr) -> tuple[int, int]:
    """The position of a node in the text. Positions in the syntax tree are lines, and bytes in a line."""
    lines = _split_lines(text)

    def locate(line: int, column: int) -> int:
        before = sum(map(len, lines[: line - 1]))
        return before + len(lines[line - 1].encode()[:column].decode())

    return locate(node.lineno, node.col_offset), locate(node.end_lineno or 0, node.end_col_offset or 0)


def _split_lines(text: str) -> list[str]:
    """The lines as Python counts them: a form feed or U+2028 does not end one."""
    lines, start = [], 0
    for at, character in enumerate(text):
        if character == "\n" or (character == "\r" and text[at + 1 : at + 2] != "\n"):
            lines.append(text[start : at + 1])
            start = at + 1
    return [*lines, text[start:]]


def _dump_without(tree: ast.Module, place: Expression) -> str:
    """The syntax tree, written down, without one literal. The tree is not used afterwards."""
    literal, _ = place.peel()
    if isinstance(literal, ast.Constant):
        literal.value, literal.kind = None, None
        return ast.dump(tree)
    here = ast.Constant(value=None)
    if place.index is None:
        setattr(place.parent, place.field, here)
    else:
        getattr(place.parent, place.field)[place.index] = here
    return ast.dump(tree)
