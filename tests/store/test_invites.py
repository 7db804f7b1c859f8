"""An invite code serves as often as it says, whoever is quick, on every database."""

from __future__ import annotations

import pytest

from essaim.model.errors import ForbiddenError, TakenError, UnknownError
from essaim.store.invites import Invites
from essaim.store.people import People
from usecases.plane import together


@pytest.fixture
def invites(database) -> Invites:
    return Invites(database)


def test_of_many_who_use_a_code_at_once_as_many_get_in_as_it_says(database, invites):
    invites.add("digest", uses=2, seconds=60, project="compilers")

    def sign_up(number: int) -> str:
        try:
            return People(database).add(f"eve-{number}", "hash", invite="digest").project
        except ForbiddenError:
            return ""

    assert sorted(together(sign_up, range(6))) == ["", "", "", "", "compilers", "compilers"]
    assert not invites.valid("digest")
    assert invites.list() == []


def test_a_name_that_is_taken_costs_no_use(database, invites):
    invites.add("digest", uses=1, seconds=60)
    people = People(database)
    people.add("ada", "hash")
    with pytest.raises(TakenError):
        people.add("ada", "hash", invite="digest")
    assert [each.uses for each in invites.list()] == [1]
    people.add("eve", "hash", invite="digest")


def test_codes_that_nobody_can_use_are_forgotten(invites):
    kept = invites.add("kept", uses=1, seconds=3600, who="admin")
    invites.add("over", uses=1, seconds=-3600)
    gone = invites.add("revoked", uses=1, seconds=3600)
    invites.revoke(gone.id)
    with pytest.raises(UnknownError):
        invites.revoke(gone.id)
    assert not invites.valid("")
    assert not invites.valid("over")
    invites.prune()
    assert invites.list() == [kept]
    assert kept.by == "admin"
    assert kept.expires_at - kept.created_at == 3_600_000
