"""Signing up, logging in, and who may change whom (R-D2)."""

from __future__ import annotations

import time

import jwt
import pytest

from essaim.model.errors import (
    ForbiddenError,
    InvalidError,
    RejectedError,
    TakenError,
    UnauthorisedError,
    UnknownError,
    WeakError,
)
from essaim.model.fleet import LeaseState, Quota, Role, Wish
from essaim.usecases import leases, people
from essaim.usecases.credentials import HASHER, digest
from essaim.usecases.signing_keys import ACCESS
from usecases.plane import KEY, Plane

PASSWORD = "a long sentence 1"


@pytest.fixture
def plane(sqlite) -> Plane:
    return Plane(sqlite)


@pytest.fixture
def everywhere(database) -> Plane:
    return Plane(database)


def test_a_session_from_signup_to_logout(everywhere):
    user = people.signup(everywhere, "ann", PASSWORD)
    assert (user.role, user.quota) == (Role.MEMBER, Quota())
    tokens = people.login(everywhere, "ann", PASSWORD)
    session = people.authenticate(everywhere, tokens.access)
    assert session.user == user
    assert tokens.expires_in == 900
    again = people.refresh(everywhere, tokens.refresh)
    assert people.authenticate(everywhere, again.access).sid == session.sid
    people.logout(everywhere, session)
    for token in (tokens.access, again.access):
        with pytest.raises(UnauthorisedError):
            people.authenticate(everywhere, token)
    with pytest.raises(UnauthorisedError):
        people.refresh(everywhere, again.refresh)


@pytest.mark.parametrize("name", ["", "ab", "Ann", "1ann", "a" * 33, "ann smith", "änn", "ann\n"])
def test_strange_names_are_refused(plane, name):
    with pytest.raises(InvalidError):
        people.signup(plane, name, PASSWORD)
    with pytest.raises(UnauthorisedError):
        people.login(plane, name, PASSWORD)


@pytest.mark.parametrize(
    "password",
    ["", "short", "aaaaaaaaaaaa", "xx-annette-x", "x" * 2000, "password1234", "motdepasse2026"],
)
def test_passwords_that_would_be_guessed_are_refused(plane, password):
    with pytest.raises(WeakError) as caught:
        people.signup(plane, "annette", password)
    assert caught.value.code == "weak"


def test_names_are_taken_once_and_admin_never(plane):
    people.signup(plane, "ann", PASSWORD)
    for name in ("ann", "admin"):
        with pytest.raises(TakenError) as caught:
            people.signup(plane, name, PASSWORD)
        assert caught.value.code == "taken"
        assert isinstance(caught.value, RejectedError)


def test_wrong_unknown_and_disabled_are_told_the_same(plane):
    people.signup(plane, "ann", PASSWORD)
    people.signup(plane, "bob", PASSWORD)
    plane.people.change("bob", {"disabled": True})
    told = set()
    for name, password in [("ann", "wrong password"), ("nobody", PASSWORD), ("bob", PASSWORD)]:
        with pytest.raises(UnauthorisedError) as caught:
            people.login(plane, name, password)
        told.add((caught.value.what, caught.value.hint))
    assert len(told) == 1


def test_unknown_names_cost_a_whole_verification(plane, monkeypatch):
    people.signup(plane, "ann", PASSWORD)
    asked = []
    verify = type(HASHER).verify

    def counted(self, kept, password):
        asked.append(kept.split("$")[1:4])
        return verify(self, kept, password)

    monkeypatch.setattr(type(HASHER), "verify", counted)
    for name in ("ann", "nobody", "not a name"):
        with pytest.raises(UnauthorisedError):
            people.login(plane, name, "wrong password")
    assert len(asked) == 3
    assert asked[0] == asked[1] == asked[2]
    assert asked[0][0] == "argon2id"


def test_passwords_and_tokens_are_kept_as_digests_alone(plane):
    people.signup(plane, "ann", PASSWORD)
    tokens = people.login(plane, "ann", PASSWORD)
    kept = "\n".join(plane.database.read(lambda c: list(c.connection.iterdump())))
    assert PASSWORD not in kept
    secret, _, sid = tokens.refresh.partition(people.BESIDE)
    assert secret not in kept
    assert sid not in kept
    assert digest(secret) in kept
    assert digest(sid) in kept


def test_hashes_made_at_a_lower_cost_are_made_anew(plane):
    import argon2

    cheap = argon2.PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)
    plane.people.add("ann", cheap.hash(PASSWORD))
    people.login(plane, "ann", PASSWORD)
    assert not HASHER.check_needs_rehash(plane.people.find("ann")[1])
    people.login(plane, "ann", PASSWORD)


def claims(plane, tokens, **changes) -> dict:
    found = jwt.decode(tokens.access, options={"verify_signature": False})
    return {key: value for key, value in {**found, **changes}.items() if value is not None}


def test_forged_and_outdated_tokens_are_refused(plane):
    people.signup(plane, "ann", PASSWORD)
    other = people.signup(plane, "bob", PASSWORD)
    tokens = people.login(plane, "ann", PASSWORD)
    key = plane.signing_keys[ACCESS].signing().secret
    past = int(time.time()) - 1
    bad = [
        "",
        "x.y.z",
        tokens.refresh,
        tokens.access[:-2] + "xx",
        jwt.encode(claims(plane, tokens), b"k" * 32, algorithm="HS256"),
        jwt.encode(claims(plane, tokens), None, algorithm="none"),
        jwt.encode(claims(plane, tokens), key * 2, algorithm="HS512"),
        jwt.encode(claims(plane, tokens, exp=past), key, algorithm="HS256"),
        jwt.encode(claims(plane, tokens, exp=None), key, algorithm="HS256"),
        jwt.encode(claims(plane, tokens, sid=None), key, algorithm="HS256"),
        jwt.encode(claims(plane, tokens, sub=other.id), key, algorithm="HS256"),
        jwt.encode(claims(plane, tokens, sid="s-unknown"), key, algorithm="HS256"),
    ]
    for token in bad:
        with pytest.raises(UnauthorisedError):
            people.authenticate(plane, token)
    assert people.authenticate(plane, tokens.access).user.name == "ann"


def test_a_stolen_refresh_token_ends_the_session_for_both(plane):
    people.signup(plane, "ann", PASSWORD)
    tokens = people.login(plane, "ann", PASSWORD)
    theirs = people.refresh(plane, tokens.refresh)
    with pytest.raises(UnauthorisedError, match="used before"):
        people.refresh(plane, tokens.refresh)
    with pytest.raises(UnauthorisedError):
        people.authenticate(plane, theirs.access)
    with pytest.raises(UnauthorisedError):
        people.refresh(plane, theirs.refresh)


def test_a_ban_and_a_new_role_count_from_the_next_request(plane):
    admin = plane.user("root", Role.ADMIN)
    people.signup(plane, "ann", PASSWORD)
    tokens = people.login(plane, "ann", PASSWORD)
    people.change_user(plane, admin, "ann", role=Role.OPERATOR)
    assert people.authenticate(plane, tokens.access).user.role is Role.OPERATOR
    ann = people.authenticate(plane, tokens.access).user
    waiting = leases.rent(plane, ann, Wish(), KEY)
    people.change_user(plane, admin, "ann", disabled=True)
    with pytest.raises(UnauthorisedError):
        people.authenticate(plane, tokens.access)
    with pytest.raises(UnauthorisedError):
        people.refresh(plane, tokens.refresh)
    assert plane.leases.get(waiting.id).state is LeaseState.ENDED


def test_who_may_see_and_change_whom(plane):
    member, operator = plane.user("mia"), plane.user("otto", Role.OPERATOR)
    admin = plane.user("root", Role.ADMIN)
    for by in (operator, admin):
        assert {user.name for user in people.users(plane, by)} == {"mia", "otto", "root"}
    with pytest.raises(ForbiddenError):
        people.users(plane, member)
    for by in (member, operator):
        with pytest.raises(ForbiddenError):
            people.change_user(plane, by, "mia", machines=100)
        with pytest.raises(ForbiddenError):
            people.change_user(plane, by, "root", password="another sentence")
        with pytest.raises(ForbiddenError):
            people.change_user(plane, by, by.name, role=Role.ADMIN)
        with pytest.raises(ForbiddenError):
            people.change_project(plane, by, "physics", machines=1, hours=1)
    changed = people.change_user(plane, admin, "mia", project="physics", machines=9, hours=5)
    assert (changed.project, changed.quota) == ("physics", Quota(machines=9, hours=5))
    with pytest.raises(UnknownError):
        people.change_user(plane, admin, "nobody", machines=1)


def test_everybody_may_change_their_own_password(plane):
    ann = people.signup(plane, "ann", PASSWORD)
    tokens = people.login(plane, "ann", PASSWORD)
    people.change_user(plane, ann, "ann", password="another sentence")
    with pytest.raises(UnauthorisedError):
        people.authenticate(plane, tokens.access)
    with pytest.raises(UnauthorisedError):
        people.login(plane, "ann", PASSWORD)
    people.login(plane, "ann", "another sentence")


@pytest.mark.parametrize("change", [{"machines": -1}, {"hours": -1}, {"project": "No Such"}])
def test_senseless_changes_are_refused(plane, change):
    admin = plane.user("root", Role.ADMIN)
    with pytest.raises(InvalidError):
        people.change_user(plane, admin, "root", **change)


def test_the_first_administrator_is_made_once(everywhere):
    password = people.first_admin(everywhere)
    assert people.first_admin(everywhere) is None
    tokens = people.login(everywhere, "admin", password)
    assert people.authenticate(everywhere, tokens.access).user.role is Role.ADMIN


def test_a_password_takes_a_while_but_not_long():
    kept = HASHER.hash(PASSWORD)
    began = time.process_time()
    HASHER.verify(kept, PASSWORD)
    assert 0.002 < time.process_time() - began < 5
    assert "m=19456,t=3,p=1" in kept


def test_projects_are_seen_by_operators_and_limited_by_administrators(plane):  # R-D2
    member, admin = plane.user("mia"), plane.user("root", Role.ADMIN)
    assert people.projects(plane, plane.user("otto", Role.OPERATOR)) == []
    with pytest.raises(ForbiddenError):
        people.projects(plane, member)
    first = people.change_project(plane, admin, "physics", machines=3)
    assert (first.name, first.quota.machines) == ("physics", 3)
    assert first.quota.hours >= 1e9
    second = people.change_project(plane, admin, "physics", hours=7.5)
    assert second.quota == Quota(machines=3, hours=7.5)
    people.change_project(plane, admin, "art")
    assert [each.name for each in people.projects(plane, admin)] == ["art", "physics"]
    with pytest.raises(InvalidError):
        people.change_project(plane, admin, "physics", machines=-1)


def test_one_may_ask_who_one_is(plane):
    ann = plane.user("ann")
    assert people.whoami(people.Session(ann, "s-1")) == ann
