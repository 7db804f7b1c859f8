"""Projects at the terminal: machines from the school's file, and mistakes with their line."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from cli.person import Person
from patience import in_test_all
from testcache import CACHE
from workflows import sandbox

EXAMPLE = Path(__file__).parents[2] / "examples" / "project"


@pytest.fixture
def operator(tmp_path):
    """Somebody with the example in a lab of their own."""
    person = Person(tmp_path / "home")
    person.env |= {"ESSAIM_HOME": str(tmp_path / "state"), "ESSAIM_CACHE": str(CACHE)}
    shutil.copytree(EXAMPLE, tmp_path / "lab")
    person.file = tmp_path / "lab" / "profan.yaml"
    return person


@in_test_all  # what it does is tried end to end in any case
def test_a_project_on_this_computer(operator):
    if os.geteuid():
        pytest.skip("a rootless sandbox is tried elsewhere")
    sandbox.ready()
    file = str(operator.file)
    planned = operator.gets("project", "plan", file)
    assert [change["verb"] for change in planned["changes"]] == ["open", "host", "play"]
    done = operator.gets("project", "apply", file, "--no-play")
    assert (done["state"], done["done"]) == ("done", 1)
    again = operator.types("project", "apply", file, "--no-play")
    assert "profan-prod: nothing to change" in again.stderr
    (shown,) = operator.gets("project", "show")
    assert shown["machines"][0]["power"] == "on"
    assert "cloud.prod.pft.cri.local.isima.fr" in operator.does("project", "show", "profan-prod")
    # The same machines, for plain Ansible.
    listed = json.loads(operator.does("inventory", "--list"))
    assert listed["profan_prod"]["hosts"] == ["cloud.prod.pft.cri.local.isima.fr"]
    host = listed["_meta"]["hostvars"][listed["profan_prod"]["hosts"][0]]
    assert (
        json.loads(operator.does("inventory", "--host", listed["profan_prod"]["hosts"][0])) == host
    )
    assert "StrictHostKeyChecking=yes" in host["ansible_ssh_common_args"]
    assert "nobody here to ask" in operator.does("project", "down", "profan-prod", code=2)
    operator.does("project", "down", "profan-prod", "--yes")
    assert operator.gets("project", "show") == []


def test_mistakes_have_their_line_and_nothing_is_made(operator):
    text = operator.file.read_text()
    operator.file.write_text(
        text.replace("hostname", "hostnmae").replace("cluster: cri", "cluster: cir")
    )
    said = operator.does("project", "apply", str(operator.file), code=2)
    assert "profan.yaml:6: unknown key ct.0.hostnmae (did you mean hostname?)" in said
    assert "profan.yaml:2: ct.0.hostname is missing" in said
    assert "profan.yaml:14: there is no site cir (did you mean cri?)" in said
    assert "is no project" in operator.does("project", "down", "profan", "--yes", code=2)
    assert "--site SITE, or --list" in operator.does("inventory", code=2)
