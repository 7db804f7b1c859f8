"""A lab for each test: its own home, images built once for all of them."""

from __future__ import annotations

import os

import pytest

from endtoend import people
from testcache import CACHE

pytestmark = pytest.mark.root


@pytest.fixture(scope="session", autouse=True)
def _only_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("makes users and looks at everybody's processes: run as root")


@pytest.fixture
def root(tmp_path):
    """Root, with an empty home; whatever is left standing is taken down."""
    person = people.root(tmp_path / "home", CACHE)
    person.home.mkdir()
    yield person
    take_down(person)


@pytest.fixture(scope="session")
def plain():
    """One person without privileges for the whole session: the first command takes a while."""
    with people.plain() as person:
        person.types("--version", within=600)
        yield person
        take_down(person)


@pytest.fixture(params=["root", "plain"])
def person(request):
    """Everybody: what is promised holds with and without privileges."""
    return request.getfixturevalue(request.param)


def take_down(person: people.Person) -> None:
    import json

    stacks = json.loads(person.types("status", "--json"))
    for stack in stacks:
        person.types("down", stack["name"], "--yes")
