"""Roles as described in `roles/<name>/role.yaml`: read, and checked each on its own."""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from essaim.config.documents import Document, Keys, shown
from essaim.config.problems import Problems
from essaim.config.schema import FileSchema, RoleSchema
from essaim.config.secrets import references
from essaim.model.errors import Place, Problem
from essaim.model.roles import Leave, Provide, Ready, Retry, Role, RoleFile, RoleStep

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from jinja2 import Environment

    from essaim.config.tree import Tree


@dataclass(frozen=True, slots=True)
class ReadRole:
    """A role and the file it was read from, for whoever finds fault with it later."""

    role: Role
    document: Document

    def named(self) -> Iterator[tuple[Keys, str]]:
        """Every other role this one names, and where."""
        for key, other in self.role.needs.items():
            yield ("needs", key), other
        for key, other in self.role.members.items():
            yield ("members", key), other
        for index, leave in enumerate(self.role.leave):
            yield ("leave", str(index), "on"), leave.on

    def env(self) -> Iterator[tuple[Keys, str]]:
        """Every template of an environment variable, and where it stands."""
        for index, step in enumerate(self.role.run):
            for key, text in step.env.items():
                yield ("run", str(index), "env", key), text
        for index, leave in enumerate(self.role.leave):
            for key, text in leave.env.items():
                yield ("leave", str(index), "env", key), text


def role_names(tree: Tree) -> list[str]:
    """Name the roles a stack here may use."""
    return tree.names("roles", "*/role.yaml")


def role_exists(tree: Tree, name: str) -> bool:
    """Tell whether a role of that name can be read."""
    return tree.find(f"roles/{name}/role.yaml") is not None


def read_role(tree: Tree, name: str) -> ReadRole | None:
    """Read a role; None when there is none, InvalidError when it is wrong."""
    file = tree.find(f"roles/{name}/role.yaml")
    if file is None:
        return None
    document = tree.read(file)
    problems = Problems.of_file(document)
    schema = problems.validate(RoleSchema, document.data)
    problems.check()
    assert schema is not None  # noqa: S101 - check() has raised otherwise
    for path, secret in references({k: v for k, v in document.data.items() if k != "vars"}):
        problems.add(path, f"the secret {secret.name} may stand under vars only")
    _check_files(schema, file.parent, problems)
    _check_ansible(schema, file.parent, problems)
    _check_commands(schema, problems)
    _check_templates(schema, file.parent, problems)
    problems.check()
    return ReadRole(_role(name, file.parent, schema), document)


def uses(template: str, mapping: str) -> set[str]:
    """Find what a template takes from a mapping such as `needs`: `needs.x`, `needs['x']`."""
    from jinja2 import nodes  # noqa: PLC0415 - heavy, and many commands read no role

    tree = _jinja().parse(template)
    found: set[str] = set()
    for node in tree.find_all((nodes.Getattr, nodes.Getitem)):
        assert isinstance(node, nodes.Getattr | nodes.Getitem)  # noqa: S101 - for the type checker
        if isinstance(node.node, nodes.Name) and node.node.name == mapping:
            if isinstance(node, nodes.Getattr):
                found.add(node.attr)
            elif isinstance(node.arg, nodes.Const):
                found.add(str(node.arg.value))
    return found


def _check_files(schema: RoleSchema, home: Path, problems: Problems) -> None:
    for index, file in enumerate(schema.files):
        at = ("files", str(index))
        given = [key for key, value in _contents(file) if value is not None]
        if len(given) != 1:
            problems.add(at, "a file has one of template, copy and content")
        for key, name in _contents(file):
            if key != "content" and name is not None and not _inside(home, name):
                problems.add((*at, key), f"there is no file {name} in {shown(home)}")
        if not file.to.startswith("/"):
            problems.add((*at, "to"), f"files.{index}.to must begin with /, not {file.to!r}")


def _check_ansible(schema: RoleSchema, home: Path, problems: Problems) -> None:
    if schema.ansible is None:
        return
    if schema.files or schema.run or schema.packages:
        problems.add(("ansible",), "a role with ansible has no files, run or packages")
    if not _inside(home, schema.ansible):
        problems.add(("ansible",), f"there is no file {schema.ansible} in {shown(home)}")


def _contents(file: FileSchema) -> tuple[tuple[str, str | None], ...]:
    return (("template", file.template), ("copy", file.copy_), ("content", file.content))


def _inside(home: Path, name: str) -> bool:
    """Tell whether a role has that file, in its own directory."""
    file = (home / name).resolve()
    return file.is_file() and file.is_relative_to(home.resolve())


def _check_commands(schema: RoleSchema, problems: Problems) -> None:
    for section, names in (
        ("run", [step.name for step in schema.run]),
        ("leave", [step.name for step in schema.leave]),
    ):
        for index, name in enumerate(names):
            if Counter(names[:index])[name]:
                problems.add((section, str(index)), f"two steps of {section} are called {name}")
    for key, provide in schema.provides.items():
        if (provide.value is None) == (provide.command is None):
            problems.add(("provides", key), f"provides.{key} has one of value and command")
        if provide.random is not None and (provide.value is not None or provide.random[:1] != "/"):
            what = f"provides.{key}.random is the absolute path of the file its command reads"
            problems.add(("provides", key, "random"), what)


@functools.cache
def _jinja() -> Environment:
    from jinja2 import Environment  # noqa: PLC0415 - heavy, and many commands read no role

    return Environment()  # noqa: S701 - it only parses, and nothing here is HTML


def _check_templates(schema: RoleSchema, home: Path, problems: Problems) -> None:
    from jinja2 import TemplateSyntaxError  # noqa: PLC0415 - heavy, as above

    for path, text in _templates(schema):
        try:
            _jinja().parse(text)
        except TemplateSyntaxError as exc:
            problems.add(path, f"{'.'.join(path)} is not a template: {exc.message}")
    for file in schema.files:
        if file.template is None or not _inside(home, file.template):
            continue
        try:
            _jinja().parse((home / file.template).read_text(encoding="utf-8"))
        except TemplateSyntaxError as exc:
            place = Place(shown(home / file.template), exc.lineno)
            problems.found.append(Problem(f"not a template: {exc.message}", place))


def _templates(schema: RoleSchema) -> Iterator[tuple[Keys, str]]:
    """Every text of a role that is rendered, and where it stands."""
    envs = [("run", i, step.env) for i, step in enumerate(schema.run)]
    envs += [("leave", i, step.env) for i, step in enumerate(schema.leave)]
    for section, index, env in envs:
        for key, text in env.items():
            yield (section, str(index), "env", key), text
    for key, provide in schema.provides.items():
        if provide.value is not None:
            yield ("provides", key, "value"), provide.value
    for index, file in enumerate(schema.files):
        if file.content is not None:
            yield ("files", str(index), "content"), file.content


def _role(name: str, home: Path, schema: RoleSchema) -> Role:
    return Role(
        name=name,
        path=home,
        digest=_digest(home),
        summary=schema.summary,
        members=dict(schema.members),
        needs=dict(schema.needs),
        provides={key: Provide(**dict(value)) for key, value in schema.provides.items()},
        vars=dict(schema.vars),
        packages=tuple(schema.packages),
        files=tuple(
            RoleFile(copy=file.copy_, **{k: v for k, v in file if k != "copy_"})
            for file in schema.files
        ),
        run=tuple(
            RoleStep(
                name=step.name,
                do=step.do,
                unless=step.unless,
                watch=tuple(step.watch),
                env=dict(step.env),
                retry=Retry(times=step.retry.times, wait=step.retry.wait),
                within=step.within,
            )
            for step in schema.run
        ),
        ready=Ready(**dict(schema.ready)) if schema.ready else None,
        leave=tuple(Leave(**dict(leave)) for leave in schema.leave),
        ansible=schema.ansible,
    )


def _digest(home: Path) -> str:
    """Cover every file of a role: its name and its content."""
    total = hashlib.sha256()
    for file in sorted(path for path in home.rglob("*") if path.is_file()):
        content = file.read_bytes()
        total.update(f"{file.relative_to(home).as_posix()}\0{len(content)}\0".encode())
        total.update(content)
    return total.hexdigest()
