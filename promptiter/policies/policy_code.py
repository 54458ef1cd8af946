"""Acceptance policies from the code that describes them: a run records `AnyGain() & NoRegression()` as this text."""

from __future__ import annotations

import ast

from promptiter.errors import SetupError
from promptiter.policies.acceptance import AcceptancePolicy, AllOf, AnyGain, AnyOf, MinGain, NoRegression, Protected
from promptiter.policies.constraints import Constraint, TieBreak
from promptiter.policies.non_inferiority import NonInferior
from promptiter.policies.sigma_gain import SigmaGain

_POLICIES: dict[str, type[AcceptancePolicy]] = {
    each.__name__: each
    for each in (
        AnyGain,
        Constraint,
        MinGain,
        NoRegression,
        NonInferior,
        Protected,
        SigmaGain,
        TieBreak,
    )
}


def parse_acceptance(code: str) -> AcceptancePolicy:
    """Return the policy that such code creates. SetupError if it names others than those of promptiter."""
    try:
        return _build(ast.parse(code, mode="eval").body)
    except (SyntaxError, ValueError, TypeError, KeyError) as error:
        raise SetupError(
            f"the acceptance policy {code!r} cannot be created from its description; pass the policy itself"
        ) from error


def _build(node: ast.expr) -> AcceptancePolicy:
    match node:
        case ast.BinOp(left=left, op=ast.BitAnd(), right=right):
            return AllOf(_build(left), _build(right))
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return AnyOf(_build(left), _build(right))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            named = {str(each.arg): ast.literal_eval(each.value) for each in keywords}
            return _POLICIES[name](*map(ast.literal_eval, args), **named)
        case _:
            raise ValueError(ast.dump(node))
