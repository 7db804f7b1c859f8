"""A thief with somebody's access token gets no further than what it is for, and not for ever."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from api.rig import KEY, PASSWORD, World, is_problem, world
from essaim.api.limits import Rate
from essaim.api.options import RATES
from essaim.model.fleet import Role
from essaim.store.schema import session
from essaim.usecases.credentials import hash_password

MINUTE, DAY = 60_000, 86_400_000
NEW = "another long sentence"


@pytest.fixture
def here(new_database):
    with world(new_database("sqlite")) as made:
        yield made


def log_in(here: World, name: str, role: Role = Role.MEMBER) -> dict:
    if here.plane.people.find(name) is None:
        here.plane.people.add(name, hash_password(PASSWORD), role=role)
    answer = here.ask("POST", "/api/login", json={"name": name, "password": PASSWORD})
    assert answer.status_code == 200, answer.text
    return answer.json()


def age(here: World, milliseconds: int) -> None:
    """Let all logins be so long ago."""
    older = sa.update(session).values(created_at=session.c.created_at - milliseconds)
    here.plane.database.write(lambda c: c.execute(older))


@pytest.fixture
def stolen(here) -> str:
    """An access token that somebody lost eleven minutes after they logged in."""
    token = log_in(here, "ann")["access"]
    age(here, 11 * MINUTE)
    return token


#: What it must not be enough for: method, path, what is sent.
DELICATE = [
    ("PATCH", "/api/users/root", {"password": NEW}),
    ("PATCH", "/api/users/ann", {"role": "admin"}),
    ("PATCH", "/api/users/ann", {"machines": 1000}),
    ("PATCH", "/api/projects/compilers", {"machines": 1000}),
    ("POST", "/api/tokens", {"name": "back door", "scope": "admin"}),
    ("PUT", "/api/students/promo/alice/key", {"public_key": KEY}),
]


@pytest.mark.parametrize(("method", "path", "body"), DELICATE)
def test_it_is_not_enough_for_administrative_acts(here, method, path, body):
    log_in(here, "ann")
    token = log_in(here, "root", Role.ADMIN)["access"]
    age(here, 11 * MINUTE)
    is_problem(here.ask(method, path, token, json=body), 403, "reauthenticate")
    wrong = {**body, "current": "not the password"}
    is_problem(here.ask(method, path, token, json=wrong), 403, "reauthenticate")
    right = here.ask(method, path, token, json={**body, "current": PASSWORD})
    assert right.status_code in (200, 201, 404), right.text  # 404: there is no such student
    again = log_in(here, "root")["access"] if "password" not in body else None
    if again:
        assert here.ask(method, path, again, json=body).status_code in (200, 201, 404)


#: Administrative acts that only a login of a moment ago is enough for.
ADMINISTRATIVE = [
    ("POST", "/api/invites", {}),
    ("DELETE", "/api/invites/i-0", None),
    ("POST", "/api/enrolments", {}),
    ("DELETE", "/api/enrolments/0f3a9c81d2e4", None),
    ("POST", "/api/users/ann/approve", None),
    ("POST", "/api/nodes/n-0/approve", None),
    ("DELETE", "/api/nodes/n-0", None),
]


@pytest.mark.parametrize(("method", "path", "body"), ADMINISTRATIVE)
def test_it_lets_nobody_and_no_machine_in_or_out(here, method, path, body):
    member = log_in(here, "ann")["access"]
    token = log_in(here, "root", Role.ADMIN)["access"]
    age(here, 11 * MINUTE)
    is_problem(here.ask(method, path, token, json=body), 403, "reauthenticate")
    is_problem(here.ask(method, path, member, json=body), 403, "forbidden")
    again = here.ask(method, path, log_in(here, "root")["access"], json=body)
    assert again.status_code in (201, 404, 409), again.text


def test_a_program_of_an_administrator_acts_by_its_scope(here):
    token = log_in(here, "root", Role.ADMIN)["access"]
    made = here.ask("POST", "/api/tokens", token, json={"name": "joins", "scope": "admin"}).json()
    age(here, 11 * MINUTE)
    assert here.ask("POST", "/api/enrolments", made["token"], json={}).status_code == 201


def test_it_does_not_change_the_password(here, stolen):
    mine = "/api/users/ann"
    is_problem(here.ask("PATCH", mine, stolen, json={"password": NEW}), 403, "reauthenticate")
    log_in(here, "ann")  # the password is what it was
    assert here.ask("GET", "/api/me", stolen).status_code == 200
    changed = here.ask("PATCH", mine, stolen, json={"password": NEW, "current": PASSWORD})
    assert changed.status_code == 200
    assert here.ask("GET", "/api/me", stolen).status_code == 401


def test_the_password_cannot_be_guessed_with_it(new_database):
    rates = {**dict.fromkeys(RATES, Rate(1_000_000, 60.0)), "login name": Rate(5, 3600.0)}
    with world(new_database("sqlite"), rates=rates) as here:
        token = log_in(here, "ann")["access"]
        age(here, 11 * MINUTE)
        got = [
            here.ask("PATCH", "/api/users/ann", token, json={"password": NEW, "current": f"no {n}"})
            for n in range(6)
        ]
        assert [answer.status_code for answer in got] == [403] * 5 + [429]
        # Counted with those at the login: there is no second chance there.
        answer = here.ask("POST", "/api/login", json={"name": "ann", "password": "guess"})
        assert answer.status_code == 429


def test_a_session_does_not_slide_for_ever(here):
    tokens = log_in(here, "ann")
    age(here, 89 * DAY)
    tokens = here.ask("POST", "/api/refresh", json={"refresh": tokens["refresh"]}).json()
    assert here.ask("GET", "/api/me", tokens["access"]).status_code == 200
    age(here, 2 * DAY)
    assert here.ask("GET", "/api/me", tokens["access"]).status_code == 401
    answer = here.ask("POST", "/api/refresh", json={"refresh": tokens["refresh"]})
    assert answer.status_code == 401


def test_its_owner_sees_the_session_and_ends_it(here):
    stolen = log_in(here, "ann")
    mine = log_in(here, "ann")["access"]
    found = here.ask("GET", "/api/sessions", mine, headers={"User-Agent": "x"}).json()
    assert [each["current"] for each in found].count(True) == 1
    assert {each["address"] for each in found} == {"127.0.0.1"}
    assert all(each["agent"].startswith("python-httpx") for each in found)
    (theirs,) = [each["id"] for each in found if not each["current"]]
    assert here.ask("DELETE", f"/api/sessions/{theirs}", mine).status_code == 204
    assert here.ask("GET", "/api/me", stolen["access"]).status_code == 401
    again = here.ask("POST", "/api/refresh", json={"refresh": stolen["refresh"]})
    assert again.status_code == 401
    assert here.ask("GET", "/api/me", mine).status_code == 200
    assert len(here.ask("GET", "/api/sessions", mine).json()) == 1
    is_problem(here.ask("DELETE", f"/api/sessions/{theirs}", mine), 404, "unknown")


def test_nobody_ends_or_sees_the_session_of_somebody_else(here):
    hers, his = log_in(here, "ann")["access"], log_in(here, "bob")["access"]
    (mine,) = here.ask("GET", "/api/sessions", hers).json()
    is_problem(here.ask("DELETE", f"/api/sessions/{mine['id']}", his), 404, "unknown")
    assert here.ask("GET", "/api/me", hers).status_code == 200


def test_what_is_shown_of_a_session_names_it_to_nobody(here):
    token = log_in(here, "ann")["access"]
    (mine,) = here.ask("GET", "/api/sessions", token).json()
    stored = here.plane.database.read(lambda c: c.execute(sa.select(session.c.id)).scalar())
    assert stored.startswith(mine["id"])
    assert len(mine["id"]) == 12
