"""Reservations in a real Kea, asked by a real DHCP client."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from databases import find
from essaim.model.errors import ClashError, RejectedError, TakenError, TransientError
from essaim.model.school import Host
from essaim.servers.kea import Kea, Settings
from servers import daemons
from servers.network import CIDR, Asked, network
from servers.rivals import winner_of_eight

_SCRIPTS = Path("/usr/share/kea/scripts")
_numbers = itertools.count(10)


@pytest.fixture(scope="module")
def database(servers) -> str:
    """Kea's tables in a real MariaDB."""
    find("kea-admin", "kea-admin")
    url = sa.make_url(servers("mariadb").new(empty=True))
    words = ["mariadb", "--no-defaults", "-h127.0.0.1", f"-P{url.port}", "-uroot", url.database]
    with (_SCRIPTS / "mysql/dhcpdb_create.mysql").open() as script:
        subprocess.run(words, stdin=script, check=True, stdout=subprocess.DEVNULL)
    return f"mysql://root@127.0.0.1:{url.port}/{url.database}"


@pytest.fixture
def settings(database) -> Settings:
    return Settings(database=database, subnets={7: CIDR}, within=daemons.PATIENCE)


@pytest.fixture
def kea(settings):
    opened = Kea(settings)
    yield opened
    opened.close()


@pytest.fixture
def host() -> Host:
    """One that no other test uses."""
    number = next(_numbers)
    return Host(
        name=f"vm-{number}.school.example.org",
        address=f"10.77.0.{number}",
        mac=f"bc:24:11:00:00:{number:02x}",
    )


@pytest.fixture(scope="module")
def asked(database) -> Iterator[Asked]:
    """A network where a real Kea answers from that database alone."""
    if os.geteuid():
        pytest.skip("namespaces of a network need root")
    program = find("kea-dhcp4", "kea-dhcp4-server")
    with network() as made, daemons.folder() as place:
        url = sa.make_url(database)
        with sa.create_engine(url.set(drivername="mysql+pymysql")).connect() as connection:
            socket = connection.execute(sa.text("SELECT @@socket")).scalar()
            connection.engine.dispose()
        (place / "kea.json").write_text(json.dumps(_configuration(url, place)))
        env = {
            "KEA_PIDFILE_DIR": str(place),
            "KEA_LOCKFILE_DIR": str(place),
            "MYSQL_UNIX_PORT": socket,  # the loopback of its namespace is not ours
        }
        ready = lambda: "DHCP4_STARTED" in (place / "log").read_text()  # noqa: E731 - a question
        command = made.at_server([program, "-c", place / "kea.json"])
        with daemons.running(command, place, ready, env):
            yield Asked(made, place / "log")


def _configuration(url: sa.URL, place: Path) -> dict:
    base = {"type": "mysql", "name": url.database, "user": "root", "host": "localhost"}
    subnet = {"id": 7, "subnet": CIDR, "pools": [], "interface": "served"}
    return {
        "Dhcp4": {
            "interfaces-config": {"interfaces": ["served"]},
            "hosts-database": base,
            "lease-database": {"type": "memfile", "name": str(place / "leases"), "persist": False},
            "valid-lifetime": 600,
            "subnet4": [subnet],
            "loggers": [
                {
                    "name": "kea-dhcp4",
                    "severity": "INFO",
                    "output_options": [{"output": "stdout"}],
                }
            ],
        }
    }


@pytest.mark.root
def test_a_card_gets_its_address_once_admitted_not_before_and_not_after(asked, kea, host):
    assert asked.refuses(host.mac)
    kea.admit(host)
    assert asked.given(host.mac) == f"{host.address} {host.name}"
    kea.dismiss(host)
    assert asked.refuses(host.mac)


def test_an_admitted_host_is_listed(kea, host):
    kea.admit(host)
    assert host in kea.admitted()
    kea.dismiss(host)
    assert host not in kea.admitted()


def test_every_verb_may_be_repeated(kea, host):
    kea.dismiss(host)
    kea.admit(host)
    kea.admit(host)
    assert kea.admitted().count(host) == 1
    kea.dismiss(host)
    kea.dismiss(host)
    assert host not in kea.admitted()


def test_eight_who_admit_the_same_host_at_once_agree(kea, host):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: kea.admit(host), range(8)))
    assert kea.admitted().count(host) == 1


def test_of_eight_cards_that_want_an_address_at_once_one_gets_it(kea, host):
    winner = winner_of_eight(kea, host)
    assert [h for h in kea.admitted() if h.address == host.address] == [winner]


def test_an_address_of_another_card_is_refused(kea, host):
    kea.admit(host)
    with pytest.raises(ClashError, match=f"{host.address} is reserved for {host.mac}") as caught:
        kea.admit(replace(host, mac="bc:24:11:ff:ff:01", name="other.school.example.org"))
    assert caught.value.hint
    with pytest.raises(TakenError, match=f"{host.mac} is reserved {host.address}"):
        kea.admit(replace(host, address="10.77.0.250"))
    with pytest.raises(TakenError, match=f"as {host.name}"):
        kea.admit(replace(host, name="other.school.example.org"))
    assert kea.admitted().count(host) == 1


def test_dismissing_leaves_what_belongs_to_another_card_now(kea, host):
    kea.admit(host)
    kea.dismiss(replace(host, mac="bc:24:11:ff:ff:02"))
    kea.dismiss(replace(host, address="10.77.0.251"))
    assert host in kea.admitted()


def test_an_address_outside_the_subnets_is_refused_with_what_there_is(kea, host):
    with pytest.raises(RejectedError, match=r"192.168.1.5 is in no subnet.*7 \(10.77.0.0/24\)"):
        kea.admit(replace(host, address="192.168.1.5"))
    with pytest.raises(RejectedError, match="IPv4 addresses, not fd00::5"):
        kea.admit(replace(host, address="fd00::5"))
    with pytest.raises(RejectedError, match="has no card"):
        kea.admit(replace(host, mac=""))


def test_subnets_of_the_database_are_found(settings, database, host):
    engine = sa.create_engine(sa.make_url(database).set(drivername="mysql+pymysql"))
    with engine.begin() as connection:
        connection.execute(sa.text("SET @disable_audit = 1"))
        connection.execute(
            sa.text(
                "INSERT INTO dhcp4_subnet (subnet_id, subnet_prefix, modification_ts)"
                " VALUES (9, '10.79.0.0/16', NOW())"
            )
        )
    there = replace(host, address="10.79.3.4")
    kea = Kea(replace(settings, subnets={}))
    kea.admit(there)
    with engine.connect() as connection:
        found = connection.execute(
            sa.text("SELECT dhcp4_subnet_id FROM hosts WHERE ipv4_address = INET_ATON('10.79.3.4')")
        ).scalar()
    assert found == 9
    kea.close()
    engine.dispose()


def test_text_is_never_taken_for_sql(kea, host):
    odd = replace(host, name="x'; DROP TABLE hosts; --")
    kea.admit(odd)
    assert odd in kea.admitted()
    kea.dismiss(odd)


def test_an_account_that_may_not_is_told(settings, database, host):
    base = sa.make_url(database)
    engine = sa.create_engine(base.set(drivername="mysql+pymysql"))
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE USER reader@'%' IDENTIFIED BY 'right-one'"))
        connection.execute(sa.text(f"GRANT SELECT ON {base.database}.* TO reader@'%'"))
    engine.dispose()
    reader = replace(settings, database=database.replace("root@", "reader@"), secret="right-one")
    kea = Kea(reader)
    assert isinstance(kea.admitted(), list)
    with pytest.raises(RejectedError, match="denied") as caught:
        kea.admit(host)
    assert "grant" in caught.value.hint
    kea.close()
    stranger = Kea(replace(reader, secret="wrong-one"))
    with pytest.raises(RejectedError, match="does not let us in") as caught:
        stranger.admitted()
    assert "wrong-one" not in f"{caught.value} {caught.value.hint} {reader!r}"
    assert "dhcp.secret" in caught.value.hint
    stranger.close()


def test_a_database_that_is_not_keas_is_told(settings, servers):
    other = sa.make_url(servers("mariadb").new(empty=True))
    kea = Kea(replace(settings, database=f"mysql://root@127.0.0.1:{other.port}/{other.database}"))
    with pytest.raises(RejectedError, match="is not Kea's"):
        kea.admitted()
    kea.close()
    kea = Kea(replace(settings, database=f"mysql://root@127.0.0.1:{other.port}/nowhere"))
    with pytest.raises(RejectedError, match="is not there"):
        kea.admitted()
    kea.close()


def test_a_database_that_is_away_is_worth_another_try(settings, host):
    with daemons.refusing_port() as port:
        kea = Kea(replace(settings, database=f"mysql://root@127.0.0.1:{port}/kea"))
        for verb in (lambda: kea.admit(host), lambda: kea.dismiss(host), kea.admitted):
            with pytest.raises(TransientError, match="does not answer") as caught:
                verb()
            assert caught.value.hint
        kea.close()


def test_a_lost_connection_is_made_again(kea, database, host):
    kea.admit(host)
    name = sa.make_url(database).database
    engine = sa.create_engine(sa.make_url(database).set(drivername="mysql+pymysql"))
    with engine.connect() as connection:
        ours = connection.execute(sa.text("SELECT CONNECTION_ID()")).scalar()
        for row in connection.execute(sa.text("SHOW PROCESSLIST")).all():
            # Kea's own come by the socket.
            if row[0] != ours and row[2].startswith("127.") and row[3] == name:
                try:
                    connection.execute(sa.text(f"KILL {int(row[0])}"))
                except sa.exc.OperationalError:
                    continue  # ended by itself meanwhile
    engine.dispose()
    kea.dismiss(host)
    assert host not in kea.admitted()


def test_admitting_a_host_costs_little(kea):
    """600 machines have 100 ms of CPU each for everything: reservations may take a fifth."""
    hosts = [
        Host(name=f"m{i}.example.org", address=f"10.77.0.{i}", mac=f"bc:24:11:00:02:{i:02x}")
        for i in range(100, 150)
    ]
    before = time.thread_time()
    for host in hosts:
        kea.admit(host)
    assert (time.thread_time() - before) / len(hosts) < 0.02
    for host in hosts:
        kea.dismiss(host)
