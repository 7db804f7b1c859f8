"""Roles as user-data: a machine applies them to itself, in order, at each of its boots.

The same programs that run over SSH are put on the machine as files, with a table of what to run
when; nothing is rendered into a command.
"""

from __future__ import annotations

import base64
import math
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from essaim.remote.install import INSTALL_FILES, INSTALL_PACKAGES, archive, package_words
from essaim.remote.roles import FILES_WITHIN, PACKAGES_WITHIN, step_env
from essaim.remote.steps import step_script
from essaim.remote.wrap import far_script

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from essaim.model.roles import Role, RoleStep
    from essaim.remote.render import Facts

#: Where a machine keeps what it applies to itself; only root can look.
HOME = "/var/lib/essaim/boot"
#: Which roles the machine has applied to itself since it was started: lines of ROLE DIGEST.
DONE = "/run/essaim-boot/roles"
#: What cloud-init runs at the end of every boot.  Some images leave that out, and run only what
#: is for the first one: so it is named there as well.
_RUNNER = "/var/lib/cloud/scripts/per-boot/essaim"
#: Seconds a role that needs others goes on trying: they may have been started later, or be slow.
PATIENCE = 900
_TRY_EVERY = 5.0

# What commands print may be secret, so it goes to a file; the console only hears how far it got.
_APPLY = rf"""#!/bin/sh
# Apply this machine's roles in order, at every boot, and stop at the first that fails.
umask 022
mkdir -p {HOME} {DONE.rpartition("/")[0]} && cd {HOME} || exit 1
[ ! -e {DONE}.code ] || exit "$(cat {DONE}.code)" # once in each boot
(umask 077 && : >>log)
exec 3>&1 >>log 2>&1 </dev/null
trap 'echo $? >{DONE}.code' EXIT
: >{DONE}
tab=$(printf '\t')
now() {{ read -r up _ </proc/uptime; echo "${{up%%.*}}"; }}
attempt() {{
  input=/dev/null
  [ ! -e "$1.tar" ] || input=$1.tar
  timeout -k 5 "$2" sh "$1" <"$input"
}}
apply() {{
  while IFS=$tab read -r script within wait patience name; do
    echo "== $1: $name"
    end=$(($(now) + patience))
    until attempt "$1/$script" "$within"; do
      code=$?
      if [ "$(now)" -ge "$end" ]; then
        echo "essaim: role ${{1#*-}}: $name exited $code: see {HOME}/log" >&3
        return 1
      fi
      sleep "$wait"
    done
  done <"$1/plan"
}}
for role in [0-9]*; do
  [ -e "$role/plan" ] || continue
  apply "$role" || exit 1
  cat "$role/done" >>{DONE}
  echo "essaim: role ${{role#*-}} is applied" >&3
done
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A role for one machine, with all that its templates may read."""

    role: Role
    facts: Facts
    digest: str  #: of the role on that machine, told by it once the role is applied
    #: Random text, by the path where the role would have put its own.
    drawn: Mapping[str, str] = field(default_factory=dict, repr=False)


def role_data(wanted: Sequence[Wanted]) -> dict[str, Any]:
    """Give the keys of cloud-config by which a machine applies these roles to itself."""
    files = [_file(_RUNNER, _APPLY.encode(), mode="0700")]
    for number, one in enumerate(wanted, start=1):
        home = f"{HOME}/{number:02}-{one.role.name}"
        table = _Table(one)
        parts = {**table.scripts, "plan": table.text(), "done": _done(one).encode()}
        files += [_file(f"{home}/{name}", body) for name, body in sorted(parts.items())]
    return {"write_files": files, "runcmd": [["sh", _RUNNER]]}


def _done(one: Wanted) -> str:
    return f"{one.role.name} {one.digest}\n"


class _Table:
    """What a machine runs for one role: scripts, and how long and often each is tried."""

    def __init__(self, one: Wanted) -> None:
        self.scripts: dict[str, bytes] = {}
        self._lines: list[str] = []
        # Nobody tells this machine when those it needs are ready: it tries until they are.
        self._patience = PATIENCE if one.role.needs else 0
        role, facts = one.role, one.facts
        for path, text in one.drawn.items():
            self._add(f"value {path}", _draw(path, text), within=FILES_WITHIN)
        if role.packages:
            words = f"set -- {shlex.join(package_words(role))}\n"
            self._add("packages", words + INSTALL_PACKAGES, within=PACKAGES_WITHIN)
        if role.files:
            script = self._add("files", INSTALL_FILES, within=FILES_WITHIN)
            self.scripts[f"{script}.tar"] = archive(role, facts)
        for step in role.run:
            self._step(role, step, facts)
        if role.ready is not None:
            self._add(
                "ready",
                role.ready.command,
                within=role.ready.within,
                wait=role.ready.every,
                patience=max(role.ready.within, self._patience),
            )

    def text(self) -> bytes:
        return "".join(self._lines).encode()

    def _step(self, role: Role, step: RoleStep, facts: Facts) -> None:
        env = step_env(role, step, facts)
        tries = sum(step.retry.wait * 2**i for i in range(step.retry.times))
        self._add(
            step.name,
            far_script(step_script(role, step, env), env),
            within=step.within,
            wait=step.retry.wait if tries else _TRY_EVERY,
            patience=max(tries, self._patience),
        )

    def _add(
        self,
        name: str,
        script: str,
        *,
        within: float,
        wait: float = _TRY_EVERY,
        patience: float = 0,
    ) -> str:
        file = f"{len(self._lines) + 1:02}"
        self.scripts[file] = script.encode()
        limits = (math.ceil(within), wait, math.ceil(patience))
        self._lines.append("\t".join([file, *(f"{limit:g}" for limit in limits), name]) + "\n")
        return file


def _draw(path: str, text: str) -> str:
    """Give the script that puts random text where there is none yet."""
    return (
        f"path={shlex.quote(path)} text={shlex.quote(text)}\n"
        '[ ! -s "$path" ] || exit 0\n'
        "umask 077\n"
        'mkdir -p "${path%/*}" && printf %s "$text" >"$path.new" && mv -f "$path.new" "$path"\n'
    )


def _file(path: str, body: bytes, mode: str = "0600") -> dict[str, str]:
    return {
        "path": path,
        "owner": "root:root",
        "permissions": mode,
        "encoding": "b64",
        "content": base64.b64encode(body).decode(),
    }
