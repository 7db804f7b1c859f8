"""Who may do what: every route, every kind of caller (R-D2)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from api.rig import KEY, PASSWORD, is_problem, routes, world
from essaim.api.app import create_app
from essaim.model.fleet import NodeState, Role, Scope
from essaim.usecases import people
from essaim.usecases.api_tokens import create_token
from essaim.usecases.credentials import digest, hash_password, new_token

#: Who does not show, or no longer has, a session.
NOBODY = ("stranger", "forged", "expired", "revoked", "disabled", "node")
SOMEBODY = ("other", "member", "operator", "admin")
#: Programs of the administrator's, by the scope of their token.
PROGRAMS = {f"token {scope}": scope for scope in Scope}
#: What a program that may do it is told like.
LIKE = {
    Scope.READ: "admin",
    Scope.RENT: "other",  # a member, who has no leases
    Scope.OPERATE: "operator",
    Scope.ADMIN: "admin",
}
#: For people alone.
PERSONAL = {
    ("POST", "/api/logout"),
    ("GET", "/api/sessions"),
    ("DELETE", "/api/sessions/{session_id}"),
    ("POST", "/api/tokens"),
    ("GET", "/api/tokens"),
    ("DELETE", "/api/tokens/{token_id}"),
    ("PUT", "/api/students/{roster}/{login}/key"),
}
RENTING = {("POST", f"/api/{verb}") for verb in ("rent", "extend", "release")}

CODES = {401: "unauthorised", 403: "forbidden", 404: "unknown"}


@dataclass
class Row:
    """A request, and what comes of it by caller; those not named count as `else_`."""

    path: Callable[[Cast], str] | None = None
    body: Callable[[Cast], dict] | None = None
    before: Callable[[Cast], None] = lambda _cast: None
    else_: int = 401
    says: dict[str, int] = field(default_factory=dict)


class Cast:
    """Everybody, a lease of the member's, and a node."""

    def __init__(self, plane) -> None:
        self.plane = plane
        self.numbers = itertools.count()
        plane.ready("machine-1")
        self.node, credential = plane.join("machine-2")
        users = {name: plane.user(name) for name in ("member", "other", "revoked", "disabled")}
        users["operator"] = plane.user("operator", Role.OPERATOR)
        users["admin"] = plane.user("admin", Role.ADMIN)
        users["expired"] = plane.user("expired", Role.ADMIN)
        self.tokens = {name: plane.token(user) for name, user in users.items()}
        self.tokens |= {"stranger": "", "node": credential}
        self.tokens["expired"] = plane.expired(users["expired"])
        self.tokens["forged"] = self.tokens["admin"][:-4] + "AAAA"
        token, sid = plane.session(users["revoked"])
        plane.people.revoke(sid)
        self.tokens["revoked"] = token
        plane.people.change("disabled", {"disabled": True})
        plane.user("waiting")
        for caller, scope in PROGRAMS.items():
            person = people.Session(users["admin"], fresh=True)
            self.tokens[caller], _ = create_token(plane, person, caller, scope)
        lease = people_rent(plane, users["member"])
        self.lease, self.run = lease.id, lease.run

    def join_spare(self) -> None:
        self.spare, _credential = self.plane.join(f"spare-{self.number()}")

    def join_waiting(self) -> None:
        self.spare, _credential = self.plane.join(f"spare-{self.number()}", approve=True)

    def number(self) -> int:
        return next(self.numbers)

    def wait_for_approval(self) -> None:
        self.plane.people.change("waiting", {"disabled": True, "pending": True})

    def make_invite(self) -> None:
        code = digest(new_token("invite"))
        self.invite = self.plane.invites.add(code, uses=1, seconds=60).id

    def quarantine(self) -> None:
        self.plane.fleet.move(self.node, NodeState.QUARANTINED, of=list(NodeState))

    def refresh_token(self) -> str:
        user, _hash = self.plane.people.find("admin")
        return people.begin_session(self.plane, user).refresh

    def spare_session(self) -> str:
        """A session of the administrator's that nobody uses."""
        admin, _hash = self.plane.people.find("admin")
        token = people.begin_session(self.plane, admin).access
        key = people.authenticate(self.plane, token).sid
        return next(each.id for each in self.plane.people.sessions(admin.id) if each.key == key)

    def spare_token(self) -> str:
        """An API token of the administrator's that nobody uses."""
        admin = people.Session(self.plane.people.find("admin")[0], fresh=True)
        return create_token(self.plane, admin, "spare", Scope.READ)[1].id

    def known(self) -> None:
        self.plane.people.change("other", {"password": hash_password(PASSWORD)})
        # A changed password ended the session.
        self.tokens["other"] = self.plane.token(self.plane.people.find("other")[0])


def people_rent(plane, user):
    from essaim.model.fleet import Wish
    from essaim.usecases.leases import rent

    return rent(plane, user, Wish(), KEY)


def all_of(status: int) -> dict[str, int]:
    return dict.fromkeys(SOMEBODY, status)


ANNOUNCED = {"cores": 1, "memory": 512, "tunnel": True}
OPERATORS = {"operator": 200, "admin": 200}
OWNER = {**all_of(200), "other": 404}

ROWS: dict[tuple[str, str], Row] = {
    ("GET", "/openapi.json"): Row(else_=200),
    ("GET", "/"): Row(else_=200),
    ("GET", "/docs"): Row(else_=200),
    ("GET", "/site/{name}"): Row(path=lambda _cast: "/site/site.css", else_=200),
    ("GET", "/bruno.zip"): Row(else_=200),
    ("GET", "/healthz"): Row(else_=200),
    ("GET", "/readyz"): Row(else_=200),
    ("GET", "/agent.py"): Row(else_=200),
    ("GET", "/ca.pem"): Row(else_=200),
    ("GET", "/metrics"): Row(says={**OPERATORS, "member": 403, "other": 403}),
    ("POST", "/api/signup"): Row(
        body=lambda cast: {"name": f"new-{cast.number()}", "password": PASSWORD}, else_=201
    ),
    ("POST", "/api/login"): Row(
        before=Cast.known, body=lambda _cast: {"name": "other", "password": PASSWORD}, else_=200
    ),
    ("POST", "/api/refresh"): Row(body=lambda cast: {"refresh": cast.refresh_token()}, else_=200),
    ("POST", "/api/logout"): Row(says=all_of(204)),
    ("GET", "/api/me"): Row(says=all_of(200)),
    ("GET", "/api/audit"): Row(says={**all_of(403), "admin": 200}),
    ("GET", "/api/audit/verify"): Row(says={**all_of(403), "admin": 200}),
    ("GET", "/api/sessions"): Row(says=all_of(200)),
    ("DELETE", "/api/sessions/{session_id}"): Row(
        path=lambda cast: f"/api/sessions/{cast.spare_session()}",
        says={**all_of(404), "admin": 204},
    ),
    ("POST", "/api/tokens"): Row(
        body=lambda _cast: {"name": "nightly", "scope": "operate"},
        says={**all_of(403), "operator": 201, "admin": 201},
    ),
    ("GET", "/api/tokens"): Row(says=all_of(200)),
    ("DELETE", "/api/tokens/{token_id}"): Row(
        path=lambda cast: f"/api/tokens/{cast.spare_token()}", says={**all_of(404), "admin": 204}
    ),
    ("GET", "/api/projects"): Row(says={**all_of(403), **OPERATORS}),
    ("PATCH", "/api/projects/{name}"): Row(
        path=lambda _cast: "/api/projects/compilers",
        body=lambda _cast: {"machines": 40},
        says={**all_of(403), "admin": 200},
    ),
    ("GET", "/api/users"): Row(says={**all_of(403), **OPERATORS}),
    ("PATCH", "/api/users/{name}"): Row(
        path=lambda _cast: "/api/users/other",
        body=lambda _cast: {"machines": 3},
        says={**all_of(403), "admin": 200},
    ),
    ("POST", "/api/users/{name}/approve"): Row(
        before=Cast.wait_for_approval,
        path=lambda _cast: "/api/users/waiting/approve",
        says={**all_of(403), "admin": 200},
    ),
    ("POST", "/api/invites"): Row(body=lambda _cast: {}, says={**all_of(403), "admin": 201}),
    ("GET", "/api/invites"): Row(says={**all_of(403), "admin": 200}),
    ("DELETE", "/api/invites/{invite}"): Row(
        before=Cast.make_invite,
        path=lambda cast: f"/api/invites/{cast.invite}",
        says={**all_of(403), "admin": 204},
    ),
    ("POST", "/api/enrolments"): Row(body=lambda _cast: {}, says={**all_of(403), "admin": 201}),
    ("GET", "/api/enrolments"): Row(says={**all_of(403), "admin": 200}),
    ("DELETE", "/api/enrolments/{enrolment_id}"): Row(
        path=lambda cast: f"/api/enrolments/{digest(cast.plane.enrolment())[:12]}",
        says={**all_of(403), "admin": 204},
    ),
    ("POST", "/api/nodes/{node_id}/approve"): Row(
        path=lambda cast: f"/api/nodes/{cast.spare}/approve",
        before=Cast.join_waiting,
        says={**all_of(403), "admin": 200},
    ),
    ("POST", "/api/workers/challenge"): Row(
        body=lambda cast: {"token": cast.plane.enrolment()}, else_=201
    ),
    ("POST", "/api/workers/register"): Row(
        body=lambda cast: {
            "token": cast.plane.enrolment(),
            "name": f"pc-{cast.number()}",
            "host_key": f"ssh-ed25519 {digest(str(cast.number()))}",
            **ANNOUNCED,
        },
        else_=201,
    ),
    ("POST", "/api/workers/heartbeat"): Row(
        body=lambda cast: {"boot_id": "boot", "seq": cast.number()},
        says={**all_of(401), "node": 200},
    ),
    ("GET", "/api/nodes"): Row(says=all_of(200)),
    ("GET", "/api/nodes/{node_id}"): Row(
        path=lambda cast: f"/api/nodes/{cast.node}", says=all_of(200)
    ),
    ("DELETE", "/api/nodes/{node_id}"): Row(
        path=lambda cast: f"/api/nodes/{cast.spare}",
        before=Cast.join_spare,
        says={**all_of(403), "admin": 204},
    ),
    ("POST", "/api/nodes/{node_id}/drain"): Row(
        path=lambda cast: f"/api/nodes/{cast.node}/drain", says={**all_of(403), **OPERATORS}
    ),
    ("POST", "/api/nodes/{node_id}/readmit"): Row(
        path=lambda cast: f"/api/nodes/{cast.node}/readmit",
        before=Cast.quarantine,
        says={**all_of(403), **OPERATORS},
    ),
    ("POST", "/api/rent"): Row(
        body=lambda _cast: {"public_key": KEY, "patience": 0, "cores": 2}, says=all_of(202)
    ),
    ("POST", "/api/extend"): Row(
        body=lambda cast: {"lease": cast.lease, "seconds": 60}, says=OWNER
    ),
    ("POST", "/api/release"): Row(body=lambda cast: {"lease": cast.lease}, says=OWNER),
    ("GET", "/api/leases"): Row(says=all_of(200)),
    ("GET", "/api/leases/{lease_id}"): Row(
        path=lambda cast: f"/api/leases/{cast.lease}", says=OWNER
    ),
    ("GET", "/api/leases/{lease_id}/visits"): Row(
        path=lambda cast: f"/api/leases/{cast.lease}/visits", says=OWNER
    ),
    ("GET", "/api/runs/{run_id}"): Row(path=lambda cast: f"/api/runs/{cast.run}", says=OWNER),
    ("GET", "/api/events"): Row(says=all_of(200)),
    # With rosters, and everybody who has to do with one: tests/api/test_students.py.
    ("GET", "/api/students"): Row(says=all_of(200)),
    ("POST", "/api/students/claim"): Row(body=lambda _cast: {"code": "seat_x"}, says=all_of(404)),
    ("GET", "/api/rosters"): Row(says=all_of(200)),
    ("GET", "/api/rosters/{roster}"): Row(
        path=lambda _cast: "/api/rosters/promo", says=all_of(404)
    ),
    ("PUT", "/api/rosters/{roster}/people"): Row(
        path=lambda _cast: "/api/rosters/promo/people",
        body=lambda _cast: {"people": [{"login": "alice"}]},
        says=all_of(404),
    ),
    ("POST", "/api/rosters/{roster}/{verb}"): Row(
        path=lambda _cast: "/api/rosters/promo/start", says=all_of(404)
    ),
    ("GET", "/api/rosters/{roster}/runs/{run}"): Row(
        path=lambda _cast: "/api/rosters/promo/runs/0f3a9c81", says=all_of(404)
    ),
    ("PUT", "/api/students/{roster}/{login}/key"): Row(
        path=lambda _cast: "/api/students/promo/alice/key",
        body=lambda _cast: {"public_key": KEY},
        says=all_of(404),
    ),
    **{
        (method, f"/api/students/{{roster}}/{{login}}{rest}"): Row(
            path=lambda _cast, rest=rest: (
                "/api/students/promo/alice"
                + rest.replace("{verb}", "start").replace("{label}", "before")
            ),
            says=all_of(404),
        )
        for method, rest in (
            ("GET", ""),
            ("DELETE", ""),
            ("POST", "/{verb}"),
            ("GET", "/snapshots"),
            ("PUT", "/snapshots/{label}"),
            ("DELETE", "/snapshots/{label}"),
            ("POST", "/snapshots/{label}/restore"),
        )
    },
}

#: The server trusts its neighbour to say where a request came from: here, from elsewhere.
ELSEWHERE = {"X-Forwarded-For": "192.0.2.99"}


@pytest.fixture
def there(new_database):
    with world(new_database("sqlite"), stream_seconds=0.0) as made:
        yield made


def test_every_route_has_a_row():
    assert routes(create_app(None)) == set(ROWS)


@pytest.mark.parametrize("route", ROWS, ids=" ".join)
def test_callers_are_told_apart(route, there):
    row, cast = ROWS[route], Cast(there.plane)
    got, wanted = {}, {}
    for caller in (*NOBODY, *SOMEBODY, *PROGRAMS):
        row.before(cast)
        method, path = route
        answer = there.ask(
            method,
            row.path(cast) if row.path else path,
            cast.tokens[caller],
            headers=ELSEWHERE,
            json=row.body(cast) if row.body else None,
        )
        got[caller] = answer.status_code
        wanted[caller] = expected(route, row, caller)
        if answer.status_code in CODES:
            is_problem(answer, answer.status_code, CODES[answer.status_code])
        if answer.status_code == 401:
            assert answer.headers["www-authenticate"] == "Bearer"
    assert got == wanted


def expected(route: tuple[str, str], row: Row, caller: str) -> int:
    scope = PROGRAMS.get(caller)
    if scope is None:
        return row.says.get(caller, row.else_)
    like = row.says.get(LIKE[scope], row.else_)
    if not row.says or like == 401:  # for everybody, or for machines
        return like
    may = scope is not Scope.READ if route in RENTING else scope in (Scope.OPERATE, Scope.ADMIN)
    if route in PERSONAL or not (may or route[0] == "GET"):
        return 403
    return like


def test_another_s_lease_looks_like_none_at_all(there):
    cast = Cast(there.plane)
    theirs = there.ask("GET", f"/api/leases/{cast.lease}", cast.tokens["other"])
    none = there.ask("GET", "/api/leases/l-00000000", cast.tokens["other"])
    assert (
        is_problem(theirs, 404, "unknown")["detail"].replace(cast.lease, "l-00000000")
        == is_problem(none, 404, "unknown")["detail"]
    )
    their_run = there.ask("GET", f"/api/runs/{cast.run}", cast.tokens["other"])
    no_run = there.ask("GET", "/api/runs/rent-l-0", cast.tokens["other"])
    hidden = is_problem(their_run, 404, "unknown"), is_problem(no_run, 404, "unknown")
    assert hidden[0]["hint"] == hidden[1]["hint"]
    assert there.ask("GET", "/api/leases", cast.tokens["other"]).json() == []


def test_members_see_runs_of_their_leases_only(there):
    cast = Cast(there.plane)
    clean = there.plane.journal.list(workflow="clean", limit=1)[0]
    path = f"/api/runs/{clean.id}"
    assert there.ask("GET", path, cast.tokens["member"]).status_code == 404
    assert there.ask("GET", path, cast.tokens["operator"]).status_code == 200


def test_members_do_not_see_everybody_s_leases_or_where_nodes_are(there):
    cast = Cast(there.plane)
    for caller, status in {"member": 403, "operator": 200, "admin": 200}.items():
        answer = there.ask("GET", "/api/leases?all=true", cast.tokens[caller])
        assert answer.status_code == status
    path = f"/api/nodes/{cast.node}"
    assert there.ask("GET", path, cast.tokens["member"]).json()["address"] == ""
    assert there.ask("GET", path, cast.tokens["operator"]).json()["address"] == "192.0.2.1"


def test_everybody_may_change_their_own_password_and_nothing_else(there):
    cast = Cast(there.plane)
    secret = {"password": "another long sentence"}
    mine, theirs = "/api/users/member", "/api/users/other"
    assert there.ask("PATCH", theirs, cast.tokens["member"], json=secret).status_code == 403
    assert (
        there.ask("PATCH", mine, cast.tokens["member"], json={"role": "admin"}).status_code == 403
    )
    assert there.ask("PATCH", mine, cast.tokens["member"], json=secret).status_code == 200
    # It ended the session it was asked in.
    assert there.ask("GET", "/api/leases", cast.tokens["member"]).status_code == 401
    assert people.login(there.plane, "member", secret["password"]).access


def test_tokens_are_taken_from_the_header_only(there):
    cast = Cast(there.plane)
    token = cast.tokens["admin"]
    assert there.client.get("/api/users", params={"access_token": token}).status_code == 401
    assert there.client.get("/api/users", headers={"Cookie": f"access={token}"}).status_code == 401
    basic = {"Authorization": f"Basic {token}"}
    assert there.client.get("/api/users", headers=basic).status_code == 401


def test_the_metrics_are_for_this_computer_and_operators(there):
    Cast(there.plane)
    answer = there.client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'essaim_nodes{state="lost"} 0' in answer.text
    assert "essaim_queue_length 0" in answer.text
    # What a proxy on this computer passes on is not from this computer.
    assert there.client.get("/metrics", headers={"Via": "1.1 proxy"}).status_code == 401
