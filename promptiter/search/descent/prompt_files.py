"""The user's own prompts of critic and applier: a text file, or a YAML file of a subagent (`instructions.inline`)."""

from __future__ import annotations

from pathlib import Path

from promptiter.errors import SetupError


def read_prompt(path: str | None, name: str) -> str | None:
    """The prompt of a file; None without a file. `name` is that of the option, for messages."""
    if path is None:
        return None
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"{name}: cannot read {path!r}: {error}; give a text file") from error
    return _read_instructions(text, path, name) if path.endswith((".yaml", ".yml")) else text


def _read_instructions(text: str, path: str, name: str) -> str:
    import yaml

    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SetupError(f"{name}: {path!r} is not valid YAML: {' '.join(str(error).split())}") from error
    block = document.get("instructions") if isinstance(document, dict) else None
    found = block.get("inline") if isinstance(block, dict) else None
    if not isinstance(found, str) or not found.strip():
        raise SetupError(f"{name}: {path!r} has no instructions.inline; write the prompt there")
    return found
