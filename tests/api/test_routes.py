"""What single routes do beyond what the authorisation matrix sees."""

from __future__ import annotations

import base64
import json

import pytest

from api.rig import is_problem, wait_for
from api.test_pages import walk
from essaim.model.fleet import Role, Wish


@pytest.fixture
def admin(here):
    return here.plane.token(here.plane.user("root", Role.ADMIN))


@pytest.fixture
def ada(here):
    return here.plane.token(here.plane.user("ada"))


def test_one_may_ask_who_one_is(here, ada):
    me = here.ask("GET", "/api/me", ada).json()
    assert (me["name"], me["role"], me["machines"]) == ("ada", "member", 1000)


def test_projects_get_limits_and_keep_what_is_not_named(here, admin):  # R-D2
    path = "/api/projects/compilers"
    assert here.ask("PATCH", path, admin, json={"machines": 40, "hours": 10}).status_code == 200
    changed = here.ask("PATCH", path, admin, json={"hours": 20}).json()
    assert changed == {"name": "compilers", "machines": 40, "hours": 20.0}
    assert here.ask("GET", "/api/projects", admin).json() == [changed]
    is_problem(here.ask("PATCH", path, admin, json={"hours": -1}), 422, "invalid")
    is_problem(here.ask("PATCH", "/api/projects/No!", admin, json={}), 422, "invalid")


def test_a_removed_node_is_gone_and_its_agent_refused(here, admin):  # R-D6
    node, credential = here.plane.join("pc-1")
    assert here.ask("DELETE", f"/api/nodes/{node}", admin).status_code == 204
    is_problem(here.ask("DELETE", f"/api/nodes/{node}", admin), 404, "unknown")
    beat = {"boot_id": "boot", "seq": 1}
    answer = here.ask("POST", "/api/workers/heartbeat", credential, json=beat)
    is_problem(answer, 401, "unauthorised")


def test_a_node_with_a_lease_is_not_removed(here, admin, ada):
    node = here.plane.ready("pc-1")
    here.rent(ada)
    is_problem(here.ask("DELETE", f"/api/nodes/{node}", admin), 409, "rejected")


def test_a_key_serves_one_wish(here, ada):  # R-D2
    first = here.rent(ada, key="k1", patience=0).json()["id"]
    assert here.rent(ada, key="k1", patience=0).json()["id"] == first
    is_problem(here.rent(ada, key="k1", patience=0, count=2), 409, "conflict")
    is_problem(here.rent(ada, key="k1", patience=0, home=False), 409, "conflict")


def test_a_failed_lease_is_held_and_then_given_back(here, ada):  # R-D4
    here.plane.ready("pc-1")
    lease = here.rent(ada, hold=600).json()
    assert (lease["wish"]["hold"], lease["wish"]["home"]) == (600, True)
    body = {"lease": lease["id"], "failed": True}
    held = here.ask("POST", "/api/release", ada, json=body).json()
    assert (held["state"], held["held_at"] is not None) == ("active", True)
    assert here.ask("POST", "/api/release", ada, json=body).json()["state"] == "ending"
    path = f"/api/leases/{lease['id']}"
    wait_for(lambda: here.ask("GET", path, ada).json()["state"] == "ended")


def test_a_lease_that_lasts_too_long_is_refused_with_the_date(here, ada):
    here.plane.ready("pc-1")
    lease = here.rent(ada).json()["id"]
    answer = here.ask("POST", "/api/extend", ada, json={"lease": lease, "seconds": 180 * 24 * 3600})
    assert "at the latest" in is_problem(answer, 409, "rejected")["detail"]


def test_visits_come_newest_first_in_pages(here, ada):  # R-D4
    here.plane.ready("pc-1")
    lease = here.rent(ada).json()
    visits, node = here.plane.visits, lease["nodes"][0]
    made = [
        visits.opened(lease=lease["id"], node=node, client=f"192.0.2.{number}", key="SHA256:x")
        for number in range(5)
    ]
    visits.closed(made[0], 10, 20)
    pages = walk(here, f"/api/leases/{lease['id']}/visits?limit=2", ada)
    assert [len(page) for page in pages] == [2, 2, 1]
    seen = {visit["id"]: visit for page in pages for visit in page}
    assert set(seen) == set(made)
    first = seen[made[0]]
    assert (first["bytes_in"], first["bytes_out"], first["refused"]) == (10, 20, "")
    assert first["closed_at"] >= first["opened_at"]
    assert seen[made[1]]["closed_at"] is None
    assert [visit["opened_at"] for page in pages for visit in page] == sorted(
        (visit["opened_at"] for visit in seen.values()), reverse=True
    )


@pytest.mark.parametrize("place", [[1, "l-\x00"], [2**70, "l-1"], ["x", "l-1"], [True], [1.5, "a"]])
def test_a_place_that_no_lease_has_is_refused(here, ada, place):
    after = base64.urlsafe_b64encode(json.dumps(place).encode()).decode()
    is_problem(here.ask("GET", f"/api/leases?after={after}", ada), 422, "invalid")


def test_a_list_of_leases_does_not_stop_at_a_thousand(here, admin):
    plane = here.plane
    root, _hash = plane.people.find("root")
    for _ in range(1001):
        plane.leases.release(plane.leases.rent(root.id, Wish(), "ssh-ed25519 AAAA").id)
    pages = walk(here, "/api/leases?limit=500", admin)
    assert [len(page) for page in pages] == [500, 500, 1]
