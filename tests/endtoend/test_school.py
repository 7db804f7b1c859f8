"""A roster on a simulated Proxmox, with a real BIND and a simulated Guacamole."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from essaim.bootstrap import App
from essaim.config.people import read_people
from essaim.config.rosters import compose_roster
from essaim.usecases import classes, students
from essaim.usecases import rosters as use
from essaim_lab.simulators import guacamole
from essaim_lab.simulators.proxmox import Simulator
from servers import nameservers

SITE = """driver: proxmox
url: {url}
token: {token}
secret: {{file: pve.secret}}
ca: {ca}
ids: 50000-50999
pool: students
storage: vol-ceph-1
dns: {{kind: rfc2136, server: 127.0.0.1, port: {port}, zones: [{zones}], key: essaim,
       secret: {{file: dns.secret}}}}
desktop: {{kind: guacamole, url: "{desktops}", user: guacadmin, ca: {desktops_ca},
           secret: {{file: desktops.secret}}}}
"""
ROSTER = """site: pve
image: debian-gui
network: {cidr: 10.77.0.0/24, range: 10.77.0.20-10.77.0.90}
domain: school.example.org
desktop: {protocol: rdp}
grace: 0
"""


@dataclass
class School:
    app: App
    file: Path
    cluster: Any
    dns: Any
    desktops: Any

    def apply(self, *logins: str) -> use.Planned:
        self.file.write_text("login,name\n" + "".join(f"{each},{each}\n" for each in logins))
        planned = use.plan(self.app, compose_roster(str(self.file)), read_people(self.file))
        if run := use.apply(self.app, planned):
            assert self.app.courier.wait(run, timeout=120)
        return planned

    def machines(self) -> set[str]:
        return {g.name for g in self.cluster.cluster.guests.values()} - {"debian-gui", "debian-vm"}

    def named(self, login: str) -> set[str]:
        return nameservers.look(self.dns.port, f"{login}.school.example.org", "A")

    def published(self) -> set[str]:
        site = use.stored(self.app, "promo").site
        return {each.name for each in self.app.desktops(site).published()}


@pytest.fixture
def school(tmp_path):
    lab = tmp_path / "lab"
    (lab / "site").mkdir(parents=True)
    (lab / "essaim.yaml").touch()
    with contextlib.ExitStack() as stack:
        pve = stack.enter_context(Simulator(nodes=2, speed=50.0, seed=3))
        dns = stack.enter_context(nameservers.bind())
        desktops = stack.enter_context(guacamole.Simulator())
        for name, secret in (
            ("pve", pve.plane_secret),
            ("dns", dns.secret),
            ("desktops", desktops.secret),
        ):
            (lab / f"{name}.secret").touch(mode=0o600)
            (lab / f"{name}.secret").write_text(secret)
        (lab / "site" / "pve.yaml").write_text(
            SITE.format(
                url=pve.url,
                token=pve.plane_token,
                ca=pve.ca,
                port=dns.port,
                zones=", ".join(nameservers.ZONES),
                desktops=desktops.url,
                desktops_ca=desktops.ca,
            )
        )
        (lab / "promo.yaml").write_text(ROSTER)
        app = App({"ESSAIM_HOME": str(tmp_path / "home"), "ESSAIM_CACHE": str(tmp_path / "cache")})
        stack.callback(app.close)
        yield School(app, lab / "promo.csv", pve, dns, desktops)


def test_a_roster_with_all_its_servers(school):
    """R-B2, R-B4, R-B5: made, named, published; a row that must fail leaves nothing anywhere."""
    # `www` is somebody else's name: that row must fail, and nobody else's.
    school.apply("alice", "bob", "www")
    rows = {row.login: row for row in students.table(school.app, "promo")}
    assert {login: row.state for login, row in rows.items()} == {
        "alice": "ready",
        "bob": "ready",
        "www": "failed",
    }
    assert "www.school.example.org" in rows["www"].failed
    assert school.named("alice") == {rows["alice"].address}
    assert school.machines() == {"alice", "bob"}
    assert school.published() == {"alice", "bob"}
    assert school.named("www") == {"10.77.0.200"}  # as it was
    holders = school.app.reservations.held("pve", "vmid")
    assert set(holders.values()) == {"promo/alice", "promo/bob"}
    assert rows["www"].address == ""
    # Again: nothing but the row that fails; and it is still nobody's.
    asked = sum(school.desktops.calls.values())
    again = school.apply("alice", "bob")
    assert (again.decided.changes, again.decided.kept) == ((), 2)
    assert sum(school.desktops.calls.values()) - asked == 2
    school.apply("alice")
    assert (school.machines(), school.published()) == ({"alice"}, {"alice"})
    assert school.named("bob") == set()
    run = classes.remove(school.app, "promo")
    assert school.app.courier.wait(run, timeout=120)
    assert (school.machines(), school.named("alice")) == (set(), set())
