"""Addresses of a dnsmasq that reads hosts from a folder (`dhcp-hostsdir`), here or over SSH.

    dhcp:
      kind: dnsmasq
      folder: /etc/dnsmasq.d/hosts
      pid_file: /run/dnsmasq/dnsmasq.pid
      ssh: {host: router.example.org, key: ~/.ssh/id_ed25519, host_key: ssh-ed25519 AAAA…}

dnsmasq notices a new file by itself, and a removed one when it is told (SIGHUP).  A host is one
file, which is there whole or not at all.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from essaim.model.errors import ClashError, RejectedError, TakenError
from essaim.model.school import Host
from essaim.servers.cards import card, card_text

if TYPE_CHECKING:
    from essaim.servers.ways import Way

_NAME = re.compile(
    r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*"
)
_LINE = re.compile(r"(?P<mac>[0-9a-f:]{17}),(?P<address>[0-9a-f.:\[\]]+),[^,#]+ # (?P<name>\S+)")

# What it is about comes as arguments: the text is the same for every host.
_BEGIN = """set -eu
umask 022
cd -- "$1"
exec 9>.essaim.lock
flock 9
"""
# One that has the card or the address already is printed, and nothing is written.
_ADMIT = f"""{_BEGIN}
found=$(grep -Hisw -e "$3" -e "$4" -- * || :)
if [ -n "$found" ]; then
  printf '%s\\n' "$found"
else
  printf '%s\\n' "$5" >".essaim.new"
  mv -- ".essaim.new" "$2"
fi
"""
# What was removed and not yet told, because somebody was killed in between, is told by the next.
_DISMISS = f"""{_BEGIN}
if grep -qsxF -e "$3" -- "$2"; then
  pid=$(cat -- "$4")
  kill -0 "$pid"
  : >.essaim.untold
  rm -f -- "$2"
fi
if [ -e .essaim.untold ]; then
  kill -HUP "$(cat -- "$4")"
  rm -f .essaim.untold
fi
"""
_LIST = f"""{_BEGIN}
cat -- essaim-* 2>/dev/null || :
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where dnsmasq looks for hosts, and how it is told that one is gone."""

    folder: str
    pid_file: str = "/run/dnsmasq/dnsmasq.pid"


class Dnsmasq:
    """Hosts of one dnsmasq."""

    def __init__(self, settings: Settings, way: Way) -> None:
        self._settings = settings
        self._way = way

    def admit(self, host: Host) -> None:
        """Let the card have the address and the name from its next question on.

        TakenError when another line of the folder has the card, ClashError when it has the address.
        """
        wanted = _line(host)
        words = [_file(host), host.mac.lower(), re.escape(_shown(host)), wanted]
        for said in self._run(_ADMIT, words).splitlines():
            file, _, line = said.partition(":")
            if line != wanted:
                own = host.mac.lower() in line.lower()
                raise (TakenError if own else ClashError)(
                    f"{self._way} says in {self._settings.folder}/{file}: {line}; that leaves "
                    f"{host.address} for {host.mac} ({host.name}) out",
                    hint="choose another address, or remove that line",
                )

    def dismiss(self, host: Host) -> None:
        """Give neither any more.  Nothing if it is gone, or belongs to another card now."""
        self._run(_DISMISS, [_file(host), _line(host), self._settings.pid_file])

    def admitted(self) -> Sequence[Host]:
        """Every host that was admitted, by address."""
        hosts = [
            Host(name=found["name"], address=found["address"].strip("[]"), mac=found["mac"])
            for line in self._run(_LIST, []).splitlines()
            if (found := _LINE.fullmatch(line))
        ]
        return sorted(hosts, key=lambda host: ipaddress.ip_address(host.address).packed)

    def close(self) -> None:
        """Close its connection, if it has one."""
        self._way.close()

    def _run(self, script: str, words: Sequence[str]) -> str:
        command = ["sh", "-c", script, "essaim", self._settings.folder, *words]
        code, stdout, output = self._way.run(command)
        if code:
            last = output.strip().splitlines()[-1:] or [f"exit code {code}"]
            raise RejectedError(
                f"{self._way} refuses a change in {self._settings.folder}: {last[0]}",
                hint="is it the folder of dhcp-hostsdir, is dhcp.pid_file dnsmasq's, and may the "
                "account write there and signal dnsmasq?",
            )
        return stdout


def _line(host: Host) -> str:
    """A host as dnsmasq reads it; its full name stands in a comment."""
    if not _NAME.fullmatch(host.name):
        raise RejectedError(
            f"{host.name!r} cannot be the name of a host", hint="letters, digits, dots and dashes"
        )
    return f"{card_text(card(host))},{_shown(host)},{host.name.partition('.')[0]} # {host.name}"


def _shown(host: Host) -> str:
    """Its address as dnsmasq reads it: one with colons stands in brackets."""
    address = ipaddress.ip_address(host.address)
    return f"[{address}]" if ":" in str(address) else str(address)


def _file(host: Host) -> str:
    return f"essaim-{card(host).hex('-')}"
