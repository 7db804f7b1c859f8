"""Whatever fails is told the same way (RFC 9457)."""

from __future__ import annotations

import pytest

from api.rig import PASSWORD, is_problem, world
from essaim.model.errors import TransientError
from essaim.model.fleet import Role
from essaim.model.words import WORDS

ADA = {"name": "ada", "password": PASSWORD}


def test_paths_and_methods_that_are_not_there(here):
    is_problem(here.client.get("/api/nothing"), 404, "unknown")
    answer = here.client.delete("/api/login")
    is_problem(answer, 405, "method")
    assert answer.headers["allow"] == "POST"


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"",
        b'"\xff\xfe"',
        b'{"name": "ada"}',
        b'{"name": "ada", "password": "secret sentence", "more": 1}',
        b'{"name": "ada", "password": ["secret sentence"]}',
        b'{"name": "a\\u0000da", "password": "secret sentence"}',
        b'{"name": "\\ud800", "password": "secret sentence"}',
        b'{"name": "ada", "password": "secret sentence", "\\ud800": 1}',
        b'{"name": NaN, "password": "secret sentence"}',
        b"[" * 30_000,
    ],
)
def test_what_cannot_be_meant_is_refused_and_not_repeated(here, body):
    answer = here.client.post(
        "/api/login", content=body, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code in (400, 422)
    problem = is_problem(answer, answer.status_code, answer.json()["code"])
    assert "secret sentence" not in str(problem)


def test_a_validation_error_says_where(here):
    problem = is_problem(here.client.post("/api/login", json={"name": "ada"}), 422, "invalid")
    assert problem["errors"] == [{"where": "body.password", "what": "is missing"}]
    assert problem["detail"] == "password: is missing"


def test_no_regular_expression_and_no_power_of_ten_is_told(here):
    long = {"where": "body.name", "what": "is not written as it must be; see its examples"}
    problem = is_problem(
        here.client.post("/api/signup", json={"name": "Ada!", "password": "x" * 20}), 422, "invalid"
    )
    assert problem["errors"] == [long]
    from essaim.api.problems import _wrong
    from essaim.usecases.people import MOST_HOURS

    much = {"loc": ("body", "hours"), "type": "less_than_equal", "ctx": {"le": MOST_HOURS}}
    assert _wrong({**much, "msg": "1e+09"}).what == "must be 1000000000 or less"


def test_a_use_case_s_own_objections_are_told_too(here):
    answer = here.client.post("/api/signup", json={**ADA, "name": "Ada!"})
    assert is_problem(answer, 422, "invalid")["errors"]
    is_problem(here.client.post("/api/signup", json={**ADA, "password": "short"}), 409, "weak")
    assert here.client.post("/api/signup", json=ADA).status_code == 201
    is_problem(here.client.post("/api/signup", json=ADA), 409, "taken")


def test_a_body_that_is_not_json_is_refused(here):
    answer = here.client.post("/api/login", data={"name": "ada", "password": PASSWORD})
    is_problem(answer, 422, "invalid")


def test_large_bodies_are_refused_however_they_come(here):
    large = b" " * (64 * 1024 + 1)
    is_problem(here.client.post("/api/login", content=large), 413, "too-large")
    pieces = (b" " * 1024 for _ in range(100))
    is_problem(here.client.post("/api/login", content=pieces), 413, "too-large")
    assert here.client.get("/healthz").status_code == 200


def test_a_database_that_is_away_is_said_so_and_strangers_hear_no_more(here, monkeypatch, caplog):
    def away():
        raise TransientError("db.internal: essaim refused", hint="wait")

    monkeypatch.setattr(here.plane.fleet, "now", away)
    answer = here.client.get("/readyz")
    is_problem(answer, 503, "transient")
    assert "db.internal" not in answer.text
    assert "db.internal" in caplog.text
    assert answer.headers["retry-after"] == "1"
    assert here.client.get("/healthz").status_code == 200


def test_a_mistake_of_ours_tells_nothing_of_itself(here, monkeypatch):
    def broken():
        raise RuntimeError("the password is hunter2")

    monkeypatch.setattr(here.plane.fleet, "now", broken)
    answer = here.client.get("/readyz")
    is_problem(answer, 500, "error")
    assert "hunter2" not in answer.text


@pytest.mark.parametrize("after", ["x", "e30=", "W10=", "WzFd", "WyJhIl0=", "\xe9"])
def test_a_place_that_no_page_gave_is_refused(here, after):
    admin = here.plane.token(here.plane.user("root", Role.ADMIN))
    for path in ("/api/users", "/api/nodes", "/api/leases"):
        answer = here.ask("GET", path, admin, params={"after": after})
        assert answer.status_code in (200, 422), path
        if answer.status_code == 422:
            is_problem(answer, 422, "invalid")


def test_the_limit_on_bodies_is_an_option(new_database):
    with world(new_database("sqlite"), most_bytes=10) as there:
        is_problem(there.client.post("/api/login", json=ADA), 413, "too-large")


@pytest.mark.parametrize(
    ("asked", "title", "language"),
    [
        ("", "Not Found", "en"),
        ("de, en;q=0.5", "Not Found", "en"),
        ("fr-FR, en;q=0.5", "Introuvable", "fr, en"),
    ],
)
def test_a_problem_s_title_is_in_the_language_asked_for(here, asked, title, language):  # R-D2
    headers = {"Accept-Language": asked}
    token = here.plane.token(here.plane.user("ada"))
    for path in ("/api/nothing", "/api/leases/l-00000000"):
        answer = here.ask("GET", path, token, headers=headers)
        assert is_problem(answer, 404, "unknown")["title"] == title
        assert answer.headers["content-language"] == language


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 409, 413, 422, 429, 500, 503])
def test_every_status_we_answer_with_has_a_title_in_both_languages(status):
    assert len(WORDS[f"problem.{status}"]) == 2
