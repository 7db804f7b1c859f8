"""A control plane whose database is lost comes back from a backup and accepts the world as it is.

R-D7, R-E9.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from databases import find, mariadb
from endtoend.fleet_rig import Fleet, fleet, wait_for
from essaim.agent.belongings import LAST_UID

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]


class Backup:
    """The database of a fleet, which is dumped, lost and restored as an administrator does it."""

    def __init__(self, url: sa.URL, socket: str) -> None:
        # A socket that is a file is reached from every network.
        told = url.set(host=None, port=None).update_query_dict({"unix_socket": socket})
        self.url = told.render_as_string(hide_password=False)
        self._name = str(url.database)
        self._access = ["--no-defaults", f"--socket={socket}", "--user=root"]
        self._dump = b""

    def make(self) -> None:
        words = [find("mariadb-dump", "mariadb-client"), *self._access, "--single-transaction"]
        self._dump = subprocess.run([*words, self._name], capture_output=True, check=True).stdout

    def lose_and_restore(self) -> None:
        name = self._name
        self._mariadb("-e", f"DROP DATABASE {name}; CREATE DATABASE {name}")
        self._mariadb(name, stdin=self._dump)

    def _mariadb(self, *words: str, stdin: bytes = b"") -> None:
        program = find("mariadb", "mariadb-client")
        subprocess.run([program, *self._access, *words], input=stdin, check=True)


@pytest.fixture(scope="module")
def backup() -> Iterator[Backup]:
    with mariadb() as server:
        url = sa.make_url(server.new())
        engine = sa.create_engine(url)
        with engine.connect() as connection:
            socket = connection.execute(sa.text("SELECT @@socket")).scalar_one()
        engine.dispose()
        yield Backup(url, str(socket))


@pytest.fixture(scope="module")
def its(backup) -> Iterator[Fleet]:
    before = os.environ.get("ESSAIM_DATABASE")
    os.environ["ESSAIM_DATABASE"] = backup.url
    try:
        # Nobody is given up here, neither because the server was away nor because all is slow.
        with fleet(4, interval=3.0, joined=3) as made:
            yield made
    finally:
        os.environ.pop("ESSAIM_DATABASE")
        if before:
            os.environ["ESSAIM_DATABASE"] = before


def test_what_the_backup_does_not_know_is_cleaned_and_what_it_knows_works_again(its, backup):
    ada, bob, eve = (its.tenant(name) for name in ("ada", "bob", "eve"))
    late = next(name for name in its.machines if name not in its.nodes())
    moved, kept = its.rent(ada), its.rent(bob)
    place, other = its.machine_of(moved), its.machine_of(kept)
    (idle,) = set(its.nodes()) - {place, other}
    assert its.ssh(kept, bob.key, "echo mine > file; setsid sleep 9999 >/dev/null 2>&1 &")
    backup.make()

    # What it does not know: ada's machine and the idle one are eve's by now, and one joined.
    its.release(ada, moved)
    its.await_node(place)
    unknown = {its.machine_of(name): name for name in (its.rent(eve), its.rent(eve))}
    assert set(unknown) == {place, idle}
    its.join(late)
    its.await_node(late)
    unknown[late] = its.rent(eve)
    assert its.machine_of(unknown[late]) == late
    assert {name: its.accounts(name) for name in unknown} == {
        name: {lease} for name, lease in unknown.items()
    }

    its.kill()
    its.app.database.engine.dispose()
    backup.lose_and_restore()
    # Else whoever rents at once is given a machine for a beat that came just before the backup.
    wait_for(lambda: aged(its), "what the backup knows of beats is old")
    its.serve()

    # Whoever rents at once waits until the idle machine is proven clean.
    fresh = its.rent(eve)
    assert its.machine_of(fresh) == idle
    assert its.accounts(idle) == {fresh}
    assert its.ssh(fresh, eve.key, "hostname").stdout == f"{idle}\n"
    # A lease that the backup has works, on the machine it says, and nobody else is there.
    wait_for(lambda: its.accounts(place) == {moved}, f"{place} is {moved}'s alone")
    done = wait_for(lambda: _said(its, moved, ada.key, "hostname"), f"{moved} lets its owner in")
    assert done == f"{place}\n"
    # One whose machine was as the backup says has noticed nothing.
    assert its.ssh(kept, bob.key, "cat file; pgrep -c sleep").stdout == "mine\n1\n"
    assert its.accounts(other) == {kept}
    # Leases it does not know are over, and say so.
    for name in unknown.values():
        assert its.call("GET", f"leases/{name}", eve.token).status_code == 404
        assert its.ssh(name, eve.key, "true").returncode != 0
    # A machine that joined later joins again, and is cleaned before it serves.
    assert late not in its.nodes()
    its.join(late)
    its.await_node(late)
    assert its.accounts(late) == set()
    assert {node["state"] for node in its.nodes().values()} == {"ready", "held"}
    # Not even an account that nothing explains keeps a machine from serving again.
    its.root(other, f"useradd -m -u {LAST_UID} l-stranger")
    for tenant, name in ((ada, moved), (bob, kept), (eve, fresh)):
        its.release(tenant, name)
    for name in its.machines:
        its.await_node(name)
        assert its.accounts(name) == set()


def aged(its: Fleet) -> bool:
    """Whether no machine was heard of so late that it would be rented out for that."""
    found = its.app.fleet
    since = found.now() - found.policy.fresh * 1000
    return all(node.beat_at < since for node in found.list())


def _said(its: Fleet, lease: str, key: Path, command: str) -> str:
    done = its.ssh(lease, key, command)
    return done.stdout if done.returncode == 0 else ""
