"""Candidates as agent.yaml files: the baseline's file with the values of a profile in place, comments and all.

A prompt that is in a file of its own gets a new file in `instructions/`, which the candidate names. All other paths
stay as they are: a candidate in the folder of a run is read as if it were beside the project's agent.yaml.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from promptiter.errors import SetupError
from promptiter.profile import Profile
from promptiter.sources.field import join_path
from promptiter.sources.yaml_field import YamlField
from promptiter.structure import StructureSnapshot
from traces.files import write_file
from traces.model import Json

INSTRUCTIONS = ("instructions", "file")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentYaml:
    """The baseline's file. `fields` are the keys of surfaces in it; `prompt` is the surface with a file of its own.

    `prefix` is the provider that the name of a model begins with here, but not in the file.
    """

    file: Path
    text: str
    fields: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    prompt: str | None = None
    prefix: str = ""


def write_candidate(
    baseline: AgentYaml, profile: Profile, structure: StructureSnapshot, *, at: Path, prompts: dict[str, Path]
) -> Path | None:
    """Write a candidate as `candidates/iter-NN.yaml`, and its prompt if it has a new one. Returns the prompt's file.

    `prompts` are the files of prompts by text; a new one is added.
    """
    text, prompt_file = baseline.text, None
    for surface in structure.surfaces:
        value = profile.value(surface.id, structure)
        if value == surface.value:
            continue
        if surface.id == baseline.prompt:
            prompt_file = prompts.setdefault(
                str(value), at.parent.parent / "instructions" / f"system-prompt.{at.stem}.md"
            )
            write_file(prompt_file, str(value).encode("utf-8", "replace"))
            text = set_field(text, INSTRUCTIONS, f"../instructions/{prompt_file.name}")
        elif surface.id in baseline.fields:
            if surface.type == "model" and isinstance(value, str):
                value = value.removeprefix(baseline.prefix)
            text = set_field(text, baseline.fields[surface.id], value)
    write_file(at, text.encode("utf-8", "replace"))
    return prompt_file


def set_field(text: str, names: tuple[str, ...], value: Json) -> str:
    """A YAML text with another value in a field. If the field is not there yet, it gets a line of its own."""
    for changed in (text, _add_line(text, names)):
        try:
            return YamlField(join_path(names)).replace(changed, value)
        except SetupError:
            continue
    return _add_field(text, names, value)


def _add_line(text: str, names: tuple[str, ...]) -> str:
    """A YAML text with a new key: below the first one of its mapping with a value on its line, or in its braces."""
    import yaml

    place = yaml.compose(text, Loader=yaml.SafeLoader)
    for name in names[:-1]:
        if isinstance(place, yaml.SequenceNode):
            place = place.value[int(name)]
        else:
            place = next((each for key, each in getattr(place, "value", ()) if key.value == name), None)
    if not isinstance(place, yaml.MappingNode) or not place.value:
        return text
    if place.flow_style:
        end = place.value[-1][1].end_mark.index
        return f"{text[:end]}, {names[-1]}: 0{text[end:]}"
    for key, each in place.value:
        if isinstance(each, yaml.ScalarNode) and each.start_mark.line == each.end_mark.line == key.start_mark.line:
            lines = text.splitlines(keepends=True)
            lead = "" if lines[key.start_mark.line].endswith("\n") else "\n"
            lines.insert(key.start_mark.line + 1, f"{lead}{' ' * key.start_mark.column}{names[-1]}: 0\n")
            return "".join(lines)
    return text


def _add_field(text: str, names: tuple[str, ...], value: Json) -> str:
    """A YAML text with a new field, written anew without its comments."""
    import yaml

    document = yaml.safe_load(text)
    place: Json = document
    for name in names[:-1]:
        place = place[int(name)] if isinstance(place, list) else place.setdefault(name, {})
    place[names[-1]] = value
    written: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)
    return written


def link(path: Path, target: Path) -> None:
    """Let a symbolic link point to a file of the same folder or below, replacing the old one at once."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.part")
    scratch.unlink(missing_ok=True)
    scratch.symlink_to(target.relative_to(path.parent))
    scratch.replace(path)
