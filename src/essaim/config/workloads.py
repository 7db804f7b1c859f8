"""Workloads, and how schedulers are given jobs: read from YAML, checked, frozen."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from essaim.config.compose import Composed
from essaim.config.documents import Document, Keys, read, shown
from essaim.config.overrides import on_command_line
from essaim.config.problems import Problems
from essaim.config.schema import Duration, Whole
from essaim.config.secrets import references
from essaim.config.tree import LIBRARY, Tree
from essaim.model.errors import InvalidError, Problem
from essaim.model.spelling import meant

#: How jobs are submitted: all with one command, one command for each, or each after the one before.
WAYS = ("array", "each", "chain")

#: Where descriptions of schedulers lie in a stack's directory, a lab and the library.
FOLDER = "compare/schedulers"

#: Arguments that begin so are about the workload, not about the stack.
PREFIX = "workload."


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Jobs that are all alike."""

    name: str
    summary: str
    jobs: int
    cores: int  #: of each job, on one machine
    seconds: float  #: what the command is told as JOB_SECONDS
    submit: str  #: one of WAYS
    command: str  #: a shell script
    user: str  #: who submits; empty for the account that the role `base` makes
    within: float  #: seconds for all jobs together


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduler:
    """How one kind of scheduler is given jobs.  All but the roles are shell scripts."""

    name: str
    summary: str
    controller: str  #: the role of the machine jobs are submitted on
    node: str  #: the role of the machines jobs run on
    version: str
    prepare: str
    array: str
    one: str
    after: str
    left: str
    cancel: str


def _way(value: Any) -> Any:
    if value not in WAYS:
        raise ValueError(f"must be {', '.join(WAYS[:-1])} or {WAYS[-1]}")
    return value


def _script(value: Any) -> Any:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("must be a shell command")
    return value


def _account(value: Any) -> Any:
    if not isinstance(value, str) or not re.fullmatch(r"[a-z_][a-z0-9_-]{0,31}", value):
        raise ValueError("must be the name of an account")
    return value


Positive = Annotated[Whole, Field(ge=1)]
Script = Annotated[str, BeforeValidator(_script)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _WorkloadSchema(_Strict):
    summary: str = ""
    jobs: Positive
    cores: Positive = 1
    seconds: Duration = 0.0
    submit: Annotated[str, BeforeValidator(_way)] = "array"
    command: Script
    user: Annotated[str, BeforeValidator(_account)] = ""
    within: Duration = 1800.0


class _SubmitSchema(_Strict):
    array: Script
    one: Script
    after: Script


class _SchedulerSchema(_Strict):
    summary: str = ""
    controller: str
    node: str
    version: Script
    prepare: str = ""
    submit: _SubmitSchema
    left: Script
    cancel: Script


def split(overrides: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Part the arguments about the stack from those about the workload."""
    return (
        tuple(each for each in overrides if not each.startswith(PREFIX)),
        tuple(each for each in overrides if each.startswith(PREFIX)),
    )


def read_workload(where: str, overrides: Sequence[str] = ()) -> Workload:
    """Read the workload at a path (a directory with workload.yaml, or a YAML file).

    Each argument such as `workload.jobs=100` takes the place of what the file says.
    """
    document = read(_file(where))
    said = {_key(argument): argument for argument in overrides}
    values = {**document.data, **{key: _value(argument) for key, argument in said.items()}}

    def report(path: Keys, what: str, hint: str) -> Problem:
        if path and path[0] in said:
            return on_command_line(said[path[0]], what, hint)
        return Problem(what, document.place(path), hint)

    problems = Problems(report)
    _refuse_secrets(document, problems)
    schema = problems.validate(_WorkloadSchema, values)
    problems.check()
    assert schema is not None  # noqa: S101 - check() has raised otherwise
    file = document.file
    name = file.parent.name if file.name == "workload.yaml" else file.stem
    return Workload(name=name, **dict(schema))


def scheduler_of(composed: Composed) -> Scheduler:
    """How the scheduler of a composed stack is given jobs; InvalidError when it has none."""
    source = composed.stack.source
    tree = Tree(source)
    carried = {role for machine in composed.stack.machines for role in machine.roles}
    known = [_read_scheduler(tree, name) for name in tree.names(FOLDER, "*.yaml")]
    found = [each for each in known if each.controller in carried]
    if len(found) == 1:
        return found[0]
    if found:
        what = f"{source} has several schedulers: {', '.join(each.name for each in found)}"
        raise InvalidError([Problem(what, hint="a comparison is of stacks with one each")])
    roles = ", ".join(sorted(each.controller for each in known))
    what = f"{source} has no scheduler: no machine carries any of the roles {roles}"
    hint = (
        f"say how yours is given jobs in {FOLDER}/NAME.yaml of the lab; {LIBRARY / FOLDER} has some"
    )
    raise InvalidError([Problem(what, hint=hint)])


def digest(*parts: Workload | Scheduler | str) -> str:
    """A digest of a workload and of how it is submitted."""
    plain = [part if isinstance(part, str) else asdict(part) for part in parts]
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _read_scheduler(tree: Tree, name: str) -> Scheduler:
    file = tree.find(f"{FOLDER}/{name}.yaml")
    assert file is not None  # noqa: S101 - its name was just read from there
    document = tree.read(file)
    problems = Problems.of_file(document)
    _refuse_secrets(document, problems)
    schema = problems.validate(_SchedulerSchema, document.data)
    problems.check()
    assert schema is not None  # noqa: S101 - check() has raised otherwise
    own: Mapping[str, Any] = {key: value for key, value in schema if key != "submit"}
    return Scheduler(name=name, **own, **dict(schema.submit))


def _refuse_secrets(document: Document, problems: Problems) -> None:
    for path, secret in references(document.data):
        problems.add(path, f"the secret {secret.name} cannot stand here: jobs are no place for it")


def _key(argument: str) -> str:
    key, equals, _ = argument.removeprefix(PREFIX).partition("=")
    if not equals:
        raise InvalidError([on_command_line(argument, "it gives no value", "workload.jobs=100")])
    return key


def _value(argument: str) -> Any:
    text = argument.partition("=")[2].strip("'\"")
    try:
        return int(text)
    except ValueError:
        return text


def _file(where: str) -> Path:
    path = Path(where).absolute()
    file = path / "workload.yaml" if path.is_dir() else path
    if file.is_file():
        return file
    what = f"there is no workload at {where}"
    if path.is_dir():
        what = f"{where} is not a workload: it holds no workload.yaml"
    beside = path.parent.glob("*/workload.yaml") if path.parent.is_dir() else ()
    names = [shown(other.parent) for other in beside]
    raise InvalidError([Problem(what, hint=meant(shown(path), names, kind="workloads there"))])
