"""Who logs in to Guacamole finds their machine on: a simulator of Guacamole, machines of files."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from essaim.controllers import schooling_wake
from essaim.controllers.schooling import Schooling
from essaim.controllers.schooling_wake import BELOW, LATE, Kept, Seen, Waking, begun, kept_from
from essaim.model.machines import Power
from essaim.model.stacks import Site
from essaim.servers.guacamole import Guacamole, Settings
from essaim.usecases import classes
from essaim_lab.simulators.guacamole import Simulator
from schoolplane import people, plane, roster


@dataclass
class LogIn:
    number: int
    person: str = "alice"
    ago: float = 0.0


def these(*numbers: int) -> list[LogIn]:
    return [LogIn(number) for number in numbers]


def test_each_log_in_is_new_once_in_whatever_order_it_shows_up():
    seen = begun(these(7, 9, 8))
    assert seen.fresh(these(9, 8, 7)) == []
    assert [each.number for each in seen.fresh(these(12, 10, 9))] == [12, 10]
    seen = seen.and_these(these(12, 10, 9))
    # 11 was given out before 12 and is seen after it.
    assert [each.number for each in seen.fresh(these(12, 11, 10))] == [11]
    seen = seen.and_these(these(12, 11, 10))
    assert seen.fresh(these(12, 11, 10)) == []
    assert kept_from(Kept(seen, {"promo/alice": 5}).text()) == Kept(seen, {"promo/alice": 5})


def test_what_is_remembered_stays_small_and_survives_a_new_database():
    seen = begun([]).and_these(these(1_000_000))
    assert len(seen.missing) == BELOW
    assert seen.and_these([]) == seen
    # Numbers begin anew: what is there by then is not new, what comes after it is.
    anew = seen.and_these(these(1, 2))
    assert anew == Seen(2)
    assert [each.number for each in anew.fresh(these(3, 2, 1))] == [3]


@pytest.fixture
def guacamole():
    with Simulator() as running:
        yield running


@pytest.fixture
def school(new_database, tmp_path, guacamole):
    """A class of three with desktops in Guacamole, whose machines are off; eve is retired."""
    with plane(new_database("sqlite"), tmp_path / "site") as made:
        desktops = Guacamole(
            Settings(
                url=guacamole.url,
                user=guacamole.user,
                secret=guacamole.secret,
                ca=str(guacamole.ca),
            )
        )
        made.desktops = lambda _site: desktops
        site = Site(name="pve", driver="proxmox", settings={"desktop": {"wake": True}})
        made.apply(roster(site=site), people("alice", "bob", "eve"))
        for verb, logins in (("stop", ()), ("retire", ["eve"])):
            assert made.courier.wait(classes.power(made, "promo", verb, logins), timeout=120)
        Waking(made).look()
        yield made
        desktops.close()


def on(school) -> set[str]:
    """Whose machine runs, once nothing is done with any."""
    for login in ("alice", "bob", "eve"):
        school.settle(login)
    seen = school.site.driver.observe("promo")
    return {each.name.machine for each in seen if each.power is Power.ON}


def test_who_logs_in_has_their_machine_started_once(school, guacamole):
    waking, before = Waking(school), guacamole.calls["GET", "history"]
    # As Guacamole may spell it; eve is retired, mallory is on no roster.
    for person in ("Alice", "eve", "mallory", "alice"):
        guacamole.log_in(person)
    waking.look()
    assert on(school) == {"alice"}
    run = school.journal.get(school.rosters.students("promo")["alice"].run)
    assert (run.workflow, run.who) == ("wake", "alice (desktop)")
    # Switched off while they are logged in, it stays off; another log-in is another.
    assert school.courier.wait(classes.power(school, "promo", "stop", ["alice"]), timeout=120)
    waking.look()
    assert on(school) == set()
    guacamole.log_in("alice")
    Schooling(school).reconcile()
    assert on(school) == {"alice"}
    assert guacamole.calls["GET", "history"] - before == 3


def test_clocks_that_differ_and_log_ins_of_long_ago_do_no_harm(school, guacamole):
    waking = Waking(school)
    guacamole.state.ahead = -86_400.0
    guacamole.log_in("alice")
    waking.look()
    assert on(school) == {"alice"}
    # While no control plane looked: nobody waits in front of the screen any more.
    guacamole.log_in("bob")
    guacamole.state.logins[-1]["startDate"] -= (LATE + 1) * 1000
    waking.look()
    waking.look()
    assert on(school) == {"alice"}


def test_a_control_plane_that_dies_in_between_loses_nobody(school, guacamole, monkeypatch):
    with monkeypatch.context() as patched:

        def dies(*_args, **_words):
            raise KeyboardInterrupt

        patched.setattr(schooling_wake.seats, "begin", dies)
        guacamole.log_in("bob")
        with pytest.raises(KeyboardInterrupt):
            Waking(school).look()
    guacamole.log_in("alice")
    Waking(school).look()
    assert on(school) == {"alice", "bob"}


def test_who_logs_in_while_their_machine_is_being_stopped_gets_it_back(school, guacamole):
    run = school.rosters.students("promo")["alice"].run
    school.rosters.working({"promo/alice": _moving(school)})
    guacamole.log_in("alice")
    Waking(school).look()
    school.rosters.working({"promo/alice": run})
    assert on(school) == set()
    Waking(school).look()
    assert on(school) == {"alice"}


def _moving(school) -> str:
    """A run that nobody carries: the courier looks every second, and must find nothing due."""
    from essaim.model.runs import NewRun

    about = {"workflow": "halt", "subject": "promo/alice", "input": {}}
    first = NewRun(id="halt-x", waits_for=("halt-y",), **about)
    school.journal.add([first, NewRun(id="halt-y", waits_for=("halt-x",), **about)])
    return "halt-x"


def test_a_gateway_that_does_not_answer_is_told_once(school, guacamole, caplog):
    waking = Waking(school)
    guacamole.fault(503, times=2)
    waking.look()
    waking.look()
    assert len(caplog.records) == 1
    assert "who logs in to the desktops of pve: Guacamole at" in caplog.text
    guacamole.log_in("alice")
    waking.look()
    assert on(school) == {"alice"}
