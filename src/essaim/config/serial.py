"""Stacks as JSON and back, without loss, so that a stack can be stored and used later."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from essaim.config.secrets import SecretRef
from essaim.model.stacks import Machine, Stack

_TAG = "!secret"

#: What two stacks may differ in and still be the same thing: where they were written, and what
#: people are told about them.
_WHEREABOUTS = ("source", "overrides", "notes", "hints")


def stack_to_json(stack: Stack) -> dict[str, Any]:
    """Return plain JSON values for a stack; secrets stay references."""
    data = _encode(stack)
    assert isinstance(data, dict)  # noqa: S101 - for the type checker
    return data


def stack_from_json(data: Mapping[str, Any]) -> Stack:
    """Return the stack that `stack_to_json` was given."""
    stack = _decoder(Stack)(data)
    assert isinstance(stack, Stack)  # noqa: S101 - for the type checker
    return stack


def values_to_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain JSON values for what a stack was composed of; secrets stay references."""
    data: dict[str, Any] = _encode(values)
    return data


def fingerprint(stack: Stack) -> str:
    """Return a digest of what is wanted; the same for the same stack written elsewhere."""
    data = stack_to_json(stack)
    for key in _WHEREABOUTS:
        del data[key]
    # Keys that came later: a stack without them is what it was.
    for value, key in ((data["network"], "internet"), *((m, "shared") for m in data["machines"])):
        if not value[key]:
            del value[key]
    for role in data["roles"].values():
        del role["path"]
    for image in data["images"].values():
        image["settings"].pop("path", None)  # what lies there is in the image's digest
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _encode(value: Any) -> Any:
    if isinstance(value, SecretRef):
        return {_TAG: value.name}
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _encode(below) for key, below in value.items()}
    if isinstance(value, list | tuple):
        return [_encode(below) for below in value]
    kind = type(value)
    if is_dataclass(kind):
        return {name: _encode(getattr(value, name)) for name in _names(kind)}
    return value


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


@cache
def _decoder(kind: Any) -> Callable[[Any], Any]:
    """Return what reads JSON values as a type of the model."""
    if is_dataclass(kind):
        return _dataclass_decoder(kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is tuple:
        item = _decoder(arguments[0])
        return lambda data: tuple(item(below) for below in data)
    if origin is Mapping:
        below = _decoder(arguments[1])
        return lambda data: {key: below(value) for key, value in data.items()}
    if origin in (Union, UnionType):
        inner = _decoder(next(a for a in arguments if a is not type(None)))
        return lambda data: None if data is None else inner(data)
    return Path if kind is Path else _plain if kind in (Any, object) else _same


def _dataclass_decoder(kind: Any) -> Callable[[Any], Any]:
    hints = get_type_hints(kind)
    parts = [(name, _decoder(hints[name])) for name in _names(kind)]
    return lambda data: kind(**{name: read(data[name]) for name, read in parts if name in data})


def _same(data: Any) -> Any:
    return data


def _plain(data: Any) -> Any:
    """Free values: only references to secrets are more than JSON."""
    if isinstance(data, dict):
        if data.keys() == {_TAG}:
            return SecretRef(data[_TAG])
        return {key: _plain(below) for key, below in data.items()}
    return [_plain(below) for below in data] if isinstance(data, list) else data


def machine_to_json(machine: Machine) -> dict[str, Any]:
    """Return plain JSON values for one machine."""
    data: dict[str, Any] = _encode(machine)
    return data


def machine_from_json(data: Mapping[str, Any]) -> Machine:
    """Return the machine that `machine_to_json` was given."""
    machine: Machine = _decoder(Machine)(data)
    return machine
