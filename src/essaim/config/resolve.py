"""Interpolations replaced by what they name; secrets become references on the way."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from omegaconf import Container, DictConfig, OmegaConf
from omegaconf.errors import (
    InterpolationKeyError,
    InterpolationToMissingValueError,
    MissingMandatoryValue,
    OmegaConfBaseException,
)

from essaim.config.provenance import Provenance, split
from essaim.config.secrets import NAME, SecretRef

if TYPE_CHECKING:
    from essaim.config.documents import Keys
    from essaim.config.problems import Problems

_KEY = re.compile(r"Interpolation key '([^']*)' not found")

# No text in YAML can hold this character, so what a reference became is always recognised.
_MARK = "\0"


def _mark(name: str) -> str:
    if not NAME.fullmatch(str(name)):
        raise ValueError(f"{name!r} cannot be the name of a secret")
    return f"{_MARK}{name}{_MARK}"


OmegaConf.register_new_resolver("secret", _mark, replace=True)


def resolve(raw: DictConfig, provenance: Provenance, problems: Problems) -> dict[str, Any]:
    """Return plain values without interpolations; what names nothing becomes a problem."""
    try:
        container = OmegaConf.to_container(raw, resolve=True, throw_on_missing=True)
    except (OmegaConfBaseException, RecursionError) as exc:
        _probe(raw, (), provenance, problems)
        if not problems.found:
            problems.add((), f"the interpolations cannot be resolved: {_first(exc)}")
        return {}
    values = _unmark(container, (), problems)
    return values if isinstance(values, dict) else {}


def _probe(node: Any, path: Keys, provenance: Provenance, problems: Problems) -> None:
    """Try each value on its own, so that every problem is found and not only the first."""
    keys: Any = node.keys() if isinstance(node, DictConfig) else range(len(node))
    for key in keys:
        here = (*path, str(key))
        try:
            below = node[key]
        except (OmegaConfBaseException, RecursionError) as exc:
            _explain(exc, here, provenance, problems)
            continue
        # What an interpolation names is looked at where it stands.
        if isinstance(below, Container) and not OmegaConf.is_interpolation(node, key):
            _probe(below, here, provenance, problems)


def _explain(exc: BaseException, path: Keys, provenance: Provenance, problems: Problems) -> None:
    key = ".".join(path)
    match = _KEY.search(str(exc))
    if isinstance(exc, InterpolationKeyError) and match:
        guess = provenance.guess(split(match[1]))
        hint = f"did you mean ${{{guess}}}?" if guess else ""
        problems.add(path, f"{key} names {match[1]}, which does not exist", hint)
    elif isinstance(exc, MissingMandatoryValue | InterpolationToMissingValueError):
        problems.add(path, f"{key} must be set", f"for instance {key}=… on the command line")
    elif isinstance(exc, RecursionError) or "ecursi" in str(exc):
        problems.add(path, f"{key} names itself by its interpolations")
    else:
        problems.add(path, f"{key} cannot be resolved: {_first(exc)}")


def _first(exc: BaseException) -> str:
    return (str(exc) or type(exc).__name__).splitlines()[0]


def _unmark(value: Any, path: Keys, problems: Problems) -> Any:
    if isinstance(value, dict):
        return {str(k): _unmark(v, (*path, str(k)), problems) for k, v in value.items()}
    if isinstance(value, list):
        return [_unmark(v, (*path, str(i)), problems) for i, v in enumerate(value)]
    if not isinstance(value, str) or _MARK not in value:
        return value
    name = value[1:-1]
    if value[0] == value[-1] == _MARK and _MARK not in name:
        return SecretRef(name)
    hint = "let a role's template put the text around it"
    problems.add(path, f"{'.'.join(path)}: a secret must be the whole value", hint)
    return None
