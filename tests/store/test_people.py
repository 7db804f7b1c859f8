from __future__ import annotations

import pytest
import sqlalchemy as sa

from essaim.model.errors import RejectedError, TakenError, UnknownError
from essaim.model.fleet import Quota, Role
from essaim.store.people import People, Rotation, hidden
from essaim.store.schema import refresh, session
from essaim.store.settings import Settings
from usecases.plane import together


@pytest.fixture
def people(database) -> People:
    return People(database)


def opened(people: People, person: str, digest: str, seconds: float) -> str:
    """A session of somebody: as what it is kept."""
    key = hidden(f"sid of {digest}")
    people.open_session(key, person, digest, seconds)
    return key


def test_people_are_added_found_and_listed(people):
    ann = people.add("ann", "hash")
    people.add("bob", "hash", role=Role.OPERATOR, quota=Quota(machines=9, hours=1.5))
    assert people.find("ann") == (ann, "hash")
    assert people.get(ann.id) == ann
    assert people.find("Ann") is None
    assert people.get("u-nobody") is None
    assert [(user.name, user.role) for user in people.list()] == [
        ("ann", Role.MEMBER),
        ("bob", Role.OPERATOR),
    ]
    assert people.find("bob")[0].quota == Quota(machines=9, hours=1.5)


def test_a_name_is_given_once_however_many_want_it(people):
    def add(number: int) -> bool:
        try:
            people.add("ann", f"hash {number}")
        except TakenError:
            return False
        return True

    assert together(add, range(6)).count(True) == 1


def test_changes_are_kept_and_strangers_unknown(people):
    people.add("ann", "hash")
    changed = people.change("ann", {"project": "physics", "machines": 7})
    assert (changed.project, changed.quota.machines, changed.quota.hours) == ("physics", 7, 200.0)
    assert people.change("ann", {}) == changed
    with pytest.raises(UnknownError):
        people.change("bob", {"project": "x"})


def test_the_last_administrator_stays_one(people):
    people.add("ann", "hash", role=Role.ADMIN)
    people.add("bob", "hash", role=Role.ADMIN)
    assert people.has_admin()
    people.change("ann", {"role": "member"})
    for change in ({"role": "member"}, {"disabled": True}):
        with pytest.raises(RejectedError, match="last administrator"):
            people.change("bob", change)
    assert people.find("bob")[0].role is Role.ADMIN


def test_two_administrators_cannot_depose_each_other_at_once(people):
    names = ["ann", "bob"]
    for name in names:
        people.add(name, "hash", role=Role.ADMIN)

    def depose(name: str) -> bool:
        try:
            people.change(name, {"role": "member"})
        except RejectedError:
            return False
        return True

    assert sorted(together(depose, names)) == [False, True]


def test_a_session_lives_until_it_is_revoked_or_over(people):
    ann = people.add("ann", "hash")
    first = opened(people, ann.id, "digest-1", 3600)
    over = opened(people, ann.id, "digest-2", 0)
    assert people.session(first).user == ann
    assert people.session(over) is None
    assert people.session("s-unknown") is None
    people.revoke(first)
    people.revoke(first)
    assert people.session(first) is None
    assert people.rotate("digest-1", "digest-3", 3600) == (Rotation.UNKNOWN, None)


@pytest.mark.parametrize("change", [{"disabled": True}, {"password": "another"}])
def test_who_is_disabled_or_gets_a_new_password_is_logged_out(people, change):
    ann = people.add("ann", "hash")
    key = opened(people, ann.id, "digest", 3600)
    people.change("ann", change)
    assert people.session(key) is None
    people.change("ann", {"disabled": False})
    assert people.session(key) is None


def test_a_refresh_token_serves_once_and_its_reuse_revokes_all(people):
    ann = people.add("ann", "hash")
    key = opened(people, ann.id, "one", 3600)
    outcome, found = people.rotate("one", "two", 3600)
    assert (outcome, found.id, found.user) == (Rotation.DONE, key, ann)
    assert people.rotate("never", "three", 3600) == (Rotation.UNKNOWN, None)
    assert people.session(key).user == ann
    assert people.rotate("one", "thief", 3600) == (Rotation.REUSED, None)
    assert people.session(key) is None
    assert people.rotate("two", "four", 3600) == (Rotation.UNKNOWN, None)


def test_of_many_who_show_one_token_at_most_one_is_served(people):
    ann = people.add("ann", "hash")
    opened(people, ann.id, "one", 3600)
    outcomes = together(lambda n: people.rotate("one", f"new-{n}", 3600)[0], range(5))
    assert outcomes.count(Rotation.DONE) == 1
    assert outcomes.count(Rotation.REUSED) == 4


def test_old_sessions_are_forgotten_with_their_tokens(people, database):
    ann = people.add("ann", "hash")
    opened(people, ann.id, "old", 0)
    opened(people, ann.id, "new", 7200)
    assert people.prune(3600) == 0
    an_hour_ago = sa.update(session).values(expires_at=session.c.expires_at - 3_600_000)
    database.write(lambda c: c.execute(an_hour_ago))
    assert people.prune(1800) == 1
    left = database.read(lambda c: c.execute(sa.select(refresh.c.digest)).scalars().all())
    assert left == ["new"]
    assert database.read(lambda c: c.execute(sa.select(session.c.id)).all()) != []


def test_settings_are_put_and_got(database):
    settings = Settings(database)
    assert settings.get("x") is None
    settings.put("x", "1")
    settings.put("x", "2")
    assert settings.get("x") == "2"
    assert settings.secret("key") == settings.secret("key") != settings.secret("other")
