"""One server for all, a lab for each test, and somebody who looks at its sockets all along."""

from __future__ import annotations

import pytest

from endtoend import people
from hypervisor import Server, Watch, hypervisor, watching
from kvm.lab import SITE, Lab
from testcache import CACHE

pytestmark = pytest.mark.root


@pytest.fixture(scope="session")
def server():
    with hypervisor() as made:
        yield made


@pytest.fixture
def watch(server):
    with watching(server) as made:
        yield made


@pytest.fixture
def lab(server: Server, watch: Watch, tmp_path):
    """A lab with an empty home; what is left standing is taken down."""
    import json

    folder = tmp_path / "lab"
    (folder / "site").mkdir(parents=True)
    (folder / "essaim.yaml").write_text("{}\n")
    (folder / "site" / f"{SITE}.yaml").write_text(server.site_yaml())
    person = people.root(tmp_path / "home", CACHE)
    person.home.mkdir()
    yield Lab(folder, person, server)
    for stack in json.loads(person.types("status", "--json")):
        person.types("down", stack["name"], "--yes")
