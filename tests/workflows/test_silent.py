"""A machine that does not answer leaves its last words, and its hint says where they are."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from essaim.model.errors import RejectedError, TransientError
from essaim.model.names import MachineName
from essaim.model.stacks import Machine, Network, Site, Size, Stack
from essaim.workflows import raising

NAME = MachineName("lab", "one")
MACHINE = Machine(
    name=NAME, group="one", index=1, address="10.7.0.10", image="i", size=Size(cores=1, memory=64)
)
STACK = Stack(
    name="lab",
    site=Site(name="far", driver="slow"),
    network=Network(cidr="10.7.0.0/24"),
    machines=(MACHINE,),
    images={},
    roles={},
)


class Silent:
    """A driver with a console, whose machine never answers."""

    said = "".join(f"line {number}\n" for number in range(500))

    def answers_within(self) -> float:
        return 300.0

    def console(self, name):
        raise AssertionError(name)

    def console_log(self, name):
        if not self.said:
            raise RejectedError(f"{name} keeps no log")
        return self.said


class Tools:
    """What `reach` acts through; remembers how long it waited and what was kept."""

    def __init__(self, driver) -> None:
        self.waited: list[float] = []
        self.kept: list = []
        self.driver = lambda _site: driver
        self.target = lambda _site, machine: machine.name
        self.remote = SimpleNamespace(reach=self._reach)
        self.logs = SimpleNamespace(add=self.kept.extend)
        self.work = lambda _plan: SimpleNamespace(stack=STACK, machines={"lab/one": MACHINE})

    def _reach(self, target, *, within):
        self.waited.append(within)
        raise TransientError(f"{target}: no banner", hint="see whether it runs")


def context(tools: Tools, elapsed: float = 0.0):
    run = SimpleNamespace(id="r1", input={"plan": "p", "machine": "lab/one"})
    return SimpleNamespace(
        tools=tools, run=run, step="reach", elapsed=elapsed, note=lambda _text: None
    )


def test_its_last_lines_are_kept_and_the_hint_says_where_the_rest_is():
    tools = Tools(Silent())
    with pytest.raises(TransientError, match="no banner") as caught:
        raising.reach(context(tools))
    assert "essaim console --log lab/one" in caught.value.hint
    (log,) = tools.kept
    assert (log.run, log.step, log.machine) == ("r1", "reach", "lab/one")
    assert log.output.startswith("line 440\n")
    assert log.output.endswith("line 499\n")


def test_all_tries_together_have_the_drivers_patience():
    tools = Tools(Silent())
    for elapsed in (0.0, 100.0, 5000.0):
        with pytest.raises(TransientError):
            raising.reach(context(tools, elapsed))
    *early, late = tools.waited
    assert early == [300.0, 200.0]
    assert raising.ANSWER_WITHIN <= late < 200


def test_a_console_that_cannot_be_read_hides_nothing():
    driver = Silent()
    driver.said = ""
    tools = Tools(driver)
    with pytest.raises(TransientError, match="no banner"):
        raising.reach(context(tools))
    assert tools.kept == []


def test_a_driver_without_consoles_is_as_before():
    tools = Tools(object())
    with pytest.raises(TransientError) as caught:
        raising.reach(context(tools))
    assert caught.value.hint == "see whether it runs"
    assert tools.waited == [raising.ANSWER_WITHIN]
