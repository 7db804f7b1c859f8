"""The Proxmox driver: `Proxmox` is a Driver whose machines are guests of a cluster."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Sequence
from contextlib import suppress

from essaim.drivers.checks import address_of, check_name, check_stack
from essaim.drivers.proxmox import guests
from essaim.drivers.proxmox.abilities import ADOPTED, Abilities
from essaim.drivers.proxmox.api import Api, ApiError
from essaim.drivers.proxmox.clerk import Clerk
from essaim.drivers.proxmox.cluster import Cluster, Guest
from essaim.drivers.proxmox.extras import NodeExtras
from essaim.drivers.proxmox.holdings import Held
from essaim.drivers.proxmox.host_keys import HostKeyReader
from essaim.drivers.proxmox.jobs import Job
from essaim.drivers.proxmox.machines import Machines
from essaim.drivers.proxmox.numbers import boot_moment, boot_number
from essaim.drivers.proxmox.refusals import Refusal
from essaim.drivers.proxmox.settings import read
from essaim.drivers.proxmox.sights import Sights
from essaim.drivers.proxmox.site_checks import SiteChecks
from essaim.drivers.proxmox.uses import Limits
from essaim.drivers.proxmox.wishes import Extras
from essaim.model.errors import NotYetError, RejectedError, UnknownError
from essaim.model.machines import Executed, Form, Found, Observed, Power, Seed, Snapshot
from essaim.model.names import MachineName
from essaim.model.stacks import Image, Machine, Network, Site

#: Seconds a machine has to end by itself once it was asked to.
_END_WITHIN = 60
#: A machine that started this much later than we know of was started by somebody else.
_ANOTHER_BOOT = 30.0
#: Seconds after which a node that does not answer is asked again.
_AWAY = 15.0
#: Seconds a machine may take from power-on to its first answer.
_ANSWERS_WITHIN = 180.0


class Proxmox(SiteChecks, HostKeyReader):
    """Machines as guests of one cluster.

    `plane` says which control plane this is.  May be used by any number of threads and processes at
    once.  Verbs raise NotYetError while the cluster works; asked again, they find what they began.
    """

    def __init__(
        self,
        site: Site,
        *,
        reservations: Held,
        limits: Limits,
        plane: str,
        extras: Extras | None = None,
    ) -> None:
        super().__init__()
        self.form = Form.TEMPLATE
        self.settings = read(site)
        self.api = Api(self.settings)
        if extras is None and self.settings.ssh is not None:
            extras = NodeExtras(self.settings, self.settings.ssh)
        self.cluster = Cluster(self.api)
        self.clerk = Clerk(self.api, limits, site.name, self._up)
        self.machines = Machines(
            self.api,
            self.cluster,
            self.clerk,
            reservations=reservations,
            plane=plane,
            extras=extras,
        )
        self._extras = extras
        self._reservations = reservations
        self._sights = Sights(self.api, self.cluster, self.machines)
        self._abilities = Abilities(
            self.api, self.cluster, self.clerk, self.machines, self._sights, plane=plane
        )

    def _up(self) -> frozenset[str]:
        listing = self.cluster.listing()
        return frozenset(node for node in listing.nodes if listing.online(node))

    # Driver

    def observe(self, stack: str) -> Sequence[Observed]:
        """List the machines of a stack that exist.  Never changes anything."""
        check_stack(stack)
        with self.machines.meaning(f"looking at {stack}"):
            listing = self.cluster.listing(within=0)
        found = listing.guests
        held, site = self._reservations.held, self.settings.site
        names = {
            number: MachineName.parse(holder)
            for number, holder in held(site, "vmid").items()
            if holder.startswith(f"{stack}/")
        }
        addresses = {holder: number for number, holder in held(site, f"address.{stack}").items()}
        boots = {holder: number for number, holder in held(site, "boot").items()} if names else {}
        seen = [
            self._seen(
                name, found[number], addresses, boots, away=not listing.online(found[number].node)
            )
            for number, name in names.items()
            if number in found and self.machines.is_ours(found[number])
        ]
        return sorted(seen, key=lambda one: (len(one.name.machine), one.name))

    def _seen(
        self,
        name: MachineName,
        guest: Guest,
        addresses: dict[str, int],
        boots: dict[str, int],
        *,
        away: bool,
    ) -> Observed:
        on = self._sights.is_on(guest)
        address = addresses.get(str(name))
        detail = {"vmid": str(guest.id), "node": guest.node, "kind": guest.kind}
        if away:  # one that was just made has no status either
            detail["note"] = f"node {guest.node} does not answer"
        return Observed(
            name=name,
            power=Power.ON if on else Power.OFF,
            address=str(ipaddress.ip_address(address)) if address is not None else "",
            image=guests.image_of(guest.tags),
            boot=self._boot(name, guest, boots.get(str(name), 0)) if on else "",
            detail=detail,
            adopted=ADOPTED in guest.tags,
        )

    def _boot(self, name: MachineName, guest: Guest, known: int) -> str:
        """A word for this run of a machine: the start we know of, unless it is younger."""
        since = time.time() - guest.uptime
        ours = guest.status == "running" and guest.uptime > 0
        if not known or (ours and since > boot_moment(known) + _ANOTHER_BOOT):
            known = self._mark_boot(name, guest.id, since if ours else time.time())
        return f"{known:x}"

    def _mark_boot(self, name: MachineName, number: int, moment: float) -> int:
        mark = boot_number(number - self.settings.ids[0], moment)
        site, holder = self.settings.site, str(name)
        return self._reservations.reserve(site, "boot", holder, [mark, mark + 1], anew=True)

    def check_image(self, image: Image) -> None:
        """RejectedError, with a near spelling, when the cluster has nothing of that name."""
        with self.machines.meaning(f"looking for image {image.name}"):
            self.machines.making.inventory.check_image(image)

    def create(self, machine: Machine, network: Network, image: Image, seed: Seed) -> None:
        """Make the machine's disk and definition, powered off.  Nothing if it is there."""
        check_name(machine.name)
        address_of(machine, network)
        self.machines.make(machine, network, image, seed)

    def destroy(self, name: MachineName) -> None:
        """Remove the machine and its disk, whatever its power.  Nothing if it is gone."""
        check_name(name)
        if not self.clerk.drop(f"{name} clone"):
            raise NotYetError(f"{name}: is still being made", after=1.0)
        number = self.machines.holdings.id_of(name)
        with self.machines.meaning(f"{name}: removing {number or 'what is left'}"):
            if number is None:
                self.machines.leftovers.sweep_of(name)
                return
            surely = self.machines.removed(name)
            if not surely:
                self._remove(name, number)
            self._sights.forget(number)
            self.machines.forget(name, number, surely=surely)

    def _remove(self, name: MachineName, number: int) -> None:
        if not self.clerk.reap(f"{name} clone"):
            raise NotYetError(f"{name}: is still being made elsewhere", after=1.0)
        found = self.cluster.listing().guests.get(number)
        if found is None or not self.machines.is_ours(found):
            found = self.cluster.find(number)
        if found is None:
            return
        self._check_node(name, found)
        if not self.machines.is_its(found, name) or self._abilities.give_back(found):
            return
        if found.template:
            raise RejectedError(f"{name}: {found.id} has become a template", hint="see to it")
        self.machines.remove(name, found)

    def start(self, name: MachineName) -> None:
        """Power it on.  Nothing if it runs."""
        guest = self._sights.guest(name)
        self._check_node(name, guest)
        # The listing may be old, but one that says it is off costs no more than a refusal.
        begun, seen = self.clerk.get(f"{name} start"), self._sights
        if not begun and seen.is_on(guest) and seen.runs(name, guest):
            return
        job = Job(
            key=f"{name} start",
            what=f"starts {guest.id}",
            kind=f"start {guest.kind} {guest.node}",
            begin=lambda: str(self.api.post(f"{guest.path}/status/start")),
            gates=(self.machines.making.start_gate(guest.node),),
        )
        with self.machines.meaning(f"{name}: starting {guest.id} on {guest.node}"):
            try:
                if not self.clerk.do(self.clerk.get(job.key) or job):
                    self.clerk.reap(job.key)
                    raise NotYetError(f"{name}: is being started elsewhere", after=1.0)
            except ApiError as error:
                if error.kind is not Refusal.RUNNING:
                    raise
                self._sights.know(guest, on=True)
                return
        self._sights.settled(name, guest, on=True)
        self._sights.know(guest, on=True)
        self._mark_boot(name, guest.id, time.time())

    def _check_node(self, name: MachineName, guest: Guest) -> None:
        if guest.node not in self._up():
            raise NotYetError(f"{name}: waits for node {guest.node}, which is away", after=_AWAY)

    def stop(self, name: MachineName) -> None:
        """Power it off and keep its disk.  Nothing if it is off."""
        with suppress(UnknownError):
            guest = self._sights.guest(name)
            self._check_node(name, guest)
            self._power_off(name, guest)

    def _power_off(self, name: MachineName, guest: Guest) -> None:
        """Ask a guest to end, and after a while take its power."""
        end = {"timeout": _END_WITHIN, "forceStop": 1}
        job = Job(
            key=f"{name} stop",
            what=f"stops {guest.id}",
            kind=f"stop {guest.kind}",
            begin=lambda: str(self.api.post(f"{guest.path}/status/shutdown", **end)),
        )
        with self.machines.meaning(f"{name}: stopping {guest.id} on {guest.node}"):
            try:
                self.clerk.do(self.clerk.get(job.key) or job)
            except ApiError as error:
                if error.kind is not Refusal.STOPPED:
                    raise
        self._sights.settled(name, guest, on=False)
        self._sights.know(guest, on=False)

    # Snapshots, Inventory

    def snapshots(self, name: MachineName) -> Sequence[Snapshot]:
        """List them, oldest first."""
        return self._abilities.snapshots(name)

    def snapshot(self, name: MachineName, label: str) -> None:
        """Keep the disk as it is now.  RejectedError when there is one of that label."""
        self._abilities.snapshot(name, label)

    def restore(self, name: MachineName, label: str) -> None:
        """Go back; the machine is off afterwards, and what came after the snapshot is lost."""
        self._abilities.restore(name, label)

    def drop_snapshot(self, name: MachineName, label: str) -> None:
        """Forget a snapshot.  Nothing if it is gone."""
        self._abilities.drop_snapshot(name, label)

    def inventory(self) -> Sequence[Found]:
        """List every machine of the site that this account may see."""
        return self._abilities.inventory()

    def templates(self) -> Sequence[Found]:
        """List what machines are cloned from."""
        return self._abilities.templates()

    def adopt(self, id: str, machine: Machine, network: Network) -> None:  # noqa: A002 - Found's
        """Take a stranger's machine under our care, leaving its disk and power as they are."""
        self._abilities.adopt(id, machine, network)

    # Cards, Slow, Closes

    def card(self, name: MachineName) -> str:
        """The card's address, lower case with colons: the same until the machine is destroyed."""
        check_name(name)
        return self.machines.holdings.card(name)

    def execute(self, name: MachineName, command: Sequence[str]) -> Executed | None:
        """Run a command as root inside a machine, from its node; None when nodes have no SSH."""
        return self._extras.execute(self._sights.guest(name), command) if self._extras else None

    def answers_within(self) -> float:
        """Seconds a machine may take from power-on to its first answer before it is silent."""
        return _ANSWERS_WITHIN

    def close(self) -> None:
        """Let go of all connections; what the cluster works on goes on."""
        self.clerk.close()
        self.api.close()
        if self._extras is not None:
            self._extras.close()
