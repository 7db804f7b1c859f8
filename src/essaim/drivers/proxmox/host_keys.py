"""How the host keys of machines become known: put in, read inside, or only shown by sshd.

| guest | site has | host key |
|---|---|---|
| LXC  | `ssh` | given: copied in by a mount hook |
| QEMU | `ssh` and `snippets` | given: in the cloud-init file |
| QEMU | a guest agent in the template, and the right to ask it | read through the API |
| any  | none of these | shown: nobody vouches for it |
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from essaim.drivers.proxmox import guest_agent, guests, places
from essaim.drivers.proxmox.api import Api
from essaim.drivers.proxmox.cluster import Cluster, Guest
from essaim.drivers.proxmox.machines import Machines
from essaim.drivers.proxmox.settings import Settings
from essaim.model.errors import RejectedError, TransientError
from essaim.model.machines import HostKeyAccess, HostKeySource
from essaim.model.names import MachineName
from essaim.model.stacks import Image

if TYPE_CHECKING:
    from essaim.drivers.proxmox.sights import Sights
    from essaim.drivers.proxmox.wishes import Extras

PATH = "/etc/ssh/ssh_host_ed25519_key.pub"
_KEY = re.compile(r"ssh-ed25519 [A-Za-z0-9+/]+=*")
_GIVEN = HostKeyAccess(source=HostKeySource.GIVEN)
_READ = HostKeyAccess(source=HostKeySource.READ)


class HostKeyReader:
    """HostKeys, for a driver that has these parts."""

    settings: Settings
    api: Api
    cluster: Cluster
    machines: Machines
    _sights: Sights
    _extras: Extras | None
    _known: dict[str, HostKeyAccess]  # by digest of the image; what is missing is looked at again

    def __init__(self) -> None:
        self._known = {}

    def host_key_access(self, image: Image) -> HostKeyAccess:
        """How the host keys of machines made from that image become known; changes nothing."""
        found = self._known.get(image.digest) or self._look(image)
        if found.source is not HostKeySource.SHOWN:
            self._known[image.digest] = found
        return found

    def _look(self, image: Image) -> HostKeyAccess:
        with self.machines.meaning(f"looking for image {image.name}"):
            source, what = guests.source_of(image)
            if source != "template":
                return self._access(image, guests.kind_of(image), None)
            listing = self.cluster.listing()
            found = places.templates(listing, what, guests.kind_of(image), image.name)
            each = [self._access(image, one.kind, one) for one in found]
        # Copies of a template should be alike; where they are not, the weakest counts.
        return max(each, key=lambda one: list(HostKeySource).index(one.source))

    def _access(self, image: Image, kind: str, template: Guest | None) -> HostKeyAccess:
        if self._extras is not None and (kind == "lxc" or self.settings.snippets):
            return _GIVEN
        site = self.settings.site
        file = f"site/{site}.yaml"
        if kind == "lxc":
            return _shown(
                f"image {image.name}: containers make their own, and the site has no ssh: to its "
                "nodes",
                f"add ssh: to {file}",
            )
        if not self._has_agent(image, template):
            which = f"template {template.name or template.id}" if template else "its config"
            number = template.id if template else "ID"
            return _shown(
                f"image {image.name}: virtual machines make their own, and {which} sets no guest "
                "agent that could read them",
                f"install qemu-guest-agent in the template, then: qm set {number} --agent 1; or "
                f"add ssh: and snippets: to {file}",
            )
        if not self._may_ask():
            return _shown(
                f"image {image.name}: virtual machines make their own, and {self.settings.who} "
                "may not read them through the guest agent",
                f"give it a role with {guest_agent.NEEDED} on {self._place()}",
            )
        return _READ

    def _has_agent(self, image: Image, template: Guest | None) -> bool:
        said = dict(image.settings.get("config") or {})
        if "agent" in said or template is None:
            return guest_agent.is_enabled({"agent": "1", **said})  # new ones are made with one
        return guest_agent.is_enabled(self.cluster.config(template))

    def _place(self) -> str:
        return f"/pool/{self.settings.pool}" if self.settings.pool else "/vms"

    def _may_ask(self) -> bool:
        """Whether the account may ask the guest agents of machines it makes."""
        return any(self._privileges(path) for path in dict.fromkeys([self._place(), "/vms"]))

    def _privileges(self, path: str) -> frozenset[str]:
        has: dict[str, dict[str, int]] = self.api.get("access/permissions", path=path) or {}
        return guest_agent.PRIVILEGES & has.get(path, {}).keys()

    def read_host_key(self, name: MachineName) -> str:
        """Return `ssh-ed25519 AAAA…` as the machine itself has it."""
        return self._read(self._sights.guest(name))

    def found_host_key(self, id: str) -> str:  # noqa: A002 - Found's
        """Likewise for a machine of the inventory that is not ours yet."""
        guest = self.cluster.find(int(id)) if id.isdigit() else None
        if guest is None:
            raise RejectedError(f"there is no machine {id}")
        return self._read(guest)

    def _read(self, guest: Guest) -> str:
        text = self._content(guest)
        found = _KEY.search(text)
        if found is None:
            raise TransientError(f"{guest.id}: {PATH} holds no key yet: {text.strip()[-200:]!r}")
        return found[0]

    def _content(self, guest: Guest) -> str:
        if guest.kind == "qemu":
            return guest_agent.read_file(self.api, guest, PATH)
        if self._extras is None:
            raise RejectedError(
                f"{guest.id} is a container, and site {self.settings.site} has no SSH to its nodes",
                hint=f"add ssh: to site/{self.settings.site}.yaml",
            )
        done = self._extras.execute(guest, ["cat", PATH])
        if done.exit_code:
            raise TransientError(f"{guest.id}: {done.output.strip()[-200:]}")
        return done.output


def _shown(reason: str, hint: str) -> HostKeyAccess:
    return HostKeyAccess(source=HostKeySource.SHOWN, reason=reason, hint=hint)
