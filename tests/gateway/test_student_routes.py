"""Where the name of a student's machine leads, for whom, and when it leads nowhere."""

from __future__ import annotations

import socket

import pytest

import filed
from essaim.gateway import student_routes
from essaim.gateway.plane import PlaneRoutes
from essaim.gateway.routes import SessionStart, is_node, split, student_of
from essaim.gateway.sentences import RefusedError, sentence
from essaim.model.errors import TransientError
from essaim.model.stacks import Site
from essaim.plan.rosters import Access, Standing
from essaim.store.leases import Leases
from essaim.store.visits import Visits
from essaim.usecases import classes, seats
from schoolplane import Plane, people, plane, roster

KEY = filed.HOST_KEY
NETMAP = {"10.60.0.0/20": "127.60.0.0/20"}
SITE = Site(name="pve", driver="proxmox", settings={"netmap": NETMAP})


class Here:
    """A school with alice, whose machine is there, and what the gateway is told of it."""

    def __init__(self, made: Plane) -> None:
        self.plane = made
        made.visits = Visits(made.database)
        made.leases = Leases(made.database)
        self.routes = PlaneRoutes(made)
        made.apply(roster(site=SITE), people("alice", "bob"))
        self.alice = made.user("alice")
        for student, code in classes.invite(made, "promo"):
            if student.login == "alice":
                seats.claim(made, self.alice, code)
        seats.put_key(made, self.alice, "promo", "alice", KEY)
        made.settle("alice")

    def route(self, name: str = "promo.alice"):
        return self.routes.lease(name)


@pytest.fixture
def here(tmp_path):
    with plane(f"sqlite:///{tmp_path}/essaim.db", tmp_path / "site") as made:
        yield Here(made)


def test_a_student_is_led_to_their_own_account_on_their_own_machine(here):
    route = here.route()
    assert (route.account, route.node, route.keys) == ("alice", "promo/alice", (KEY,))
    assert (route.address, route.port) == ("127.60.0.10", 22)
    assert route.host_key == filed.HOST_KEY


def test_nobody_is_led_anywhere_whose_key_is_unknown_or_who_is_not_there(here):
    for name in ("promo.bob", "promo.nobody", "nowhere.alice", "promo.", ".alice", "promo/alice"):
        assert here.route(name) is None, name
        assert here.routes.refusal(name) is None


def test_a_disabled_account_opens_nothing(here):
    here.plane.people.change("alice", {"disabled": True})
    assert here.route() is None


@pytest.mark.parametrize("standing", [Standing.RETIRED, Standing.WITHOUT])
def test_a_machine_that_was_taken_away_or_given_back_opens_to_nobody(here, standing):
    here.plane.rosters.stand("promo/alice", standing)
    assert here.route() is None
    assert here.routes.refusal("promo.alice") is None


def test_one_that_was_stopped_says_so_at_once(here):
    here.plane.rosters.halt("promo/alice", on=False)
    route = here.route()
    assert (route.node, route.waits, route.final) == ("", "stopped", True)
    assert "votre machine est éteinte" in sentence(route.waits, lease="promo.alice")


def test_one_without_an_account_says_so_and_one_that_is_being_made_is_waited_for(here):
    here.plane.rosters.access.put("promo/alice", Access(error="no sshd there"))
    assert (here.route().waits, here.route().final) == ("no_account", True)
    here.plane.site.driver.file.with_suffix(".down").touch()
    seats.act(here.plane, here.alice, "promo", "alice", "start")
    assert (here.route().waits, here.route().final) == ("preparing", False)
    here.plane.site.driver.file.with_suffix(".down").unlink()
    here.plane.settle("alice")
    assert here.route().node == "promo/alice"


def test_what_does_not_answer_is_looked_at_and_said(here, monkeypatch):
    name = filed.MachineName("promo", "alice")
    with socket.socket() as refusing:
        refusing.bind(("127.60.0.10", 0))  # and does not listen
        monkeypatch.setattr(student_routes, "SSH", refusing.getsockname()[1])
        route = here.route()
        here.plane.site.driver.stop(name)
        with pytest.raises(RefusedError, match="your machine is stopped: essaim mine start"):
            route.dial()
        here.plane.site.driver.start(name)
        with pytest.raises(TransientError, match=r"promo/alice at 127\.60\.0\.10: .* refused"):
            route.dial()


def test_visits_are_recorded_by_the_machines_name(here):
    came = SessionStart(
        account="promo.alice", node="promo/alice", client="192.0.2.1", key="SHA256:x", started_at=0
    )
    here.routes.closed(here.routes.opened(came), 1, 2)
    here.routes.turned_away(came)
    strange = SessionStart(
        account="promo.zed", node="", client="192.0.2.1", key="SHA256:x", started_at=0
    )
    here.routes.turned_away(strange)
    assert [visit.lease for visit in here.plane.visits.list()] == ["promo.alice"] * 2


@pytest.mark.parametrize(
    ("name", "means"),
    [
        ("promo.alice", ("promo", "alice")),
        ("promo.al.ice_x-1", ("promo", "al.ice_x-1")),
        ("promo.2", ("promo", "2")),
        ("node-lab.alice", ("node-lab", "alice")),
        ("l-3k9x2m7q", None),
        ("l-3k9x2m7q.2", None),
        ("promo", None),
        ("Promo.alice", None),
        ("promo..alice", None),
        ("promo.alice\n", None),
        ("../promo.alice", None),
    ],
)
def test_names_are_told_apart(name, means):
    assert student_of(name) == means
    if means:
        assert split(name) == (name, 1)
        assert not is_node(name)
