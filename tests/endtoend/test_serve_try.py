"""A fleet to try on one computer: `serve --try`, and all that it prints works as printed.

R-D1, R-D2, R-D5.
"""

from __future__ import annotations

import json
import re
import shlex
import signal

import pytest

from api.rig import wait_for
from endtoend import people
from essaim_lab.computer import free_port
from patience import in_test_all

WITHIN = 600
PASSWORD = {"ESSAIM_PASSWORD": "a lake with four swans"}


class Terminal:
    """The terminal in which `serve --try` runs."""

    def __init__(self, person: people.Person, count: int, at: tuple[int, int]) -> None:
        words = ["--port", str(at[0]), "--gateway-port", str(at[1]), "--try", str(count)]
        self.process = person.begins("serve", *words)
        self.said: list[str] = []
        while not self.said or not self.said[-1].startswith("ready"):
            line = self.process.stdout.readline()
            assert line, self.said
            self.said.append(line.rstrip())

    def commands(self) -> list[list[str]]:
        """What it says to type, without the program's own name."""
        found = [re.fullmatch(r" +(?:\S*/)?essaim (.+)", line) for line in self.said]
        return [shlex.split(each[1]) for each in found if each]

    def ends(self, *numbers: int) -> str:
        """Press Ctrl-C, or send a signal; gives what it says until it has ended."""
        for number in numbers or [signal.SIGINT]:
            self.process.send_signal(number)
        return self.process.communicate(timeout=WITHIN)[0]


@pytest.fixture
def serve(person):
    begun = []
    at = (free_port(), free_port())  # the same for each: who has rented goes on

    def begin(count: int) -> Terminal:
        begun.append(Terminal(person, count, at))
        return begun[-1]

    yield begin
    for each in begun:
        if each.process.poll() is None:
            each.process.kill()
            each.process.communicate(timeout=WITHIN)


@pytest.fixture
def types(person):
    """Somebody who types in another terminal."""
    typing = people.Person(
        person.home, person.checkout, person.launcher, person.become, {**person.extra, **PASSWORD}
    )
    return typing.types


def rented(types) -> dict:
    said = types("rent", "--for", "1h", "--json")
    return json.loads(said[said.index("{") :])  # before it, that a key was made


def states(types) -> list[str]:
    return [node["state"] for node in json.loads(types("nodes", "--json"))]


def names(types) -> list[str]:
    return [node["name"] for node in json.loads(types("nodes", "--json"))]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "person", ["root", pytest.param("plain", marks=in_test_all)], indirect=True
)
def test_a_whole_fleet_on_one_computer(serve, types, person):
    terminal = serve(2)
    own = terminal.said[[line[:3] for line in terminal.said].index("API") :]
    own = [line for line in own if not line.endswith("/admin-password")]
    # Called by a whole path, the program is named by it: what is longer then is not its own.
    assert max(len(line.replace(f"{person.checkout}/", "./")) for line in own) < 80
    login, _password, signup, rent, *more = terminal.commands()
    assert (login[:2], signup[:2]) == (["login", "admin"], ["signup", "ada"])
    assert rent[0] == "rent"
    types(*signup)
    said = types(*rent)
    lease = re.search(r"l-[a-z0-9]+", said)[0]
    assert types("ssh", lease, "--", "hostname").strip() in ("nodes-1", "nodes-2")
    for command in more[:-1]:
        types(*command)
    # The keys that open nodes and leases are replaced while it runs; nobody joins again.
    types("keys", "rotate", "control", "lease")
    assert types("ssh", lease, "--", "hostname").strip() in ("nodes-1", "nodes-2")
    # It grows, and shrinks: leases move with their files, or are not lost unasked.
    types("nodes", "try", "3")
    assert names(types) == ["nodes-1", "nodes-2", "nodes-3"]
    types("release", lease)
    both = [rented(types)["id"] for _ in range(2)]
    on = {each: types("ssh", each, "--", "hostname").strip() for each in both}
    types("ssh", both[0], "--", "touch", "thesis-0")
    types("ssh", both[1], "--", "touch", "thesis-1")
    wait_for(lambda: len(names(types)) == 3)
    if "nodes-3" not in on.values():
        types("nodes", "try", "2")
        assert names(types) == ["nodes-1", "nodes-2"]
    refused = types("nodes", "try", "1", code=2)
    assert "no other machine is free for l-" in refused
    types("release", both[0])
    # The one that was given back is cleaned before the other lease can move there.
    wait_for(lambda: states(types).count("ready") == len(names(types)) - 1)
    types("nodes", "try", "1")
    assert names(types) == ["nodes-1"]
    assert types("ssh", both[1], "--", "ls").strip() == "thesis-1"
    # Once: leases end, machines go, nothing is left.
    said = terminal.ends()
    assert terminal.process.returncode == 0, said
    assert f"ended with their machines: {both[1]}" in said
    assert "the machines are removed" in said
    assert json.loads(types("status", "--json")) == []
    assert "essaim serve --try runs" in types("nodes", "try", "2", code=3)


@in_test_all
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("person", ["root"], indirect=True)  # privileges do not matter here
def test_machines_that_a_killed_server_left_are_taken_over(serve, types, person):
    terminal = serve(2)
    _login, _password, signup, *_ = terminal.commands()
    types(*signup)
    lease = rented(types)["id"]
    types("ssh", lease, "--", "touch", "thesis")
    terminal.ends(signal.SIGKILL)
    assert [stack["name"] for stack in json.loads(types("status", "--json"))] == ["try"]
    terminal = serve(1)
    assert "taking them over" in "\n".join(terminal.said)
    assert names(types) == ["nodes-1", "nodes-2"]  # rented or not, none goes unasked
    # A second one is refused, as this one has the machines.
    words = ("serve", "--try", "2", "--port", "0", "--gateway-port", "0")
    assert "another essaim serve --try runs" in types(*words, code=3)
    wait_for(lambda: types("ssh", lease, "--", "ls", code=None).strip() == "thesis")
    # Twice: at once, and the machines stay for the next.
    said = terminal.ends(signal.SIGINT, signal.SIGINT)
    assert terminal.process.returncode in (0, 130), said
