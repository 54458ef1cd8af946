"""Criteria of texts, JSON and tool calls, as configuration files say them."""

from __future__ import annotations

from typing import get_args

from promptiter.errors import MetricError
from promptiter.evaluation.metrics.config_fields import Fields
from promptiter.evaluation.metrics.json_match import DEFAULT_NUMBER_TOLERANCE, JsonCriterion
from promptiter.evaluation.metrics.text_match import (
    NumberChoice,
    NumericCriterion,
    RougeCriterion,
    RougeType,
    TextCriterion,
    TextMatch,
)
from promptiter.evaluation.metrics.trajectory import ToolCriterion, TrajectoryCriterion


def read_text(fields: Fields) -> TextCriterion:
    match = fields.choice("match", get_args(TextMatch), default="exact")
    length = fields.object("length") or fields.at("length", {})
    minimum, maximum = length.optional_integer("min", minimum=0), length.optional_integer("max", minimum=0)
    length.close()
    return read_fixed_text(fields, match=match, min_length=minimum, max_length=maximum)


def read_fixed_text(
    fields: Fields, *, match: TextMatch, min_length: int | None = None, max_length: int | None = None
) -> TextCriterion:
    case_insensitive, ignore = fields.flag("case_insensitive"), fields.flag("ignore")
    expected = fields.text("expected")
    fields.close()
    with fields.naming_place():
        return TextCriterion(
            match=match,
            case_insensitive=case_insensitive,
            min_length=min_length,
            max_length=max_length,
            ignore=ignore,
            expected=expected,
        )


def read_json(fields: Fields) -> JsonCriterion:
    fields.choice("match", ("exact",), default="exact")
    ignore_tree, only_tree = fields.tree("ignore_tree"), fields.tree("only_tree")
    tolerance = fields.number("number_tolerance", default=DEFAULT_NUMBER_TOLERANCE, minimum=0)
    schema, ignore = fields.tree("schema"), fields.flag("ignore")
    fields.close()
    with fields.naming_place():
        return JsonCriterion(
            ignore_tree=ignore_tree, only_tree=only_tree, number_tolerance=tolerance, schema=schema, ignore=ignore
        )


def read_rouge(fields: Fields) -> RougeCriterion:
    spelled = fields.text("type") or "rouge1"
    known: dict[str, RougeType] = {name.lower(): name for name in get_args(RougeType)}
    kind = known.get(spelled.lower().replace("-", "").replace("_", ""))
    if kind is None:
        raise MetricError(f"{fields.place}.type: is {spelled!r}; known are rouge-1, rouge-2, rouge-L")
    threshold = fields.number("threshold", default=1.0)
    fields.close()
    return RougeCriterion(type=kind, threshold=threshold)


def read_numeric(fields: Fields) -> NumericCriterion:
    criterion = NumericCriterion(
        which=fields.choice("which", get_args(NumberChoice), default="last"),
        tolerance=fields.number("tolerance", default=0.0, minimum=0),
        relative_tolerance=fields.number("relative_tolerance", default=0.0, minimum=0),
        expected=fields.optional_number("expected"),
    )
    fields.close()
    return criterion


def read_trajectory(fields: Fields) -> TrajectoryCriterion:
    given = fields.object("default")
    default = _tool(given, ToolCriterion()) if given else ToolCriterion()
    overrides = fields.object("overrides") or fields.at("overrides", {})
    by_tool = {}
    for name in overrides.names():
        by_tool[name] = _tool(overrides.at(name, overrides.take(name, any_spelling=False)), default)
    order_sensitive, subset_matching = fields.flag("order_sensitive"), fields.flag("subset_matching")
    fields.close()
    return TrajectoryCriterion(
        default=default, overrides=by_tool, order_sensitive=order_sensitive, subset_matching=subset_matching
    )


def _tool(fields: Fields, otherwise: ToolCriterion) -> ToolCriterion:
    name, arguments, result = fields.object("name"), fields.object("arguments"), fields.object("result")
    fields.close()
    return ToolCriterion(
        name=read_text(name) if name else otherwise.name,
        arguments=read_json(arguments) if arguments else otherwise.arguments,
        result=read_json(result) if result else otherwise.result,
    )
