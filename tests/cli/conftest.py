"""A server, and people at their terminals."""

from __future__ import annotations

import pytest

from api.rig import PLENTY, world
from cli.person import PASSWORD, Person
from essaim.model.fleet import Role
from essaim.usecases.credentials import hash_password


@pytest.fixture
def here(new_database):
    with world(new_database("sqlite")) as made:
        yield made


@pytest.fixture
def server(here):
    return str(here.client.base_url).rstrip("/")


@pytest.fixture
def ada(here, server, tmp_path):
    """A member who is logged in."""
    person = Person(tmp_path / "ada", server)
    person.does("signup", "ada", "--server", server)
    return person


@pytest.fixture
def admin(here, server, tmp_path):
    """An administrator who is logged in."""
    here.plane.people.add("admin", hash_password(PASSWORD), role=Role.ADMIN, quota=PLENTY)
    person = Person(tmp_path / "admin", server)
    person.log_in("admin")
    return person
