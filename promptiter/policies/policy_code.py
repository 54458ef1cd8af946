"""Policies from the code that describes them: a run records `AnyGain() & NoRegression()` as this text."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

from promptiter.errors import SetupError
from promptiter.policies.acceptance import AcceptancePolicy, AllOf, AnyGain, AnyOf, MinGain, NoRegression, Protected
from promptiter.policies.constraints import Constraint, TieBreak
from promptiter.policies.figure_gain import Bound, FigureGain
from promptiter.policies.non_inferiority import NonInferior
from promptiter.policies.sigma_gain import SigmaGain
from promptiter.policies.stop_limits import Deadline, MaxCalls, MaxEvaluations, MaxFailures, MaxTokens, MaxUsd
from promptiter.policies.stopping import (
    MaxRounds,
    Patience,
    RequiredMetrics,
    StopFile,
    StopOnAll,
    StopOnAny,
    StopPolicy,
    TargetScore,
    UserStop,
)

P = TypeVar("P")
_Types = Mapping[str, Callable[..., Any]]


def _by_name(types: Iterable[type]) -> _Types:
    return {each.__name__: each for each in types}


_ACCEPTANCE = _by_name(
    (
        *(AnyGain, Bound, Constraint, FigureGain, MinGain),
        *(NoRegression, NonInferior, Protected, SigmaGain, TieBreak),
    )
)
_STOP = _by_name(
    (
        *(Deadline, MaxCalls, MaxEvaluations, MaxFailures, MaxRounds, MaxTokens, MaxUsd),
        *(Patience, RequiredMetrics, StopFile, TargetScore, UserStop),
    )
)


def parse_acceptance(code: str) -> AcceptancePolicy:
    """Return the policy that such code creates. SetupError if it names others than those of promptiter."""
    return cast("AcceptancePolicy", _parse(code, "acceptance policy", _ACCEPTANCE, AllOf, AnyOf))


def parse_stop(code: str) -> StopPolicy:
    """Return the stop policy that such code creates. SetupError if it names others than those of promptiter."""
    return cast("StopPolicy", _parse(code, "stop policy", _STOP, StopOnAll, StopOnAny))


def _parse(code: str, what: str, types: _Types, on_all: Callable[..., P], on_any: Callable[..., P]) -> P:
    def build(node: ast.expr) -> P:
        match node:
            case ast.BinOp(left=left, op=ast.BitAnd(), right=right):
                return on_all(build(left), build(right))
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                return on_any(build(left), build(right))
            case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
                named = {str(each.arg): ast.literal_eval(each.value) for each in keywords}
                return cast("P", types[name](*map(ast.literal_eval, args), **named))
            case _:
                raise ValueError(ast.dump(node))

    try:
        return build(ast.parse(code, mode="eval").body)
    except (SyntaxError, ValueError, TypeError, KeyError) as error:
        raise SetupError(
            f"the {what} {code!r} cannot be created from its description; give one of {', '.join(sorted(types))}, "
            "or several joined by & and |, or pass the policy itself in Python"
        ) from error
