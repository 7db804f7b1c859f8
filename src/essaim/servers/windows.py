r"""Names and addresses of Windows servers (DNS, DHCP), through PowerShell over WinRM.

dns:
  kind: windows
  server: dc1.example.org
  zones: [school.example.org, 0.77.10.in-addr.arpa]
  user: EXAMPLE\essaim               # left out: the Kerberos ticket of this process
  secret: {env: WINDOWS_PASSWORD}
  auth: negotiate                    # kerberos, ntlm, credssp, basic
  ca: ca.pem
dhcp: {kind: windows, server: dhcp1.example.org, user: …, secret: …}
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from essaim.model.errors import ClashError, RejectedError, TakenError
from essaim.model.school import Host
from essaim.servers import windows_scripts as scripts
from essaim.servers.cards import card
from essaim.servers.windows_shell import Login, Shells
from essaim.servers.zones import Record, is_reverse, plain, records


class WindowsDns:
    """Names of one Windows DNS server.

    Its records are changed one after the other, and taken back when one cannot be made.
    """

    def __init__(self, login: Login, zones: Sequence[str], ttl: int = 300) -> None:
        self._shells = Shells(login, "the Windows DNS server")
        self._zones, self._ttl = zones, ttl

    def name(self, host: Host) -> None:
        """Make its address, alias and reverse records.

        TakenError when one of the names leads elsewhere, ClashError when the address leads to
        another name; then none of them was made.
        """
        wanted = [_shown(record) for record in records(host, self._zones)]
        said = self._shells.run(scripts.NAME, {"Records": json.dumps(wanted), "Ttl": self._ttl})
        if taken := said.get("taken"):
            error = ClashError if is_reverse(taken["zone"]) else TakenError
            raise error(
                f"{taken['name']}.{taken['zone']} is {taken['value']} ({taken['kind']}) already, "
                f"not {taken['wanted']}",
                hint="choose another name, or remove that record if nobody needs it",
            )

    def unname(self, host: Host) -> None:
        """Remove its records.  Nothing if they are gone, or belong to another address now."""
        first, *rest = [_shown(record) for record in records(host, self._zones)]
        self._shells.run(scripts.UNNAME, {"First": json.dumps(first), "Rest": json.dumps(rest)})

    def named(self) -> Mapping[str, str]:
        """The address of every name of the zones, aliases too."""
        zones = [plain(zone) for zone in self._zones if not is_reverse(zone)]
        said = self._shells.run(scripts.NAMED, {"Zones": json.dumps(zones)})
        found: dict[str, str] = {}
        aliases: dict[str, str] = {}
        for record in said["records"]:
            name = record["zone"] if record["name"] == "@" else f"{record['name']}.{record['zone']}"
            if record["kind"] == "CNAME":
                aliases[plain(name)] = record["value"]
            elif record["kind"] == "A" or plain(name) not in found:
                found[plain(name)] = record["value"]
        led = {alias: found[target] for alias, target in aliases.items() if target in found}
        return {**found, **led}

    def close(self) -> None:
        """Close its shells."""
        self._shells.close()


class WindowsDhcp:
    """Reservations of one Windows DHCP server."""

    def __init__(self, login: Login) -> None:
        self._shells = Shells(login, "the Windows DHCP server")

    def admit(self, host: Host) -> None:
        """Reserve its address and name for its card, from the card's next question on.

        ClashError when another card has the address, TakenError when this card has another one.
        """
        if ":" in host.address:
            raise RejectedError(f"{host.name}: reservations are for IPv4, not {host.address}")
        wanted = {"Address": host.address, "Card": _card(host), "Name": host.name}
        said = self._shells.run(scripts.ADMIT, wanted)
        if not said["scope"]:
            raise RejectedError(
                f"{self._shells} has no scope with {host.address}",
                hint="add the scope there, or choose another address",
            )
        for held in said["held"]:
            if (held["address"], held["card"], held["name"]) != tuple(wanted.values()):
                error = TakenError if held["card"] == wanted["Card"] else ClashError
                raise error(
                    f"{held['address']} is reserved for {held['card'].replace('-', ':')} "
                    f"({held['name'] or 'no name'}): that leaves {host.address} for {host.mac} "
                    f"({host.name}) out",
                    hint="choose another address, or remove that reservation",
                )

    def dismiss(self, host: Host) -> None:
        """Reserve nothing any more.  Nothing if it is gone, or belongs to another card now."""
        self._shells.run(scripts.DISMISS, {"Address": host.address, "Card": _card(host)})

    def admitted(self) -> Sequence[Host]:
        """Every host with a reservation."""
        said = self._shells.run(scripts.ADMITTED, {})
        return [
            Host(name=held["name"], address=held["address"], mac=held["card"].replace("-", ":"))
            for held in said["reservations"]
        ]

    def close(self) -> None:
        """Close its shells."""
        self._shells.close()


def _shown(record: Record) -> dict[str, str]:
    return {
        "zone": record.zone,
        "name": record.relative,
        "kind": record.kind,
        "value": record.value,
    }


def _card(host: Host) -> str:
    return card(host).hex("-")
