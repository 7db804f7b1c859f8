"""Renting from the command line, over HTTP, from a real server (R-D2)."""

from __future__ import annotations

import json
import shlex
import signal
import stat

import pytest

from api.rig import GATEWAY, KEY, wait_for
from cli.person import Person, way
from essaim.model.words import both


@pytest.fixture
def machine(here):
    return here.plane.ready("pc-1")


def leases(here) -> list:
    return here.plane.leases.list(user=None)


# -- renting ------------------------------------------------------------------------------------


def test_rent_prints_a_line_that_leads_to_the_machine_with_its_host_key_pinned(
    here, ada, machine, tmp_path
):
    done = ada.types("rent", "--for", "2h")  # R-D2 R-D4
    assert done.returncode == 0, done.stderr
    (lease,) = leases(here)
    words = shlex.split(done.stdout)
    assert words[0] == "ssh"
    assert words[-1] == f"{lease.id}@{GATEWAY.host}"
    assert words[words.index("-p") + 1] == str(GATEWAY.port)
    known = ada.client / "known_hosts"
    assert f"UserKnownHostsFile={known}" in words
    assert "StrictHostKeyChecking=yes" in words
    assert known.read_text() == f"[{GATEWAY.host}]:{GATEWAY.port} {GATEWAY.host_key}\n"
    assert lease.wish.seconds == 7200
    assert lease.id in done.stderr


def test_a_key_is_made_when_there_is_none_and_the_usual_one_is_taken_when_there_is(
    here, ada, machine
):
    made = ada.gets("rent")
    own = ada.client / "id_ed25519"
    assert stat.S_IMODE(own.stat().st_mode) == 0o600
    assert str(own) in made["ssh"][0]
    assert leases(here)[0].public_key == own.with_suffix(".pub").read_text().strip()
    ada.does("release", made["id"])
    (ada.home / ".ssh").mkdir()
    (ada.home / ".ssh/id_ed25519.pub").write_text(KEY + "\n")
    wait_for(lambda: here.plane.leases.get(made["id"]).state == "ended")
    ada.does("rent")
    assert leases(here)[0].public_key == KEY


def test_a_private_key_is_never_sent(here, ada, machine, tmp_path):
    secret = tmp_path / "odd.pub"
    secret.write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n")
    assert "not one public key" in ada.does("rent", "--key", str(secret), code=1)
    assert leases(here) == []


def test_what_is_wished_for_is_what_is_sent(here, ada):
    (ada.home / "key.pub").write_text(KEY)
    wish = "--no-wait -n 3 --cores 2 --memory 1.5G --label gpu=yes --site room-1 --for 1h30m"
    lease = ada.gets("rent", *wish.split(), "--key", str(ada.home / "key.pub"))
    assert lease["state"] == "queued"
    asked = lease["wish"]
    assert (asked["count"], asked["cores"], asked["memory"]) == (3, 2, 1536)
    assert (asked["labels"], asked["site"], asked["seconds"]) == ({"gpu": "yes"}, "room-1", 5400)


def test_hold_and_home_are_told(here, ada, machine):
    lease = ada.gets("rent", "--hold", "1h", "--no-home")
    assert leases(here)[0].wish.hold == 3600
    assert leases(here)[0].wish.home is False
    said = ada.types("release", lease["id"], "--failed").stderr
    assert "kept for you" in said
    assert here.plane.leases.get(lease["id"]).state == "active"
    assert "given back" in ada.types("release", lease["id"], "--failed").stderr


def test_several_machines_have_a_line_each(here, ada):
    here.plane.ready("pc-1")
    here.plane.ready("pc-2")
    lines = ada.does("rent", "-n", "2").splitlines()
    (lease,) = leases(here)
    assert [line.split()[-1].split("@")[0] for line in lines] == [lease.id, f"{lease.id}.2"]


def test_ctrl_c_while_queued_leaves_the_lease_in_the_queue_and_says_how_to_give_it_up(here, ada):
    waiting = ada.begins("rent")
    line = wait_for(waiting.stderr.readline)
    while "number 1" not in line:
        line = wait_for(waiting.stderr.readline)  # R-D3
    waiting.send_signal(signal.SIGINT)
    _, said = waiting.communicate(timeout=60)
    (lease,) = leases(here)
    assert waiting.returncode == 130
    assert f"essaim release {lease.id}" in said
    assert "stays queued" in said
    assert lease.state == "queued"
    ada.does("release", lease.id)
    assert here.plane.leases.get(lease.id).state == "ended"


def test_who_waits_gets_the_machine_when_it_is_there(here, ada):
    waiting = ada.begins("rent")
    wait_for(lambda: leases(here))
    here.plane.ready("pc-1")
    from essaim.usecases.leases import grant_queue

    wait_for(lambda: grant_queue(here.plane) or leases(here)[0].state != "queued")
    out, said = waiting.communicate(timeout=60)
    assert waiting.returncode == 0, said
    assert out.startswith("ssh ")


def test_an_answer_that_is_lost_is_asked_for_again_and_nothing_is_rented_twice(here, server, ada):
    here.plane.ready("pc-1")
    here.plane.ready("pc-2")
    lost = []

    def first(request: bytes) -> bool:
        if request.startswith(b"POST /api/rent"):
            lost.append(request)
            return len(lost) == 1
        return False

    with way(server, first) as bad:
        change(ada, server=bad)
        ada.does("rent")
    assert len(lost) == 2
    assert len(leases(here)) == 1


def test_the_same_command_after_a_lost_answer_is_the_same_rent(here, server, ada):
    here.plane.ready("pc-1")
    here.plane.ready("pc-2")
    broken = True
    with way(server, lambda request: broken and request.startswith(b"POST /api/rent")) as bad:
        change(ada, server=bad)
        assert "does not rent twice" in ada.does("rent", code=1)
        (lease,) = leases(here)
        broken = False
        assert ada.gets("rent")["id"] == lease.id
        assert len(leases(here)) == 1
        assert ada.gets("rent")["id"] != lease.id  # answered: the next one is another


def test_two_commands_at_once_are_two_rents(here, ada):
    here.plane.ready("pc-1")
    here.plane.ready("pc-2")
    both = [ada.begins("rent"), ada.begins("rent")]
    for each in both:
        _, said = each.communicate(timeout=120)
        assert each.returncode == 0, said
    assert len({lease.nodes for lease in leases(here)}) == 2


def test_extend_leases_and_release(here, ada, machine):
    lease = ada.gets("rent", "--for", "1h")
    until = here.plane.leases.get(lease["id"]).expires_at
    ada.does("extend", lease["id"], "30m")
    assert here.plane.leases.get(lease["id"]).expires_at == until + 1800_000
    assert lease["id"] in ada.does("leases")
    full = ada.does("leases", lease["id"])
    assert "pc-1" in full
    assert f"{lease['id']}@{GATEWAY.host}" in full
    assert ada.gets("leases", lease["id"])["visits"] == []
    done = ada.types("release", lease["id"], "l-nothing1")
    assert done.returncode == 4
    assert "no lease l-nothing1" in done.stderr
    wait_for(lambda: here.plane.leases.get(lease["id"]).state == "ended")
    assert lease["id"] not in ada.does("leases")
    assert lease["id"] in ada.does("leases", "--past")


def test_what_the_quota_refuses_is_said_with_what_to_do(here, ada):
    said = ada.does("rent", "-n", "1000", code=1)
    assert "allowed" in said
    assert "→" in said
    assert leases(here) == []


def test_the_quota_is_an_error_with_its_code_in_json(here, ada):
    done = ada.types("rent", "-n", "1000", "--json")
    assert json.loads(done.stdout)["error"]["code"] == "quota"


def test_what_no_machine_could_serve_is_refused_naming_the_largest(here, server, ada, machine):
    said = ada.does("rent", "--cores", "64", code=1)
    node = here.plane.fleet.list()[0]
    assert f"the largest has {node.cores} cores and {node.memory} MiB" in said
    assert "→" in said
    assert "there are 1 of the kind" in ada.does("rent", "-n", "2", code=1)
    done = ada.types("rent", "--cores", "64", "--json")
    assert json.loads(done.stdout)["error"]["code"] == "impossible"
    french = ada.types("rent", "--cores", "64", LANG="fr_FR.UTF-8").stderr
    assert "aucune machine n'est si grande" in french
    assert "no machine" not in french
    assert leases(here) == []


def test_the_warning_that_a_lease_ends_says_a_command_that_works(here, ada, machine):
    ada.does("rent", "--for", "5m")
    (lease,) = leases(here)
    for line in both("machine.ends", minutes=5, at="12:00", lease=lease.id).splitlines():
        before = here.plane.leases.get(lease.id).expires_at
        command = line[line.index("essaim extend") :]
        ada.does(*shlex.split(command)[1:])
        assert here.plane.leases.get(lease.id).expires_at == before + 3_600_000


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rent", "--for", "soon"], "2h"),
        (["rent", "--for", "0s"], "2h"),
        (["rent", "--memory", "lots"], "16G"),
        (["rent", "--label", "gpu"], "NAME=VALUE"),
        (["extend", "l-abcd1234", "1x"], "2h"),
        (["extend", "pc-1", "1h"], "essaim leases"),
        (["release", "L-ABC"], "essaim leases"),
        (["leases", "nothing"], "essaim leases"),
        (["leases", "l-nothing1"], "no lease"),
        (["nodes", "show", "nothing"], "no node nothing"),
        (["users", "set", "bob"], "--role"),
        (["nodes", "remove", "pc-1"], "--yes"),
    ],
)
def test_wrong_words_are_explained(here, ada, machine, words, said):
    assert said in ada.does(*words, code=2)


def test_french_where_the_terminal_is_french(here, server, tmp_path):
    here.plane.ready("pc-1")
    zoe = Person(tmp_path / "zoe", server, lang="fr_FR.UTF-8")
    assert "zoe a maintenant un compte" in zoe.types("signup", "zoe", "--server", server).stderr
    rented = zoe.types("rent")
    assert "à vous jusqu'au" in rented.stderr
    assert "LOCATION" in zoe.does("leases")
    lease = leases(here)[0].id
    assert "est rendue" in zoe.types("release", lease).stderr
    zoe.types("logout")
    assert "aucune session n'est ouverte" in zoe.does("leases", code=3)


def change(person: Person, **values) -> None:
    """Edit the session a person keeps."""
    path = person.client / "session.json"
    path.write_text(json.dumps({**person.session, **values}))
