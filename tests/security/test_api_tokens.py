"""A program's token does what it was made for, and is no way to anything else."""

from __future__ import annotations

import time

import pytest
import sqlalchemy as sa

from api.rig import KEY, World, is_problem, world
from cli.person import Person
from essaim.model.fleet import Role
from essaim.store.api_tokens import MOST
from essaim.store.meeting import api_token
from essaim.usecases.credentials import digest

YEAR = 365 * 86400


@pytest.fixture
def here(new_database):
    with world(new_database("sqlite")) as made:
        yield made


def make(here: World, name: str, scope: str, role: Role = Role.MEMBER, **body) -> dict:
    """A token of somebody who has just logged in."""
    found = here.plane.people.find(name)
    user = found[0] if found else here.plane.user(name, role)
    said = {"name": "nightly", "scope": scope, **body}
    answer = here.ask("POST", "/api/tokens", here.plane.token(user), json=said)
    assert answer.status_code == 201, answer.text
    return answer.json()


def rows(here: World) -> list:
    return here.plane.database.read(lambda c: c.execute(sa.select(api_token)).all())


def test_it_is_shown_once_and_kept_as_a_digest(here):
    made = make(here, "ann", "read")
    assert made["token"].startswith("essaim_")
    assert digest(made["token"]) in repr(rows(here))
    assert made["token"] not in repr(rows(here))
    ann = here.plane.token(here.plane.people.find("ann")[0])
    (listed,) = here.ask("GET", "/api/tokens", ann).json()
    assert "token" not in listed
    assert (listed["id"], listed["name"], listed["scope"]) == (made["id"], "nightly", "read")
    assert digest(made["token"])[:8] not in repr(listed)


def test_what_is_kept_of_it_is_no_token(here):
    make(here, "ann", "read")
    for row in rows(here):
        for text in (row.digest, f"essaim_{row.digest}", row.id):
            assert here.ask("GET", "/api/me", text).status_code == 401


def test_it_says_when_it_was_last_used(here):
    made = make(here, "ann", "read")
    assert made["used_at"] is None
    assert here.ask("GET", "/api/me", made["token"]).json()["name"] == "ann"
    ann = here.plane.token(here.plane.people.find("ann")[0])
    (listed,) = here.ask("GET", "/api/tokens", ann).json()
    assert listed["used_at"]


def test_it_is_noted_once_in_a_while_and_costs_one_query(here):
    token = make(here, "ann", "read")["token"]
    here.ask("GET", "/api/me", token)
    asked = []
    engine = here.plane.database.engine

    def count(_c, _cursor, statement, *_more):
        asked.append(statement)

    sa.event.listen(engine, "before_cursor_execute", count)
    for shown in (token, here.plane.token(here.plane.people.find("ann")[0])):
        asked.clear()
        assert here.ask("GET", "/api/me", shown).status_code == 200
        assert [line for line in asked if "person" in line] == asked[:1]
        assert len(asked) == 1, asked
    sa.event.remove(engine, "before_cursor_execute", count)


def test_revoked_expired_and_those_of_disabled_people_are_dead(here):
    ann = here.plane.user("ann")
    revoked, kept = make(here, "ann", "read"), make(here, "ann", "read")
    over = make(here, "ann", "read")
    mine = here.plane.token(ann)
    assert here.ask("DELETE", f"/api/tokens/{revoked['id']}", mine).status_code == 204
    past = sa.update(api_token).where(api_token.c.id == over["id"]).values(expires_at=1)
    here.plane.database.write(lambda c: c.execute(past))
    for token in (revoked, over):
        is_problem(here.ask("GET", "/api/me", token["token"]), 401, "unauthorised")
    assert here.ask("GET", "/api/me", kept["token"]).status_code == 200
    here.plane.people.change("ann", {"disabled": True})
    assert here.ask("GET", "/api/me", kept["token"]).status_code == 401


def test_nobody_revokes_the_token_of_somebody_else(here):
    made = make(here, "ann", "read")
    bob = here.plane.token(here.plane.user("bob", Role.ADMIN))
    is_problem(here.ask("DELETE", f"/api/tokens/{made['id']}", bob), 404, "unknown")
    assert here.ask("GET", "/api/me", made["token"]).status_code == 200


@pytest.mark.parametrize(
    ("role", "scope", "status"),
    [
        (Role.MEMBER, "rent", 201),
        (Role.MEMBER, "operate", 403),
        (Role.MEMBER, "admin", 403),
        (Role.OPERATOR, "operate", 201),
        (Role.OPERATOR, "admin", 403),
        (Role.ADMIN, "admin", 201),
    ],
)
def test_nobody_gives_a_program_more_than_they_have(here, role, scope, status):
    token = here.plane.token(here.plane.user("ann", role))
    answer = here.ask("POST", "/api/tokens", token, json={"name": "x", "scope": scope})
    assert answer.status_code == status, answer.text


def test_it_never_has_more_than_its_owner_has_now(here):
    made = make(here, "ann", "admin", Role.ADMIN)
    here.plane.user("root", Role.ADMIN)
    assert here.ask("GET", "/api/users", made["token"]).status_code == 200
    here.plane.people.change("ann", {"role": "member"})
    assert here.ask("GET", "/api/users", made["token"]).status_code == 403
    assert here.ask("GET", "/api/me", made["token"]).json()["role"] == "member"


@pytest.mark.parametrize("scope", ["read", "rent", "operate", "admin"])
def test_no_token_makes_tokens_or_touches_passwords_and_sessions(here, scope):
    made = make(here, "ann", scope, Role.ADMIN)
    token = made["token"]
    here.plane.user("root", Role.ADMIN)
    (mine, *_rest) = here.plane.people.sessions(here.plane.people.find("ann")[0].id)
    for method, path, body in (
        ("POST", "/api/tokens", {"name": "x", "scope": "read"}),
        ("GET", "/api/tokens", None),
        ("DELETE", f"/api/tokens/{made['id']}", None),
        ("GET", "/api/sessions", None),
        ("DELETE", f"/api/sessions/{mine.id}", None),
        ("POST", "/api/logout", None),
        ("PATCH", "/api/users/ann", {"password": "another long sentence"}),
        ("PATCH", "/api/users/root", {"password": "another long sentence"}),
        ("PUT", "/api/students/promo/alice/key", {"public_key": KEY}),
    ):
        is_problem(here.ask(method, path, token, json=body), 403, "forbidden")
    assert here.ask("GET", "/api/me", token).status_code == 200


def test_a_token_that_rents_has_its_owner_s_leases_and_nobody_else_s(here):
    here.plane.ready("machine")
    token = make(here, "ann", "rent", Role.ADMIN)["token"]
    lease = here.rent(token).json()["id"]
    assert here.ask("POST", "/api/extend", token, json={"lease": lease, "seconds": 60}).is_success
    assert here.ask("POST", "/api/release", token, json={"lease": lease}).is_success
    other = here.plane.token(here.plane.user("bob"))
    theirs = here.rent(other).json()["id"]
    answer = here.ask("POST", "/api/release", token, json={"lease": theirs})
    is_problem(answer, 404, "unknown")  # although its owner administers


def test_it_lasts_ninety_days_and_a_year_at_most(here):
    ann = here.plane.token(here.plane.user("ann"))
    said = {"name": "x", "scope": "read"}
    made = here.ask("POST", "/api/tokens", ann, json=said).json()
    row = next(row for row in rows(here) if row.id == made["id"])
    assert abs(row.expires_at / 1000 - time.time() - 90 * 86400) < 3600
    for seconds, status in ((YEAR, 201), (YEAR + 1, 422), (0, 422)):
        answer = here.ask("POST", "/api/tokens", ann, json={**said, "expires_in": seconds})
        assert answer.status_code == status


def test_nobody_has_tokens_without_end(here):
    ann = here.plane.token(here.plane.user("ann"))
    said = {"name": "x", "scope": "read"}
    got = [here.ask("POST", "/api/tokens", ann, json=said).status_code for _ in range(MOST + 1)]
    assert got == [201] * MOST + [409]


def test_a_program_uses_the_command_line_with_a_token_alone(here, tmp_path):
    here.plane.ready("machine")
    server = str(here.client.base_url).rstrip("/")
    ada = Person(tmp_path / "ada", server)
    ada.does("signup", "ada", "--server", server)
    token = ada.does("tokens", "create", "nightly", "--scope", "rent", "--for", "30d").strip()
    (listed,) = ada.gets("tokens")
    assert (listed["name"], listed["scope"]) == ("nightly", "rent")
    robot = Person(tmp_path / "robot", server)
    robot.env |= {"ESSAIM_TOKEN": token, "ESSAIM_SERVER": server}
    assert robot.gets("whoami")["name"] == "ada"
    assert robot.gets("leases") == []
    assert "may not do this" in robot.does("tokens", code=1)
    assert not (robot.client / "session.json").exists()
    ada.does("tokens", "revoke", listed["id"])
    assert "unknown, revoked or expired" in robot.does("whoami", code=1)
    assert ada.gets("tokens") == []
