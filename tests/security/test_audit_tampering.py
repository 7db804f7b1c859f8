"""Who can write the database cannot change or remove what somebody did without being seen."""

from __future__ import annotations

import json

import pytest
import sqlalchemy as sa

from api.rig import PASSWORD, wait_for, world
from essaim.model.fleet import Role
from essaim.store.audit.table import audit as table
from essaim.usecases.credentials import hash_password


@pytest.fixture
def here(new_database):
    with world(new_database("sqlite")) as made:
        yield made


@pytest.fixture
def admin(here):
    return here.plane.token(here.plane.user("root", Role.ADMIN))


@pytest.fixture
def acts(here, admin):
    """A log-in, a wrong one, a lease from its beginning to its end, and a right that is given."""
    here.plane.people.add("ada", hash_password(PASSWORD))
    here.plane.people.change("ada", {"machines": 5, "hours": 100.0})
    login = {"name": "ada", "password": PASSWORD}
    ada = here.ask("POST", "/api/login", json=login).json()["access"]
    here.ask("POST", "/api/login", json={**login, "password": "not hers at all"})
    here.plane.ready("pc-1")
    lease = here.rent(ada).json()["id"]
    here.ask("POST", "/api/extend", ada, json={"lease": lease, "seconds": 600})
    here.ask("POST", "/api/release", ada, json={"lease": lease})
    here.ask("PATCH", "/api/users/ada", admin, json={"role": "operator"})
    here.ask("PATCH", "/api/users/root", ada, json={"role": "member"})
    return lease


def trail(here, admin, query: str = ""):
    return here.ask("GET", f"/api/audit{query}", admin).json()


def test_who_did_what_is_recorded_with_its_outcome(here, admin, acts):
    seen = [(each["name"], each["action"], each["object"], each["outcome"]) for each in
            trail(here, admin)]  # fmt: skip
    assert seen == [
        ("ada", "login", "ada", "done"),
        ("ada", "login", "ada", "refused"),
        ("ada", "rent", acts, "done"),
        ("ada", "extend", acts, "done"),
        ("ada", "release", acts, "done"),
        ("root", "change_user", "ada", "done"),
        ("ada", "change_user", "root", "refused"),
    ]
    assert {each["address"] for each in trail(here, admin)} == {"127.0.0.1"}
    assert PASSWORD not in json.dumps(trail(here, admin))
    assert [each["name"] for each in trail(here, admin, "?who=root")] == ["root"]
    assert here.ask("GET", "/api/audit/verify", admin).json()["problem"] == ""


def test_the_record_and_the_answer_name_the_same_request(here, admin, acts):
    answer = here.ask("POST", "/api/login", json={"name": "ada", "password": PASSWORD})
    assert trail(here, admin)[-1]["request"] == answer.headers["X-Request-ID"]
    strange = {"X-Request-ID": "made-by-a-proxy.1"}
    body = {"name": "ada", "password": PASSWORD}
    answer = here.client.post("/api/login", json=body, headers=strange)
    assert (
        answer.headers["X-Request-ID"] == trail(here, admin)[-1]["request"] == "made-by-a-proxy.1"
    )


def test_strangers_cannot_fill_the_record(here, admin):
    for path in ("/api/rent", "/api/logout", "/api/nowhere", "/api/enrolments"):
        assert here.ask("POST", path, json={}).status_code >= 400
    here.ask("POST", "/api/refresh", json={"refresh": "guessed"})
    assert trail(here, admin) == []


CHANGES = {
    "entry 3 was changed": sa.update(table).where(table.c.place == 3).values(name="bob"),
    "entry 2 was changed": sa.update(table).where(table.c.place == 2).values(details="{"),
    "entries 3 to 4 were removed": sa.delete(table).where(table.c.place.in_([3, 4])),
    "entries 1 to 1 were removed": sa.delete(table).where(table.c.place == 1),
    "entries 6 to 7 were removed at the end": sa.delete(table).where(table.c.place > 5),
}


@pytest.mark.parametrize("said", CHANGES)
def test_a_change_in_the_database_is_named(here, admin, acts, said):
    assert len(trail(here, admin)) == 7  # sealed
    here.plane.database.write(lambda c: c.execute(CHANGES[said]))
    assert here.ask("GET", "/api/audit/verify", admin).json()["problem"] == said


def test_nobody_but_administrators_reads_it(here, acts):
    for role in (Role.MEMBER, Role.OPERATOR):
        token = here.plane.token(here.plane.user(f"some-{role.value}", role))
        assert here.ask("GET", "/api/audit", token).status_code == 403
        assert here.ask("GET", "/api/audit/verify", token).status_code == 403


def test_a_record_that_cannot_be_kept_loses_no_answer(here, admin, acts, monkeypatch, caplog):
    def away(_entries) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(here.plane.audit, "add", away)
    answer = here.ask("POST", "/api/login", json={"name": "ada", "password": PASSWORD})
    assert answer.status_code == 200
    wait_for(lambda: "only in the log" in caplog.text)
