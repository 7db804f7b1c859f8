"""A lab for each test: its own home, images built once for all of them."""

from __future__ import annotations

import os

import pytest

from endtoend import people
from endtoend.fleet_crashes import in_order
from endtoend.fleet_rig import Tenant
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


@pytest.fixture(scope="module")
def ada(its) -> Tenant:
    """Somebody who rents from the fleet of a module."""
    return its.tenant("ada")


@pytest.fixture
def alive(its):
    """A server that runs, and after the test everything is in order."""
    if not its.server:
        its.serve()
    yield its
    its.tidy()
    in_order(its)


def take_down(person: people.Person) -> None:
    import json

    stacks = json.loads(person.types("status", "--json"))
    for stack in stacks:
        person.types("down", stack["name"], "--yes")
