"""Long lists come in pages that neither repeat nor miss anything."""

from __future__ import annotations

import re

import pytest

from api.rig import is_problem
from essaim.model.fleet import Role


@pytest.fixture
def admin(here):
    return here.plane.token(here.plane.user("root", Role.ADMIN))


def walk(here, path: str, token: str, between=lambda: None) -> list[list[dict]]:
    pages = []
    while path:
        answer = here.ask("GET", path, token)
        assert answer.status_code == 200
        pages.append(answer.json())
        link = re.fullmatch(r'<(/.*)>; rel="next"', answer.headers.get("link", ""))
        path = link[1] if link else ""
        between()
    return pages


def test_people_come_by_name(here, admin):
    for name in ("eve", "ada", "bob"):
        here.plane.user(name)
    pages = walk(here, "/api/users?limit=2", admin)
    assert [[user["name"] for user in page] for page in pages] == [["ada", "bob"], ["eve", "root"]]


def test_nodes_come_by_name_and_may_share_it(here, admin):
    ids = {here.plane.join(name)[0] for name in ("b", "a", "c", "a/1", "d")}
    pages = walk(here, "/api/nodes?limit=2", admin)
    assert [len(page) for page in pages] == [2, 2, 1]
    nodes = [node for page in pages for node in page]
    assert {node["id"] for node in nodes} == ids
    assert [node["name"] for node in nodes] == sorted(node["name"] for node in nodes)


def test_leases_come_newest_first_and_new_ones_shift_nothing(here, admin):
    made = [here.rent(admin, patience=0).json()["id"] for _ in range(5)]
    pages = walk(here, "/api/leases?all=true&limit=2", admin, lambda: here.rent(admin, patience=0))
    seen = [lease["id"] for page in pages for lease in page]
    assert len(seen) == len(set(seen))
    assert set(seen) == set(made)


def test_a_list_that_fits_has_no_link(here, admin):
    assert "link" not in here.ask("GET", "/api/users", admin).headers


@pytest.mark.parametrize("limit", ["0", "501", "-1", "x", ""])
def test_limits_have_limits(here, admin, limit):
    is_problem(here.ask("GET", f"/api/nodes?limit={limit}", admin), 422, "invalid")
