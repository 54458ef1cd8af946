"""Fields: reading one object of a configuration file key by key, with errors that name the place."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal, TypeVar, cast, overload

from promptiter.errors import MetricError, nearest
from promptiter.evaluation.metrics.metric import shown
from promptiter.llm.redaction import MASK
from promptiter.llm.secret import Secret, holds_secret, map_texts_by_name
from traces.model import Json

Word = TypeVar("Word", bound=str)


class Fields:
    """One object of a file. Each key is taken once, in snake_case or camelCase; `close` refuses what nobody took.

    null counts as left out.
    """

    def __init__(self, value: Json, *, source: str, path: str = "", environ: Mapping[str, str]) -> None:
        self._source = source
        self._path = path
        if not isinstance(value, Mapping):
            raise MetricError(f"{self.place}: is {shown(value)}; it must be an object")
        self._environ = environ
        self._value = value
        self._asked: set[str] = set()
        self._taken: set[str] = set()

    @property
    def place(self) -> str:
        """`test_config.json: metrics[0].criterion`, for messages."""
        return f"{self._source}: {self._path}" if self._path else self._source

    def take(self, name: str, *, any_spelling: bool = True) -> Json:
        """The value of a key, or None."""
        self._asked.add(name)
        spellings = [key for key in self._value if key == name or (any_spelling and field_name(key) == name)]
        if len(spellings) > 1:
            raise MetricError(f"{self.place}: {' and '.join(map(repr, spellings))} are the same key; keep one")
        self._taken.update(spellings)
        return self._value[spellings[0]] if spellings else None

    def close(self) -> None:
        """Refuse keys that nobody asked for."""
        for key in self._value:
            if key not in self._taken:
                known = sorted(self._asked)
                hint = nearest(field_name(key), known) or (f"; known are {', '.join(known)}" if known else "")
                raise MetricError(f"{self.place}: unknown key {key!r}{hint}")

    def names(self) -> list[str]:
        return list(self._value)

    def at(self, name: str, value: Json) -> Fields:
        """An object below this one."""
        path = f"{self._path}.{name}" if self._path else name
        return Fields(value, source=self._source, path=path, environ=self._environ)

    @contextmanager
    def naming_place(self) -> Iterator[None]:
        """Say where, when what is built from the fields refuses them."""
        try:
            yield
        except MetricError as error:
            raise MetricError(f"{self.place}: {error}") from error

    def object(self, name: str) -> Fields | None:
        value = self.take(name)
        return None if value is None else self.at(name, value)

    def objects(self, name: str) -> list[Fields]:
        return [self.at(f"{name}[{index}]", item) for index, item in enumerate(self._list(name))]

    @overload
    def text(self, name: str, *, required: Literal[True]) -> str: ...
    @overload
    def text(self, name: str, *, required: bool = ...) -> str | None: ...
    def text(self, name: str, *, required: bool = False) -> str | None:
        value = self.take(name)
        if value is None and not required:
            return None
        if not isinstance(value, str) or (required and not value):
            raise self._wrong(name, value, "a text" if not required else "a text that is not empty")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        values = self._list(name)
        if not all(isinstance(value, str) for value in values):
            raise self._wrong(name, values, "a list of texts")
        return tuple(values)

    def choice(self, name: str, words: Sequence[Word], *, default: Word) -> Word:
        value = self.text(name)
        if value is None:
            return default
        if value not in words:
            raise self._wrong(name, value, f"one of {', '.join(words)}{nearest(value, words)}")
        return cast("Word", value)

    def flag(self, name: str, *, default: bool = False) -> bool:
        value = self.optional_flag(name)
        return default if value is None else value

    def optional_flag(self, name: str) -> bool | None:
        value = self.take(name)
        if value is not None and not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def number(self, name: str, *, default: float, minimum: float | None = None) -> float:
        """A number; 0 is one, and not the default."""
        value = self.optional_number(name, minimum=minimum)
        return default if value is None else value

    def optional_number(self, name: str, *, minimum: float | None = None) -> float | None:
        value = self.take(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or (minimum is not None and value < minimum):
            raise self._wrong(name, value, "a number" if minimum is None else f"a number from {minimum} on")
        return float(value)

    def integer(self, name: str, *, default: int, minimum: int) -> int:
        value = self.optional_integer(name, minimum=minimum)
        return default if value is None else value

    def optional_integer(self, name: str, *, minimum: int) -> int | None:
        value = self.take(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < minimum):
            raise self._wrong(name, value, f"a whole number from {minimum} on")
        return value

    def tree(self, name: str) -> Mapping[str, Json] | None:
        """An object that is taken as it is."""
        value = self.take(name)
        if value is not None and not isinstance(value, Mapping):
            raise self._wrong(name, value, "an object")
        return value

    def text_object(self, name: str) -> dict[str, str]:
        """An object of texts, with keys of the user's own."""
        value = self.tree(name) or {}
        for key, text in value.items():
            if not isinstance(text, str):
                raise self._wrong(f"{name}.{key}", text, "a text")
        return dict(value)

    @overload
    def expanded_text(self, name: str, *, required: Literal[True]) -> str: ...
    @overload
    def expanded_text(self, name: str, *, required: bool = ...) -> str | None: ...
    def expanded_text(self, name: str, *, required: bool = False) -> str | None:
        """A text with each `${VAR}` replaced by the environment's value."""
        text = self.text(name, required=required)
        return None if text is None else self._expanded(text, self._below(name))

    def secret(self, name: str) -> Secret | None:
        """A text that is kept from sight, with each `${VAR}` replaced."""
        value = self.take(name)
        if value is None or value == "":
            return None
        if not isinstance(value, str):
            raise MetricError(f"{self._below(name)}: must be a text, best as ${{VAR}}")
        return self._hidden(value, self._below(name))

    def secured_object(self, name: str) -> dict[str, Json]:
        """An object with each `${VAR}` replaced; what came from one, or has a secret's name, is a Secret."""
        place = self._below(name)
        value = self.take(name)
        if value is not None and not isinstance(value, Mapping):
            raise MetricError(f"{place}: must be an object")  # not shown: it may be a secret

        def secured(text: str, names: tuple[str, ...]) -> str:
            return self._hidden(text, place) if _VARIABLE.search(text) or holds_secret(names) else text

        return cast("dict[str, Json]", map_texts_by_name(dict(value or {}), secured))

    def rest_as_options(self) -> dict[str, Json]:
        """The whole object, as it is but for what has a secret's name."""

        def secured(text: str, names: tuple[str, ...]) -> str:
            return self._hidden(text, self.place) if holds_secret(names) else text

        return cast("dict[str, Json]", map_texts_by_name(dict(self._value), secured))

    def _list(self, name: str) -> list[Json]:
        value = self.take(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self._wrong(name, value, "a list")
        return value

    def _hidden(self, text: str, place: str) -> Secret:
        value = self._expanded(text, place)
        parts = tuple(self._environ[name] for name in _VARIABLE.findall(text))
        return Secret(value, source=text if _VARIABLE.fullmatch(text) else MASK, parts=parts)

    def _expanded(self, text: str, place: str) -> str:
        def from_plain(variable: re.Match[str]) -> str:
            if variable[1] not in self._environ:
                raise MetricError(f"{place}: the environment variable {variable[1]!r} is not set; export it")
            return self._environ[variable[1]]

        return _VARIABLE.sub(from_plain, text)

    def _below(self, name: str) -> str:
        return f"{self.place}.{name}" if self._path else f"{self.place}: {name}"

    def _wrong(self, name: str, value: Json, wanted: str) -> MetricError:
        if value is None:
            return MetricError(f"{self._below(name)}: is missing; it must be {wanted}")
        return MetricError(f"{self._below(name)}: is {shown(value)}; it must be {wanted}")


def field_name(key: str) -> str:
    """A key in snake_case, and under the name that the newest of the neighbours' files use."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower()
    return _OTHER_NAMES.get(snake, snake)


_OTHER_NAMES = {
    "match_strategy": "match",
    "default_strategy": "default",
    "tool_strategy": "overrides",
    "text_strategy": "text",
    "json_strategy": "json",
    "rouge_type": "type",
}
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
