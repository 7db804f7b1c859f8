"""What cannot be seen is never taken for what is there, nor for what is not."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from essaim.bootstrap import App
from essaim.config.compose import compose
from essaim.model.errors import RejectedError, TransientError
from essaim.model.machines import Form, Observed, Power
from essaim.model.names import MachineName
from essaim.model.plans import Applied
from essaim.plan.digest import RoleDigests
from essaim.remote.ssh import Result
from essaim.usecases.locking import make_lock
from essaim.usecases.verifying import verify
from testcache import base_image

STACK = """\
defaults: [{size: tiny}, {site: local}, _self_]
name: pair
image: base
topology: {giver: {roles: [giver]}, taker: {roles: [taker]}}
network: {cidr: 10.9.0.0/24}
"""
GIVER = "provides: {word: {command: cat /etc/word}}\n"
TAKER = """\
needs: {word: giver}
files: [{content: "{{ needs.word }}", to: /etc/taken}]
"""


class World:
    """A driver and a way to machines that say what they are told to."""

    form = Form.ROOTFS

    def __init__(self) -> None:
        self.off: set[str] = set()
        self.fails: dict[str, Exception] = {}
        self.taken = "sesame"
        self.word: str | Exception = "sesame"

    def observe(self, stack: str) -> list[Observed]:
        return [
            Observed(
                name=MachineName(stack, name),
                power=Power.OFF if name in self.off else Power.ON,
                address=f"10.9.0.{number}",
                image=base_image().digest,
                boot="1",
            )
            for number, name in enumerate(("giver", "taker"), start=10)
        ]

    def reach(self, target: Any, *, within: float) -> None:
        if error := self.fails.get(target.name.machine):
            raise error

    def run(self, target: Any, command: Any, **_more: Any) -> Result:
        name = target.name.machine
        if command == "cat /etc/word":
            if isinstance(self.word, Exception):
                raise self.word
            return self.said(self.word)
        lines = [f"hostname\t{name}", f"address\t{target.address}/24"]
        if name == "taker":
            digest = hashlib.sha256(self.taken.encode()).hexdigest()
            lines.append(f"file\t{digest}\t644\troot\troot\troot\t/etc/taken")
        return self.said("\n".join([*lines, "end", ""]))

    def said(self, text: str) -> Result:
        return Result(exit_code=0, output=text, stdout=text, seconds=0.0)

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def world():
    return World()


@pytest.fixture
def told(world, tmp_path, monkeypatch):
    """Verify a pair of machines, and give each one's verdict and what is said of it."""
    for name, text in (
        ("stack.yaml", STACK),
        ("roles/giver/role.yaml", GIVER),
        ("roles/taker/role.yaml", TAKER),
    ):
        file = tmp_path / "lab" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    app = App({"ESSAIM_HOME": str(tmp_path / "home"), "ESSAIM_CACHE": str(tmp_path / "cache")})
    monkeypatch.setattr(app, "driver", lambda _site: world)
    app.__dict__["remote"] = world
    composed = compose(str(tmp_path / "lab"))
    lock = make_lock(app, composed)
    digests = RoleDigests(composed.stack)
    for machine in composed.stack.machines:
        (role,) = machine.roles
        digest = digests.of(machine, role)
        app.stacks.record_applied(Applied(machine=str(machine.name), role=role, digest=digest))

    def tell() -> tuple[str, dict[str, tuple[str, list[str]]]]:
        report = verify(app, lock, composed)
        nodes = {
            node.name.partition("/")[2]: (
                node.verdict,
                [*(found.what for found in node.differences), *node.cannot],
            )
            for node in report.nodes
        }
        return report.verdict, nodes

    yield tell
    app.close()


FINE = ("identical", [])


def test_all_is_well(told):
    assert told() == ("identical", {"giver": FINE, "taker": FINE})


def test_a_machine_that_does_not_answer_is_unknown(world, told):
    world.fails["taker"] = TransientError("pair/taker: no banner in 20 s")
    assert told() == (
        "unknown",
        {"giver": FINE, "taker": ("unknown", ["no banner in 20 s"])},
    )


def test_one_with_another_host_key_is_different(world, told):
    world.fails["taker"] = RejectedError("pair/taker shows another host key")
    assert told()[1]["taker"] == ("different", ["shows another host key"])


def test_one_that_is_off_is_different_and_not_asked(world, told):
    world.off.add("taker")
    world.fails["taker"] = AssertionError("nobody must go there")
    assert told() == ("different", {"giver": FINE, "taker": ("different", ["is off"])})


def test_a_value_that_cannot_be_read_leaves_open_what_rests_on_it(world, told):
    world.word = TransientError("pair/giver: no answer")
    verdict, nodes = told()
    assert verdict == "unknown"
    assert nodes["giver"] == FINE
    assert nodes["taker"] == (
        "unknown",
        [
            "role taker cannot be judged: pair/giver: no answer",
            "what /etc/taken holds cannot be judged: it rests on needs.word",
        ],
    )


def test_a_value_that_changed_since_it_was_given_is_noticed(world, told):
    world.word = "open"
    said = "/etc/taken does not hold what role taker writes there"
    assert told()[1]["taker"] == ("different", [said])


def test_what_differs_outweighs_what_is_unknown(world, told):
    world.off.add("giver")
    world.fails["taker"] = TransientError("pair/taker: no banner in 20 s")
    assert told()[0] == "different"
