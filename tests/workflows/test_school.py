"""Workflows of students' machines pass the generic suite.

R-B5, R-C2: each step twice, failure at each step, kill -9 at each step; a row that must fail leaves
no machine, no name, no address, no desktop; a student's work is never undone.
"""

from __future__ import annotations

import json

import pytest

from patience import EVERYTHING
from workflows import school
from workflows.generic import check_workflow, every_trial

#: What is tried by default, where it costs least: the others are made of the same steps.
USUAL = [
    ("sqlite", "enrol", "failures"),
    ("sqlite", "enrol", "kills"),
    ("sqlite", "mend", "failures"),
    ("sqlite", "wake, another key", "kills"),
]
TRIALS = every_trial(school.SCHOOL) if EVERYTHING else USUAL


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("kind", "name", "part"), TRIALS)
def test_nothing_is_doubled_and_nothing_left(kind, name, part, new_database, tmp_path):
    url = new_database(kind)
    (tmp_path / "rig.json").write_text(json.dumps({"url": url}))
    check_workflow(school.SCHOOL[name], url, tmp_path, [part])
