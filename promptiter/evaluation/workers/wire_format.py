"""Values as bytes for other processes: JSON in which everything that JSON lacks is an object with one `$` key.

    {"$tuple": [...]}                        a tuple; also $dict, $frozenset, $int, $float, $text, $range and $path
    {"$data": ["module:Class", {...}]}       a dataclass, as the arguments of its constructor
    {"$ref": "module:attr"}                  a function, class or object that the other process imports
    {"$made": "module:function"}             an object that a function without parameters makes
    {"$partial": [function, [...], {...}]}   a functools.partial
    {"$error": ["module:Class", name, ...]}  an exception; the class is the nearest that can be imported
    {"$trace": "..."}                        an ExecutionTrace
    {"$secret": [number, shown]}             a secret, which stays in the process that knows it
    {"$gateway": number}                     a gateway, which stays in the process that has its models

What is read equals what was written. Only dataclasses, exceptions and importable objects are built, and nothing is
pickled.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from functools import lru_cache, partial
from inspect import isclass, isroutine
from pathlib import Path, PurePath
from typing import Any, Protocol

import orjson

from promptiter.errors import SetupError
from promptiter.llm.gateway import Gateway
from promptiter.llm.secret import Secret
from promptiter.references import find_factory, find_reference, is_of_script, load_reference
from traces import ExecutionTrace
from traces.documents import from_json, to_json
from traces.model import Json


class Handles(Protocol):
    """What does not travel: secrets and gateways, which the other process knows by number."""

    def get_number(self, item: Secret | Gateway) -> int:
        """The number of a secret or a gateway in the process that has it."""

    def get_secret(self, number: int, shown: str) -> Secret:
        """The secret of this number, or something that has the number."""

    def get_gateway(self, number: int) -> Gateway:
        """The gateway of this number, or one that forwards calls to it."""


def pack(value: object, handles: Handles, *, place: str = "") -> bytes:
    """A value as bytes. A SetupError says what cannot be sent; `place` is the name of the value in it."""
    return Packer(handles).dump(value, place or type(value).__name__)


def pack_agent(value: object, handles: Handles, *, place: str) -> bytes:
    """An agent as bytes: by its name in a module if it has one, otherwise as `pack` does."""
    reference = refer_to_agent(value)
    return pack(value, handles, place=place) if reference is None else orjson.dumps(reference)


def unpack(raw: bytes, handles: Handles) -> Any:
    """The value of such bytes."""
    return unpack_plain(orjson.loads(raw), handles)


def unpack_plain(plain: Json, handles: Handles) -> Any:
    """The value of such bytes that have been parsed."""
    return Unpacker(handles).unpack(plain)


def refer_to_agent(agent: object) -> Json:
    """How another process finds an agent by name; None if it cannot.

    It cannot find one of the script, which may be assigned under `if __name__ == "__main__":`.
    """
    reference = refer_to(agent)
    return None if reference is None or is_of_script(reference.get("$ref", "")) else reference


def refer_to(value: object) -> Json:
    """How another process finds an object by name; None if it cannot."""
    if (factory := find_factory(value)) is not None:
        return {"$made": factory}
    reference = find_reference(value)
    return None if reference is None else {"$ref": reference}


class Packer:
    """Writes values. A subclass may know how to write more of them."""

    def __init__(self, handles: Handles) -> None:
        self._handles = handles

    def dump(self, value: Any, place: str) -> bytes:
        try:
            return orjson.dumps(self.pack(value, place))
        except (orjson.JSONEncodeError, RecursionError):
            raise SetupError(f"{place} cannot be sent to another process: nest its values less deeply") from None

    def pack(self, value: Any, place: str) -> Json:
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind is str:
            return value if _is_unicode(value) else {"$text": value.encode("utf-16", "surrogatepass").hex()}
        if kind is int:
            return value if -(2**63) <= value < 2**63 else {"$int": str(value)}
        if kind is float:
            return value if math.isfinite(value) else {"$float": str(value)}
        if kind is list:
            return self._pack_all(value, place)
        if kind is tuple:
            return {"$tuple": self._pack_all(value, place)}
        if kind is frozenset and all(isinstance(each, str) for each in value):
            return {"$frozenset": sorted(value)}
        if isinstance(value, Mapping):
            return self._pack_mapping(value, place)
        return self.pack_object(value, place)

    def _pack_all(self, values: Iterable[Any], place: str) -> list[Json]:
        return [self.pack(each, f"{place}[{index}]") for index, each in enumerate(values)]

    def _pack_mapping(self, value: Mapping[Any, Any], place: str) -> Json:
        if all(type(key) is str and not key.startswith("$") and _is_unicode(key) for key in value):
            return {key: self.pack(each, f"{place}[{key!r}]") for key, each in value.items()}
        return {"$dict": [self._pack_all(pair, f"{place}[{pair[0]!r}]") for pair in value.items()]}

    def pack_object(self, value: Any, place: str) -> Json:
        """Pack a value that JSON has no type for."""
        if isinstance(value, Secret):
            return {"$secret": [self._handles.get_number(value), str(value)]}
        if isinstance(value, Gateway):
            return {"$gateway": self._handles.get_number(value)}
        if isinstance(value, ExecutionTrace):
            return {"$trace": to_json(value).decode()}
        if isinstance(value, range):
            return {"$range": [value.start, value.stop, value.step]}
        if isinstance(value, PurePath):
            return {"$path": str(value)}
        if isinstance(value, BaseException):
            return {"$error": self._pack_error(value)}
        if isinstance(value, partial):
            parts = {"function": value.func, "args": value.args, "keywords": value.keywords}
            return {"$partial": [self.pack(each, f"{place}.{name}") for name, each in parts.items()]}
        kind: type = type(value)
        if _has_constructor(value) and (name := refer_to_class(kind)):
            return self.pack_dataclass(value, name, place)
        reference = refer_to(value)
        return self.pack_unnamed(value, place) if reference is None else reference

    def pack_unnamed(self, value: Any, place: str) -> Json:
        """Pack a value that cannot be imported. Raises SetupError if there is no other way."""
        raise SetupError(_explain_unsendable(value, place))

    def pack_dataclass(self, value: Any, name: str, place: str) -> Json:
        """Pack a dataclass as the arguments of its constructor, or its name if one of them cannot be packed."""
        given = [field.name for field in dataclasses.fields(value) if field.init]
        try:
            return {"$data": [name, {each: self.pack(getattr(value, each), f"{place}.{each}") for each in given}]}
        except SetupError:
            if (reference := refer_to(value)) is not None:
                return reference
            raise

    def _pack_error(self, error: BaseException) -> Json:
        known = next(name for each in type(error).__mro__ if (name := refer_to_class(each)))
        state = {name: each for name, each in vars(error).items() if self._is_sendable(each)}
        args = [each if self._is_sendable(each) else str(each) for each in error.args]
        return [known, type(error).__name__, self.pack(str(error), ""), self.pack(args, ""), self.pack(state, "")]

    def _is_sendable(self, value: Any) -> bool:
        try:
            self.dump(value, "")
        except SetupError:
            return False
        return True


class Unpacker:
    """Reads what a Packer wrote."""

    def __init__(self, handles: Handles) -> None:
        self._handles = handles

    def unpack(self, plain: Json) -> Any:
        if isinstance(plain, list):
            return [self.unpack(each) for each in plain]
        if not isinstance(plain, dict):
            return plain
        if len(plain) == 1 and (tag := next(iter(plain))).startswith("$"):
            return self.unpack_tagged(tag, plain[tag])
        return {key: self.unpack(each) for key, each in plain.items()}

    def unpack_tagged(self, tag: str, plain: Json) -> Any:
        """The value of an object with one `$` key."""
        match tag:
            case "$tuple":
                return tuple(self.unpack(each) for each in plain)
            case "$frozenset":
                return frozenset(plain)
            case "$path":
                return Path(plain)
            case "$dict":
                return {self.unpack(key): self.unpack(each) for key, each in plain}
            case "$int":
                return int(plain)
            case "$float":
                return float(plain)
            case "$text":
                return bytes.fromhex(plain).decode("utf-16", "surrogatepass")
            case "$range":
                return range(*plain)
            case "$trace":
                return from_json(plain.encode())
            case "$secret":
                return self._handles.get_secret(*plain)
            case "$gateway":
                return self._handles.get_gateway(plain)
            case "$ref":
                return _import(plain)
            case "$made":
                return _import(plain)()
            case "$partial":
                function, args, keywords = map(self.unpack, plain)
                return partial(function, *args, **keywords)
            case "$data":
                name, given = plain
                return _import(name)(**{key: self.unpack(each) for key, each in given.items()})
            case "$error":
                return self._unpack_error(*plain)
        raise SetupError(f"a value with the unknown tag {tag!r} was received; use one version of promptiter")

    def _unpack_error(self, reference: str, name: str, text: Json, args: Json, state: Json) -> BaseException:
        kind: type[BaseException] = load_reference(reference)
        given, message = self.unpack(args), self.unpack(text)
        error = kind.__new__(kind, *given)  # without __init__, whose parameters may be others
        if kind.__name__ != name or str(error) != message:
            kind = type(name, (kind,), {"__str__": lambda _: message})
            error = kind.__new__(kind, *given)
        vars(error).update(self.unpack(state))
        return error


def _has_constructor(value: Any) -> bool:
    """Whether a value is a dataclass that its fields construct."""
    parameters = None if isclass(value) else getattr(value, "__dataclass_params__", None)
    return parameters is not None and bool(parameters.init)


def _is_unicode(text: str) -> bool:
    """Whether UTF-8 can encode a text, which is false for half a surrogate pair."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _import(reference: str) -> Any:
    """Import what the other process found under this name."""
    try:
        return load_reference(reference)
    except SetupError as error:
        if not isinstance(error.__cause__, AttributeError):
            raise
        raise SetupError(
            f"{reference!r} does not exist when another process imports its module: it is assigned under "
            "`if __name__ == '__main__':`, or later; move it above, to the top level of the module"
        ) from error


@lru_cache(maxsize=1024)
def refer_to_class(kind: type) -> str | None:
    """The `module:attr` of a class, or None."""
    return find_reference(kind)


def _explain_unsendable(value: Any, place: str) -> str:
    what = f"{value!r:.80}" if isroutine(value) else f"a {type(value).__name__}"
    advice = (
        "define it at the top level of a module" if isroutine(value) else "assign it to a name at the top of a module"
    )
    return (
        f"{place} cannot be sent to another process: it is {what}, which cannot be imported there; {advice}, not in a "
        "function or a notebook, or use LocalExecutor or ThreadExecutor"
    )
