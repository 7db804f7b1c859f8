"""A stream tells what happens to one's leases, and goes on after a break without loss."""

from __future__ import annotations

import contextlib
import json

import pytest

from api.rig import is_problem
from essaim.model.fleet import LeaseState, Role


@contextlib.contextmanager
def listening(here, token: str, last: str = "", **query):
    headers = {"Authorization": f"Bearer {token}"}
    if last:
        headers["Last-Event-ID"] = last
    with here.client.stream("GET", "/api/events", headers=headers, params=query) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.iter_lines()
        begun = [next(lines), next(lines), next(lines)]
        assert begun[0].startswith("retry: ")
        assert begun[1].startswith("id: ")
        yield events(lines)


def events(lines):
    event: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            event[name] = value
        elif "event" in event:
            yield event["event"], event.get("id", ""), json.loads(event["data"])
            event = {}
        else:
            event = {}


def test_changes_are_told_as_they_happen_and_only_to_the_owner(here):  # R-D2
    plane = here.plane
    ada, eve = plane.user("ada"), plane.user("eve")
    token = plane.token(ada)
    before = here.rent(token, patience=0).json()["id"]
    with listening(here, token) as told:
        here.rent(plane.token(eve), patience=0)
        here.ask("POST", "/api/release", token, json={"lease": before})
        kind, number, event = next(told)
        assert (kind, event["kind"], event["lease"]) == ("lease.ended", kind, before)
        assert (event["user"], event["urgent"], str(event["id"])) == (ada.id, False, number)
        assert event["at"].startswith("20")
        second = here.rent(token, patience=0).json()["id"]
        kind, later, event = next(told)
        assert (kind, event["lease"]) == ("lease.queued", second)
        assert int(later) > int(number)


def test_a_lease_tells_its_whole_life(here):  # R-D2
    plane = here.plane
    plane.ready("pc-1")
    token = plane.token(plane.user("ada"))
    with listening(here, token) as told:
        lease = here.rent(token).json()["id"]
        here.ask("POST", "/api/release", token, json={"lease": lease})
        kinds = [next(told)[0] for _ in range(4)]
    assert kinds == ["lease.granted", "lease.active", "lease.ending", "lease.ended"]


def test_after_a_break_nothing_is_missing_and_nothing_is_told_twice(here):  # R-D2
    plane = here.plane
    token = plane.token(plane.user("ada"))
    one, two = (here.rent(token, patience=0).json()["id"] for _ in range(2))
    with listening(here, token, "0") as told:
        _kind, last, event = next(told)
        assert event["lease"] == one
    plane.leases.move(one, LeaseState.FAILED, of=[LeaseState.QUEUED], reason="no luck")
    with listening(here, token, last) as told:
        assert next(told)[2]["lease"] == two
        kind, last, event = next(told)
        assert (kind, event["lease"], event["urgent"]) == ("lease.failed", one, True)
        assert event["text"] == "no luck"
    with listening(here, token, last, follow="false") as told:
        assert list(told) == []


def test_one_may_ask_for_what_was_and_then_go(here):
    plane = here.plane
    token = plane.token(plane.user("ada"))
    for number in range(450):
        plane.events.tell("lease.warning", str(number), user=plane.people.find("ada")[0].id)
    with listening(here, token, "0", follow="false") as told:
        assert [event["text"] for _kind, _id, event in told] == [str(n) for n in range(450)]


def test_operators_may_hear_everything_and_members_may_not(here):  # R-D2
    plane = here.plane
    here.rent(plane.token(plane.user("ada")), patience=0)
    plane.ready("pc-1")
    operator = plane.token(plane.user("olga", Role.OPERATOR))
    with listening(here, operator, "0", all="true", follow="false") as told:
        assert [kind for kind, _id, _event in told][:3] == [
            "lease.queued",
            "node.joined",
            "node.ready",
        ]
    with listening(here, operator, "0", follow="false") as told:
        assert list(told) == []
    member = plane.token(plane.user("mia"))
    is_problem(here.ask("GET", "/api/events?all=true", member), 403, "forbidden")


def test_a_stream_ends_with_its_session(here):
    plane = here.plane
    token, sid = plane.session(plane.user("ada"))
    with listening(here, token) as told:
        plane.people.revoke(sid)
        assert [kind for kind, _id, _data in told] == ["end"]


def test_strangers_hear_nothing(here):
    is_problem(here.client.get("/api/events"), 401, "unauthorised")


@pytest.mark.parametrize("last", ["17; drop table", "-1", "9" * 40])
def test_an_id_that_is_none_of_ours_is_no_matter(here, last):
    token = here.plane.token(here.plane.user("ada"))
    here.rent(token, patience=0)
    with listening(here, token, last, follow="false") as told:
        assert list(told) == []
