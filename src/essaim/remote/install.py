"""Packages and files of a role: what is sent to a machine, and the programs that put it there.

The far side needs a POSIX shell, coreutils, tar and cmp; nothing else is installed for us.
"""

from __future__ import annotations

import io
import re
import tarfile
from typing import TYPE_CHECKING

from essaim.model.errors import RejectedError
from essaim.remote.render import render_file, render_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from essaim.model.roles import Role, RoleFile
    from essaim.remote.render import Facts

_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+")
_ACCOUNT = re.compile(r"[a-z_][a-z0-9_-]*\$?")

# Installs what is missing among its arguments; silent when nothing is.  An image whose system has
# no Debian packages lists what it provides instead of them.
INSTALL_PACKAGES = r"""
have=" $(dpkg-query -W -f='${db:Status-Status}:${Package} ' "$@" 2>/dev/null)"
if [ -r /etc/essaim/provides ]; then
  while read -r package; do have="$have installed:$package "; done </etc/essaim/provides
fi
missing=
for package; do
  case $have in *" installed:$package "*) ;; *) missing="$missing $package" ;; esac
done
[ -n "$missing" ] || exit 0
echo "missing:$missing"
command -v apt-get >/dev/null || { echo "there is no apt-get here"; exit 1; }
export DEBIAN_FRONTEND=noninteractive
install() {
  apt-get install -q -y --no-install-recommends -o Dpkg::Options::=--force-confold $missing
}
install || { apt-get update -q && install; }
"""

# Reads a tar archive of numbered files and a `list`; replaces each file that differs in content,
# owner or mode in one move, so that no reader ever sees half of it; prints what it changed.
# The archive is unpacked where only root can look, for files may hold secrets.
INSTALL_FILES = r"""
set -u
fail() { echo "$*" >&2; exit 1; }  # after what the tool that failed has said
umask 022
mkdir -p /var/lib/essaim || exit
box=$(mktemp -d /var/lib/essaim/.put.XXXXXX) || exit
trap 'rm -rf "$box"' EXIT
tar -x -f - -C "$box" || exit
tab=$(printf '\t')
while IFS=$tab read -r number mode owner group to; do
  new=$box/$number
  [ "$group" != - ] || group=$(id -gn "$owner" 2>/dev/null) ||
    fail "$to: there is no user $owner"
  [ -L "$to" ] || [ ! -d "$to" ] || fail "$to: is a directory"
  if [ ! -L "$to" ] && [ -f "$to" ] && cmp -s "$new" "$to" &&
    [ "$(stat -c '%a %U %G' "$to")" = "$mode $owner $group" ]; then
    continue
  fi
  place=${to%/*}/
  mkdir -p "$place" || fail "$to: no directory for it"
  draft=$(mktemp "$place.essaim.XXXXXX") || fail "$to: no place for it"
  if cat "$new" >"$draft" && chown "$owner:$group" "$draft" && chmod "$mode" "$draft" &&
    mv -f -T "$draft" "$to"; then
    printf 'changed\t%s\n' "$to"
  else
    rm -f "$draft"
    fail "$to: could not be written"
  fi
done <"$box/list"
"""


def package_words(role: Role) -> Sequence[str]:
    """Give the arguments for INSTALL_PACKAGES; they cannot be taken for anything but packages."""
    for package in role.packages:
        if not _PACKAGE.fullmatch(package):
            raise RejectedError(f"role {role.name}: {package!r} is not the name of a package")
    return role.packages


def archive(role: Role, facts: Facts) -> bytes:
    """Render the role's files into the archive INSTALL_FILES reads."""
    lines = []
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for number, file in enumerate(role.files):
            lines.append(_line(role, number, file))
            _add(tar, str(number), content(role, file, facts))
        _add(tar, "list", "".join(lines).encode())
    return body.getvalue()


def _line(role: Role, number: int, file: RoleFile) -> str:
    to = file.to
    if not to.startswith("/") or to.endswith("/") or not to.isprintable():
        raise RejectedError(f"role {role.name}: a file cannot go to {to!r}: give an absolute path")
    for account in (file.owner, file.group):
        if account is not None and not _ACCOUNT.fullmatch(account):
            raise RejectedError(f"role {role.name}: {to}: {account!r} is not a user or group name")
    return f"{number}\t{file.mode:o}\t{file.owner}\t{file.group or '-'}\t{to}\n"


def content(role: Role, file: RoleFile, facts: Facts) -> bytes:
    """Give what a file of the role holds on that machine."""
    if file.template is not None:
        return render_file(role, file.template, facts).encode()
    if file.copy is not None:
        return _copied(role, file.copy)
    return render_text(role, file.content or "", facts, where=f"content of {file.to}").encode()


def _copied(role: Role, name: str) -> bytes:
    source = (role.path / name).resolve()
    if not source.is_relative_to(role.path.resolve()):
        raise RejectedError(f"role {role.name}: {name} is outside the role's directory")
    try:
        return source.read_bytes()
    except OSError as exc:
        raise RejectedError(f"role {role.name}: {source}: {exc.strerror}") from exc


def _add(tar: tarfile.TarFile, name: str, body: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(body)
    entry.mode = 0o600
    tar.addfile(entry, io.BytesIO(body))
