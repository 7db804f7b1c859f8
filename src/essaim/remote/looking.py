"""Look at a machine without changing it: who it is, and what is on it."""

from __future__ import annotations

import base64
import hashlib
import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from essaim.model.errors import RejectedError
from essaim.plan.lock_node import Seen, SeenFile, altered_paths
from essaim.remote.logs import last_line
from essaim.remote.roles import step_env
from essaim.remote.steps import DUE, due_script

if TYPE_CHECKING:
    from essaim.model.roles import Role
    from essaim.remote.render import Facts
    from essaim.remote.ssh import Remote, Target

#: Seconds a look may take; under emulation a list of packages alone takes several.
LOOK_WITHIN = 300.0

# Reads paths, one on a line; prints one line for each thing found, its parts apart by tabs.  Needs
# no more than busybox has.  A path stands last on its line, for it may hold anything but a newline.
LOOK = r"""
set -u
printf 'hostname\t%s\n' "$(cat /proc/sys/kernel/hostname)"
ip -o -4 addr show 2>/dev/null | while read -r _ _ _ address _; do
  printf 'address\t%s\n' "$address"
done
if command -v dpkg-query >/dev/null 2>&1; then
  echo packages
  dpkg-query -W -f='package\t${db:Status-Status}\t${Package}\t${Version}\t${Provides}\n' 2>/dev/null
fi
if command -v dpkg >/dev/null 2>&1; then
  echo verified
  # Thousands of pages of documentation are missing from every small image.
  dpkg --verify 2>/dev/null | grep -v '^missing .* /usr/share/' | sed 's/^/altered\t/'
fi
for keys in /root/.ssh/authorized_keys /root/.ssh/authorized_keys2 \
  /etc/ssh/authorized_keys.d/root /etc/dropbear/authorized_keys; do
  [ ! -f "$keys" ] || while IFS= read -r line || [ -n "$line" ]; do
    printf 'key\t%s\n' "$line"
  done <"$keys"
done
"""

# The part that looks at files alone.
_LOOK_FILES = r"""while IFS= read -r path; do
  if [ -L "$path" ]; then
    printf 'link\t%s\n' "$path"
  elif [ -f "$path" ]; then
    sum=$(sha256sum <"$path") || exit
    owner=$(stat -c %U "$path")
    printf 'file\t%s\t%s\t%s\t%s\t%s\t%s\n' "${sum%% *}" "$(stat -c %a "$path")" "$owner" \
      "$(stat -c %G "$path")" "$(id -gn "$owner" 2>/dev/null)" "$path"
  elif [ -e "$path" ]; then
    printf 'other\t%s\n' "$path"
  else
    printf 'absent\t%s\n' "$path"
  fi
done
echo end
"""


def look(remote: Remote, target: Target, paths: Iterable[str]) -> Seen:
    """See who a machine is, its packages, its keys, and these paths.  Changes nothing there."""
    return _seen(_lines(remote, target, LOOK + _LOOK_FILES, paths))


def look_at_files(remote: Remote, target: Target, paths: Iterable[str]) -> dict[str, SeenFile]:
    """See these paths and nothing else.  Changes nothing there."""
    return dict(_files(_lines(remote, target, _LOOK_FILES, paths)))


def _lines(remote: Remote, target: Target, script: str, paths: Iterable[str]) -> list[list[str]]:
    wanted = "".join(f"{path}\n" for path in paths)
    result = remote.run(target, ["sh", "-c", script], stdin=wanted.encode(), within=LOOK_WITHIN)
    lines = result.stdout.splitlines()
    if result.exit_code or not lines or lines[-1] != "end":
        raise RejectedError(
            f"{target.name}: could not be looked at: {last_line(result.output)}",
            hint=f"look yourself: essaim ssh {target.name}",
        )
    return [line.split("\t") for line in lines]


def _seen(lines: list[list[str]]) -> Seen:
    listed = any(words[0] == "packages" for words in lines)
    installed = [words[2:] for words in lines if words[:2] == ["package", "installed"]]
    return Seen(
        hostname=next((words[1] for words in lines if words[0] == "hostname"), ""),
        addresses=tuple(sorted(words[1] for words in lines if words[0] == "address")),
        packages={name: version for name, version, _ in installed} if listed else None,
        provides={name: _provided(names) for name, _, names in installed if names},
        files=dict(_files(lines)),
        altered=frozenset(altered_paths(words[1] for words in lines if words[0] == "altered"))
        if ["verified"] in lines
        else None,
        keys=tuple(sorted({fingerprint(words[1]) for words in lines if words[0] == "key"} - {""})),
    )


def _provided(names: str) -> frozenset[str]:
    """Read `a (= 1), b`, as a package says what it stands in for."""
    return frozenset(name.split()[0].partition(":")[0] for name in names.split(",") if name.strip())


def _files(lines: list[list[str]]) -> Iterator[tuple[str, SeenFile]]:
    for kind, *words in lines:
        if kind == "file":
            sha256, mode, owner, group, own_group, *path = words
            yield (
                "\t".join(path),
                SeenFile(
                    kind=kind,
                    sha256=sha256,
                    mode=mode,
                    owner=owner,
                    group=group,
                    own_group=own_group,
                ),
            )
        elif kind in ("link", "other", "absent"):
            yield "\t".join(words), SeenFile(kind=kind)


def fingerprint(line: str) -> str:
    """Give the fingerprint of a public key as `ssh-keygen -l` does; nothing for a line without."""
    words = line.split()
    for kind, blob in itertools.pairwise(words):
        if kind.startswith(("ssh-", "ecdsa-", "sk-")) and not line.startswith("#"):
            try:
                digest = hashlib.sha256(base64.b64decode(blob, validate=True)).digest()
            except ValueError:
                continue
            return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")
    return ""


def due_steps(remote: Remote, target: Target, role: Role, facts: Facts) -> Iterator[str]:
    """Name the steps of a role that would run if it were applied again now."""
    for step in role.run:
        script = due_script(role, step, env := step_env(role, step, facts))
        result = remote.run(target, script, env=env, within=step.within)
        if result.stdout.splitlines()[-1:] == [DUE]:
            yield step.name
