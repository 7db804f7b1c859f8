"""A process of a Proxmox driver that dies at a chosen request, and the count of what is there.

Requests reach a real server over HTTPS; death is an exception that nothing handles, so that the
same test can die at every request without as many processes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress

from drivers.lab import NETWORK
from drivers.proxmox_lab import ProxLab, until_done
from essaim.drivers.proxmox import clerk, ownership, uses
from essaim.drivers.proxmox.api import BROKEN_OFF, Api, ApiError
from essaim.drivers.proxmox.driver import Proxmox
from essaim.drivers.proxmox.refusals import Refusal
from essaim.model.errors import NotYetError, TransientError
from essaim.model.names import MachineName
from essaim.model.stacks import Image, Machine


def _image(name: str, **settings: str) -> Image:
    return Image(name=name, builder="template", digest=f"d-{name}", settings=settings)


ARCHIVE = "local:vztmpl/debian-12-standard_12.7-1_amd64.tar.zst"
#: Every way in which a machine comes to be.
SOURCES = {
    "clone-qemu": _image("vm", template="debian-vm", clone="full"),
    "clone-lxc": _image("ct", template="debian-gui", clone="full"),
    "archive": _image("archive", ostemplate=ARCHIVE),
    "image": _image("image", disk="local:import/debian-12.qcow2"),
}


class KilledError(BaseException):
    """Stands for kill -9: nothing that is written for errors sees it."""


def quick(monkeypatch) -> None:
    """What is left by somebody who died is looked at sooner than in a minute."""
    monkeypatch.setattr(clerk, "_REAP_EVERY", 0.5)
    monkeypatch.setattr(uses, "_LEFT_ALONE", 0.5)
    monkeypatch.setattr(ownership, "_UNSURE", 0.5)


class Victim:
    """One process: its driver, and when it dies."""

    def __init__(self, it: ProxLab, monkeypatch) -> None:
        self.it = it
        self.driver = it.new_driver()
        self.dead = False
        self.asked = 0
        self._at, self._before, self._changes, self._loses = 0, True, True, ""
        _watch(monkeypatch)[self.driver.api] = self._ask

    def _ask(self, ask, method: str):
        if self.dead:
            raise KilledError
        self.asked += method != "GET" or not self._changes
        if self.asked == self._at and (method != "GET" or not self._changes):
            self.dead = True
            if not self._before:
                with suppress(ApiError):
                    ask()
            raise KilledError
        answer = ask()
        if self._loses == method:
            self._loses = ""
            raise ApiError(Refusal.LOST, "Bad Gateway", code=BROKEN_OFF)
        return answer

    def dies_at(self, number: int = 1, *, before: bool, changes: bool = True) -> None:
        """Die at the n-th request, or at the n-th that changes something."""
        self.asked, self._at, self._before, self._changes = 0, number, before, changes

    def loses_the_answer_to(self, method: str) -> None:
        """Let the next such request be carried out, and its answer be lost."""
        self._loses = method

    def up(self, machine: Machine) -> None:
        Proxmox.create(self.driver, machine, NETWORK, self.it.image, self.it.seed(machine))
        Proxmox.start(self.driver, machine.name)

    def goes_on_until_dead(self, machine: Machine, *, removes: bool = False) -> None:
        """Make and start the machine, or remove it, until the process dies or has done it."""

        def step() -> None:
            try:
                if removes:
                    Proxmox.destroy(self.driver, machine.name)
                else:
                    self.up(machine)
            except KilledError:
                assert self.dead
            except NotYetError as error:
                if not self.dead:  # whose clerk is dead has nothing to wait for
                    raise NotYetError(error.what, after=min(error.after, 0.1)) from error
            except TransientError:
                if not self.dead:
                    raise

        until_done(step)


def _watch(monkeypatch) -> dict[Api, Callable]:
    """Who is asked instead of a cluster, by the API they use."""
    real = Api._ask
    if hasattr(real, "watched"):
        return real.watched
    watched: dict[Api, Callable] = {}

    def ask(its, url, method, path, given):
        if its in watched:
            return watched[its](lambda: real(its, url, method, path, given), method)
        return real(its, url, method, path, given)

    ask.watched = watched
    monkeypatch.setattr(Api, "_ask", ask)
    return watched


class Victims:
    """Many processes, each with a machine of its own to make, and a moment to die."""

    def __init__(self, it: ProxLab, monkeypatch) -> None:
        self._it, self._patch = it, monkeypatch
        self._of: dict[MachineName, Victim] = {}

    def add(self, machine: Machine, call: int, *, before: bool, changes: bool) -> None:
        """Another process, that dies at its n-th request."""
        victim = self._of[machine.name] = Victim(self._it, self._patch)
        victim.dies_at(call, before=before, changes=changes)

    def up(self, machine: Machine) -> None:
        self._of[machine.name].goes_on_until_dead(machine)

    def down(self, machine: Machine) -> None:
        self._of[machine.name].goes_on_until_dead(machine, removes=True)

    def requests(self, machine: Machine) -> int:
        """How many requests a life takes at least: to make and start, or to remove."""
        victim = Victim(self._it, self._patch)
        victim.dies_at(10**6, before=True, changes=False)
        victim.goes_on_until_dead(machine)
        up, victim.asked = victim.asked, 0
        victim.goes_on_until_dead(machine, removes=True)
        return max(up, victim.asked)


def _given_back(it: ProxLab) -> None:
    """NotYetError while a slot is in use."""
    it.driver.clerk.reap()
    if it.uses():
        raise NotYetError(f"in use: {it.uses()}", after=0.1)


def count_is_right(it: ProxLab, machines: set[str]) -> None:
    """Each wanted machine exactly once, running, with its disk; nothing of ours besides."""
    guests = {n: g for n, g in it.guests(ours=False).items() if not g.name.startswith("foreign-")}
    assert sorted(guest.name for guest in guests.values()) == sorted(machines), guests
    assert all(guest.running and not guest.conf.get("lock") for guest in guests.values())
    cards = [str(guest.conf["net0"]) for guest in guests.values()]
    assert len(set(cards)) == len(cards)
    disks = {disk["file"] for guest in guests.values() for disk in guest.disks().values()}
    assert {file for file in disks if "cloudinit" not in file} == {
        file for file in it.volumes() if "cloudinit" not in file
    }
    until_done(lambda: _given_back(it))
    path = it.url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as base:
        rows = base.execute("SELECT kind, number, holder FROM reservation").fetchall()
    assert {number: holder for kind, number, holder in rows if kind == "vmid"} == {
        number: str(MachineName("lab", guest.name)) for number, guest in guests.items()
    }
    assert [row for row in rows if row[0] == "leftover"] == []
    names = {str(MachineName("lab", name)) for name in machines}
    assert {holder for kind, _, holder in rows if kind in ("mac", "address.lab")} == names
