"""A stream tells what happens to one's leases, and goes on after a break."""

from __future__ import annotations

import contextlib
import json

from api.rig import is_problem
from essaim.model.fleet import LeaseState


@contextlib.contextmanager
def listening(here, token: str, last: str = ""):
    headers = {"Authorization": f"Bearer {token}"}
    if last:
        headers["Last-Event-ID"] = last
    with here.client.stream("GET", "/api/events", headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield events(answer.iter_lines())


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


def test_changes_are_told_as_they_happen_and_only_to_the_owner(here):
    plane = here.plane
    ada, eve = plane.user("ada"), plane.user("eve")
    token = plane.token(ada)
    here.rent(plane.token(eve), patience=0)
    first = here.rent(token, patience=0).json()["id"]
    with listening(here, token) as told:
        kind, _id, lease = next(told)
        assert (kind, lease["id"], lease["state"]) == ("lease", first, "queued")
        here.ask("POST", "/api/release", token, json={"lease": first})
        _kind, _id, lease = next(told)
        assert (lease["id"], lease["state"]) == (first, "ended")
        second = here.rent(token, patience=0).json()["id"]
        _kind, _id, lease = next(told)
        assert (lease["id"], lease["state"]) == (second, "queued")


def test_after_a_break_only_what_changed_is_told(here):
    plane = here.plane
    token = plane.token(plane.user("ada"))
    one, two = (here.rent(token, patience=0).json()["id"] for _ in range(2))
    with listening(here, token) as told:
        next(told)
        _kind, last, _lease = next(told)
    plane.leases.move(one, LeaseState.FAILED, of=[LeaseState.QUEUED])
    with listening(here, token, last) as told:
        _kind, last, lease = next(told)
        assert (lease["id"], lease["state"]) == (one, "failed")
        assert two in last


def test_a_stream_ends_with_its_session(here):
    plane = here.plane
    token, sid = plane.session(plane.user("ada"))
    with listening(here, token) as told:
        plane.people.revoke(sid)
        assert [kind for kind, _id, _data in told] == ["end"]


def test_strangers_hear_nothing(here):
    is_problem(here.client.get("/api/events"), 401, "unauthorised")


def test_an_id_that_is_none_of_ours_is_no_matter(here):
    token = here.plane.token(here.plane.user("ada"))
    lease = here.rent(token, patience=0).json()["id"]
    with listening(here, token, "17; drop table") as told:
        assert next(told)[2]["id"] == lease
