"""Who takes somebody's name first gets none of their rights."""

from __future__ import annotations

import httpx
import pytest

from api.rig import PASSWORD, is_problem, options, serving
from essaim.api.app import create_app
from essaim.model.errors import InvalidError, UnknownError
from essaim.model.fleet import Role
from essaim.model.invites import SignupMode
from essaim.usecases import classes, invites, people, seats
from essaim.usecases.credentials import hash_password
from schoolplane import people as persons
from schoolplane import plane, roster


@pytest.fixture
def school(new_database, tmp_path):
    """A class whose teacher, turing, has no account yet."""
    with plane(new_database("sqlite"), tmp_path / "site") as made:
        made.signup_mode = SignupMode.INVITE
        made.apply(roster(), persons("alice", "bob"))
        yield made


@pytest.fixture
def admin(school):
    return school.people.add("admin", hash_password(PASSWORD), role=Role.ADMIN)


def test_a_right_is_not_promised_to_a_name(school):
    with pytest.raises(UnknownError) as caught:
        classes.set_teacher(school, "promo", "turing")
    assert "essaim users invite --teaches promo" in caught.value.hint
    school.signup_mode = SignupMode.OPEN
    squatter = people.signup(school, "turing", PASSWORD)
    assert seats.taught(school, squatter) == []


def test_the_code_carries_the_right_whatever_name_is_chosen(school, admin):
    _kept, code = invites.invite(school, admin, roster="promo")
    # Somebody else was first with the name.
    school.signup_mode = SignupMode.OPEN
    squatter = people.signup(school, "turing", PASSWORD)
    school.signup_mode = SignupMode.INVITE
    teacher = people.signup(school, "a.turing", PASSWORD, code)
    assert seats.taught(school, squatter) == []
    assert seats.taught(school, teacher) == ["promo"]
    assert classes.teachers(school, "promo") == ["a.turing"]


def test_a_right_is_given_by_id_to_the_account_that_is_meant(school, admin):
    school.signup_mode = SignupMode.OPEN
    squatter = people.signup(school, "turing", PASSWORD)
    teacher = people.signup(school, "turing2", PASSWORD)
    classes.set_teacher(school, "promo", teacher.id)
    people.change_user(school, admin, teacher.id, role=Role.OPERATOR)
    assert seats.taught(school, squatter) == []
    assert school.people.get(teacher.id).role is Role.OPERATOR
    assert school.people.get(squatter.id).role is Role.MEMBER


def test_nobody_takes_the_id_of_an_account_for_a_name(school, admin):
    school.signup_mode = SignupMode.OPEN
    with pytest.raises(InvalidError):
        people.signup(school, admin.id, PASSWORD)
    # One who had such a name before changes nobody's password but their own.
    squatter = school.people.add(admin.id, hash_password(PASSWORD))
    with pytest.raises(people.ForbiddenError):
        people.change_user(school, squatter, admin.id, password="a lake with four swans")


def test_a_student_signs_up_with_their_own_code_and_nobody_else_does(school):
    ((_student, code),) = classes.invite(school, "promo", ["alice"])
    app = create_app(school, options(together=False))
    with serving(app) as address, httpx.Client(base_url=address, timeout=60) as client:
        squat = {"name": "alice", "password": PASSWORD}
        is_problem(client.post("/api/signup", json=squat), 403, "forbidden")
        assert client.post("/api/signup", json={**squat, "invite": code}).status_code == 201
        bob = {"name": "bob", "password": PASSWORD, "invite": code}
        is_problem(client.post("/api/signup", json=bob), 403, "forbidden")
    alice, _hash = school.people.find("alice")
    assert [each.login for each in school.rosters.of_account(alice.id)] == ["alice"]


def test_a_code_for_a_roster_ends_with_it(school, admin):
    _kept, code = invites.invite(school, admin, roster="promo")
    school.rosters.drop("promo")
    school.stacks.drop_stack("promo")
    school.apply(roster(), persons("carol"))
    with pytest.raises(people.ForbiddenError):
        people.signup(school, "turing", PASSWORD, code)
