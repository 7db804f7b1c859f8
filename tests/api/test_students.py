"""Student A cannot see or touch student B's machine by any route; a teacher can."""

from __future__ import annotations

import contextlib

import httpx
import pytest

import filed
from api.rig import World, is_problem, options, routes, serving
from essaim.api.app import create_app
from essaim.api.rosters import router as whole
from essaim.api.students import router
from essaim.model.fleet import Role
from essaim.model.public_keys import fingerprint
from essaim.plan.rosters import Standing
from essaim.usecases import classes, seats
from essaim.usecases.people import begin_session
from schoolplane import Plane, people, plane, roster

ALICE = "/api/students/promo/alice"
KEY = filed.HOST_KEY
#: Keys that differ in one letter.
OTHER, FAR = KEY.replace("Yy2k", "Yy3k"), KEY.replace("Yy2k", "Yy4k")


class Cast:
    """Two classes, their teachers, their students, and those who have nothing to do with them."""

    def __init__(self, made: Plane) -> None:
        self.plane = made
        made.apply(roster(), people("alice", "bob", "carol"))
        made.apply(roster(name="other", cidr="10.61.0.0/24", first="10.61.0.10", last="10.61.0.90"),
                   people("dave"))  # fmt: skip
        members = ("stranger", "alice", "bob", "carol", "dave", "teacher", "elsewhere")
        self.users = {name: made.user(name) for name in members}
        self.users["operator"] = made.user("operator", Role.OPERATOR)
        self.users["admin"] = made.user("admin", Role.ADMIN)
        for name in ("promo", "other"):
            for student, code in classes.invite(made, name):
                seats.claim(made, self.users[student.login], code)
        classes.set_teacher(made, "promo", "teacher")
        classes.set_teacher(made, "other", "elsewhere")
        made.apply(roster(), people("alice", "bob"))  # carol is retired
        self.tokens = {name: self.token(user) for name, user in self.users.items()}
        self.tokens["nobody"] = ""

    def token(self, user) -> str:
        return begin_session(self.plane, user).access

    def ready(self, login: str = "alice") -> None:
        """Bring a machine back to where every request may begin."""
        self.plane.settle(login)
        self.plane.apply(roster(), people("alice", "bob"))
        machine = f"promo/{login}"
        if self.plane.rosters.students("promo")[login].standing is Standing.WITHOUT:
            self.plane.rosters.stand(machine, Standing.FAILED)
            self.plane.apply(roster(), people("alice", "bob"))
        with self.plane.site.driver.changed() as machines:
            machines[machine]["kept"] = {"before": "old"}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("school")
    with plane(f"sqlite:///{folder}/essaim.db", folder / "site") as made:
        app = create_app(made, options(together=False))
        with (
            serving(app) as address,
            httpx.Client(base_url=address, timeout=120) as client,
        ):
            yield World(made, app, client), Cast(made)


@pytest.fixture
def school(world):
    """The same for all, brought back to where it began."""
    here, cast = world
    cast.plane.people.change("alice", {"machines": 1000})
    cast.ready()
    return here, cast


#: Every route that names a student, asked about alice; and what her student account is answered.
ROUTES = {
    ("GET", ""): 200,
    ("POST", "/create"): 409,  # it is there
    ("POST", "/start"): 202,
    ("POST", "/stop"): 202,
    ("POST", "/reset"): 202,
    ("POST", "/retire"): 403,
    ("DELETE", ""): 202,
    ("GET", "/snapshots"): 200,
    ("PUT", "/snapshots/now"): 202,
    ("DELETE", "/snapshots/before"): 202,
    ("POST", "/snapshots/before/restore"): 202,
    ("PUT", "/key"): 202,
}
#: A teacher takes machines away, but cannot choose the key and so log in as the pupil.
TEACHERS = {**ROUTES, ("POST", "/retire"): 202, ("PUT", "/key"): 403}
OPERATORS = {**TEACHERS, ("PUT", "/key"): 202}
#: What is sent along, where something is.
BODIES = {"/key": {"public_key": f"{KEY} me@here"}}


@pytest.mark.parametrize("who", ["alice", "teacher", "operator", "admin"])
def test_whoever_may_act_can(school, who):
    here, cast = school
    expected = {"alice": ROUTES, "teacher": TEACHERS}.get(who, OPERATORS)
    for (method, rest), status in expected.items():
        cast.ready()
        answer = here.ask(method, ALICE + rest, cast.tokens[who], json=BODIES.get(rest))
        assert answer.status_code == status, (who, method, rest, answer.text)


@pytest.mark.parametrize("who", ["nobody", "stranger", "bob", "carol", "dave", "elsewhere"])
def test_nobody_else_sees_or_touches_it_by_any_route(school, who):
    here, cast = school
    before = cast.plane.site.seen(), cast.plane.states()
    runs = len(cast.plane.journal.list(limit=1000))
    for method, rest in ROUTES:
        answer = here.ask(method, ALICE + rest, cast.tokens[who], json=BODIES.get(rest))
        if who == "nobody":
            is_problem(answer, 401, "unauthorised")
            continue
        there = is_problem(answer, 404, "unknown")
        # Word for word what is said about a student who does not exist.
        path = "/api/students/promo/zed" + rest
        nobody = here.ask(method, path, cast.tokens[who], json=BODIES.get(rest))
        assert (
            is_problem(nobody, 404, "unknown")["detail"].replace("zed", "alice") == there["detail"]
        )
    for path in ("/api/rosters/promo", "/api/rosters/nowhere"):
        status = 401 if who == "nobody" else 404
        assert here.ask("GET", path, cast.tokens[who]).status_code == status
    assert (cast.plane.site.seen(), cast.plane.states()) == before
    assert len(cast.plane.journal.list(limit=1000)) == runs


def test_every_route_about_students_is_tried_here(school):
    here, _cast = school
    ours = {(method, path) for route in router.routes for method in route.methods
            for path in [route.path]}  # fmt: skip
    assert ours <= routes(here.app)
    named = {(m, p.partition("{login}")[2]) for m, p in ours if "{login}" in p}
    tried = set()
    for method, rest in ROUTES:
        path = rest.replace("/now", "/{label}").replace("/before", "/{label}")
        verb = method == "POST" and "snap" not in path
        tried.add((method, "/{verb}" if verb else path))
    assert named == tried


def test_a_retired_student_sees_that_and_can_do_nothing(school):
    here, cast = school
    path, token = "/api/students/promo/carol", cast.tokens["carol"]
    seen = here.ask("GET", path, token, headers={"Accept-Language": "fr"}).json()
    assert (seen["state"], seen["until"] is not None) == ("retired", True)
    assert seen["said"].startswith("retirée, gardée jusqu'au")
    for (method, rest), status in ROUTES.items():
        if method == "GET":
            continue
        answer = here.ask(method, path + rest, token, json=BODIES.get(rest))
        problem = is_problem(answer, 403, "forbidden")
        assert "réinscrire" in problem["detail"] or "enseignants" in problem["detail"], status


def account(cast: Cast, machine: str = "promo/alice") -> list[str]:
    """What was put on a machine: mode, login, uid, home, name, keys."""
    return cast.plane.site.driver.seen()[machine]["account"]


def test_a_students_key_is_put_on_their_machine_and_the_one_before_is_gone(school):
    here, cast = school
    token = cast.tokens["alice"]
    for line in (KEY, OTHER):
        answer = here.ask("PUT", f"{ALICE}/key", token, json={"public_key": f"{line} me@here"})
        assert answer.status_code == 202, answer.text
        cast.plane.settle("alice")
        seen = here.ask("GET", ALICE, token).json()
        assert (seen["key"], seen["key_ready"]) == (fingerprint(line), True)
        assert seen["access"]["user"] == "promo.alice"
        assert account(cast)[1] == "alice"
        assert account(cast)[-1].splitlines()[1:] == [line]
    assert account(cast, "promo/bob")[-1].count("\n") == 0  # the control plane's own


def test_a_machine_that_is_off_takes_the_key_when_it_starts(school):
    here, cast = school
    token = cast.tokens["alice"]
    assert here.ask("POST", f"{ALICE}/stop", token).status_code == 202
    cast.plane.settle("alice")
    put = here.ask("PUT", f"{ALICE}/key", token, json={"public_key": FAR})
    assert (put.json()["doing"], put.json()["key_ready"]) == ("", False)
    assert here.ask("POST", f"{ALICE}/start", token).status_code == 202
    cast.plane.settle("alice")
    assert here.ask("GET", ALICE, token).json()["key_ready"]
    assert account(cast)[-1].splitlines()[1:] == [FAR]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "ssh-ed25519",
        f"{KEY}\n{KEY}",
        f'command="x" {KEY}',
        f"ssh-rsa {KEY.split()[1]}",
    ],
)
def test_what_is_no_key_is_refused(school, line):
    here, cast = school
    answer = here.ask("PUT", f"{ALICE}/key", cast.tokens["alice"], json={"public_key": line})
    is_problem(answer, 422, "invalid")


def test_who_claims_a_machine_anew_shuts_the_key_of_whoever_had_it_out(school):
    here, cast = school
    old = {"public_key": KEY}
    assert here.ask("PUT", f"{ALICE}/key", cast.tokens["alice"], json=old).status_code == 202
    cast.plane.settle("alice")
    ((_alice, code),) = classes.invite(cast.plane, "promo", ["alice"])
    heir = cast.plane.user("heir")
    claimed = seats.claim(cast.plane, heir, code)
    assert claimed.key == ""
    cast.plane.settle("alice")
    assert KEY not in account(cast)[-1]
    ((_alice, back),) = classes.invite(cast.plane, "promo", ["alice"])
    seats.claim(cast.plane, cast.users["alice"], back)


def test_one_sees_ones_own_and_a_teacher_the_class(school):
    here, cast = school
    mine = here.ask("GET", "/api/students", cast.tokens["alice"]).json()
    assert [each["machine"] for each in mine] == ["promo/alice"]
    assert (mine[0]["said"], mine[0]["power"]) == ("ready, on", "on")
    assert here.ask("GET", "/api/students", cast.tokens["stranger"]).json() == []
    assert here.ask("GET", "/api/rosters", cast.tokens["teacher"]).json() == ["promo"]
    assert here.ask("GET", "/api/rosters", cast.tokens["alice"]).json() == []
    assert here.ask("GET", "/api/rosters", cast.tokens["operator"]).json() == ["other", "promo"]
    pupils = here.ask("GET", "/api/rosters/promo", cast.tokens["teacher"]).json()
    assert [each["login"] for each in pupils][:3] == ["alice", "bob", "carol"]


def test_a_name_alone_is_no_proof(school):
    """Whoever signs up as somebody of a roster before them gets nothing."""
    here, cast = school
    cast.plane.apply(roster(), people("alice", "bob", "erin"))
    thief = cast.token(cast.plane.user("erin"))
    assert here.ask("GET", "/api/students/promo/erin", thief).status_code == 404
    assert here.ask("POST", "/api/students/claim", thief, json={"code": "x"}).status_code == 404
    ((_erin, code),) = classes.invite(cast.plane, "promo", ["erin"])
    real = cast.token(cast.plane.user("erin-m"))
    assert here.ask("POST", "/api/students/claim", real, json={"code": code}).status_code == 200
    # Once: it is of no use to whoever finds it later.
    assert here.ask("POST", "/api/students/claim", thief, json={"code": code}).status_code == 404
    assert here.ask("GET", "/api/students/promo/erin", real).status_code == 200


def test_a_student_creates_within_their_quota(school):
    here, cast = school
    token = cast.tokens["alice"]
    assert here.ask("DELETE", ALICE, token).status_code == 202
    cast.plane.settle("alice")
    assert here.ask("GET", ALICE, token).json()["state"] == "without"
    assert "promo/alice" not in cast.plane.site.driver.seen()
    cast.plane.people.change("alice", {"machines": 0})
    is_problem(here.ask("POST", f"{ALICE}/create", token), 409, "quota")
    cast.plane.people.change("alice", {"machines": 1})
    assert here.ask("POST", f"{ALICE}/create", token).status_code == 202
    cast.plane.settle("alice")
    made = here.ask("GET", ALICE, token).json()
    assert (made["state"], made["power"]) == ("ready", "on")


def test_something_else_is_under_way(school):
    here, cast = school
    down = cast.plane.site.driver.file.with_suffix(".down")
    down.touch()
    assert here.ask("POST", f"{ALICE}/stop", cast.tokens["alice"]).status_code == 202
    problem = is_problem(here.ask("POST", f"{ALICE}/start", cast.tokens["alice"]), 409, "held")
    assert "une opération est en cours" in problem["detail"]
    with contextlib.suppress(FileNotFoundError):
        down.unlink()
    cast.plane.settle("alice")
    assert here.ask("GET", ALICE, cast.tokens["alice"]).json()["power"] == "off"


def test_snapshots_are_counted_and_named(school):
    here, cast = school
    cast.plane.people.change("alice", {"machines": 5})
    token, path = cast.tokens["alice"], f"{ALICE}/snapshots"
    with cast.plane.site.driver.changed() as machines:
        machines["promo/alice"]["kept"] = {f"s{number}": "" for number in range(5)}
    is_problem(here.ask("PUT", f"{path}/one-more", token), 409, "quota")
    is_problem(here.ask("PUT", f"{path}/s1", token), 409, "rejected")
    is_problem(here.ask("POST", f"{path}/none/restore", token), 404, "unknown")
    is_problem(here.ask("PUT", f"{path}/No!", token), 422, "invalid")


#: Every route about a whole roster, and what its body is.
ROSTERS = {
    ("PUT", "/people"): {"people": [{"login": "alice"}, {"login": "bob"}]},
    ("POST", "/start"): None,
    ("POST", "/stop"): {"logins": ["alice"]},
    ("POST", "/retry"): None,
    ("POST", "/reset"): {"logins": ["alice"]},
    ("POST", "/retire"): {"logins": ["alice"]},
    ("GET", "/runs/0f3a9c81"): None,
}


def ask_roster(here, token, method, rest, body=None, *, name="promo"):
    return here.ask(method, f"/api/rosters/{name}{rest}", token, json=body)


def followed(here, cast, answer):
    """The work that was begun, once it is over."""
    begun = answer.json()
    assert answer.status_code == 202, answer.text
    assert cast.plane.courier.wait(begun["run"], timeout=120)
    return ask_roster(here, cast.tokens["teacher"], "GET", f"/runs/{begun['run']}").json()


@pytest.mark.parametrize("who", ["nobody", "stranger", "alice", "carol", "dave", "elsewhere"])
def test_a_roster_is_only_its_teachers_to_act_on(school, who):
    here, cast = school
    before = cast.plane.site.seen(), cast.plane.states()
    runs = len(cast.plane.journal.list(limit=1000))
    for (method, rest), body in ROSTERS.items():
        answer = ask_roster(here, cast.tokens[who], method, rest, body)
        if who == "nobody":
            is_problem(answer, 401, "unauthorised")
            continue
        there = is_problem(answer, 404, "unknown")["detail"]
        none = ask_roster(here, cast.tokens[who], method, rest, body, name="nowhere")
        assert is_problem(none, 404, "unknown")["detail"].replace("nowhere", "promo") == there
    assert (cast.plane.site.seen(), cast.plane.states()) == before
    assert len(cast.plane.journal.list(limit=1000)) == runs


def test_every_route_about_rosters_is_tried_here():
    ours = {(m, route.path) for route in whole.routes for m in route.methods}
    tried = {
        (m, rest if m == "PUT" else "/runs/{run}" if m == "GET" else "/{verb}")
        for m, rest in ROSTERS
    }
    assert {(m, path.removeprefix("/api/rosters/{roster}")) for m, path in ours} == tried


def test_a_teacher_acts_on_the_class_and_sees_how_far_it_is(school):
    here, cast = school
    token = cast.tokens["teacher"]
    over = followed(here, cast, ask_roster(here, token, "POST", "/stop"))
    assert (over["state"], over["failed"]) == ("done", 0)
    assert over["done"] == over["total"] >= 2
    seen = cast.plane.site.driver.seen()
    assert {seen["promo/alice"]["power"], seen["promo/bob"]["power"]} == {"off"}
    over = followed(here, cast, ask_roster(here, token, "POST", "/start", {"logins": ["alice"]}))
    assert over["total"] == 1
    seen = cast.plane.site.driver.seen()
    assert (seen["promo/alice"]["power"], seen["promo/bob"]["power"]) == ("on", "off")
    nothing = ask_roster(here, token, "POST", "/retry")
    assert (nothing.status_code, nothing.json()["run"]) == (200, "")
    is_problem(ask_roster(here, token, "POST", "/start", {"logins": ["zed"]}), 404, "unknown")
    is_problem(ask_roster(here, token, "POST", "/remove"), 422, "invalid")
    (last, *_) = cast.plane.journal.list(subject="promo", limit=1)
    assert last.who == "teacher"


def test_an_operator_says_who_is_on_a_roster(school):
    here, cast = school
    token = cast.tokens["operator"]
    them = [{"login": login} for login in ("alice", "bob", "frank")]
    denied = ask_roster(here, cast.tokens["teacher"], "PUT", "/people", {"people": them})
    is_problem(denied, 403, "forbidden")
    over = followed(here, cast, ask_roster(here, token, "PUT", "/people", {"people": them}))
    assert (over["total"], over["done"]) == (1, 1)
    assert cast.plane.site.driver.seen()["promo/frank"]["power"] == "on"
    again = ask_roster(here, token, "PUT", "/people", {"people": them})
    assert (again.status_code, again.json()["run"]) == (200, "")
    twice = ask_roster(here, token, "PUT", "/people", {"people": [*them, {"login": "bob"}]})
    assert "bob" in is_problem(twice, 422, "invalid")["errors"][0]["what"]
