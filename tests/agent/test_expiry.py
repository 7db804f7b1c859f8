"""Leases end by the machine itself, whatever its clock does.  R-D4, R-D8."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from essaim.agent.common import Trouble
from essaim.agent.expiry import DAY, Clocks, agreed, checked_moment, last_day

YEAR = 365 * DAY
SECONDS = st.integers(1, 10**7)
SKEWS = st.integers(-5 * YEAR, 5 * YEAR)


@given(SECONDS, SKEWS, st.integers(0, 10**7), SKEWS)
def test_within_a_boot_only_the_time_that_passed_counts(length, skew, passed, jump):
    """Neither two clocks that differ by years nor one that is set make a lease longer."""
    server = 2_000_000_000
    term = agreed(server + length, server, Clocks("one", 500.0, server + skew))
    later = Clocks("one", 500.0 + passed, server + skew + passed + jump)
    assert term.left(later) == length - passed


@given(SECONDS, SKEWS, st.integers(0, 10**7), st.integers(0, 1000))
def test_after_a_boot_the_clock_counts(length, skew, passed, uptime):
    server = 2_000_000_000
    term = agreed(server + length, server, Clocks("one", 500.0, server + skew))
    assert term.left(Clocks("two", uptime, server + skew + passed)) == length - passed


@given(SECONDS, st.integers(0, 10**8), st.integers(1, YEAR))
def test_a_clock_that_lost_its_battery_makes_no_lease_last_for_ever(length, uptime, back):
    server = 2_000_000_000
    term = agreed(server + length, server, Clocks("one", 500.0, server))
    assert term.left(Clocks("two", uptime, server - back)) == length - uptime


def test_the_day_is_by_the_clock_of_the_machine():
    term = agreed(1000, 400, Clocks("one", 1.0, 1_700_000_000.0))
    assert last_day(term) == time.strftime("%Y-%m-%d", time.gmtime(1_700_000_600 + DAY))


def test_moments_no_lease_can_have_are_refused():
    checked_moment(2_000_000_000, 1_900_000_000)
    with pytest.raises(Trouble, match="within a hundred years"):
        checked_moment(10**11, 1_900_000_000)


def test_leases_that_are_over_are_reaped(box, lease):
    lease("l-over", seconds=-5)
    lease("l-later", seconds=600)
    assert box.helper("reap", {})["removed"] == ["l-over"]
    assert [one["account"] for one in box.helper("list", {})["accounts"]] == ["l-later"]
    assert box.helper("reap", {})["removed"] == []
    box.sh("test ! -e /var/lib/essaim-helper/terms/l-over")


@pytest.mark.parametrize("skew", [-YEAR, YEAR])
def test_a_machine_whose_clock_is_a_year_off_keeps_to_the_lease(box, lease, skew):
    """The server's clock says something else than the machine's, before and after."""
    server = int(time.time()) + skew
    account = lease("l-skewed", now=server, expires_at=server + 600)
    assert box.helper("reap", {})["removed"] == []
    assert box.ssh(account, "true").returncode == 0
    over = lease("l-over", now=server, expires_at=server - 1)
    assert box.helper("reap", {})["removed"] == [over]


def test_a_clock_that_jumps_shuts_nobody_out(box, lease):
    account = lease(seconds=600)
    # As if the clock had jumped over the day that the system knows.
    box.sh(f"usermod -e 2020-01-01 {account}")
    assert "Permission denied" in box.ssh(account, "true").stderr
    assert box.helper("reap", {})["removed"] == []
    assert box.ssh(account, "true").returncode == 0


def test_after_a_boot_the_machine_still_knows(box, lease):
    lease("l-over", seconds=600)
    lease("l-later", seconds=90_000)
    # As if it had been made at another boot, and the day were over.
    place = "/var/lib/essaim-helper/terms"
    script = f"""
import json
for account, wall in (("l-over", -1), ("l-later", 600)):
    import time
    path = "{place}/" + account
    term = json.load(open(path))
    term.update(boot_id="another", until_wall=time.time() + wall, made_wall=time.time() - 9)
    json.dump(term, open(path, "w"))
"""
    box.sh('python3 -c "$1"', script)
    assert box.helper("reap", {})["removed"] == ["l-over"]


def test_what_was_kept_is_lost_and_the_lease_still_ends(box, lease):
    """An account of somebody's own playbook, or a file that a power cut took."""
    account = lease(seconds=-5)
    box.sh(f"echo '{{' > /var/lib/essaim-helper/terms/{account}")
    assert box.helper("reap", {})["removed"] == []
    assert box.helper("reap", {})["removed"] == [account]


def test_extending_moves_the_end(box, lease):
    account = lease(seconds=-5)
    now = int(time.time())
    assert box.helper("expire", {"account": account, "expires_at": now + 600})["ok"]
    # The account itself still says the former end: what it says counts, for it is replaced whole.
    lease(account, seconds=600)
    assert box.helper("reap", {})["removed"] == []
    answer = box.helper("expire", {"account": "l-nobody1", "expires_at": now})
    assert "there is no account" in answer["error"]
