"""A role: what a machine is for, as files, packages and commands applied over SSH."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often to try again, and how long to wait before the second try (doubled each time)."""

    times: int = 0
    wait: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleFile:
    """A file on the machine: a Jinja template, a copy, or a line of content (itself a template)."""

    to: str
    template: str | None = None
    copy: str | None = None
    content: str | None = None
    owner: str = "root"
    group: str | None = None  #: the owner's own group when absent
    mode: int = 0o644


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleStep:
    """A command of a role.

    Runs when `unless` fails, or when a watched file differs from what it was when the step last
    succeeded; with neither, runs once for each distinct content of the step itself.
    `do` is a shell script taken verbatim: values reach it only through `env`, never by templating.
    """

    name: str
    do: str
    unless: str | None = None
    watch: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)  #: values are Jinja templates
    retry: Retry = Retry()
    within: float = 120.0  #: seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """A command to run, on a machine that carries role `on`, before this machine is removed."""

    name: str
    on: str
    do: str
    env: Mapping[str, str] = field(default_factory=dict)
    within: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Provide:
    """A value other roles may need: a template, or what a command prints on the machine."""

    value: str | None = None
    command: str | None = None
    secret: bool = False  #: may be used in files only, never in `env`; masked in logs
    #: The file the command reads, when any random text will do: drawn beforehand, and put there,
    #: for machines that configure themselves.
    random: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A probe that succeeds once the role does its work."""

    command: str
    every: float = 0.5
    within: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """One directory `roles/<name>/`, read and checked.  `digest` covers every file in it."""

    name: str
    path: Path
    digest: str
    summary: str = ""
    members: Mapping[str, str] = field(default_factory=dict)  #: variable -> role its machines carry
    needs: Mapping[str, str] = field(default_factory=dict)  #: value -> role that provides it
    provides: Mapping[str, Provide] = field(default_factory=dict)
    vars: Mapping[str, object] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    files: tuple[RoleFile, ...] = ()
    run: tuple[RoleStep, ...] = ()
    ready: Ready | None = None
    leave: tuple[Leave, ...] = ()
    ansible: str | None = None  #: a playbook in the role's directory, instead of files and commands
