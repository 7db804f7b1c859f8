"""Build a disk from a NixOS flake, and say how far it came: parsed, evaluated or built.

*Parsed*: every file is Nix; known on any computer.  *Evaluated*: every option exists and has a
value of its type; needs Nix and nixpkgs.  *Built*: there is a disk; needs a store that can fetch or
make all it consists of.  No stage is taken for the next.

Settings: `path` (the folder of the flake), `role` or `attribute` (what of the flake), and `host`,
`host_key`, `key` (another computer that does the work).
"""

from __future__ import annotations

import enum
import hashlib
import json
import os
import re
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from essaim.images import nix_errors
from essaim.images.nix_host import Ears, Here, Host, Login, flake_at, there
from essaim.images.nix_parse import parse
from essaim.model.errors import EssaimError, RejectedError, SetupError, TransientError
from essaim.model.spelling import meant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager

    from essaim.images.builders import Job
    from essaim.model.stacks import Image

#: A nixpkgs tree to evaluate with instead of the one flake.lock names.  Nothing is built from it:
#: an image is what its lock says, wherever it was built.
NIXPKGS = "ESSAIM_NIXPKGS"

_SETTINGS = ("summary", "path", "role", "attribute", "host", "host_key", "key")
_ATTRIBUTE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*(?:\.[A-Za-z_][A-Za-z0-9_-]*)*")
_NIX = ("nix", "--extra-experimental-features", "nix-command flakes")
_MAKING = re.compile(r"(building|copying path|fetching) '(?:\S*/)?(?:[a-z0-9]{32}-)?([^']+)'")
_COPY = re.compile(r"/[^\s'`]*/[a-z0-9]{32}-source/(?P<file>[^\s'`:»]+)")
#: The outputs of a flake whose only input is nixpkgs, for a tree that is no flake of any store.
_OUTPUTS = """
{ flake, tree, wanted }:
let
  nixpkgs = (import (tree + "/flake.nix")).outputs { self = nixpkgs; } // { outPath = tree; };
  self = (import (flake + "/flake.nix")).outputs { inherit self nixpkgs; } // { outPath = flake; };
  get = path: set: if path == [ ] then set else get (builtins.tail path) set.${builtins.head path};
  words = builtins.filter builtins.isString (builtins.split "[.]" wanted);
in
"""


class Stage(enum.StrEnum):
    """How far an image came."""

    PARSED = "parsed"
    EVALUATED = "evaluated"
    BUILT = "built"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The settings of an image, checked."""

    name: str
    flake: Path
    attribute: str
    role: str  #: empty when an attribute was given
    login: Login | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """How far an image comes without being built."""

    stage: Stage
    files: int  #: that were parsed
    drv_path: str = ""  #: empty unless it was evaluated
    warnings: tuple[str, ...] = ()  #: of the evaluation
    lacks: str = ""  #: why it was not evaluated
    hint: str = ""  #: what to do about that


EDITION = "1"


def recipe(image: Image) -> Recipe:
    """Check an image's settings; RejectedError names the one that is wrong."""
    settings = image.settings
    for key in settings:
        if key not in _SETTINGS:
            hint = meant(key, _SETTINGS, kind="there are")
            raise RejectedError(f"image {image.name}: there is no setting {key}", hint=hint)
    flake = Path(str(settings.get("path", "")))
    if not (flake / "flake.nix").is_file():
        raise RejectedError(
            f"image {image.name}: path {flake} is not a folder with a flake.nix",
            hint="for example path: nix, for a folder beside images/",
        )
    if not (flake / "flake.lock").is_file():
        raise RejectedError(
            f"image {image.name}: {flake} has no flake.lock, so nothing says what it is made from",
            hint=f"nix flake lock {flake}",
        )
    role, attribute = str(settings.get("role", "")), str(settings.get("attribute", ""))
    wanted = attribute or f"packages.x86_64-linux.{role}-image"
    if bool(role) == bool(attribute) or not _ATTRIBUTE.fullmatch(wanted):
        raise RejectedError(
            f"image {image.name}: give either a role or an attribute of the flake",
            hint="for example role: slurm-node",
        )
    login = Login.of(image.name, settings) if "host" in settings else None
    return Recipe(name=image.name, flake=flake.resolve(), attribute=wanted, role=role, login=login)


def check(image: Image) -> None:
    """Parse the flake; SetupError when there is no Nix to do more with it."""
    wanted = recipe(image)
    files = parse(wanted.flake)
    if wanted.login is None:
        try:
            Here().run("nix", "--version")
        except SetupError as error:
            raise _only(wanted, Stage.PARSED, error, files=len(files)) from error


def examine(image: Image) -> Examined:
    """Say how far an image comes; InvalidError for what is wrong in its files.  Builds nothing."""
    wanted = recipe(image)
    files = len(parse(wanted.flake))
    try:
        with _host(wanted) as host, flake_at(host, wanted.flake) as flake:
            drv_path, warnings = _evaluate(wanted, host, flake, Ears())
    except SetupError as error:
        lacks = error.what.removeprefix(f"image {image.name}: ")
        return Examined(stage=Stage.PARSED, files=files, lacks=lacks, hint=error.hint)
    return Examined(stage=Stage.EVALUATED, files=files, drv_path=drv_path, warnings=tuple(warnings))


def lines(found: Examined) -> list[str]:
    """Say for a person which stages were reached, and what was in the way of the next."""
    said = [f"{Stage.PARSED:<10} yes  {found.files} files"]
    if found.stage is Stage.PARSED:
        said += [f"{Stage.EVALUATED:<10} no   {found.lacks}", f"           → {found.hint}"]
    else:
        said += [f"{Stage.EVALUATED:<10} yes  {found.drv_path}"]
        said += [f"           warning: {warning}" for warning in found.warnings]
    return [*said, f"{Stage.BUILT:<10} not tried"]


def build(job: Job) -> Mapping[str, Any]:
    """Parse, evaluate and build; an error says which stage was reached."""
    wanted = recipe(job.image)
    files = parse(wanted.flake)
    job.say(f"{Stage.PARSED} {len(files)} files")
    stage = Stage.PARSED
    with job.log.open("a", encoding="utf-8") as log:
        ears = Ears(heard=_hearer(log.write, job.say), fds=(job.lock,))
        try:
            with _host(wanted) as host, flake_at(host, wanted.flake) as flake:
                job.say("evaluating")
                drv_path, warnings = _evaluate(wanted, host, flake, ears)
                stage = Stage.EVALUATED
                for note in (f"{stage} {drv_path.rpartition('/')[2]}", *warnings):
                    job.say(note)
                drv_path, out = _build(wanted, host, flake, ears)
                _copy(wanted, host, out, job)
                facts = _facts(host, out)
        except (SetupError, TransientError) as error:
            raise _only(wanted, stage, error, files=len(files)) from error
    job.say(f"{Stage.BUILT} {out}")
    return {
        "stage": Stage.BUILT,
        "flake": str(wanted.flake),
        "attribute": wanted.attribute,
        "files": {str(path.relative_to(wanted.flake)): _digest(path) for path in files},
        "lock": json.loads((wanted.flake / "flake.lock").read_bytes()),
        "drvPath": drv_path,
        "outPath": out,
        **facts,
        "warnings": warnings,
        "host": host.name,
    }


def _only(wanted: Recipe, stage: Stage, error: EssaimError, *, files: int) -> EssaimError:
    """Give the same error, which now says what was reached and what was not."""
    after = {Stage.PARSED: Stage.EVALUATED, Stage.EVALUATED: Stage.BUILT}[stage]
    reached = f"{stage} ({files} files)" if stage is Stage.PARSED else str(stage)
    what = error.what.removeprefix(f"image {wanted.name}: ")
    return type(error)(f"image {wanted.name}: {reached}, not {after}: {what}", hint=error.hint)


def _host(wanted: Recipe) -> AbstractContextManager[Host]:
    return there(wanted.login) if wanted.login else nullcontext(Here())


def _tree() -> str:
    tree = os.environ.get(NIXPKGS, "")
    if tree and not (Path(tree) / "nixos/lib/eval-config.nix").is_file():
        raise SetupError(
            f"{NIXPKGS}={tree} is not a nixpkgs tree", hint="it must hold lib, nixos and pkgs"
        )
    return str(Path(tree).resolve()) if tree else ""


def _evaluate(wanted: Recipe, host: Host, flake: str, ears: Ears) -> tuple[str, list[str]]:
    """Give the derivation Nix makes of the flake, and what it warned about."""
    path = f"{wanted.attribute}.drvPath"
    if not host.name and _tree():
        done = host.run(*_from_tree(flake, "get words self", path), ears=ears)
        text = json.loads(done.out) if not done.code else ""
    else:
        done = host.run(
            *_NIX, "eval", "--raw", "--no-update-lock-file", f"path:{flake}#{path}", ears=ears
        )
        text = done.out.strip()
    if done.code:
        raise nix_errors.explain(
            wanted.name,
            _at_home(done.err, flake, wanted.flake),
            lambda option: _beside(wanted, host, flake, option),
        )
    return text, nix_errors.warnings_of(done.err)


def _at_home(text: str, flake: str, home: Path) -> str:
    """Name the files a person can open, not the copies that Nix or another computer made."""

    def original(match: re.Match[str]) -> str:
        own = home / match["file"]
        return str(own) if own.is_file() else match[0]

    return _COPY.sub(original, text.replace(flake, str(home)))


def _from_tree(flake: str, expression: str, wanted: str) -> list[str]:
    return [
        "nix-instantiate", "--store", "dummy://", "--eval", "--strict", "--json",
        "--argstr", "flake", flake, "--argstr", "tree", _tree(), "--argstr", "wanted", wanted,
        "--expr", _OUTPUTS + expression,
    ]  # fmt: skip


def _beside(wanted: Recipe, host: Host, flake: str, option: str) -> Iterable[str]:
    """List the options of the set that has not this one; of a role, for then it is known where."""
    around = option.rpartition(".")[0]
    if not wanted.role or not _ATTRIBUTE.fullmatch(around):
        return []
    # Unchecked: the very mistake would keep Nix from answering.
    unchecked = "(c.extendModules { modules = [ { _module.check = false; } ]; })"
    names = f"c: builtins.attrNames {unchecked}.options.{around}"
    role = f"nixosConfigurations.{wanted.role}"
    if not host.name and _tree():
        done = host.run(*_from_tree(flake, f"({names}) (get words self)", role))
    else:
        done = host.run(*_NIX, "eval", "--json", f"path:{flake}#{role}", "--apply", names)
    return json.loads(done.out) if not done.code else []


def _build(wanted: Recipe, host: Host, flake: str, ears: Ears) -> tuple[str, str]:
    """Have the disk made from what flake.lock names; gives its derivation and where it is."""
    done = host.run(
        *_NIX, "build", "--no-link", "--json", "--no-update-lock-file",
        f"path:{flake}#{wanted.attribute}", ears=ears,
    )  # fmt: skip
    if done.code:
        error = nix_errors.explain(wanted.name, done.err, lambda _option: ())
        # It evaluated, so the files are not at fault: something is not to be had or made here.
        raise SetupError(error.what, hint=error.hint or "see what nix says above")
    (made,) = json.loads(done.out)
    return str(made["drvPath"]), str(made["outputs"]["out"])


def _copy(wanted: Recipe, host: Host, out: str, job: Job) -> None:
    listed = host.run("find", out, "-maxdepth", "1", "-name", "*.qcow2")
    disks = listed.out.split()
    if len(disks) != 1:
        raise RejectedError(
            f"image {wanted.name}: {wanted.attribute} has {len(disks)} qcow2 files in {out}, not 1",
            hint="use make-disk-image with format = qcow2",
        )
    job.say("copying the disk")
    host.fetch(disks[0], job.result)


def _facts(host: Host, out: str) -> dict[str, Any]:
    told = json.loads(host.run(*_NIX, "path-info", "--json", out).out or "[]")
    # A list in older versions of Nix, a set by path in newer ones.
    info = told[0] if isinstance(told, list) else told[out]
    return {
        "narHash": info["narHash"],
        "tools": {"nix": host.run("nix", "--version").out.strip()},
    }


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _hearer(write: Callable[[str], Any], say: Callable[[str], None]) -> Callable[[str], None]:
    def heard(line: str) -> None:
        write(line + "\n")
        if match := _MAKING.search(line):
            say(f"{match[1]} {match[2]}")

    return heard
