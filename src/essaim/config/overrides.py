"""Arguments in Hydra's override grammar: read, checked against what is there, and swept."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from essaim.config.provenance import Provenance, split
from essaim.model.errors import InvalidError, Problem
from essaim.model.spelling import meant

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hydra.core.config_loader import ConfigLoader
    from hydra.core.override_parser.types import Override

    from essaim.config.documents import Keys
    from essaim.config.tree import Tree

GRAMMAR = "key=value, +key=value to add, ~key to take away; quote what holds commas"


def on_command_line(argument: str, what: str, hint: str = "") -> Problem:
    """Make a problem of one argument."""
    return Problem(f"command line, {argument}: {what}", hint=hint)


def parse(overrides: Sequence[str], loader: ConfigLoader | None = None) -> list[Override]:
    """Read every argument; InvalidError lists those that cannot be read."""
    parser = OverridesParser.create(config_loader=loader)
    problems: list[Problem] = []
    parsed: list[Override] = []
    for argument in overrides:
        try:
            override = parser.parse_overrides([argument])[0]
        except HydraException as exc:
            why = str(exc).splitlines()[0].removeprefix("LexerNoViableAltException: ")
            own = why == argument or why.startswith("Error parsing override")
            why = "it cannot be read" if own else f"it cannot be read: {why}"
            problems.append(on_command_line(argument, why, GRAMMAR))
            continue
        if not override.key_or_group:
            problems.append(on_command_line(argument, "it names no key", GRAMMAR))
        if override.is_hydra_override():
            problems.append(
                on_command_line(argument, "Hydra's own settings are not part of a stack")
            )
        parsed.append(override)
    if problems:
        raise InvalidError(problems)
    return parsed


def check_options(overrides: Sequence[Override], tree: Tree) -> None:
    """Refuse arguments that give a group something other than the name of an option."""
    problems = [
        on_command_line(
            str(o.input_line),
            f"{o.key_or_group} is a group, of which an option is chosen by name",
            f"options: {', '.join(tree.options(o.key_or_group))}",
        )
        for o in overrides
        if not isinstance(o.value(), str | list | dict)
        and not o.is_delete()
        and tree.is_group(o.key_or_group)
    ]
    if problems:
        raise InvalidError(problems)


def single(overrides: Sequence[Override]) -> None:
    """Refuse arguments that name several values at once."""
    problems = [
        on_command_line(
            str(o.input_line),
            "it names several values",
            f"sweep over them, or write a list as {o.get_key_element()}=[…]",
        )
        for o in overrides
        if o.is_sweep_override()
    ]
    if problems:
        raise InvalidError(problems)


def combinations(overrides: Sequence[Override]) -> list[tuple[str, ...]]:
    """Every combination of the values the arguments name, the last argument varying fastest."""
    axes: list[list[str]] = []
    for override in overrides:
        line = str(override.input_line)
        if not override.is_sweep_override():
            axes.append([line])
        elif override.is_discrete_sweep():
            key = override.get_key_element()
            values = list(override.sweep_string_iterator())
            if not values:
                raise InvalidError([on_command_line(line, "it names no value at all")])
            axes.append([f"{key}={value}" for value in values])
        else:
            hint = "name the values: choice(…), range(…) or a,b,c"
            raise InvalidError([on_command_line(line, "an interval has no end of values", hint)])
    return list(itertools.product(*axes))


def check(overrides: Sequence[Override], known: Provenance, groups: Sequence[str]) -> None:
    """Refuse what Hydra would refuse about keys, with a near spelling."""
    problems = [problem for o in overrides if (problem := _problem(o, known, groups))]
    if problems:
        raise InvalidError(problems)


def _problem(override: Override, known: Provenance, groups: Sequence[str]) -> Problem | None:
    line, key = str(override.input_line), override.key_or_group
    path = split(key)
    if override.package is not None:
        return on_command_line(line, f"there is no group {key}", meant(key, groups, kind="groups"))
    if isinstance(override.value(), list) and known.is_mapping(path):
        return on_command_line(line, f"{key} is a mapping, not a list")
    if override.is_force_add():
        return None
    if not override.is_add():
        return _unknown(override, path, known, groups)
    if known.has(path) and not isinstance(override.value(), dict | list):
        return on_command_line(line, f"{key} is already set", f"write {line.removeprefix('+')}")
    return None


def _unknown(
    override: Override, path: Keys, known: Provenance, groups: Sequence[str]
) -> Problem | None:
    line = str(override.input_line)
    missing = next(
        (p for p in _touched(path, override.value(), known) if not known.leads_to(p)), None
    )
    if missing is None:
        return None
    guess = known.guess(missing, groups)
    hint = f"did you mean {guess}?" if guess else ""
    if not hint and not override.is_delete():
        hint = f"to add it, write {'+' if missing == path else '++'}{line}"
    return on_command_line(line, f"there is no key {'.'.join(missing)} in this stack", hint)


def _touched(path: Keys, value: Any, known: Provenance) -> Iterator[Keys]:
    """Every key an argument changes: a mapping over a mapping is merged key by key."""
    yield path
    if isinstance(value, dict) and known.is_mapping(path):
        for key, below in value.items():
            yield from _touched((*path, str(key)), below, known)
