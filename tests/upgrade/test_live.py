"""The first release is replaced by the present one under load; no request fails, nothing is lost.

R-D2, R-D7.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sqlalchemy as sa

from essaim.store import migrations
from essaim.store.database import Database, open_database
from essaim.store.migrate import version
from patience import in_test_all
from upgrade.clients import Agent, Client, Load, Person
from upgrade.first import SCHEMA, unpack
from upgrade.plane import Plane, wait

PEOPLE, MACHINES = 4, 32
#: What is written once: each row of it must be there, as it was, at the end.
LASTING = {
    "person": "1 = 1", "session": "1 = 1", "enrolment": "1 = 1", "event": "place IS NOT NULL",
    "visit": "1 = 1", "lease": "ended_at IS NOT NULL", "run": "state = 'done'",
    "step": "run IN (SELECT id FROM run WHERE state = 'done')",
    "setting": "name NOT LIKE 'turn%'",
}  # fmt: skip


@pytest.fixture(scope="module")
def old(tmp_path_factory) -> Path:
    return unpack(tmp_path_factory.mktemp("first"))


@pytest.mark.parametrize("kind", ["mariadb", pytest.param("postgresql", marks=in_test_all)])
def test_the_first_release_is_replaced_under_load_and_no_request_fails(
    kind, old, new_database, tmp_path, capsys
):
    url = new_database(kind, empty=True)
    plane = Plane(tmp_path, url)
    database = open_database(url)
    password = plane.serve(old, "old-1", "old-2")
    assert version(database) == SCHEMA
    with plane.open():
        people, agents = settle(plane, password)
        with Load(people, agents) as load:
            load.goes_on()
            before = wait(lambda: some_of_all(database), "something of everything is over")
            # New ones come; the first of them migrates while the old ones serve.
            plane.start_api("api-1")
            plane.ready("api-1")
            assert version(database) == migrations.HEAD
            load.goes_on()
            plane.start_controller("controller-1")
            plane.start_api("api-2")
            plane.ready()
            plane.rotate()
            load.goes_on()
            # Old ones go.  They do not say that they are about to, so Caddy is told first.
            for name in ("old-1", "old-2"):
                plane.rotate(without=name)
                plane.end(name)
                load.goes_on()
        assert load.bad == []
        drained(database)
        check_rows(before, rows(database))
        check_people(plane, people)
        check_holders(database, people)
        for name in list(plane.running):
            plane.end(name)
    with capsys.disabled():
        counts = ", ".join(f"{count} {what}" for what, count in sorted(load.done.items()))
        print(f"\n{kind}: {load.done.total()} requests, 0 failed: {counts}")  # noqa: T201
    database.close()


def settle(plane: Plane, password: str) -> tuple[list[Person], list[Agent]]:
    """Make people and machines through the API, as ever."""
    admin = Client(plane)
    admin.token = admin.ask("POST", "login", name="admin", password=password)["access"]
    people = [Person(plane, f"person-{number}") for number in range(PEOPLE)]
    for each in people:
        each.sign_up(admin)
    enrolment = admin.ask("POST", "enrolments", uses=MACHINES)["token"]
    agents = [Agent(plane, f"pc-{number}") for number in range(MACHINES)]
    for agent in agents:
        agent.join(enrolment)
    wait(
        lambda: {node["state"] for node in admin.ask("GET", "nodes?limit=500")} == {"ready"},
        "all machines are ready",
    )
    admin.close()
    return people, agents


def rows(database: Database) -> dict[str, list[dict[str, object]]]:
    """All that is written once, in the columns of the first release."""
    found = {}
    for name, which in LASTING.items():
        ask = sa.text(f"SELECT * FROM {name} WHERE {which}")
        kept = database.read(lambda c, ask=ask: c.execute(ask).mappings().all())
        found[name] = [dict(row) for row in kept]
    return found


def some_of_all(database: Database) -> dict[str, list[dict[str, object]]] | None:
    found = rows(database)
    return found if all(found[name] for name in set(found) - {"visit"}) else None


def check_rows(before: dict[str, list[dict]], after: dict[str, list[dict]]) -> None:
    for name, its in before.items():
        known = set(its[0]) if its else set()
        kept = [{key: value for key, value in row.items() if key in known} for row in after[name]]
        lost = [row for row in its if row not in kept]
        assert lost == [], name


def drained(database: Database) -> None:
    """All work comes to its end."""
    ask = sa.text("SELECT id FROM run WHERE state NOT IN ('done')")
    wait(lambda: not database.read(lambda c: c.execute(ask).all()), "all runs are done")


def check_people(plane: Plane, people: list[Person]) -> None:
    """Tokens of the old ones are good, passwords too, and everybody's leases are as was said."""
    for each in people:
        assert each.ask("GET", "me")["name"] == each.name
        assert each.ended
        for name in each.ended:
            found = each.ask("GET", f"leases/{name}")
            assert (found["state"], found["reason"]) == ("ended", f"released by {each.name}")
        for name, (nodes, expires_at) in each.kept.items():
            found = each.ask("GET", f"leases/{name}")
            assert (found["state"], found["expires_at"]) == ("active", expires_at)
            assert [node["id"] for node in found["machines"]] == nodes
        told = each.ask("POST", "refresh", refresh=each.refresh)
        assert Client(plane, told["access"]).ask("GET", "me")["name"] == each.name
        each.log_in()
        assert each.ask("GET", "me")["name"] == each.name
        each.close()


def check_holders(database: Database, people: list[Person]) -> None:
    """Each machine has one holder at most, and that one knows it."""
    open_leases = sa.text("SELECT id, nodes FROM lease WHERE ended_at IS NULL")
    held = sa.text("SELECT id, lease FROM node WHERE lease IS NOT NULL")
    leases = database.read(lambda c: c.execute(open_leases).all())
    pairs = [(node, lease) for lease, nodes in leases for node in json.loads(nodes)]
    assert len({node for node, _ in pairs}) == len(pairs)
    assert sorted(pairs) == sorted(map(tuple, database.read(lambda c: c.execute(held).all())))
    known = {name for each in people for name in each.kept}
    assert known <= {lease for lease, _ in leases}
    assert len(leases) <= len(known) + len(people)  # one each that was under way at the end
