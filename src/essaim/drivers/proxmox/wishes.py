"""What an image wants of a container beyond the API, as files and lines: pure.

    extras:
      idmap: ["u 0 100000 65536", "g 0 100000 65536", "u 600000000 600000000 999999999", …]
      mounts: [{source: "/mnt/nfs/home/{login}", target: "home/{login}"}]
      hooks: {mount: "…a script, run on the node…", start: "…a script, run in the container…"}
      values: {directory_uri: "ldaps://ldap.example.org"}

`{login}` and the like stand for the machine's labels, for `machine`, `stack`, `hostname`,
`address`, and for `values`.  Scripts get the same as variables (ESSAIM_LOGIN, …), in a file beside
them: they are never put together.
"""

from __future__ import annotations

import io
import re
import shlex
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from essaim.drivers.proxmox.cluster import Guest
from essaim.drivers.proxmox.guests import Wanted
from essaim.model.errors import RejectedError
from essaim.model.machines import Executed
from essaim.remote.keyring import public_half

#: Where a node keeps what containers get from us, each in a folder named by its id.
FOLDER = "/var/lib/essaim/lxc"
#: Where a container finds the script it starts with.
INSIDE = "var/lib/essaim"
#: Lines of a container's configuration between which all are ours.  They are settings without
#: effect: a comment would become part of its description when the API next writes the file.
BEGIN, END = "lxc.environment: ESSAIM_EXTRAS=begin", "lxc.environment: ESSAIM_EXTRAS=end"
_KNOWN = {"idmap", "mounts", "hooks", "values"}
_HOOKS = {"mount", "start"}
_VALUE = re.compile(r"[a-z][a-z0-9_]*")
_IDMAP = re.compile(r"[ug] \d{1,10} \d{1,10} \d{1,10}")
_FIELD = re.compile(r"\{([a-z_]+)\}")
#: A path in a line of the configuration: no blank, no control character, nowhere up.
_PATH = re.compile(r"(?!.*(?:^|/)\.\.(?:/|$))[A-Za-z0-9_./@+:=,-]+")
_USUAL_ROOT = 100_000

# Runs in the container's namespaces, before its root file system becomes the root: a link in that,
# which whoever is root in the container may have made, would lead to files of the node, and there
# to those of other containers.  So nothing is written by its path: `put` walks from directory to
# directory without following a link, stays in the one it has opened whatever becomes of its name,
# and puts a new file in the place of the old one.  In Perl, which every node has: a shell cannot
# open a directory without following links.
PUT = r"""put() {
  perl -e '
    use strict;
    use Fcntl qw(O_RDONLY O_WRONLY O_CREAT O_EXCL O_NOFOLLOW O_DIRECTORY);
    my ($root, $path, $mode, $folder_mode) = @ARGV;
    sub refuse { print STDERR "mount hook: @_\n"; exit 1 }
    chdir $root or refuse("$root: $!");
    my @parts = grep { length and $_ ne "." } split m{/}, $path;
    refuse("$path leads up") if grep { $_ eq ".." } @parts;
    my ($name, $seen, $folder) = (pop @parts, "");
    sub enter { sysopen($folder, $_[0], O_RDONLY | O_DIRECTORY | O_NOFOLLOW) }
    for my $part (@parts) {
      $seen .= "/$part";
      unless (enter($part)) {
        refuse("$seen of the container is a symbolic link, not a directory") if -l $part;
        mkdir $part, 0755;
        enter($part) or refuse("$seen of the container is no directory: $!");
      }
      chdir $folder or refuse("$seen: $!");
    }
    if ($folder_mode) { chmod oct($folder_mode), $folder or refuse("$seen: $!") }
    my $draft = ".$name.essaim";
    unlink $draft;
    sysopen(my $file, $draft, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600)
      or refuse("$seen/$name: $!");
    binmode $_ for *STDIN, $file;
    local $/ = undef;
    print $file scalar(<STDIN>) // "";
    chmod oct($mode), $file and close $file or refuse("$seen/$name: $!");
    rename $draft, $name or refuse("$seen/$name of the container: $!");
  ' "$LXC_ROOTFS_MOUNT" "$@"
}
"""
_MOUNT = rf"""#!/bin/sh
# put PATH MODE [MODE OF ITS FOLDER] <FILE: puts a file into the container, and nowhere else.
set -eu
here=$(dirname "$0")
{PUT}
(cd "$here/root" && find . -type f) | while IFS= read -r file; do
  put "$file" "$(stat -c %a "$here/root/$file")" <"$here/root/$file" || exit 1
done
if [ -e "$here/own" ]; then . "$here/values"; . "$here/own"; fi
"""


class Extras(Protocol):
    """What is done on the nodes themselves; see `extras`."""

    def apply(self, guest: Guest, wanted: Wanted) -> dict[str, Any]:
        """Write it, and give what the API has to be told besides."""

    def undo(self, guest: Guest) -> None:
        """Remove it."""

    def unlock(self, guest: Guest) -> None:
        """Take the lock off a guest that nobody works on."""

    def execute(self, guest: Guest, command: Sequence[str]) -> Executed:
        """Run a command as root inside a guest that is on."""

    def close(self) -> None:
        """Close all connections."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """Files for the node's folder of a container, and lines for its configuration."""

    files: Mapping[str, tuple[bytes, int]] = field(repr=False)  #: content and mode by name
    lines: tuple[str, ...]
    root: int  #: who the container's root is on the node


def read(wanted: Wanted, number: int) -> Wishes:
    """What the machine's image wants; RejectedError when that cannot be written safely."""
    asked: Mapping[str, Any] = wanted.image.settings.get("extras") or {}
    if unknown := asked.keys() - _KNOWN:
        raise RejectedError(
            f"image {wanted.image.name}: extras knows no {min(unknown)}",
            hint=f"there are: {', '.join(sorted(_KNOWN))}",
        )
    values = _values(wanted, asked.get("values") or {})
    idmap = [_idmap(wanted, line) for line in asked.get("idmap") or ()]
    hooks = _hooks(wanted, asked.get("hooks") or {})
    files = {
        "mount": (_MOUNT.encode(), 0o700),
        "values": (_shell(values), 0o600),
        **_identity(wanted),
    }
    if hooks.get("mount"):
        files["own"] = (hooks["mount"].encode(), 0o600)
    lines = [f"lxc.idmap: {line}" for line in idmap]
    lines += [_mount(wanted, mount, values) for mount in asked.get("mounts") or ()]
    lines.append(f"lxc.hook.mount: {FOLDER}/{number}/mount")
    if hooks.get("start"):
        files[f"root/{INSIDE}/start"] = (hooks["start"].encode(), 0o700)
        files[f"root/{INSIDE}/values"] = (_shell(values), 0o600)
        lines.append(f"lxc.hook.start: /{INSIDE}/start")
    return Wishes(files, tuple(lines), _root(idmap))


def archive(wishes: Wishes) -> bytes:
    """Everything as one stream: the files below `files`, the lines in `block`."""
    out = io.BytesIO()
    block = "".join(f"{line}\n" for line in (BEGIN, *wishes.lines, END)) if wishes.lines else ""
    with tarfile.open(fileobj=out, mode="w") as tar:
        _add(tar, "block", block.encode(), 0o600)
        for name, (body, mode) in sorted(wishes.files.items()):
            _add(tar, f"files/{name}", body, mode)
    return out.getvalue()


def _add(tar: tarfile.TarFile, name: str, body: bytes, mode: int) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(body), mode
    tar.addfile(info, io.BytesIO(body))


def _hooks(wanted: Wanted, asked: Any) -> Mapping[str, str]:
    """The scripts; a misspelt hook would silently never run."""
    if not isinstance(asked, Mapping) or asked.keys() - _HOOKS:
        raise RejectedError(
            f"image {wanted.image.name}: extras.hooks knows {' and '.join(sorted(_HOOKS))} only",
        )
    for name, script in asked.items():
        if not isinstance(script, str):
            raise RejectedError(
                f"image {wanted.image.name}: hook {name} must be a script, or {{file: PATH}}"
            )
    return asked


def _values(wanted: Wanted, more: Any) -> dict[str, str]:
    """What scripts and mounts are told; the machine's own facts count more than the image's."""
    if not isinstance(more, Mapping) or not all(_VALUE.fullmatch(str(key)) for key in more):
        raise RejectedError(
            f"image {wanted.image.name}: extras.values must be names with values",
            hint="such as directory_uri: ldaps://ldap.example.org",
        )
    return {
        **{key: str(value) for key, value in more.items()},
        **wanted.machine.labels,
        "machine": wanted.name.machine,
        "stack": wanted.name.stack,
        "hostname": wanted.seed.hostname,
        "address": wanted.machine.address,
    }


def _shell(values: Mapping[str, str]) -> bytes:
    lines = [
        f"ESSAIM_{re.sub(r'[^A-Z0-9]', '_', key.upper())}={shlex.quote(value)}\n"
        for key, value in sorted(values.items())
    ]
    return "".join(lines).encode()


def _identity(wanted: Wanted) -> dict[str, tuple[bytes, int]]:
    """The machine's host key and who may enter, as files of its root file system."""
    keys = "".join(f"{key.strip()}\n" for key in wanted.seed.authorized_keys)
    key = wanted.seed.host_key
    found = {"root/root/.ssh/authorized_keys": (keys.encode(), 0o600)}
    if "PRIVATE KEY" in key:
        public = public_half(key.encode()) + "\n"
        found["root/etc/ssh/ssh_host_ed25519_key"] = (key.encode(), 0o600)
        found["root/etc/ssh/ssh_host_ed25519_key.pub"] = (public.encode(), 0o644)
    return found


def _idmap(wanted: Wanted, line: Any) -> str:
    if not isinstance(line, str) or not _IDMAP.fullmatch(line):
        raise RejectedError(
            f"image {wanted.image.name}: {line!r} is no idmap", hint='such as "u 0 100000 65536"'
        )
    return line


def _root(idmap: list[str]) -> int:
    """The id on the node that is 0 in the container."""
    for line in idmap:
        kind, inside, outside, _ = line.split()
        if kind == "u" and inside == "0":
            return int(outside)
    return _USUAL_ROOT


def _mount(wanted: Wanted, mount: Any, values: Mapping[str, str]) -> str:
    if not isinstance(mount, Mapping) or not {"source", "target"} <= mount.keys():
        raise RejectedError(
            f"image {wanted.image.name}: a mount says source and target, not {mount!r}"
        )
    words = [_filled(wanted, str(mount[key]), values) for key in ("source", "target")]
    words[1] = words[1].lstrip("/")
    options = _filled(wanted, str(mount.get("options") or "bind,create=dir"), values)
    return f"lxc.mount.entry: {words[0]} {words[1]} none {options} 0 0"


def _filled(wanted: Wanted, text: str, values: Mapping[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        if found[1] not in values:
            raise RejectedError(
                f"{wanted.name}: {text} asks for {found[1]}, which the machine does not have"
            )
        return values[found[1]]

    filled = _FIELD.sub(value, text)
    if not _PATH.fullmatch(filled):
        raise RejectedError(f"{wanted.name}: {filled!r} cannot be a path of a mount")
    return filled
