"""A stranger who finds the API gets no account, no machine, and no list of names."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from api.rig import PASSWORD, is_problem, serving
from essaim.api.app import create_app
from essaim.bootstrap import App
from essaim.model.fleet import Role
from essaim.usecases.credentials import digest, hash_password

STRANGER = {"name": "mallory", "password": PASSWORD}


class Server:
    """A control plane with the settings of an administrator who said nothing else."""

    def __init__(self, app: App, address: str) -> None:
        self.app = app
        self.client = httpx.Client(base_url=address, timeout=60)

    def post(self, path: str, token: str = "", **body) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return self.client.post(f"/api/{path}", json=body, headers=headers)

    def login(self, name: str) -> str:
        return self.post("login", name=name, password=PASSWORD).json()["access"]

    def admin(self) -> str:
        self.app.people.add("admin", hash_password(PASSWORD), role=Role.ADMIN)
        return self.login("admin")


@pytest.fixture
def server(tmp_path):
    with contextlib.ExitStack() as stack:

        def start(**environ: str) -> Server:
            app = App({"ESSAIM_HOME": str(tmp_path), "HOME": str(tmp_path), **environ})
            stack.callback(app.close)
            made = Server(app, stack.enter_context(serving(create_app(app))))
            stack.callback(made.client.close)
            return made

        yield start


def test_a_stranger_gets_no_account_unless_the_administrator_chose_so(server):
    here = server()
    for more in ({}, {"invite": "invite_guessed"}, {"invite": ""}):
        is_problem(here.post("signup", **STRANGER, **more), 403, "forbidden")
    is_problem(here.post("login", **STRANGER), 401, "unauthorised")
    assert here.app.people.list() == []


def test_a_stranger_cannot_tell_which_names_exist(server):
    here = server()
    here.app.people.add("ada", hash_password(PASSWORD))
    told = [
        (answer.status_code, answer.json())
        for name in ("ada", "nobody", "admin")
        for answer in (
            here.post("signup", name=name, password=PASSWORD),
            here.post("signup", name=name, password=PASSWORD, invite="invite_x"),
        )
    ]
    assert told[0::2] == [told[0]] * 3
    assert told[1::2] == [told[1]] * 3


def test_a_code_serves_as_often_as_was_said_and_until_it_is_revoked(server):
    here = server()
    admin = here.admin()
    made = here.post("invites", admin, uses=2, project="compilers").json()
    code = made["code"]
    kept = here.app.database.engine
    with kept.connect() as connection:
        rows = str(connection.exec_driver_sql("SELECT * FROM invite").all())
    assert code not in rows
    assert digest(code) in rows

    answer = here.post("signup", name="ada", password=PASSWORD, invite=code)
    assert answer.status_code == 201
    assert answer.json()["project"] == "compilers"
    # Who holds a code may know that a name is taken; that costs no use.
    is_problem(here.post("signup", name="ada", password=PASSWORD, invite=code), 409, "taken")
    headers = {"Authorization": f"Bearer {admin}"}
    (listed,) = here.client.get("/api/invites", headers=headers).json()
    assert (listed["id"], listed["uses"], listed["by"]) == (made["id"], 1, "admin")
    assert code not in str(listed)
    assert here.client.delete(f"/api/invites/{made['id']}", headers=headers).status_code == 204
    is_problem(here.post("signup", name="bob", password=PASSWORD, invite=code), 403, "forbidden")
    assert here.client.get("/api/invites", headers=headers).json() == []


def test_of_many_who_share_a_code_one_signs_up(server):
    here = server()
    code = here.post("invites", here.admin()).json()["code"]

    def sign_up(number: int) -> int:
        with httpx.Client(base_url=here.client.base_url, timeout=60) as client:
            body = {"name": f"mallory-{number}", "password": PASSWORD, "invite": code}
            return client.post("/api/signup", json=body).status_code

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(sign_up, range(4))) == [201, 403, 403, 403]
    assert len(here.app.people.list()) == 2


def test_an_expired_code_is_worth_nothing(server):
    here = server()
    here.app.invites.add(digest("invite_old"), uses=5, seconds=-1)
    answer = here.post("signup", **STRANGER, invite="invite_old")
    is_problem(answer, 403, "forbidden")


def test_who_waits_for_approval_cannot_log_in(server):
    here = server(ESSAIM_SIGNUP="approve")
    assert here.post("signup", **STRANGER).json()["pending"]
    said = is_problem(here.post("login", **STRANGER), 403, "forbidden")
    assert "waits for approval" in said["detail"]
    # Who does not know the password is not told.
    wrong = here.post("login", name="mallory", password="wrong wrong wrong")
    nobody = here.post("login", name="nobody", password="wrong wrong wrong")
    assert (wrong.status_code, wrong.json()) == (nobody.status_code, nobody.json())
    admin = here.admin()
    assert here.post("users/mallory/approve", admin).json()["pending"] is False
    assert here.post("login", **STRANGER).status_code == 200
    is_problem(here.post("users/mallory/approve", admin), 409, "rejected")


def test_where_sign_up_is_open_names_are_not_tried_by_the_thousand(server):
    here = server(ESSAIM_SIGNUP="open")
    for number in range(3):
        here.app.people.add(f"somebody-{number}", hash_password(PASSWORD))
    # One more is let pass every twenty seconds: a hundred tries are enough on any computer.
    for number in range(100):
        answer = here.post("signup", name=f"somebody-{number % 3}", password=PASSWORD)
        if answer.status_code == 429:
            break
    is_problem(answer, 429, "too-many")


def test_nobody_signs_up_where_it_is_closed(server):
    here = server(ESSAIM_SIGNUP="closed")
    code = here.post("invites", here.admin()).json()["code"]
    said = is_problem(here.post("signup", **STRANGER, invite=code), 403, "forbidden")
    assert "closed" in said["detail"]
