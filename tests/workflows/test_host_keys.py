"""Learning host keys: read inside the machine, shown where the site says so, else refused.

The driver is a fake: what a cluster answers is tried in tests/drivers/test_proxmox_host_keys.py.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from essaim.model.errors import RejectedError, TransientError
from essaim.model.machines import HostKeyAccess, HostKeySource
from essaim.model.names import MachineName
from essaim.model.runs import Again
from essaim.model.stacks import Image, Machine, Network, Site, Size, Stack
from essaim.remote.keyring import Keyring
from essaim.workflows import host_keys

NAME = MachineName("lab", "one-1")
KEY, OTHER = "ssh-ed25519 AAAAC3Nz", "ssh-ed25519 AAAAC3Ny"


class FakeDriver:
    """Shows keys in the order it is told to; an exception is raised instead."""

    def __init__(self, source: HostKeySource, *keys: str | Exception) -> None:
        self.source, self.keys = source, list(keys)

    def host_key_access(self, _image: Image) -> HostKeyAccess:
        return HostKeyAccess(source=self.source, reason="nothing reads them", hint="add ssh:")

    def read_host_key(self, _name: MachineName) -> str:
        key = self.keys.pop(0)
        if isinstance(key, Exception):
            raise key
        return key

    def found_host_key(self, _id: str) -> str:
        raise NotImplementedError

    def answers_within(self) -> float:
        return 100.0


@pytest.fixture
def rig(tmp_path):
    machine = Machine(
        name=NAME,
        group="one",
        index=1,
        address="10.77.0.2",
        image="i",
        size=Size(cores=1, memory=64),
    )

    def make(driver, *, elapsed: float = 0.0, **settings):
        stack = Stack(
            name="lab",
            site=Site(name="pve", driver="proxmox", settings=settings),
            network=Network(cidr="10.77.0.0/24"),
            images={"i": Image(name="i", builder="template", digest="d")},
            machines=(machine,),
            roles={},
            source="lab",
        )
        tools = SimpleNamespace(
            driver=lambda _site: driver,
            keyring=Keyring(tmp_path / "keys"),
            work=lambda _plan: SimpleNamespace(stack=stack),
            remote=SimpleNamespace(drop=lambda _name: None),
        )
        run = SimpleNamespace(input={"plan": "p"})
        notes: list[str] = []
        context = SimpleNamespace(tools=tools, run=run, elapsed=elapsed, note=notes.append)
        return SimpleNamespace(context=context, keyring=tools.keyring, machine=machine, notes=notes)

    return make


def test_a_key_that_is_given_is_left_alone(rig):
    it = rig(FakeDriver(HostKeySource.GIVEN), host_keys="first")
    assert host_keys.learn(it.context, it.machine) is None
    assert it.keyring.pinned(NAME) == ""


def test_the_guest_agent_is_waited_for_in_words_and_the_key_is_remembered(rig):
    silent = TransientError("QEMU guest agent is not running", hint="install it")
    it = rig(FakeDriver(HostKeySource.READ, silent, KEY))
    again = host_keys.learn(it.context, it.machine)
    assert isinstance(again, Again)
    assert again.note == "waiting for its guest agent"
    assert host_keys.learn(it.context, it.machine) is None
    assert it.keyring.pinned(NAME) == KEY
    assert host_keys.learn(it.context, it.machine) is None  # asks nobody any more


def test_an_agent_that_never_answers_is_named(rig):
    silent = TransientError("QEMU guest agent is not running", hint="install it")
    it = rig(FakeDriver(HostKeySource.READ, silent), elapsed=101.0)
    with pytest.raises(TransientError, match="no host key in 101 s: QEMU guest agent") as caught:
        host_keys.learn(it.context, it.machine)
    assert caught.value.hint == "install it"


def test_a_key_that_a_first_boot_replaced_is_read_again_and_a_shown_one_never(rig):
    it = rig(FakeDriver(HostKeySource.READ, KEY, KEY, OTHER))
    host_keys.learn(it.context, it.machine)
    assert not host_keys.learn_again(it.context, it.machine)  # the machine still says the same
    assert host_keys.learn_again(it.context, it.machine)
    assert it.keyring.pinned(NAME) == OTHER
    shown = rig(FakeDriver(HostKeySource.SHOWN, KEY), host_keys="first")
    assert not host_keys.learn_again(shown.context, shown.machine)
    assert shown.keyring.pinned(NAME) == OTHER


def test_an_agent_that_is_silent_is_done_without_where_the_site_trusts_first(rig, monkeypatch):
    monkeypatch.setattr(host_keys, "shown_key", lambda _address: OTHER)
    silent = TransientError("QEMU guest agent is not running")
    it = rig(FakeDriver(HostKeySource.READ, silent), host_keys="first")
    assert host_keys.learn(it.context, it.machine) is None
    assert it.keyring.pinned(NAME) == OTHER


def test_without_a_way_it_is_refused_unless_the_site_says_so(rig, monkeypatch):
    it = rig(FakeDriver(HostKeySource.SHOWN))
    with pytest.raises(
        RejectedError, match="no way to know the host keys of nothing reads them"
    ) as caught:
        host_keys.learn(it.context, it.machine)
    assert "add ssh:; or" in caught.value.hint
    assert "host_keys: first" in caught.value.hint

    shown = ["", KEY]
    monkeypatch.setattr(host_keys, "shown_key", lambda _address: shown.pop(0))
    it = rig(FakeDriver(HostKeySource.SHOWN), host_keys="first")
    assert isinstance(host_keys.learn(it.context, it.machine), Again)
    assert host_keys.learn(it.context, it.machine) is None
    assert it.keyring.pinned(NAME) == KEY
