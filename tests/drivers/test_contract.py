"""The sandbox keeps every promise of a driver, with and without privileges."""

from __future__ import annotations

import pytest

from drivers.contract import CHECKS

NAMES = [check.__name__ for check in CHECKS]


@pytest.mark.parametrize("check", CHECKS, ids=NAMES)
def test_as_whoever_runs_this(it, check):  # R-A3
    check(it)


@pytest.mark.root
@pytest.mark.parametrize("check", NAMES)
def test_as_a_plain_user(somebody, their_rootfs, check):  # R-A3
    done = somebody.run_python("-m", "drivers.contract", check, str(their_rootfs))
    assert done.returncode == 0, done.stdout + done.stderr
