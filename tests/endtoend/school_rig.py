"""A school: a simulated cluster, real name and address servers, simulated desktops, operators.

What is there is read from the servers themselves, without the code that wrote it.
"""

from __future__ import annotations

import contextlib
import csv
import json
import signal
import sqlite3
import ssl
import subprocess
import urllib.request
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path

import dns.query
import dns.rcode
import dns.tsig
import dns.tsigkeyring
import dns.update
import dns.zone
import sqlalchemy as sa

from databases import find
from endtoend.people import OURS, Person
from essaim.servers.guacamole_rest import Rest
from essaim_lab.simulators.guacamole import Simulator as Guacamole
from essaim_lab.simulators.proxmox import Simulator as Proxmox
from essaim_lab.simulators.proxmox.access import Token
from essaim_lab.simulators.proxmox.cluster import Request
from servers import daemons
from servers.nameservers import BACK, FORWARD, SECRET, ZONES, bind
from servers.network import CIDR, Asked, network
from testcache import CACHE

STORAGE, POOL = "vol-ceph-1", "students"
PATIENCE = 600.0
_KEYRING = dns.tsigkeyring.from_text({"essaim": (dns.tsig.HMAC_SHA256, SECRET)})
_KEA = Path("/usr/share/kea/scripts/mysql/dhcpdb_create.mysql")


def kea_tables(server) -> str:
    """The tables of a Kea in a real MariaDB; their address as a site file says it."""
    find("kea-admin", "kea-admin")
    url = sa.make_url(server.new(empty=True))
    words = ["mariadb", "--no-defaults", "-h127.0.0.1", f"-P{url.port}", "-uroot", url.database]
    with _KEA.open() as script:
        subprocess.run(words, stdin=script, check=True, stdout=subprocess.DEVNULL)
    return f"mysql://root@127.0.0.1:{url.port}/{url.database}"


def forget_all(hosts: str) -> None:
    """Leave nobody in the tables of a Kea."""
    with _opened(hosts) as connection, connection.begin():
        connection.execute(sa.text("DELETE FROM hosts"))


@contextlib.contextmanager
def _opened(hosts: str) -> Iterator[sa.Connection]:
    engine = sa.create_engine(sa.make_url(hosts).set(drivername="mysql+pymysql"))
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def card_text(number: int) -> str:
    return f"bc:24:11:{number.to_bytes(3).hex(':')}"


@dataclass(frozen=True)
class Plane:
    """A control plane of its own: an operator with a home, a lab and one roster."""

    name: str  #: of the roster
    person: Person
    students: tuple[str, ...]
    token: str  #: its own way into the cluster

    @property
    def hosts(self) -> dict[str, str]:
        """What machines are called, by login."""
        return {login: f"vm-{login}" for login in self.students}

    def types(self, *words: str, code: int | None = 0) -> str:
        return self.person.types(*words, code=code, within=PATIENCE)

    def applies(self, code: int | None = 0) -> str:
        return self.types("students", "apply", f"{self.name}.csv", "--yes", code=code)

    def rows(self, query: str) -> list[tuple]:
        """What its store says, read past everything that writes it."""
        path = self.person.home / "state" / "essaim.db"
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as base:
            return base.execute(query).fetchall()

    def card(self, login: str) -> str:
        """The address of a student's card; nothing until it has one."""
        with contextlib.suppress(sqlite3.OperationalError):  # nothing is written yet
            for number, holder in self.held("mac").items():
                if holder == f"{self.name}/{login}":
                    return card_text(number)
        return ""

    def held(self, kind: str) -> dict[int, str]:
        return dict(self.rows(f"SELECT number, holder FROM reservation WHERE kind = '{kind}'"))


@dataclass
class School:
    """All that a site file names, and what to look at in the end."""

    place: Path
    cluster: Proxmox
    desktops: Guacamole
    names: object  #: of `servers.nameservers`
    hosts: str  #: Kea's database
    asked: Counter[str] = field(default_factory=Counter)  #: requests, by token

    def plane(
        self, roster: str, students: int, addresses: str, ids: str, *, name: str = "", **env: str
    ) -> Plane:
        """Somebody who sets up a control plane and a roster for this school.

        `name` is that of the control plane, else it is called as its roster.
        """
        name = name or roster
        home = self.place / name
        lab = home / "lab"
        (lab / "site").mkdir(parents=True)
        logins = tuple(f"{roster}{number:03}" for number in range(1, students + 1))
        with (lab / f"{roster}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("login", "name", "group"))
            writer.writerows((login, f"Student {login}", "a") for login in logins)
        settings = {
            "name": roster,
            "site": "pve",
            "image": "debian-gui",
            "size": {"cores": 1, "memory": 512},
            "network": {"cidr": CIDR, "range": addresses},
            "domain": FORWARD,
            "prefix": "vm-",
            "grace": 0,
            "desktop": {"protocol": "rdp"},
        }
        (lab / "essaim.yaml").write_text("{}\n")
        (lab / f"{roster}.yaml").write_text(json.dumps(settings))
        (lab / "site" / "pve.yaml").write_text(json.dumps(self._site(name, home, ids)))
        extra = {"ESSAIM_CACHE": str(CACHE), "ESSAIM_HOME": str(home / "state"), **env}
        token = f"essaim@pve!{name}"
        return Plane(roster, Person(home, lab, OURS, extra=extra), logins, token)

    def _site(self, name: str, home: Path, ids: str) -> dict:
        def secret(kind: str, value: str) -> dict[str, str]:
            file = home / kind
            file.touch(mode=0o600)
            file.write_text(value)
            return {"file": str(file)}

        sim, gate, dns_ = self.cluster, self.desktops, self.names
        key = Token(str(uuid.uuid4()), privsep=False)
        sim.cluster.access.users["essaim@pve"].tokens[name] = key
        return {
            "driver": "proxmox",
            "url": sim.urls,
            "token": f"essaim@pve!{name}",
            "secret": secret("token", key.value),
            "ca": str(sim.ca),
            "ids": ids,
            "pool": POOL,
            "storage": STORAGE,
            "dns": {
                "kind": "rfc2136",
                "server": "127.0.0.1",
                "port": dns_.port,
                "zones": list(ZONES),
                "key": "essaim",
                "secret": secret("tsig", SECRET),
            },
            "dhcp": {"kind": "kea", "database": self.hosts, "subnets": {7: CIDR}},
            "desktop": {
                "kind": "guacamole",
                "url": gate.url,
                "user": gate.user,
                "secret": secret("guacamole", gate.secret),
                "ca": str(gate.ca),
            },
        }

    # What strangers do.

    def name_taken(self, name: str, address: str) -> Callable[[], None]:
        """Somebody else has that name in the zone; gives what takes it away again."""
        self._rename(name, address)
        return lambda: self._rename(name, "")

    def _rename(self, name: str, address: str) -> None:
        update = dns.update.UpdateMessage(FORWARD, keyring=_KEYRING)
        if address:
            update.add(name, 300, "A", address)
        else:
            update.delete(name)
        answer = dns.query.tcp(update, "127.0.0.1", 60, port=self.names.port)
        assert answer.rcode() == dns.rcode.NOERROR

    def desktop_taken(self, group: str, name: str) -> Callable[[], None]:
        """Somebody else has a desktop of that name; gives what takes it away again."""
        body = {"name": group, "parentIdentifier": "ROOT", "type": "ORGANIZATIONAL"}
        parent = self._ask_desktops("POST", ["connectionGroups"], {**body, "attributes": {}})
        body = {"name": name, "parentIdentifier": parent["identifier"], "protocol": "vnc"}
        its = {"hostname": "printer.example.org", "port": "5900"}
        whole = {**body, "attributes": {}, "parameters": its}
        made = self._ask_desktops("POST", ["connections"], whole)["identifier"]

        def remove() -> None:
            found = self.desktops.state.connections.get(made, {})
            assert found.get("parameters") == its, f"the stranger's desktop is {found}"
            self._ask_desktops("DELETE", ["connections", made])

        return remove

    def _ask_desktops(self, method: str, path: list[str], body: dict | None = None) -> dict:
        gate = self.desktops
        who = {"user": gate.user, "secret": gate.secret, "source": "", "ca": str(gate.ca)}
        with contextlib.closing(Rest(url=gate.url, within=60, **who)) as rest:
            return rest.call(method, path, body)

    # What is there, as the servers themselves have it.

    def guests(self) -> dict[int, object]:
        """Machines that are no templates and no stranger's."""
        with self.cluster.clock.lock:
            self.cluster.clock.settle()
            found = dict(self.cluster.cluster.guests)
        return {
            number: guest
            for number, guest in found.items()
            if not guest.template and not guest.name.startswith("foreign-")
        }

    def named(self) -> dict[str, str]:
        """Every address of the zone, by name without the zone."""
        return self._transfer(FORWARD, "A")

    def backwards(self) -> dict[str, str]:
        """Every name of the reverse zone, by address."""
        found = self._transfer(BACK, "PTR")
        return {
            f"10.77.0.{last}": name.removesuffix(f".{FORWARD}.") for last, name in found.items()
        }

    def _transfer(self, zone: str, kind: str) -> dict[str, str]:
        asked = dns.query.xfr(
            "127.0.0.1", zone, port=self.names.port, keyring=_KEYRING, lifetime=60
        )
        found = dns.zone.from_xfr(asked)
        return {str(name): rdata.to_text() for name, _ttl, rdata in found.iterate_rdatas(kind)}

    def admitted(self) -> set[tuple[str, str, str]]:
        """Card, address and name of every row of Kea's."""
        with _opened(self.hosts) as connection:
            rows = connection.execute(
                sa.text("SELECT dhcp_identifier, ipv4_address, hostname FROM hosts")
            ).all()
        return {(card.hex(":"), str(IPv4Address(address)), name) for card, address, name in rows}

    def published(self) -> dict[tuple[str, str], tuple[str, frozenset[str]]]:
        """Address and people of every desktop, by group and name."""
        state = self.desktops.state
        groups = {number: group["name"] for number, group in state.groups.items()}
        found = {}
        for number, made in state.connections.items():
            may = frozenset(
                login
                for login, user in state.users.items()
                if "READ" in user.objects["connectionPermissions"].get(number, ())
            )
            key = (groups.get(made["parentIdentifier"], ""), made["name"])
            assert key not in found
            found[key] = (made["parameters"]["hostname"], may)
        return found


@contextlib.contextmanager
def school(place: Path, hosts: str, **cluster) -> Iterator[School]:
    """A school whose servers answer until the end of the block."""
    how = {"nodes": 3, "copies": 3, "doors": True, **cluster}
    with bind() as names, Guacamole() as desktops, Proxmox(**how) as sim:
        made = School(place, sim, desktops, names, hosts)
        submit = sim.cluster.submit

        def count(request: Request, done: Callable) -> None:
            made.asked[request.token.partition("=")[0]] += 1
            submit(request, done)

        sim.cluster.submit = count
        yield made


def tasks(its: School, kind: str) -> int:
    """How many tasks of a kind went well."""
    with its.cluster.clock.lock:
        return its.cluster.cluster.tally.tasks[kind]["OK"]


# Who asks for an address.


@contextlib.contextmanager
def kea(hosts: str) -> Iterator[Asked]:
    """A Kea that knows nobody but whom that database names."""
    program = find("kea-dhcp4", "kea-dhcp4-server")
    url = sa.make_url(hosts)
    with _opened(hosts) as connection:
        socket = connection.execute(sa.text("SELECT @@socket")).scalar_one()
    base = {"type": "mysql", "name": url.database, "user": "root", "host": "localhost"}
    with network() as made, daemons.folder() as place:
        subnet = {"id": 7, "subnet": CIDR, "pools": [], "interface": "served"}
        output = {"output_options": [{"output": "stdout"}]}
        settings = {
            "interfaces-config": {"interfaces": ["served"]},
            "hosts-database": base,
            "lease-database": {"type": "memfile", "name": str(place / "leases"), "persist": False},
            "subnet4": [subnet],
            "loggers": [{"name": "kea-dhcp4", "severity": "INFO", **output}],
        }
        (place / "kea.json").write_text(json.dumps({"Dhcp4": settings}))
        env = {
            "KEA_PIDFILE_DIR": str(place),
            "KEA_LOCKFILE_DIR": str(place),
            "MYSQL_UNIX_PORT": socket,  # the loopback of its namespace is not ours
        }
        log = place / "log"
        command = made.at_server([program, "-c", place / "kea.json"])
        with daemons.running(command, place, lambda: "DHCP4_STARTED" in log.read_text(), env):
            yield Asked(made, log)


# Who tries it out at home.


@dataclass(frozen=True)
class Lab:
    """What `essaim lab proxmox` has said, to whoever started it."""

    told: dict[str, str]

    def counts(self) -> dict:
        """What was asked of the cluster and done there."""
        secret = Path(self.told["lab_secret"]).read_text()
        return self._get("lab/counts", f"Bearer {secret}")

    def calls(self) -> int:
        """How many requests there were."""
        return sum(self.counts()["requests"].values())

    def machines(self) -> list[dict]:
        """All machines but the templates, as the cluster lists them."""
        secret = Path(self.told["root_secret"]).read_text()
        path = "api2/json/cluster/resources?type=vm"
        found = self._get(path, f"PVEAPIToken={self.told['root']}={secret}")
        return [each for each in found if not each["template"]]

    def _get(self, path: str, who: str):
        url = f"{self.told['url']}/{path}"
        trust = ssl.create_default_context(cafile=self.told["ca"])
        request = urllib.request.Request(url, headers={"Authorization": who})
        with urllib.request.urlopen(request, timeout=60, context=trust) as answer:
            return json.load(answer)["data"]


@contextlib.contextmanager
def lab_proxmox(person: Person, *words: str) -> Iterator[Lab]:
    """`essaim lab proxmox …` in another terminal, until Ctrl-C."""
    process = person.begins("lab", "proxmox", *words, "--json")
    try:
        # Before it says where it is, it may have an image to build, and notes to make on that.
        told = next(line for line in process.stdout if line.startswith("{"))
        yield Lab(json.loads(told))
    finally:
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said
