"""What an account may and may not do on a libvirt server, and who must do what about it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any
from xml.etree import ElementTree as ET

from essaim.drivers.doctor import Check
from essaim.drivers.libvirt import accelerator, probe
from essaim.drivers.libvirt.accelerator import KVM, TCG, Accelerators
from essaim.drivers.libvirt.connection import Connection
from essaim.drivers.libvirt.consoles import open_console, plain
from essaim.drivers.libvirt.sdk import libvirt
from essaim.model.errors import EssaimError
from essaim.model.names import MachineName

#: Below this a pool holds no base and its machines for long.
FREE_DISK = 5 * 2**30
FREE_MEMORY = 2**30
_FIRMWARE_WITHIN = 30.0
_PORTS_WANTED = 100


def doctor(connection: Connection, accelerators: Accelerators) -> list[Check]:
    """Look at everything machines need there; starts one without a disk, and ends it."""
    try:
        found = probe.ask(connection)
    except EssaimError as error:
        return [Check("server", ok=False, text=_words(error))]
    return list(_Doctor(connection, accelerators, found).checks())


class _Doctor:
    """One examination of a server that was reached."""

    def __init__(
        self, connection: Connection, accelerators: Accelerators, facts: Mapping[str, str]
    ) -> None:
        self.connection = connection
        self.accelerators = accelerators
        self.settings = connection.settings
        self.facts = facts
        self.user = facts.get("user") or self.settings.user or "you"

    def checks(self) -> Iterator[Check]:
        yield self.server()
        if not self.facts:
            text = "the account may run none there, so less can be looked at; set the site's pool"
            yield Check("commands", ok=True, text=text, warn=True)
        yield from self.tunnel()
        try:
            conn = self.connection.get()
        except EssaimError as error:
            yield self.no_libvirt(error)
            yield self.kvm()
            return
        version = conn.getLibVersion()
        text = f"{_version(version)}, {self.settings.mode} of {self.user}"
        yield Check("libvirt", ok=True, text=text)
        yield from self.emulator(conn)
        yield self.kvm()
        yield self.accelerator()
        yield self.storage(conn)
        yield self.guest(conn)
        yield self.ports()
        yield self.networks(conn)
        yield self.room(conn)
        yield from self.other_mode()

    # -- the way there ------------------------------------------------------------------------

    def server(self) -> Check:
        if not self.connection.remote:
            return Check("server", ok=True, text=f"this computer, as {self.user}")
        where = f"{self.user}@{self.settings.host}"
        return Check("server", ok=True, text=f"{where} lets you in and shows the pinned host key")

    def tunnel(self) -> Iterator[Check]:
        if not self.connection.remote or not self.facts:
            return
        found = self.facts.get("virt-ssh-helper") or self.facts.get("nc")
        text = found or f"libvirt is reached through it: {probe.install(self.facts, 'nc')}"
        yield Check("virt-ssh-helper/nc", ok=bool(found), text=text)

    def no_libvirt(self, error: EssaimError) -> Check:
        mode = self.settings.mode
        if not (self.facts.get("libvirtd") or self.facts.get("virtqemud")):
            text = f"libvirt is not installed there: {probe.install(self.facts, 'libvirt')}"
        elif mode == "system" and not self.facts.get("system_open"):
            text = (
                f"{self.user} may not use the system's libvirt: ask for\n"
                f"sudo usermod -aG libvirt {self.user}   (and log in again)\n"
                "or write /session instead of /system in the site's uri: that needs nobody's leave"
            )
        else:
            text = _words(error)
        return Check("libvirt", ok=False, text=text)

    # -- what runs machines -------------------------------------------------------------------

    def emulator(self, conn: Any) -> Iterator[Check]:
        try:
            found = conn.getDomainCapabilities(None, "x86_64", None, "qemu", 0)
            version = _version(conn.getVersion())
        except libvirt.libvirtError as error:
            text = f"no emulator of x86_64 machines ({error}): {probe.install(self.facts, 'qemu')}"
            yield Check("emulator", ok=False, text=text)
            return
        path = ET.fromstring(found).findtext("path", "")  # noqa: S314 - what libvirt itself wrote
        yield Check("emulator", ok=True, text=f"{path}, QEMU {version}")
        # Snapshots of machines that are off are made by it.
        if self.facts and not self.facts.get("qemu-img"):
            yield Check("qemu-img", ok=False, text=probe.install(self.facts, "qemu-img"))

    def kvm(self) -> Check:
        if self.facts.get("kvm_open"):
            return Check("kvm", ok=True, text=f"{self.user} may use /dev/kvm")
        listed = self.facts.get("kvm", "")
        if not self.facts:
            return Check("kvm", ok=True, text="was not looked at", warn=True)
        if not listed:
            text = "the server has no /dev/kvm: machines are emulated, about ten times slower\n"
            text += "virtualisation may be off in its firmware, or it is a virtual machine itself"
            return Check("kvm", ok=True, text=text, warn=True)
        group = (listed.split() + [""] * 4)[3]
        text = f"{self.user} may not use /dev/kvm ({' '.join(listed.split()[:4])}): "
        text += "machines are emulated, about ten times slower; ask for\n"
        if group == "root":
            text += "sudo chgrp kvm /dev/kvm; sudo chmod 660 /dev/kvm; "
            group = "kvm"
        text += f"sudo usermod -aG {group} {self.user}   (and log in again)"
        return Check("kvm", ok=True, text=text, warn=True)

    def accelerator(self) -> Check:
        settled = self.accelerators.settled()
        known = [settled] if settled else self.accelerators.remembered()
        if not known:
            text = "each image is tried under KVM when it is first used"
            return Check("accelerator", ok=True, text=text)
        last = known[-1]
        at = time.strftime(" on %Y-%m-%d", time.localtime(last.at)) if last.at else ""
        slow = last.accelerator == TCG and self.settings.accelerator != TCG
        text = f"{last.accelerator}{at}: {last.why}"
        if slow and last.at:
            text += "\nthe site's `accelerator: kvm` uses it all the same"
        return Check("accelerator", ok=True, text=text, warn=slow)

    def guest(self, conn: Any) -> Check:
        """Start a machine without a disk, with both of its networks, and listen to its console."""
        kinds = [TCG]
        if self.settings.accelerator == KVM or not accelerator.kvm_missing(conn):
            kinds = [KVM] if self.settings.accelerator == KVM else [KVM, TCG]
        if self.settings.accelerator == TCG:
            kinds = [TCG]
        said = ""
        for kind in kinds:
            said = self.starts(conn, kind)
            if not said:
                text = f"one started under {kind}, with a console, a port on the server's loopback"
                return Check("a machine", ok=True, text=f"{text} and multicast there")
        return Check("a machine", ok=False, text=f"none can be started: {said}")

    def starts(self, conn: Any, kind: str) -> str:
        """Start it under that accelerator; what is wrong, or nothing."""
        port = self.free_port()
        group = ".".join(str(1 + secrets.randbelow(254)) for _ in range(3))
        words = (
            "-netdev", f"user,id=access,restrict=on,hostfwd=tcp:127.0.0.1:{port}-:22",
            "-netdev", f"socket,id=cluster,mcast=230.{group}:{port},localaddr=127.0.0.1",
        )  # fmt: skip
        try:
            domain = accelerator.trial(conn, accelerator.describe(kind, arguments=words))
        except libvirt.libvirtError as error:
            return str(error).strip().splitlines()[-1]
        name = MachineName("trial", domain.name())
        with (
            accelerator.ended(domain),
            closing(open_console(self.connection, domain, name)) as line,
        ):
            domain.resume()
            heard, until = b"", time.monotonic() + _FIRMWARE_WITHIN
            while b"SeaBIOS" not in heard and time.monotonic() < until:
                heard += accelerator.listen(line, 0.5)
        if b"SeaBIOS" in heard:
            return ""
        return f"under {kind} its firmware said {plain(heard).strip() or 'nothing'!r}"

    # -- what machines take -------------------------------------------------------------------

    def storage(self, conn: Any) -> Check:
        name = self.settings.pool
        try:
            pool = conn.storagePoolLookupByName(name)
            free = pool.info()[3]
            if self.settings.mode == "session" and self.facts.get("free"):
                # libvirt also counts what is kept for root.
                free = min(free, int(self.facts["free"]) * 1024)
            where = f"pool {name}"
        except libvirt.libvirtError:
            if self.settings.mode == "system" and not self.settings.pool_path:
                known = ", ".join(sorted(conn.listStoragePools())) or "none"
                text = f"there is no pool {name}; there are: {known}"
                return Check("storage", ok=False, text=f"{text}\nname one as the site's `pool`")
            if not self.facts:
                return Check("storage", ok=True, text="was not looked at", warn=True)
            free = int(self.facts.get("free") or 0) * 1024
            where = f"{self.facts.get('place', 'the home')}; pool {name} is made when first used"
        text = f"{free / 2**30:.1f} GiB free: {where}"
        ok = free >= FREE_DISK
        more = "" if ok else f"\nat least {FREE_DISK >> 30} GiB are wanted: ask for more, or `pool`"
        return Check("storage", ok=ok, text=text + more)

    def free_port(self) -> int:
        first, last = self.settings.ports
        free = [port for port in range(first, last + 1) if port not in probe.taken(self.facts)]
        return secrets.choice(free or [first])

    def ports(self) -> Check:
        first, last = self.settings.ports
        taken = sum(first <= port <= last for port in probe.taken(self.facts))
        free = last - first + 1 - taken
        text = f"{free} of {first}-{last} are free; each machine takes one"
        few = free < _PORTS_WANTED
        return Check("ports", ok=free > 0, text=text, warn=few)

    def networks(self, conn: Any) -> Check:
        try:
            offered = {network.name(): network.isActive() for network in conn.listAllNetworks(0)}
        except libvirt.libvirtError:
            offered = {}  # a session may have no such driver at all
        wanted = self.settings.network
        listed = ", ".join(sorted(n if on else f"{n} (off)" for n, on in offered.items()))
        if wanted:
            ok = offered.get(wanted, 0) == 1
            text = f"{wanted} joins machines" if ok else f"{wanted} is not active there"
            return Check("network", ok=ok, text=f"{text}; there are: {listed or 'none'}")
        text = "machines are joined by multicast on the server's loopback, which needs no leave"
        return Check(
            "network", ok=True, text=text + (f"; also offered: {listed}" if listed else "")
        )

    def room(self, conn: Any) -> Check:
        cores, running = conn.getInfo()[2], conn.numOfDomains()
        memory = int(self.facts.get("memory") or 0) * 1024 or conn.getFreeMemory()
        text = f"{cores} cores, {memory / 2**30:.1f} GiB of memory free; {running} machines run"
        limit = self.facts.get("processes", "unlimited")
        if limit.isdigit():
            text += f"; {self.user} may have {limit} processes and threads, a machine has about 5"
        few = memory < FREE_MEMORY
        return Check("room", ok=True, text=text, warn=few)

    def other_mode(self) -> Iterator[Check]:
        if self.settings.mode == "session" and self.facts.get("system_open"):
            text = f"{self.user} may also use /system, where networks with DHCP may be offered"
            yield Check("system", ok=True, text=text)


def _version(number: int) -> str:
    return f"{number // 1000000}.{number // 1000 % 1000}.{number % 1000}"


def _words(error: EssaimError) -> str:
    return f"{error.what}\n{error.hint}" if error.hint else error.what
