"""How leased accounts get in: SSH keys that root keeps, outside of every home.

The SSH server looks for them nowhere else, so that no account can widen its access or keep it.
They are the gateway's, and let it do what it lets its clients do.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from essaim.agent.belongings import FIRST_UID, LAST_UID
from essaim.agent.common import Trouble, remove_file, tool, write_file

if TYPE_CHECKING:
    from collections.abc import Sequence

KEYS = Path("/etc/essaim/keys")  #: one file for each account
SSHD_RULES = Path("/etc/ssh/sshd_config.d/essaim.conf")
#: Seconds the SSH server has to begin anew.
RELOADED = 15.0
RULES = f"""\
# Made by Essaim: leased accounts get in with the keys of their lease, and with no others.
Match User l-*
    AuthorizedKeysFile {KEYS}/%u
    AuthorizedKeysCommand none
    AuthorizedPrincipalsFile none
    TrustedUserCAKeys none
    AuthenticationMethods publickey
    PubkeyAuthentication yes
    PasswordAuthentication no
    KbdInteractiveAuthentication no
    HostbasedAuthentication no
    AllowAgentForwarding no
    AllowStreamLocalForwarding no
    AllowTcpForwarding local
    GatewayPorts no
    PermitTunnel no
    PermitUserRC no
    X11Forwarding no
Match all
"""
#: What must be so once all of the SSH server's configuration is taken together.
_EFFECT = (
    f"authorizedkeysfile {KEYS}/%u",
    "authorizedkeyscommand none",
    "trustedusercakeys none",
    "authenticationmethods publickey",
)

#: What may be forwarded: ports of this machine, to which any process on it could connect as well.
OWN_PORTS = ("localhost", "127.0.0.1", "[::1]", "ip6-localhost")


class Entry:
    """From where an account is entered, anywhere if that is empty, and whether ports may be."""

    def __init__(self, sources: Sequence[str] = (), *, forwarding: bool = True) -> None:
        self.options = ["restrict", "pty"]
        if forwarding:
            self.options += ["port-forwarding", *(f'permitopen="{own}:*"' for own in OWN_PORTS)]
        if sources:
            self.options.append(f'from="{",".join(sources)}"')


def give_keys(account: str, keys: list[str], entry: Entry) -> None:
    """Let the holders of these keys, and nobody else, log in as an account."""
    _make_keys()
    options = ",".join(entry.options)
    write_file(KEYS / account, "".join(f"{options} {key}\n" for key in keys), 0o644)


def set_rules() -> None:
    """Make the SSH server look for keys there; Trouble when it would not."""
    _spare_others()
    SSHD_RULES.parent.mkdir(mode=0o755, exist_ok=True)
    before = SSHD_RULES.read_text() if SSHD_RULES.exists() else None
    if before != RULES:
        write_file(SSHD_RULES, RULES, 0o644)
    try:
        _check()
    except Trouble:
        if before is None:
            remove_file(SSHD_RULES)
        raise
    _make_keys()
    if before != RULES:
        reload_sshd()


def drop_rules() -> None:
    """Undo `set_rules`."""
    there = SSHD_RULES.exists()
    remove_file(SSHD_RULES)
    for folder in (KEYS, KEYS.parent):
        with contextlib.suppress(OSError):
            folder.rmdir()
    if there:
        try:
            reload_sshd()
        except Trouble as exc:  # the rules are gone, and so are those whom they were about
            sys.stderr.write(f"{exc}\n")


def _make_keys() -> None:
    for folder in (KEYS.parent, KEYS):
        folder.mkdir(mode=0o755, exist_ok=True)
        folder.chmod(0o755)


def _spare_others() -> None:
    """Refuse a machine that has users who would be taken for leases."""
    for entry in pwd.getpwall():
        leased = FIRST_UID <= entry.pw_uid <= LAST_UID
        if leased != entry.pw_name.startswith("l-"):
            raise Trouble(
                f"the user {entry.pw_name} (uid {entry.pw_uid}) of this machine would be taken for "
                f"a lease, which are those called l-… and with uids {FIRST_UID} to {LAST_UID}: "
                "give it another name or uid, or do not let this machine join"
            )


def _check() -> None:
    # Debian's sshd wants it even to read its files; where one runs it is there.
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    words = tool("sshd", "-T", "-C", "user=l-check1,host=localhost,addr=127.0.0.1").splitlines()
    missing = [line for line in _EFFECT if line not in words]
    if missing:
        raise Trouble(
            f"the SSH server does not take {SSHD_RULES} into account ({missing[0]!r} is not so): "
            f"put `Include {SSHD_RULES.parent}/*.conf` on top of /etc/ssh/sshd_config"
        )


def reload_sshd() -> None:
    """Make the SSH server read its files again; connections that are open stay."""
    line = next(line for line in tool("sshd", "-T").splitlines() if line.startswith("pidfile "))
    path = Path(line.split(" ", 1)[1])
    pid, before = 0, 0
    with contextlib.suppress(OSError, ValueError):
        pid, before = int(path.read_text()), path.stat().st_ctime_ns
        if Path(f"/proc/{pid}/comm").read_text().strip() != "sshd":
            pid = 0
    if not pid:
        # One that is started for each connection reads its files then.
        sys.stderr.write(f"{path} names no SSH server: if one runs, let it read its files again\n")
        return
    os.kill(pid, signal.SIGHUP)
    # It removes the file, then listens anew, then writes it again.
    until = time.monotonic() + RELOADED
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            if path.stat().st_ctime_ns != before and path.read_text().strip():
                return
        time.sleep(0.02)
    raise Trouble(f"the SSH server (process {pid}) was told to read its files again and does not")
