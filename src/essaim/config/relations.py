"""Roles checked against each other and against the machines that carry them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from essaim.config.order import circle
from essaim.config.problems import Problems
from essaim.config.roles import ReadRole, read_role, role_names, uses
from essaim.config.secrets import SecretRef
from essaim.model.errors import InvalidError, Problem
from essaim.model.spelling import meant

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from essaim.config.tree import Tree


def gather(tree: Tree, wanted: Sequence[str], found: list[Problem]) -> dict[str, ReadRole]:
    """Read the wanted roles and every role these name; add what is wrong with them."""
    result: dict[str, ReadRole] = {}
    todo = list(dict.fromkeys(wanted))
    for name in todo:
        try:
            read = read_role(tree, name)
        except InvalidError as exc:
            found += exc.problems
            continue
        if read is None:
            continue  # whoever named it has been told
        result[name] = read
        problems = Problems.of_file(read.document)
        for path, other in read.named():
            if other in todo:
                continue
            if tree.find(f"roles/{other}/role.yaml") is None:
                names = role_names(tree)
                problems.add(path, f"there is no role {other}", meant(other, names, kind="roles"))
            else:
                todo.append(other)
        found += problems.found
    return result


def check_needs(roles: Mapping[str, ReadRole], carried: set[str]) -> list[Problem]:
    """Problems with what roles need of each other, given those that machines carry."""
    found: list[Problem] = []
    for name, read in roles.items():
        problems = Problems.of_file(read.document)
        for key, other in read.role.needs.items():
            if name in carried and other in roles:
                _check_need(problems, name, key, roles[other], carried)
        found += problems.found
    needs = {n: [o for o in r.role.needs.values() if o in roles] for n, r in roles.items()}
    if path := circle(needs):
        first = roles[path[0]]
        at = next(key for key, other in first.role.needs.items() if other == path[1])
        place = first.document.place(("needs", at))
        found.append(Problem(f"roles need each other in a circle: {' → '.join(path)}", place))
    return found


def _check_need(
    problems: Problems, name: str, key: str, other: ReadRole, carried: set[str]
) -> None:
    at = ("needs", key)
    provider = other.role
    if provider.name not in carried:
        what = f"{name} needs {key} of {provider.name}, but no machine carries {provider.name}"
        problems.add(at, what, f"give the role {provider.name} to a group")
    if key not in provider.provides:
        hint = meant(key, provider.provides, kind="it provides")
        problems.add(at, f"{name} needs {key}, which {provider.name} does not provide", hint)


def check_secrets(roles: Mapping[str, ReadRole], given: Mapping[str, Any]) -> list[Problem]:
    """Problems with secret values in `env`, where logs and `ps` could show them."""
    found: list[Problem] = []
    for name, read in roles.items():
        problems = Problems.of_file(read.document)
        own = {**read.role.vars, **given.get(name, {})}
        secret_vars = {key for key, value in own.items() if isinstance(value, SecretRef)}
        secret_needs = {
            key
            for key, other in read.role.needs.items()
            if other in roles
            and (provide := roles[other].role.provides.get(key)) is not None
            and provide.secret
        }
        for at, text in read.env():
            for secret in _secrets_in(text, secret_needs, secret_vars):
                what = f"{secret} is secret and may be used in files only, not in env"
                problems.add(at, what, "write it to a file with a template")
        found += problems.found
    return found


def _secrets_in(text: str, needs: set[str], own: set[str]) -> list[str]:
    return [
        *(f"needs.{key}" for key in sorted(uses(text, "needs") & needs)),
        *(f"vars.{key}" for key in sorted(uses(text, "vars") & own)),
    ]
