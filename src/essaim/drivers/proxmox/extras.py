"""What the API lacks, done on the nodes over SSH: a container's raw settings, its hooks, its keys.

Each call is one command that reads an archive, so that nothing of it is ever part of a command
line.  It may be repeated, and be cut short: files are made aside and renamed into place.
"""

from __future__ import annotations

import functools
import json
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from essaim.drivers.proxmox import wishes
from essaim.drivers.proxmox.cluster import Guest
from essaim.drivers.proxmox.guests import Wanted
from essaim.drivers.proxmox.settings import Settings, Ssh
from essaim.model.errors import RejectedError, SetupError, TransientError
from essaim.model.machines import Executed
from essaim.model.names import MachineName
from essaim.remote.keyring import Keyring
from essaim.remote.seeds import seed_files
from essaim.remote.ssh import Remote, Target

_WITHIN = 60.0

# $1 id, $2 who root is.  The configuration is changed under the lock that Proxmox VE takes, and
# replaced by a rename on the same file system, as it does itself.
_BLOCK = """
set -eu; umask 077
id=$1 root=$2 conf=/etc/pve/lxc/$1.conf base=/var/lib/essaim/lxc
mkdir -p "$base"; chmod 711 /var/lib/essaim "$base"
new=$(mktemp -d "$base/.$id.XXXXXX"); trap 'rm -rf "$new"' EXIT
tar -xf - -C "$new"
put() {
  [ -e "$conf" ] || { [ ! -s "$new/block" ] && return 0; echo "there is no $conf" >&2; exit 3; }
  awk -v block="$new/block" -v first="$3" -v last="$4" '
    function add(  line) { if (!done) while ((getline line < block) > 0) print line; done = 1 }
    /^\\[/ { add(); rest = 1 }
    !rest && $0 == first { mine = 1 }
    !mine { print }
    !rest && $0 == last { mine = 0 }
    END { add() }' "$conf" > "$new/conf"
  if ! cmp -s "$new/conf" "$conf"; then
    cat "$new/conf" > "$conf.tmp.$$"; mv "$conf.tmp.$$" "$conf"
  fi
}
if [ -d /run/lock/lxc ]; then exec 9>"/run/lock/lxc/pve-config-$id.lock"; flock -w 10 9; fi
if [ -d "$new/files" ]; then
  chown -R "$root:$root" "$new/files"
  old=$(mktemp -d "$base/.old.XXXXXX")
  if [ -e "$base/$id" ]; then mv "$base/$id" "$old/"; fi
  mv "$new/files" "$base/$id"; rm -rf "$old"
fi
put "$@"
"""
_REMOVE = 'rm -rf "/var/lib/essaim/lxc/$1"'
# $1 the volume.
_SNIPPET = """
set -eu; umask 077
path=$(pvesm path "$1"); mkdir -p "$(dirname "$path")"
cat > "$path.new"; mv "$path.new" "$path"
"""
_DROP_SNIPPET = 'path=$(pvesm path "$1") && rm -f "$path"'
_UNLOCK = {"lxc": "pct", "qemu": "qm"}


class _Key:
    """Shows the site's key where the control plane's own is usual."""

    def __init__(self, path: str) -> None:
        self._path = Path(path).expanduser()

    def paths(self, _name: str) -> list[Path]:
        if not self._path.is_file():
            raise SetupError(f"there is no key {self._path}", hint="ssh.key of the site names it")
        return [self._path]


class NodeExtras:
    """Extras of the containers and virtual machines of one site."""

    def __init__(
        self,
        settings: Settings,
        ssh: Ssh,
        dial: Callable[[str], socket.socket] | None = None,
    ) -> None:
        self._settings = settings
        self._ssh = ssh
        self._dial = dial  # how a node is reached, where its address does not do
        self._remote = Remote(cast("Keyring", _Key(ssh.key)))

    def apply(self, guest: Guest, wanted: Wanted) -> dict[str, Any]:
        """Write what the machine's image wants, and give what the API has to be told besides."""
        if guest.kind == "qemu":
            return self._snippet(guest, wanted)
        asked = wishes.read(wanted, guest.id)
        self._script(guest, _BLOCK, str(asked.root), stdin=wishes.archive(asked))
        return {}

    def undo(self, guest: Guest) -> None:
        """Remove it.  Nothing if it is gone."""
        if guest.kind == "qemu":
            if self._settings.snippets:
                self._run(guest, _DROP_SNIPPET, self._volume(guest))
            return
        nothing = wishes.Wishes({}, (), 0)
        self._script(guest, _BLOCK, "0", stdin=wishes.archive(nothing))
        self._run(guest, _REMOVE, str(guest.id))

    def unlock(self, guest: Guest) -> None:
        """Take the lock off a guest that nobody works on."""
        self._run(guest, f'{_UNLOCK[guest.kind]} unlock "$1"', str(guest.id))

    def execute(self, guest: Guest, command: Sequence[str]) -> Executed:
        """Run a command as root inside a guest that is on."""
        words = ["pct", "exec", str(guest.id), "--", *command]
        if guest.kind == "qemu":
            words = ["qm", "guest", "exec", str(guest.id), "--timeout", f"{_WITHIN:.0f}", "--"]
            words += command
        done = self._remote.run(self._target(guest.node), words, within=2 * _WITHIN)
        if guest.kind == "lxc" or done.exit_code:
            return Executed(exit_code=done.exit_code, output=done.output)
        return _agent_said(guest, done.stdout)

    def close(self) -> None:
        """Close all connections."""
        self._remote.close()

    def _snippet(self, guest: Guest, wanted: Wanted) -> dict[str, Any]:
        if not self._settings.snippets:
            return {}
        files = seed_files(
            wanted.machine, wanted.network, wanted.seed, mac=wanted.card, access_mac=wanted.card
        )
        self._run(guest, _SNIPPET, self._volume(guest), stdin=files["user-data"])
        return {"cicustom": f"user={self._volume(guest)}"}

    def _volume(self, guest: Guest) -> str:
        return f"{self._settings.snippets}:snippets/essaim-{guest.id}.yaml"

    def _script(self, guest: Guest, script: str, root: str, *, stdin: bytes) -> None:
        self._run(guest, script, str(guest.id), root, wishes.BEGIN, wishes.END, stdin=stdin)

    def _run(self, guest: Guest, script: str, *words: str, stdin: bytes = b"") -> None:
        command = ["sh", "-c", script, "essaim", *words]
        result = self._remote.run(
            self._target(guest.node), command, stdin=stdin or b"\n", within=_WITHIN
        )
        if result.exit_code:
            raise TransientError(
                f"node {guest.node}: extras of {guest.id}: {result.output.strip()[-300:]}",
                hint=f"see whether {self._ssh.user} may change /etc/pve there",
            )

    def _target(self, node: str) -> Target:
        if node not in self._ssh.host_keys:
            raise RejectedError(
                f"site {self._settings.site}: the host key of node {node} is not known",
                hint=f"ssh.host_keys: what `ssh-keyscan -t ed25519 {node}` says, once compared",
            )
        return Target(
            name=MachineName(self._settings.site, node),
            address=self._ssh.addresses.get(node, node),
            host_key=self._ssh.host_keys[node],
            port=self._ssh.port,
            user=self._ssh.user,
            dial=functools.partial(self._dial, node) if self._dial else None,
            become=() if self._ssh.user == "root" else ("sudo", "-n"),
        )


def _agent_said(guest: Guest, text: str) -> Executed:
    """Read how a command ended that the guest agent of a virtual machine ran."""
    try:
        said = json.loads(text)
        output = f"{said.get('out-data', '')}{said.get('err-data', '')}"
        return Executed(exit_code=int(said["exitcode"]), output=output)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"{guest.id}: its guest agent has not ended the command: {text.strip()[-200:]}"
        raise TransientError(what) from error
