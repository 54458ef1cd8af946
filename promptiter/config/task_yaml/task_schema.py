"""The JSON Schema of task.yaml, shipped as task.schema.json. `make schema` generates it again."""

from __future__ import annotations

import inspect
from importlib.resources import files
from pathlib import Path

import orjson

from promptiter.config.descriptions import read_descriptions
from promptiter.config.task_yaml import sections
from promptiter.config.task_yaml.sections import TaskFile
from promptiter.user_files import FileObject

FILE_NAME = "task.schema.json"


def read_task_schema() -> bytes:
    """The schema as it was shipped."""
    return files(__package__).joinpath(FILE_NAME).read_bytes()


def build_task_schema() -> bytes:
    """Generate the schema. Keys have the descriptions of their fields."""
    schema = TaskFile.model_json_schema()
    known = {**schema["$defs"], TaskFile.__name__: schema}
    for name, section in inspect.getmembers(sections, inspect.isclass):
        if name not in known or not issubclass(section, FileObject):
            continue
        for key, text in read_descriptions(section).items():
            known[name]["properties"][key]["description"] = text
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "task.yaml"}
    return orjson.dumps(whole, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


if __name__ == "__main__":
    (Path(__file__).parent / FILE_NAME).write_bytes(build_task_schema())
