"""What root sees at a terminal of 80 columns and 24 lines; a plain user's is in test_slurm."""

from __future__ import annotations

import dataclasses

import pytest

from endtoend import terminal_stories as stories
from testcache import CACHE, base_image, images


@pytest.fixture
def lab(root, tmp_path):
    images().build(base_image(), lambda _line: None)
    return stories.Lab(root, tmp_path / "lab")


def test_ctrl_c_ends_it_while_the_stack_is_read(lab):
    stories.composing(lab)


def test_an_image_that_cannot_be_built_is_said_and_ctrl_c_is_obeyed_meanwhile(lab):
    stories.building(lab)


def test_ctrl_c_is_obeyed_while_machines_come_up(lab):
    rootfs = images().ready(base_image())
    with stories.own_image(CACHE, rootfs.parent.name) as cache:
        own = dataclasses.replace(lab.person, extra={"ESSAIM_CACHE": str(cache)})
        with stories.late_sshd(cache / "images" / rootfs.parent.name / "rootfs"):
            stories.creating(dataclasses.replace(lab, person=own))
            stories.enrolling(dataclasses.replace(lab, person=own))


def test_ctrl_c_is_obeyed_while_a_role_is_applied(lab):
    stories.configuring(lab)


def test_a_role_that_fails_shows_its_command_and_what_to_do(lab):
    stories.failing(lab)


def test_a_stack_goes_when_asked_twice_and_ctrl_c_is_obeyed_meanwhile(lab):
    stories.removing(lab)


def test_no_disk_is_lost_where_nobody_can_be_asked(lab):
    stories.nobody_to_ask(lab)


def test_no_student_loses_a_disk_unasked(lab):
    stories.roster_shrinks(lab)


def test_quiet_says_nothing_but_errors_and_verbose_tells_each_command(lab):
    person = lab.person
    good = lab.stack("good", "echo it works", more="hints: [essaim run good -- uptime]\n")
    said = person.types("-v", "up", good)
    assert "· good/n-1 raise: create" in said
    assert "$ does/it: echo it works  [good/n-1, ok, " in said
    assert said.rstrip().endswith("→ essaim run good -- uptime")
    assert person.types("-q", "up", good, "--again") == ""
    assert person.types("down", "good", "--yes", "--quiet") == ""
    bad = lab.stack("bad", "echo no; exit 7")
    said = person.types("up", bad, "-q", code=4)
    assert "raise" not in said
    assert "✗ bad/n-1:does: role does: step it exited 7: no" in said
    assert "    | no" in said.splitlines()
    refused = person.types("-q", "down", "bad", code=2)
    assert "- bad/n-1" in refused  # what is to be agreed to is seen
    with person.at_terminal("status", "bad") as seen:
        stories.ends(seen, 0)
    assert ["MACHINE", "POWER", "ADDRESS", "ROLES", "PENDING"] in map(str.split, seen.lines)
    assert b"\x1b[32mon" in seen.raw


def test_an_image_that_machines_need_is_removed_only_when_that_is_said(lab):
    lab.person.types("up", lab.stack("uses"))
    refused = lab.person.types("image", "remove", "base", code=2)
    assert "say --yes" in refused
    assert images().ready(base_image()) is not None
