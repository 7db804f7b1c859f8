"""What the images of the deployment are given to install."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from essaim_lab.deployment.images import unconditional

LOCK = """\
one==1.0 ; python_full_version < '3.11.3' \\
    --hash=sha256:aa
two==1.0 ; python_full_version < '3.12' \\
    --hash=sha256:bb
two==2.0 ; python_full_version >= '3.12' \\
    --hash=sha256:cc
three==1.0 \\
    --hash=sha256:dd
"""


def test_a_package_is_taken_whatever_its_condition_unless_there_are_two_versions_of_it():
    assert unconditional(LOCK) == LOCK.replace(" ; python_full_version < '3.11.3' ", " ")


def test_nothing_in_the_lock_file_contradicts_itself():
    lock = (Path(__file__).parents[2] / "requirements.lock").read_text()
    pins = re.findall(r"^([\w.-]+)==\S+ (;?)", unconditional(lock), re.MULTILINE)
    assert len(pins) > 50
    count = Counter(name for name, condition in pins if not condition)
    assert {name for name, often in count.items() if often > 1} == set()
    assert {name for name, condition in pins if condition}.isdisjoint(count)
