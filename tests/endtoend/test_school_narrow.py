"""600 students with a token that sees its pool alone, on a cluster where things go wrong.

The cluster is simulated.  What is there in the end is counted in the cluster and in the store, past
everything that made it.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import random
import signal
import sqlite3
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from drivers.proxmox_lab import narrow_rights
from endtoend.people import OURS, Person
from endtoend.school_chaos import spent, tell
from essaim_lab.simulators.proxmox import Simulator, StorageSettings
from patience import in_test_all
from servers.daemons import wait
from testcache import CACHE

SEED = int(os.environ.get("ESSAIM_TEST_SEED", "20261118"))
#: Half of them have containers, half virtual machines.
STUDENTS = int(os.environ.get("ESSAIM_TEST_STUDENTS", "600"))
STRANGERS, KILLS = 40, 3
FIRST = 50000
SPEED = 10.0
#: Simulated seconds to copy a machine: as many wall seconds as a real cluster's tenth.
COPY = 60.0
PATIENCE = 1500.0
ROSTERS = {"pct": ("debian-gui", "10.77.0.0/20"), "qemu": ("debian-vm", "10.78.0.0/20")}


@dataclass(frozen=True)
class Roster:
    """One of the two rosters of the lab."""

    name: str
    person: Person
    logins: tuple[str, ...]

    def applies(self, kills: threading.Barrier, moments: list, asked) -> list[str]:
        """Type `students apply` until it ends; it is killed at each of the moments."""
        said = []
        for moment in [*moments, None]:
            process = self.person.begins("students", "apply", f"{self.name}.csv", "--yes")
            out: list[str] = []
            reader = threading.Thread(target=lambda p=process, o=out: o.append(p.stdout.read()))
            reader.start()
            try:
                if moment is not None:
                    wait("requests", lambda m=moment: asked() >= m, process)
                    kills.wait(PATIENCE)  # both at once
                    process.kill()
                process.wait(PATIENCE)
            finally:
                process.kill()
                process.wait()
                reader.join()
                process.stdout.close()
            said.append(out[0])
            assert process.returncode == (-signal.SIGKILL if moment is not None else 0), out[0]
        return said


def site(sim: Simulator, lab: Path, ids: range) -> dict:
    secret = lab / "token"
    secret.touch(mode=0o600)
    secret.write_text(sim.plane_secret)
    return {
        "driver": "proxmox",
        "url": sim.url,
        "token": sim.plane_token,
        "secret": {"file": str(secret)},
        "ca": str(sim.ca),
        "ids": f"{ids[0]}-{ids[-1]}",
        "pool": "students",
        "storage": "vol-ceph-1",
    }


def rosters(place: Path, sim: Simulator, ids: range) -> list[Roster]:
    lab = place / "lab"
    for folder in ("site", "images"):
        (lab / folder).mkdir(parents=True)
    (lab / "essaim.yaml").write_text("{}\n")
    (lab / "site" / "pve.yaml").write_text(json.dumps(site(sim, lab, ids)))
    extra = {"ESSAIM_CACHE": str(CACHE), "ESSAIM_HOME": str(place / "state")}
    person = Person(place, lab, OURS, extra=extra)
    made = []
    for name, (template, cidr) in ROSTERS.items():
        image = {"builder": "template", "template": template, "clone": "full"}
        (lab / "images" / f"{name}.yaml").write_text(json.dumps(image))
        logins = tuple(f"{name}{number:03}" for number in range(1, STUDENTS // 2 + 1))
        with (lab / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("login", "name", "group")])
            csv.writer(file).writerows((login, f"Student {login}", "a") for login in logins)
        settings = {
            "name": name,
            "site": "pve",
            "image": name,
            "size": {"cores": 1, "memory": 512},
            "network": {"cidr": cidr},
            "domain": "school.example.org",
            "prefix": "vm-",
            "grace": 0,
        }
        (lab / f"{name}.yaml").write_text(json.dumps(settings))
        made.append(Roster(name, person, logins))
    return made


@contextlib.contextmanager
def cluster(ids: range):
    disks = StorageSettings(name="vol-ceph-1", copy_seconds=COPY / 8, copies=48)
    with Simulator(nodes=5, copies=15, storages=[disks], seed=SEED, speed=SPEED) as sim:
        narrow_rights(sim)
        luck = random.Random(SEED)
        strangers = sorted(luck.sample(ids, STRANGERS))
        sim.fault("foreign", ids=",".join(map(str, strangers)))
        sim.fault("locks", share=0.05)
        yield sim


def ours(sim: Simulator) -> dict[int, object]:
    """Machines that are no templates and no stranger's."""
    with sim.clock.lock:
        sim.clock.settle()
        return {
            number: guest
            for number, guest in sim.cluster.guests.items()
            if not guest.template and not guest.name.startswith("foreign-")
        }


def reservations(place: Path) -> list[tuple[str, int, str]]:
    path = place / "state" / "essaim.db"
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as base:
        return base.execute("SELECT kind, number, holder FROM reservation").fetchall()


def check(sim: Simulator, place: Path, made: list[Roster]) -> None:
    """Count the machines, their disks and what the store holds; nothing is there twice."""
    guests, wanted = ours(sim), {f"vm-{login}" for roster in made for login in roster.logins}
    names = Counter(guest.name for guest in guests.values())
    doubled = {name: count for name, count in names.items() if count > 1}
    rows = reservations(place)
    held = {number for kind, number, _ in rows if kind == "vmid"}
    orphans = {number: guest for number, guest in guests.items() if number not in held}
    disks = {number for number in sim.cluster.volumes.values() if number not in guests}
    lost = [n for n in disks if not (n in sim.cluster.guests and sim.cluster.guests[n].template)]
    tell(
        f"{len(guests)} machines, {len(doubled)} doubled, {len(orphans)} orphaned, "
        f"{len(lost)} disks without a machine, {len(held)} VMIDs reserved"
    )
    assert doubled == {}
    assert orphans == {}
    assert lost == []
    assert names.keys() == wanted
    assert held == set(guests)
    assert [row for row in rows if row[0] == "leftover"] == []
    assert not [guest for guest in guests.values() if guest.conf.get("lock") or not guest.disks()]
    assert all(guest.running for guest in guests.values())


@in_test_all
@pytest.mark.timeout(3600)
def test_600_students_with_a_narrow_token(tmp_path):
    """R-B2: strangers' ids, lock time-outs, slow clones, three kill -9: each has one machine."""
    ids = range(FIRST, FIRST + STUDENTS + 5 * STRANGERS)
    with cluster(ids) as sim:
        made, tally = rosters(tmp_path, sim, ids), sim.cluster.tally

        def asked() -> int:
            with sim.clock.lock:
                return sum(n for what, n in tally.requests.items() if "POST" in what)

        # Each machine is asked for by two requests: the first of a third have begun, and so on.
        moments = [int(2 * STUDENTS * share) for share in (0.08, 0.3, 0.6)]
        together = threading.Barrier(len(made))

        def apply() -> None:
            with ThreadPoolExecutor(len(made)) as pool:
                list(pool.map(lambda roster: roster.applies(together, moments, asked), made))

        wall, cpu = spent(apply)
        with sim.clock.lock:
            calls = sum(tally.requests.values())
            refused = {w: n for w, n in tally.refusals.items() if "exists" in w}
            seen = dict(sim.cluster.faults.seen)
            ends = {kind: dict(each) for kind, each in tally.tasks.items()}
        tell(
            f"{STUDENTS} machines in {wall:.0f} s ({wall * SPEED:.0f} simulated), commands "
            f"{cpu:.0f} s of CPU, {calls / STUDENTS:.1f} calls for each, {KILLS} kill -9 of each "
            f"of {len(made)} commands, faults {seen}, refused {refused}, tasks {ends}"
        )
        check(sim, tmp_path, made)
        assert seen["foreign"] == STRANGERS
        sim.heal()
        for roster in made:
            said = roster.person.types("students", "remove", roster.name, "--yes", within=PATIENCE)
            tell(said.splitlines()[-1])
        assert ours(sim) == {}
        templates = {n for n, guest in sim.cluster.guests.items() if guest.template}
        assert set(sim.cluster.volumes.values()) == templates
        assert not [row for row in reservations(tmp_path) if row[0] != "refused"]
