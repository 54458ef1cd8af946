"""The descriptions of the keys of a file: the docstrings of the fields of its sections."""

from __future__ import annotations

import ast
import inspect
from itertools import pairwise
from textwrap import dedent
from typing import cast

from pydantic import BaseModel


def read_descriptions(section: type[BaseModel]) -> dict[str, str]:
    """The docstring of each field of a section, by its key in the file. Those of the section it extends come first."""
    [base, *_] = section.__bases__
    texts = read_descriptions(base) if issubclass(base, BaseModel) and base.model_fields else {}
    [definition] = ast.parse(dedent(inspect.getsource(section))).body
    body = cast("ast.ClassDef", definition).body
    for field, after in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(after, ast.Expr):
            name = field.target.id
            key = section.model_fields[name].alias or name
            texts[key] = " ".join(str(cast("ast.Constant", after.value).value).split())
    return texts
