"""An administrator invites people, and approves accounts."""

from __future__ import annotations

import re

from api.rig import PASSWORD
from cli.person import Person
from essaim.model.invites import SignupMode
from essaim.usecases.credentials import hash_password


def test_a_code_from_the_administrators_terminal_to_the_first_login(here, admin, server, tmp_path):
    here.plane.signup_mode = SignupMode.INVITE
    eve = Person(tmp_path / "eve", server)
    said = eve.does("signup", "eve", "--server", server, code=1)
    assert "needs an invite code" in said
    assert "essaim signup NAME --invite CODE" in said
    line = admin.types("users", "invite", "--uses", "2", "--for", "1h", "--project", "compilers")
    assert "for up to 2 people" in line.stderr
    words = line.stdout.split()
    assert words[:3] == ["essaim", "signup", "NAME"]
    eve.does("signup", "eve", *words[3:])
    assert eve.gets("whoami")["project"] == "compilers"
    (left,) = admin.gets("users", "invites")
    assert left["uses"] == 1
    shown = admin.does("users", "invites")
    assert re.search(rf"{left['id']} +1 .* compilers +- +admin", shown)
    assert words[-1] not in shown
    assert admin.gets("users", "invites", "--revoke", left["id"]) == []
    assert "no invite i-0" in admin.does("users", "invites", "--revoke", "i-0", code=2)
    assert "used up or expired" in eve.does("signup", "eva", *words[3:], code=1)
    assert "only administrators" in eve.does("users", "invite", code=1)


def test_who_waits_for_approval_is_told_so(here, admin, server, tmp_path):
    here.plane.signup_mode = SignupMode.APPROVE
    eve = Person(tmp_path / "eve", server)
    said = eve.types("signup", "eve", "--server", server).stderr
    assert "once an administrator has approved" in said
    assert "waits for approval" in eve.does("login", "eve", "--server", server, code=1)
    assert "waits for approval" in admin.does("users")
    assert "may log in" in admin.types("users", "approve", "eve").stderr
    eve.log_in("eve")
    assert "does not wait for approval" in admin.does("users", "approve", "eve", code=1)


def test_an_account_is_meant_by_its_id(here, admin):
    ada = here.plane.people.add("ada", hash_password(PASSWORD))
    admin.does("users", "set", ada.id, "--machines", "7")
    assert here.plane.people.get(ada.id).quota.machines == 7
    assert "nobody is called u-000000000000" in admin.does(
        "users", "set", "u-000000000000", "--machines", "7", code=2
    )
