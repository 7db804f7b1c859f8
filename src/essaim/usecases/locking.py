"""Lock a stack: write down all that makes it what it is, and hold later raises to it."""

from __future__ import annotations

import hashlib
import ipaddress
import os
import platform
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from essaim import __version__
from essaim.config.secrets import references
from essaim.config.serial import fingerprint, values_to_json
from essaim.config.tree import Tree
from essaim.images.contents import altered_files, rootfs_digest
from essaim.model.errors import MovedError, SetupError
from essaim.model.machines import Form
from essaim.plan.digest import RoleDigests
from essaim.plan.lock import (
    Lock,
    LockedFile,
    LockedImage,
    LockedNode,
    MayDiffer,
    from_text,
    seed_digest,
    to_text,
)
from essaim.plan.lock_compare import Difference, differences, few
from essaim.remote.install import content
from essaim.remote.reading import reads
from essaim.workflows.configuring import facts_of

if TYPE_CHECKING:
    from essaim.config.compose import Composed
    from essaim.images.cache import Built
    from essaim.model.roles import Role
    from essaim.model.stacks import Image, Machine, Stack
    from essaim.usecases.services import Services

#: What a manifest says that is in the lock under a name of its own, or that differs from build to
#: build and from place to place.
_NO_INPUTS = frozenset(
    {
        "name", "digest", "builder", "form", "settings", "mode", "packages", "tools", "built_at",
        "seconds", "size", "sha256", "virtual_size", "sources", "flake", "host", "stage",
        "warnings", "altered",
    }
)  # fmt: skip

#: Bytes from which on a file that an image is made from is not read here.
_LARGE = 1 << 20

#: What differs between any two raises.
ALWAYS = (
    MayDiffer(
        what="host keys",
        why="each machine's own, drawn when it is first raised",
        paths=("/etc/ssh/ssh_host_*", "/etc/dropbear/dropbear_*_host_key"),
    ),
    MayDiffer(
        what="machine ids and random seeds",
        why="each machine's own, drawn at its first boot",
        paths=("/etc/machine-id", "/var/lib/dbus/machine-id", "/var/lib/systemd/random-seed"),
    ),
    MayDiffer(
        what="the key that may log in",
        why="the control plane's own; that it is the only one is verified",
        paths=("/root/.ssh/authorized_keys",),
    ),
    MayDiffer(what="boot", why="changes at every start", paths=("/run/*",)),
    MayDiffer(what="times", why="of files, processes, builds and logs", paths=("/var/log/*",)),
    MayDiffer(
        what="ports and hardware addresses",
        why="those of the server that are free; the address inside the stack is locked",
    ),
    MayDiffer(
        what="tools",
        why="versions of the programs here, kept to explain a difference",
    ),
    MayDiffer(
        what="what commands of roles make",
        why="databases, sockets, state: judged by the role's own `unless` and `ready`",
        paths=("/var/lib/essaim/*",),
    ),
)


@runtime_checkable
class Versioned(Protocol):
    """A driver that can say what programs it works with, and their versions."""

    def versions(self) -> Mapping[str, str]:
        """Name each and its version."""


def lock_of(where: str) -> Path:
    """Where the lock of the stack at a path lies."""
    return lock_file(Tree(where).stack)


def lock_file(file: Path) -> Path:
    """Where a stack's lock lies: `essaim.lock` beside stack.yaml, `NAME.lock` beside NAME.yaml."""
    return file.with_name("essaim.lock") if file.name == "stack.yaml" else file.with_suffix(".lock")


def make_lock(
    services: Services,
    composed: Composed,
    progress: Callable[[str], None] | None = None,
    *,
    whole: bool = False,
) -> Lock:
    """Write down what a stack is.  With `progress`, images that are missing are built first.

    A `whole` lock, to be kept, also has what takes a while and is never compared: which files the
    images themselves changed.
    """
    stack = composed.stack
    form = services.driver(stack.site).form
    if progress is not None:
        for _name, image in sorted(stack.images.items()):
            services.images.build(image, progress, form)
    images = {
        name: _image(services, image, form, whole=whole) for name, image in stack.images.items()
    }
    return Lock(
        stack=stack.name,
        source=_named(composed.file, composed.lab),
        overrides=stack.overrides,
        wanted=fingerprint(stack),
        configuration=values_to_json(composed.values),
        files=dict(_files(composed)),
        images=images,
        nodes=dict(_nodes(composed)),
        tools=_tools(services, stack, form),
        may_differ=(*ALWAYS, *_own_freedoms(stack, images)),
    )


def missing_images(lock: Lock) -> list[str]:
    """Name the images that are not built here, so that nothing is known of their content."""
    return sorted(name for name, image in lock.images.items() if not image.content)


def read_lock(path: Path) -> Lock:
    """Read a lock; SetupError when there is none, InvalidError when it is not one."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as exc:
        raise SetupError(f"there is no lock {path}", hint="make it: essaim lock STACK") from exc
    except (OSError, UnicodeDecodeError) as exc:
        raise SetupError(f"{path} cannot be read: {exc}", hint="make it anew") from exc
    return from_text(text, str(path))


def write_lock(lock: Lock, path: Path) -> None:
    """Write a lock, all or nothing."""
    draft = ""
    try:
        handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), 0o644)  # it holds no secret, and is kept with the lab
            file.write(to_text(lock))
        Path(draft).replace(path)
    except OSError as exc:
        if draft:
            Path(draft).unlink(missing_ok=True)
        raise SetupError(
            f"{path} cannot be written: {exc.strerror}", hint="choose another place with --file"
        ) from exc


def hold_to(
    services: Services, composed: Composed, lock: Lock, progress: Callable[[str], None]
) -> None:
    """Refuse a stack that is not what was locked; builds its images, to see what they hold."""
    found = differences(lock, make_lock(services, composed, progress))
    if found:
        lines = [f"{composed.stack.name} is not what was locked", *map(_line, found)]
        raise MovedError(
            "\n".join(lines),
            hint="undo the change, or lock what there is now: essaim lock STACK",
        )


def _line(found: Difference) -> str:
    return f"  {found.at} {found.what}"


# -- what it was composed from ------------------------------------------------------------------


def _files(composed: Composed) -> Iterator[tuple[str, str]]:
    stack = composed.stack
    inside = [file for role in stack.roles.values() for file in role.path.rglob("*")]
    for image in stack.images.values():
        inside += _of_image(image)
    for file in {*composed.files, *inside}:
        if file.is_file():
            yield _named(file, composed.lab), hashlib.sha256(file.read_bytes()).hexdigest()


def _of_image(image: Image) -> list[Path]:
    """The files a description names: a flake, a template and what lies beside it.

    A disk to be imported is known by what it became: the manifest has its digest.
    """
    named = image.settings.get("path")
    if not isinstance(named, str):
        return []
    place = Path(named)
    if image.builder == "packer" and place.is_file():
        place = place.parent
    files = list(place.rglob("*")) if place.is_dir() else [place]
    kept = [file for file in files if ".git" not in file.parts and file.name != "result"]
    return [file for file in kept if file.is_file() and file.stat().st_size <= _LARGE]


def _named(file: Path, lab: Path) -> str:
    """Name a file the same wherever the lab lies and Essaim is installed."""
    if file.is_relative_to(_PACKAGE):
        return f"essaim:{file.relative_to(_PACKAGE).as_posix()}"
    return file.relative_to(lab).as_posix() if file.is_relative_to(lab) else str(file)


_PACKAGE = Path(__file__).resolve().parents[1]


def _tools(services: Services, stack: Stack, form: Form) -> dict[str, str]:
    found = {"essaim": __version__, "python": platform.python_version()}
    built = [_built(services, image, form) for image in stack.images.values()]
    for its in built:
        found |= its.manifest.get("tools", {}) if its else {}
    driver = services.driver(stack.site)
    return {**found, **(driver.versions() if isinstance(driver, Versioned) else {})}


# -- images -------------------------------------------------------------------------------------


def _image(services: Services, image: Image, form: Form, *, whole: bool) -> LockedImage:
    built = _built(services, image, form)
    if built is None:
        return LockedImage(description=image.digest, builder=image.builder, form=form.value)
    manifest = built.manifest
    return LockedImage(
        description=image.digest,
        builder=image.builder,
        form=form.value,
        # A disk's digest is taken when it is made.  A folder is read again: anybody may have
        # changed something in it since, and every sandbox machine would have it.
        content=rootfs_digest(built.path) if form is Form.ROOTFS else manifest["sha256"],
        packages=dict(manifest.get("packages", {})),
        altered=_altered(built) if whole else None,
        inputs={key: value for key, value in manifest.items() if key not in _NO_INPUTS},
        tools=dict(manifest.get("tools", {})),
    )


def _altered(built: Built) -> tuple[str, ...] | None:
    """What the image itself changed in its packages' files; None when nobody can tell."""
    found = built.manifest.get("altered")
    if built.form is Form.ROOTFS and built.manifest.get("packages"):
        found = altered_files(built.path)
    return None if found is None else tuple(found)


def _built(services: Services, image: Image, form: Form) -> Built | None:
    path = services.images.ready(image, form)
    if path is None:
        return None
    return next((built for built in services.images.list() if built.path == path), None)


# -- machines -----------------------------------------------------------------------------------


def _nodes(composed: Composed) -> Iterator[tuple[str, LockedNode]]:
    stack = composed.stack
    digests = RoleDigests(stack)
    prefix = ipaddress.ip_network(stack.network.cidr).prefixlen
    pins = _Pins(stack, composed.lab)
    for machine in stack.machines:
        address = f"{machine.address}/{prefix}"
        yield (
            machine.name.machine,
            LockedNode(
                hostname=machine.name.machine,
                address=address,
                seed=seed_digest(machine.name.machine, address),
                image=machine.image,
                size={
                    "cores": machine.size.cores,
                    "memory": machine.size.memory,
                    "disk": machine.size.disk,
                },
                roles=machine.roles,
                digests={role: digests.of(machine, role) for role in machine.roles},
                files=pins.of(machine),
            ),
        )


class _Pins:
    """The files of roles, rendered beforehand where nothing hinders it."""

    def __init__(self, stack: Stack, lab: Path) -> None:
        self._stack = stack
        self._lab = lab
        self._rests_on = {
            (role.name, number): tuple(self._live(role, reads(role, file)))
            for role in stack.roles.values()
            for number, file in enumerate(role.files)
        }

    def of(self, machine: Machine) -> dict[str, LockedFile]:
        """The files of a machine by path; of two roles that write the same one the later wins."""
        found = {}
        for role in (self._stack.roles[name] for name in machine.roles):
            facts = facts_of(self._stack, self._lab, machine, role, {})
            for number, file in enumerate(role.files):
                rests_on = self._rests_on[role.name, number]
                body = b"" if rests_on else content(role, file, facts)
                found[file.to] = LockedFile(
                    role=role.name,
                    mode=f"{file.mode:o}",
                    owner=file.owner,
                    group=file.group or "",
                    sha256="" if rests_on else hashlib.sha256(body).hexdigest(),
                    rests_on=rests_on,
                )
        return found

    def _live(self, role: Role, names: Iterable[str]) -> Iterator[str]:
        """Of what a template reads, what must not be in a lock or is not known yet."""
        variables: Mapping[str, Any] = {**role.vars, **self._stack.vars.get(role.name, {})}
        secret = {path[0] for path, _ in references(variables)}
        for name in sorted(names):
            mapping, _, key = name.partition(".")
            # `vars` alone, or a method such as `vars.items`, may reach any of them.
            if mapping == "needs" or key in secret or (secret and key not in variables):
                yield name


def _own_freedoms(stack: Stack, images: Mapping[str, LockedImage]) -> Iterator[MayDiffer]:
    """What raises of this very stack may differ in."""
    live = sorted(
        {f"{role}: {key}" for role, its in stack.roles.items() for key in its.needs}
        | {
            f"{role}: {'.'.join(path)}"
            for role, its in stack.roles.items()
            for path, _ in references({**its.vars, **stack.vars.get(role, {})})
        }
    )
    if live:
        yield MayDiffer(
            what=f"values and secrets given to roles ({few(live)})",
            why="never in a lock; verify compares the files that hold them with the values of now",
        )
    for name, image in sorted(images.items()):
        if image.altered is None:
            yield MayDiffer(
                what=f"files of image {name} that no role writes",
                why="its packages do not tell what they hold; all of it is in the image's digest",
            )
    for name, role in sorted(stack.roles.items()):
        carriers = [machine for machine in stack.machines if name in machine.roles]
        if role.ansible is not None and carriers:
            yield MayDiffer(what=f"role {name}", why="a playbook: what it does cannot be foreseen")
        fetched = sorted(
            {p for m in carriers for p in role.packages if p not in images[m.image].packages}
        )
        if fetched:
            yield MayDiffer(
                what=f"versions of {', '.join(fetched)} and of what they bring along",
                why=f"role {name} installs them, and no image holds them",
            )
