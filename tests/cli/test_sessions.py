"""Logging in, staying logged in, and being told when one is not (R-D2)."""

from __future__ import annotations

import json
import stat
import time

import pytest
import sqlalchemy as sa

from api.rig import PASSWORD
from cli.person import COMMAND, Person
from essaim.store.schema import session as sessions
from essaim_lab.computer import free_port
from terminal import terminal


@pytest.fixture
def eve(server, tmp_path):
    """Somebody who was never here."""
    return Person(tmp_path / "eve", server)


def change(person: Person, **values) -> None:
    path = person.client / "session.json"
    path.write_text(json.dumps({**person.session, **values}))


def test_sign_up_log_in_see_who_one_is_and_log_out(here, server, eve):
    eve.does("signup", "eve", "--server", server, "--no-login")
    assert "not logged in" in eve.does("whoami", code=3)
    eve.log_in("eve")
    who = eve.gets("whoami")
    assert (who["name"], who["role"], who["server"]) == ("eve", "member", server)
    token = eve.session["access"]
    eve.does("logout")
    assert here.ask("GET", "/api/leases", token).status_code == 401
    kept = eve.session
    assert kept["server"] == server
    assert not kept["access"]
    assert not kept["refresh"]
    eve.does("login", "eve")  # the server is remembered


def test_nobody_else_can_read_the_session(ada):
    assert stat.S_IMODE((ada.client / "session.json").stat().st_mode) == 0o600
    assert stat.S_IMODE(ada.client.stat().st_mode) == 0o700


def test_the_password_may_come_on_standard_input_and_never_as_an_argument(here, server, eve):
    done = eve.types("signup", "eve", "--server", server, stdin=PASSWORD + "\n", ESSAIM_PASSWORD="")
    assert done.returncode == 0, done.stderr
    done = eve.types("login", "eve", stdin="", ESSAIM_PASSWORD="")
    assert done.returncode == 2
    assert "ESSAIM_PASSWORD" in done.stderr
    assert "--password" not in eve.does("login", "--help")


def test_a_wrong_password_is_said_and_changes_nothing(ada, server):
    before = ada.session
    assert "wrong name or password" in ada.does("login", "ada", code=3, ESSAIM_PASSWORD="no such")
    assert ada.session == before


def test_who_is_not_logged_in_is_told_what_to_type(eve):
    for words in (["rent"], ["leases"], ["nodes"], ["users"], ["events"], ["whoami"]):
        assert "essaim login" in eve.does(*words, code=3)


def test_a_server_that_is_not_there_is_a_sentence(eve):
    said = eve.does("login", "eve", "--server", f"http://127.0.0.1:{free_port()}", code=1)
    assert "does not answer" in said
    assert not (eve.client / "session.json").exists()


@pytest.mark.parametrize(
    ("address", "code"),
    [("http://192.0.2.1", 1), ("ftp://127.0.0.1", 2), ("http://u:p@127.0.0.1", 2), ("x", 2)],
)
def test_passwords_go_only_where_nobody_can_listen(eve, address, code):
    said = eve.does("login", "eve", "--server", address, code=code)
    if code == 1:
        assert "--insecure" in said


def test_an_expired_access_token_is_renewed_by_itself(ada):
    before = ada.session
    change(ada, expires_at=0.0)
    ada.does("leases")
    # The access token is perhaps the same: it says who and until when, to the second.
    assert ada.session["refresh"] != before["refresh"]
    assert ada.session["expires_at"] > time.time()


def test_a_refused_access_token_is_renewed_by_itself(ada):
    change(ada, access="worth nothing")
    ada.does("leases")


def test_many_commands_at_once_renew_the_session_once(here, ada):
    """A refresh token shown twice would end the session: only one of them may show it."""
    change(ada, expires_at=0.0)
    many = [ada.begins("leases", "--json") for _ in range(5)]
    for each in many:
        _, said = each.communicate(timeout=120)
        assert each.returncode == 0, said
    ada.does("leases")


def test_a_session_that_is_over_says_so_and_what_to_do(here, ada):
    user = here.plane.people.find("ada")[0]
    here.plane.people.change(user.name, {"disabled": True})
    here.plane.people.change(user.name, {"disabled": False})
    said = ada.does("leases", code=3)
    assert "over" in said
    assert "essaim login ada" in said
    assert "essaim login ada" in ada.does("leases", code=3)
    ada.does("login", "ada")
    ada.does("leases")


def test_logging_out_works_although_the_server_is_away(ada):
    change(ada, server=f"http://127.0.0.1:{free_port()}")
    done = ada.types("logout")
    assert done.returncode == 0
    assert "could not be told" in done.stderr
    assert not ada.session["refresh"]


def test_one_may_change_ones_own_password(ada, server):
    ada.does("password", ESSAIM_PASSWORD="another long sentence")
    ada.does("leases")
    ada.does("login", "ada", code=3)
    ada.does("login", "ada", ESSAIM_PASSWORD="another long sentence")


def long_ago(here, minutes: int = 11) -> None:
    """Let all logins be so long ago."""
    older = sa.update(sessions).values(created_at=sessions.c.created_at - minutes * 60_000)
    here.plane.database.write(lambda c: c.execute(older))


def test_a_session_that_is_too_old_asks_for_the_password_and_goes_on(here, admin, ada):
    long_ago(here)
    old = admin.session["access"]
    env = {key: value for key, value in admin.env.items() if key != "ESSAIM_PASSWORD"}
    words = [*COMMAND, "users", "set", "ada", "--machines", "9"]
    with terminal(words, env=env, cwd=admin.home) as screen:
        screen.waits_for("Password:")
        screen.types(PASSWORD + "\n")
        assert screen.ends() == 0, screen.text
    assert "once more, admin" in screen.text
    assert here.plane.people.find("ada")[0].quota.machines == 9
    # The old session is ended, and the new one is asked for nothing.
    assert here.ask("GET", "/api/me", old).status_code == 401
    done = admin.types("users", "set", "ada", "--machines", "8", ESSAIM_PASSWORD="")
    assert done.returncode == 0, done.stderr


def test_where_nobody_can_be_asked_the_password_may_be_in_the_environment(here, admin, ada):
    long_ago(here)
    done = admin.types("users", "set", "ada", "--machines", "9", ESSAIM_PASSWORD="")
    assert done.returncode == 1
    assert "this needs your password" in done.stderr
    admin.does("users", "set", "ada", "--machines", "9")
    long_ago(here)
    said = admin.does("users", "set", "ada", "--machines", "7", code=1, ESSAIM_PASSWORD="wrong")
    assert "this needs your password" in said
    assert here.plane.people.find("ada")[0].quota.machines == 9


def test_one_sees_where_one_is_logged_in_and_ends_it(ada, server, tmp_path):
    lost = Person(tmp_path / "lost", server)
    lost.log_in("ada")
    found = ada.gets("sessions")
    assert {each["agent"] for each in found} == {"essaim"}
    (theirs,) = [each["id"] for each in found if not each["current"]]
    shown = ada.does("sessions")
    assert theirs in shown
    assert "127.0.0.1" in shown
    ada.does("sessions", "end", theirs)
    assert "over" in lost.does("leases", code=3)
    assert "no session" in ada.does("sessions", "end", theirs, code=2)
    lost.log_in("ada")
    ada.does("sessions", "end", code=2)
    ada.does("sessions", "end", "--all")
    for person in (ada, lost):
        assert "over" in person.does("leases", code=3)
