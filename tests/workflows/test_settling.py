"""What is slow to boot is slow in all else, and is given the time."""

from __future__ import annotations

from pathlib import Path

import pytest

from essaim.model.roles import Ready, Role, RoleStep
from essaim.workflows.settling import patience, unhurried


class Boots:
    def __init__(self, seconds):
        self.seconds = seconds

    def answers_within(self):
        return self.seconds


@pytest.mark.parametrize(("seconds", "times"), [(5, 1), (20, 1), (60, 3), (300, 5), (9000, 5)])
def test_the_longer_a_boot_may_take_the_longer_may_all_else(seconds, times):
    assert patience(Boots(seconds)) == times


def test_a_driver_that_says_nothing_is_quick():
    assert patience(object()) == 1


def test_limits_grow_and_nothing_else_changes():
    role = Role(
        name="r",
        path=Path("/r"),
        digest="d",
        run=(RoleStep(name="s", do="true", within=10),),
        ready=Ready(command="true", every=0.2, within=30),
    )
    slow = unhurried(role, 3)
    assert (slow.run[0].within, slow.ready.within, slow.ready.every) == (30, 90, 0.2)
    assert (slow.name, slow.digest, slow.run[0].do) == ("r", "d", "true")
    assert unhurried(Role(name="r", path=Path("/r"), digest="d"), 3).ready is None
