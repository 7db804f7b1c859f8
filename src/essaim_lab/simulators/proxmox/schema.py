"""Which endpoints there are, and what their parameters may be."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from essaim_lab.simulators.proxmox.errors import refused_parameters

UNDEFINED = "property is not defined in schema and the schema does not allow additional properties"
ABSENT = "property is missing and it is not optional"
_INTEGER = re.compile(r"[+-]?\d+")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_LABEL = r"[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?"
_STORAGE = r"[a-z][a-z0-9\-_.]*[a-z0-9]"
#: Named formats: the pattern, and what is said of a value that does not fit it.
FORMATS = {
    "pve-node": (_LABEL, "value does not look like a valid node name"),
    "dns-name": (rf"({_LABEL}\.)*{_LABEL}", "value does not look like a valid DNS name"),
    "pve-configid": (r"[a-zA-Z][\w-]+", "invalid configuration ID '{}'"),
    "pve-storage-id": (f"(?i:{_STORAGE})", "storage ID '{}' contains illegal characters"),
    "pve-poolid": (r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+){0,2}", "value '{}' is not a valid pool ID"),
    "pve-userid": (r"[^\s:/]+@[A-Za-z][\w.-]+", "value '{}' does not look like a valid user name"),
    "pve-volume-id": (f"(?i:{_STORAGE}):.+", "unable to parse volume ID '{}'"),
    "mac-addr": (
        r"(?i:[a-f0-9][02468ace](:[a-f0-9]{2}){5})",
        "value does not look like a valid unicast MAC address",
    ),
    "disk-size": (r"\d+(\.\d+)?[KMGT]?", "value does not look like a valid disk size: '{}'"),
    "pve-bridge-id": (r"[-_.\w\d]+", "invalid bridge identifier '{}'"),
}
LISTS = {
    "pve-tag-list": r"(?i:[a-z0-9_][a-z0-9_\-+.]*)",
    "pve-configid-list": r"[a-zA-Z][\w-]+",
    "pve-vmid-list": r"[1-9][0-9]{2,8}",
}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One thing that can be asked: METHOD /path, with what may be said."""

    name: str
    check: Any
    token: bool
    parameters: Mapping[str, Mapping[str, Any]]
    indexed: Mapping[str, Mapping[str, Any]]

    def spec(self, name: str) -> Mapping[str, Any] | None:
        """What is known of a parameter; None when it is not one."""
        found = self.parameters.get(name)
        if found is None and self.indexed:
            stem = name.rstrip("0123456789")
            if stem != name:
                return self.indexed.get(stem)
        return found

    def verify(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Give the values with their types, or refuse them as Proxmox VE does."""
        errors: dict[str, str] = {}
        values: dict[str, Any] = {}
        for name, spec in self.parameters.items():
            if name not in given and not spec.get("optional"):
                errors[name] = ABSENT
        for name, value in given.items():
            found = self.spec(name)
            if found is None:
                errors[name] = UNDEFINED
                continue
            needed = found.get("requires")
            if isinstance(needed, str) and needed not in given:
                errors[needed] = f"missing property required by '{name}'"
            wrong, values[name] = _read(found, value, name)
            if wrong:
                errors[name] = wrong
        if errors:
            raise refused_parameters(errors)
        return values


def _read(spec: Mapping[str, Any], value: Any, name: str) -> tuple[str, Any]:
    """Say what is wrong with a value, and give it its type; one that was said alone is a list."""
    if spec.get("type") == "array":
        return "", value if isinstance(value, list) else [str(value)]
    return complaint(spec, str(value), name), typed(spec, str(value))


def typed(spec: Mapping[str, Any], text: str) -> Any:
    """Give the value its type; it was checked before."""
    kind = spec.get("type")
    if kind in ("integer", "boolean") and _INTEGER.fullmatch(text):
        return int(text)
    if kind == "number" and _NUMBER.fullmatch(text):
        return float(text)
    return text


def complaint(spec: Mapping[str, Any], text: str, name: str) -> str:
    """Say what is wrong with the value; nothing when all is well."""
    kind = spec.get("type", "string")
    right = {"integer": _INTEGER, "number": _NUMBER, "boolean": _BOOLEAN}.get(kind)
    if right and not right.fullmatch(text):
        return f"type check ('{kind}') failed - got '{text}'"
    return _format(spec, text, name) or _limits(spec, text)


_BOOLEAN = re.compile("[01]")


def _format(spec: Mapping[str, Any], text: str, name: str) -> str:
    form = spec.get("format", "")
    if form in FORMATS:
        pattern, wrong = FORMATS[form]
        if not re.fullmatch(pattern, text):
            return f"invalid format - {wrong.format(text)}\n"
    elif form in LISTS:
        for item in re.split(r"[,;\s\0]+", text.strip(" ,;")):
            if item and not re.fullmatch(LISTS[form], item):
                return f"invalid format - invalid characters in '{item}'\n"
    parts = spec.get("parts")
    wrongs = _parts(parts, text, name) if parts else {}
    if wrongs:
        lines = "".join(f"{key}: {value}\n" for key, value in sorted(wrongs.items()))
        return f"invalid format - format error\n{lines}"
    if "pattern" in spec and not re.fullmatch(spec["pattern"], text):
        return "value does not match the regex pattern"
    return ""


def _limits(spec: Mapping[str, Any], text: str) -> str:
    if len(text) > spec.get("maxLength", len(text)):
        return f"value may only be {spec['maxLength']} characters long"
    if len(text) < spec.get("minLength", 0):
        return f"value must be at least {spec['minLength']} characters long"
    if ("maximum" in spec or "minimum" in spec) and _NUMBER.fullmatch(text):
        if float(text) > spec.get("maximum", float(text)):
            return f"value must have a maximum value of {spec['maximum']}"
        if float(text) < spec.get("minimum", float(text)):
            return f"value must have a minimum value of {spec['minimum']}"
    if "enum" in spec and text not in spec["enum"]:
        there = ", ".join(spec["enum"])
        return f"value '{text}' does not have a value in the enumeration '{there}'"
    return ""


def _parts(parts: Mapping[str, Mapping[str, Any]], text: str, name: str) -> dict[str, str]:
    """Check a value such as name=eth0,bridge=vmbr0 part by part."""
    found = split(text, next((key for key, part in parts.items() if part.get("default_key")), ""))
    wrong = {}
    for key in list(found):
        part = parts.get(key, {})
        if "keyAlias" in part:  # virtio=AA:BB:… says two things
            found.setdefault(part["keyAlias"], key)
        if "alias" in part:
            found[part["alias"]] = found.pop(key)
    for key, value in found.items():
        spec = parts.get(key)
        said = UNDEFINED if spec is None else complaint(spec, value, f"{name}.{key}")
        if said:
            wrong[key] = said
    for key, spec in parts.items():
        if not spec.get("optional") and "alias" not in spec and key not in found:
            wrong[key] = ABSENT
    return wrong


def split(text: str, first: str = "") -> dict[str, str]:
    """Take a value such as 8,name=eth0 apart; what has no name is called `first`."""
    found = {}
    for item in text.split(","):
        key, equals, value = item.partition("=")
        if equals:
            found[key.strip()] = value
        elif item:
            found[first] = item
    return found


def join(parts: Mapping[str, Any], first: str = "") -> str:
    """Put a value together again."""
    named = [f"{key}={value}" for key, value in parts.items() if key != first]
    return ",".join([str(parts[first]), *named] if first in parts else named)


class Routes:
    """Finds the endpoint of a request, and what its path says."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        specs = document["parameters"]
        self._tree: dict[str, Any] = {}
        for name, found in document["endpoints"].items():
            all_ = {key: specs[number] for key, number in found["parameters"].items()}
            endpoint = Endpoint(
                name,
                found["check"],
                bool(found["token"]),
                {key: spec for key, spec in all_.items() if not key.endswith("[n]")},
                {key[:-3]: spec for key, spec in all_.items() if key.endswith("[n]")},
            )
            method, path = name.split()
            place = self._tree
            for word in path.strip("/").split("/"):
                place = place.setdefault("{}" if word.startswith("{") else word, {})
                if word.startswith("{"):
                    place["name"] = word.strip("{}")
            place.setdefault("methods", {})[method] = endpoint

    def find(self, method: str, path: str) -> tuple[Endpoint | None, dict[str, str]]:
        """Give the endpoint and the values in its path; none when there is no such."""
        said: dict[str, str] = {}
        place: dict[str, Any] | None = self._tree
        for word in path.strip("/").split("/"):
            if place is None:
                return None, said
            after = place.get(word) if word not in ("methods", "name", "{}") else None
            if after is None:
                after = place.get("{}")
                if after is not None:
                    said[after["name"]] = word
            place = after
        found: Endpoint | None = (place or {}).get("methods", {}).get(method)
        return found, said


@functools.cache
def routes() -> Routes:
    """Give the endpoints of the schema beside this file."""
    text = files(__package__).joinpath("schema.json").read_text(encoding="utf-8")
    return Routes(json.loads(text))
