"""gate.yaml: the rules of a release gate."""

from __future__ import annotations

from pathlib import Path

import yaml
from pydantic import ValidationError

from promptiter.errors import SetupError, nearest
from promptiter.runs.gate import GateRules


def load_rules(file: Path) -> GateRules:
    """Load the rules; SetupError says what is wrong, and in which key."""
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SetupError(f"{file}: cannot be read: {error}") from error
    if not isinstance(document, dict) or not document:
        raise SetupError(f"{file}: is empty; give rules, such as `min_gain: 0.02`")
    try:
        return GateRules.model_validate(document)
    except ValidationError as error:
        raise SetupError("\n".join(f"{file}: {_describe(each)}" for each in error.errors())) from error


def _describe(error: object) -> str:
    found = dict(error) if isinstance(error, dict) else {}
    path = ".".join(str(each) for each in found.get("loc", ()))
    if found.get("type") == "extra_forbidden":
        known = sorted(GateRules.model_fields)
        return f"{path} is not a rule; known are {', '.join(known)}{nearest(path, known)}"
    return f"{path}: {found.get('msg', 'is invalid')}"
