"""Servers, a connection pool and a place for logs, for every test of this folder."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from essaim.model.roles import Role
from essaim.model.stacks import Machine, Size
from essaim.remote.keyring import Keyring
from essaim.remote.roles import Facts
from essaim.remote.ssh import Remote
from remote.rig import server


def pytest_collection_modifyitems(items):
    """Everything here that talks to a machine makes one, which takes root."""
    for item in items:
        if item.path.parent == Path(__file__).parent and "boxes" in item.fixturenames:
            item.add_marker(pytest.mark.root)


@pytest.fixture(scope="session")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("remote")


@pytest.fixture(scope="session")
def keyring(scratch):
    return Keyring(scratch / "keys")


@pytest.fixture(scope="session")
def boxes(keyring, scratch):
    """Three machines that answer over SSH."""
    if os.geteuid():
        pytest.skip("making machines out of namespaces needs root")
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(server(f"box-{n}", keyring, scratch)) for n in (1, 2, 3)]


@pytest.fixture
def box(boxes):
    return boxes[0]


@pytest.fixture(scope="session")
def shared_remote(keyring):
    remote = Remote(keyring)
    yield remote
    remote.close()


@pytest.fixture
def remote(keyring):
    remote = Remote(keyring)
    yield remote
    remote.close()


@dataclass
class Logs:
    """Takes the place of the journal."""

    kept: list[dict] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def record(self, **log):
        self.kept.append(log)

    def note(self, text):
        self.notes.append(text)


@pytest.fixture
def logs():
    return Logs()


def machine(name, *, address="10.77.0.2", index=1):
    return Machine(
        name=name,
        group="nodes",
        index=index,
        address=address,
        image="base",
        size=Size(cores=2, memory=512, disk=4),
        roles=("worker",),
        labels={"rack": "a"},
    )


@pytest.fixture
def facts(box):
    return Facts(stack="lab", network="10.77.0.0/24", machine=machine(box.name))


@pytest.fixture
def make_role(tmp_path):
    """Make a role out of keyword arguments; `sources` are the files of its directory."""

    def make(*, sources=None, name="worker", **parts):
        path = tmp_path / "roles" / name
        path.mkdir(parents=True, exist_ok=True)
        for file, text in (sources or {}).items():
            (path / file).write_text(text)
        return Role(name=name, path=path, digest=repr(sources), **parts)

    return make
