"""Rosters at the terminal: sandbox machines for operators, a server for students."""

from __future__ import annotations

import csv
import io
import json
import os

import httpx
import pytest

from api.rig import PASSWORD, options, serving
from cli.person import Person
from essaim.api.app import create_app
from essaim.usecases import classes
from essaim.usecases.credentials import hash_password
from french import leftovers
from patience import in_test_all
from schoolplane import people, plane, roster
from testcache import CACHE
from workflows import sandbox


@pytest.fixture
def operator(tmp_path):
    """Somebody with a lab of one roster on their own computer."""
    if os.geteuid():
        pytest.skip("a rootless sandbox is tried elsewhere")
    sandbox.ready()
    person = Person(tmp_path / "home")
    person.env |= {"ESSAIM_HOME": str(tmp_path / "state"), "ESSAIM_CACHE": str(CACHE)}
    lab = tmp_path / "lab"
    lab.mkdir()
    (lab / "essaim.yaml").touch()
    (lab / "few.yaml").write_text("size: tiny\nnetwork: {cidr: 10.62.0.0/24}\n")
    person.roster = lab / "few.csv"
    return person


def test_a_roster_on_this_computer(operator):
    """R-B5: everybody has a machine; again there is nothing to do."""
    file = operator.roster
    file.write_text("login,name\nalice,Alice\nbob,Bob\n")
    rows = operator.gets("students", "apply", str(file))
    assert [(row["login"], row["state"], row["power"]) for row in rows] == [
        ("alice", "ready", "on"),
        ("bob", "ready", "on"),
    ]
    done = operator.types("students", "apply", str(file), "--csv")
    assert "few: nothing to change" in done.stderr
    assert [row["machine"] for row in csv.DictReader(io.StringIO(done.stdout))] == [
        "few/alice",
        "few/bob",
    ]
    operator.does("students", "remove", "few", "--yes")


@in_test_all
def test_a_roster_from_the_first_machine_to_the_last(operator):
    """R-B5, R-B6 on real machines: retire, return, reset, remove."""
    file = operator.roster
    file.write_text("login,name\nalice,Alice\nbob,Bob\n")
    operator.does("students", "apply", str(file))
    assert operator.does("ssh", "few/bob", "--", "hostname").strip() == "bob"
    operator.does("ssh", "few/bob", "--", "echo thesis > /root/thesis")
    # A row less: off and kept; a row more again: the same machine with what was on it.
    file.write_text("login,name\nalice,Alice\n")
    told = operator.does("students", "apply", str(file), "--csv")
    (bob,) = [row for row in csv.DictReader(io.StringIO(told)) if row["login"] == "bob"]
    assert (bob["state"], bob["power"]) == ("retired", "off")
    file.write_text("login,name\nalice,Alice\nbob,Bob\n")
    operator.does("students", "apply", str(file))
    assert operator.does("ssh", "few/bob", "--", "cat /root/thesis").strip() == "thesis"
    operator.does("students", "reset", "few", "bob", "--yes")
    assert operator.types("ssh", "few/bob", "--", "cat /root/thesis").returncode == 1
    assert "few  " in operator.does("students", "list")
    assert "10.62.0.11" in operator.does("students", "show", "few", "bob")
    said = operator.does("students", "snapshot", "few", code=1)
    assert "few: sandbox machines keep no snapshots" in said
    assert {row["state"] for row in operator.gets("students", "list", "few")} == {"ready"}
    said = operator.does("students", "snapshot", "few", "--label", "A b", code=2)
    assert "begins with a letter" in said
    refused = operator.does("down", "few", "--yes", code=2)
    assert "few is a roster" in refused
    operator.does("students", "remove", "few", "--yes")
    assert operator.gets("status") == []
    assert operator.gets("students", "list") == {}


def test_a_disk_is_not_lost_where_nobody_can_be_asked(operator):
    """With a grace of 0 a row less, or `retire`, destroys a machine: that is asked."""
    file = operator.roster
    file.write_text("login,name\nalice,Alice\nbob,Bob\n")
    operator.does("students", "apply", str(file))
    file.write_text("login,name\nalice,Alice\n")
    refused = operator.does("students", "apply", str(file), "--grace", "0", code=2)
    assert "nobody here to ask: say --yes" in refused
    settings = file.with_suffix(".yaml")
    settings.write_text(f"{settings.read_text()}grace: 0\n")
    assert "say --yes" in operator.does("students", "apply", str(file), code=2)
    assert operator.does("ssh", "few/bob", "--", "hostname").strip() == "bob"
    operator.does("students", "apply", str(file), "--yes")
    assert [row["login"] for row in operator.gets("students", "list", "few")] == ["alice"]
    assert "say --yes" in operator.does("students", "retire", "few", "alice", code=2)
    operator.does("students", "remove", "few", "--yes")


@in_test_all
def test_what_is_wrong_with_a_roster_is_told_with_its_line(operator):
    operator.roster.write_text("login,nmae\nalice,x\n")
    said = operator.does("students", "apply", str(operator.roster), code=2)
    assert "few.csv:1: unknown column 'nmae' (did you mean name?" in said
    operator.roster.write_text("login\nAlice\n")
    assert "few.csv:2:" in operator.does("students", "apply", str(operator.roster), code=2)
    operator.roster.write_text("login\nalice\n")
    said = operator.does("students", "apply", str(operator.roster), "--site", "lcal", code=2)
    assert "did you mean local?" in said
    for verb in ("retry", "list", "schedule"):
        assert "no roster called fwe" in operator.does("students", verb, "fwe", code=2)
    operator.roster.write_text("login\n")
    assert "few.csv names nobody" in operator.does(
        "students", "apply", str(operator.roster), code=2
    )
    assert operator.does("students", "apply", code=2)


@in_test_all
def test_only_said_what_would_be_done(operator):
    operator.roster.write_text("login\n" + "".join(f"s{n}\n" for n in range(9)))
    done = operator.types("students", "apply", str(operator.roster), "--plan")
    assert "+ 9 to add (new): s0, s1, s2, s3, s4 and 4 more" in done.stderr
    assert operator.gets("students", "list") == {}


@pytest.fixture
def server(new_database, tmp_path):
    """A server with a class of two, one of whom sits at a terminal in French."""
    with plane(new_database("sqlite"), tmp_path / "site") as made:
        made.apply(roster(), people("alice", "bob"))
        for name in ("alice", "turing"):
            made.people.add(name, hash_password(PASSWORD))
        classes.set_teacher(made, "promo", "turing")
        app = create_app(made, options(together=False))
        with serving(app) as address, httpx.Client(base_url=address):
            yield made, address


@in_test_all
def test_a_student_looks_after_their_own_machine_in_french(server, tmp_path):
    made, address = server
    alice = Person(tmp_path / "alice", address, lang="fr_FR.UTF-8")
    alice.log_in("alice")
    ((_student, code),) = classes.invite(made, "promo", ["alice"])
    assert "promo/alice est à vous" in alice.types("mine", "claim", code).stderr
    assert "prête, éteinte" in alice.does("mine", "stop", "promo/alice")
    # Of somebody else's there is nothing to see.
    said = alice.does("mine", "stop", "promo/bob", code=2)
    assert "vous n'y avez pas accès" in said
    assert "not yours to see" not in said, "one language at a terminal"
    told = [
        alice.types(*words, **env)
        for words, env in (
            (("mine",), {}),
            (("mine", "claim", "seat_x"), {}),
            (("mine", "start", "alice"), {}),
            (("mine", "snapshot", "--label", "A b"), {}),
            (("mine", "restore", "avant", "--yes"), {}),
            (("mine", "reset"), {}),
            (("mine", "class"), {}),
            (("mine", "class", "promo", "fly"), {}),
            (("mine", "stopt"), {}),
            (("whoami",), {}),
            (("signup", "alice", "--server", address), {}),
            (("signup", "carol", "--server", address), {"ESSAIM_PASSWORD": "short"}),
            (("login", "alice", "--server", address), {"ESSAIM_PASSWORD": "wrong wrong wrong"}),
            (("login", "alice", "--server", "http://127.0.0.1:9"), {}),
            (("logout",), {}),
        )
    ]
    texts = [each.stdout + each.stderr for each in told]
    assert [(word, text) for text in texts for word in leftovers(text)] == []
    assert any("choisissez une phrase de passe" in text for text in texts)


@in_test_all
def test_all_that_a_student_may_do(server, tmp_path):
    made, address = server
    alice = Person(tmp_path / "alice", address, lang="fr_FR.UTF-8")
    alice.log_in("alice")
    assert "vous n'avez pas de machine" in alice.types("mine").stderr
    ((_student, code),) = classes.invite(made, "promo", ["alice"])
    alice.does("mine", "claim", code)
    assert "prête, allumée" in alice.does("mine")
    alice.does("mine", "stop")
    assert "prête, allumée" in alice.does("mine", "start")
    made.site.driver.write("promo/alice", "thesis")
    said = alice.types("mine", "snapshot", "--label", "avant")
    assert "promo/alice : gardée sous avant" in said.stderr
    assert "avant" in alice.does("mine", "snapshots")
    alice.does("mine", "reset", "--yes")
    assert made.site.seen()["machines"]["promo/alice"]["disk"] == "new"
    assert "rendue" in alice.does("mine", "delete", "--yes")
    assert "prête, allumée" in alice.does("mine", "create")
    assert alice.gets("mine", "class") == []


@in_test_all
def test_a_teacher_sees_the_class_and_acts_on_it(server, tmp_path):
    made, address = server
    turing = Person(tmp_path / "turing", address)
    turing.log_in("turing")
    assert turing.does("mine", "class").split() == ["promo"]
    seen = json.loads(turing.does("mine", "class", "promo", "--json"))
    assert [each["login"] for each in seen] == ["alice", "bob"]
    assert "ready, on" not in turing.does("mine", "class", "promo", "stop")
    assert turing.does("mine", "class", "promo", "start", "--only", "bob").count("ready, on") == 1
    assert "is not one of" in turing.does("mine", "class", "promo", "remove", code=2)
    assert "nobody here to ask" in turing.does("mine", "class", "promo", "reset", code=2)
    assert "ready, off" in turing.does("mine", "stop", "promo/bob")
    turing.does("mine", "retire", "promo/bob", "--yes")
    assert made.states() == {"alice": "ready", "bob": "retired"}
