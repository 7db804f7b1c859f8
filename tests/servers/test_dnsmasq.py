"""Hosts in the folder of a dnsmasq; the real one answers in `make test-all`."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from databases import find
from essaim.model.errors import ClashError, RejectedError, TakenError, TransientError
from essaim.model.school import Host
from essaim.remote.keyring import Keyring
from essaim.servers.dnsmasq import Dnsmasq, Settings
from essaim.servers.ways import Here, Login, There
from patience import in_test_all
from remote.rig import server as ssh_server
from servers import daemons
from servers.network import network
from servers.rivals import winner_of_eight

HOST = Host(name="vm-alice.example.org", address="10.77.0.5", mac="bc:24:11:00:00:05")


@pytest.fixture
def told(tmp_path):
    """A process that notes when it is told to look again."""
    notes, pid = tmp_path / "told", tmp_path / "pid"
    script = 'trap "echo told >>$1" HUP; echo $$ >"$2"; while :; do sleep 0.05; done'
    with subprocess.Popen(["sh", "-c", script, "sh", notes, pid]) as process:
        daemons.wait("a process", lambda: pid.exists() and pid.read_text().strip())
        yield lambda: notes.exists() and len(notes.read_text().split())
        process.kill()


@pytest.fixture
def folder(tmp_path) -> Path:
    made = tmp_path / "hosts"
    made.mkdir()
    return made


@pytest.fixture
def dnsmasq(folder, tmp_path) -> Dnsmasq:
    return Dnsmasq(Settings(folder=str(folder), pid_file=str(tmp_path / "pid")), Here())


def test_an_admitted_host_is_one_file_and_listed(dnsmasq, folder, told):
    dnsmasq.admit(HOST)
    (file,) = folder.glob("[!.]*")
    assert file.read_text() == "bc:24:11:00:00:05,10.77.0.5,vm-alice # vm-alice.example.org\n"
    assert dnsmasq.admitted() == [HOST]
    dnsmasq.dismiss(HOST)
    daemons.wait("the signal", told)
    assert dnsmasq.admitted() == []


def test_every_verb_may_be_repeated(dnsmasq, told):
    dnsmasq.dismiss(HOST)
    dnsmasq.admit(HOST)
    dnsmasq.admit(HOST)
    assert dnsmasq.admitted() == [HOST]
    dnsmasq.dismiss(HOST)
    dnsmasq.dismiss(HOST)
    assert dnsmasq.admitted() == []
    assert daemons.wait("the signal", told) == 1


def test_an_ipv6_host_is_listed_as_it_was_given(dnsmasq, told):
    six = replace(HOST, address="fd00::5")
    longer = replace(HOST, address="fd00::5:1", mac="bc:24:11:00:00:06")
    dnsmasq.admit(longer)
    dnsmasq.admit(six)
    assert dnsmasq.admitted() == [six, longer]
    with pytest.raises(TakenError):
        dnsmasq.admit(replace(six, mac="bc:24:11:00:00:07"))


def test_of_eight_cards_that_want_an_address_at_once_one_gets_it(dnsmasq):
    winner = winner_of_eight(dnsmasq, HOST)
    assert dnsmasq.admitted() == [winner]


@pytest.mark.parametrize(
    "line",
    [
        "bc:24:11:00:00:05,10.77.0.99,other",
        "BC:24:11:00:00:05,set:red,10.77.0.5",
        "aa:bb:cc:dd:ee:ff,10.77.0.5",
    ],
)
def test_what_an_administrator_wrote_is_refused_and_left_alone(dnsmasq, folder, line):
    (folder / "by-hand").write_text(line + "\n")
    with pytest.raises(TakenError, match="by-hand") as caught:
        dnsmasq.admit(HOST)
    assert caught.value.hint
    # Another address would do, unless it is the card that has one.
    assert isinstance(caught.value, ClashError) == (HOST.mac not in line.lower())
    dnsmasq.dismiss(HOST)
    assert (folder / "by-hand").read_text() == line + "\n"
    assert dnsmasq.admitted() == []


def test_a_longer_address_is_another_address(dnsmasq, folder):
    (folder / "by-hand").write_text("aa:bb:cc:dd:ee:ff,10.77.0.50\naa:bb:cc:dd:ee:fe,110.77.0.5\n")
    dnsmasq.admit(HOST)
    assert dnsmasq.admitted() == [HOST]


def test_dismissing_leaves_what_belongs_to_another_card_now(dnsmasq):
    dnsmasq.admit(HOST)
    dnsmasq.dismiss(replace(HOST, mac="bc:24:11:00:00:06"))
    dnsmasq.dismiss(replace(HOST, address="10.77.0.6"))
    assert dnsmasq.admitted() == [HOST]


@pytest.mark.parametrize("name", ["a\nb", "a,b", "a b", "$(x)", "-a", ""])
def test_a_name_that_is_none_is_refused(dnsmasq, name):
    with pytest.raises(RejectedError, match="cannot be the name"):
        dnsmasq.admit(replace(HOST, name=name))
    with pytest.raises(RejectedError, match="no card"):
        dnsmasq.admit(replace(HOST, mac="bc:24:11:00:00"))


def test_a_folder_that_is_not_there_is_told(tmp_path, dnsmasq):
    lost = Dnsmasq(Settings(folder=str(tmp_path / "nowhere")), Here())
    with pytest.raises(RejectedError, match="nowhere") as caught:
        lost.admit(HOST)
    assert "dhcp-hostsdir" in caught.value.hint
    dnsmasq.admit(HOST)
    with pytest.raises(RejectedError, match="pid") as caught:
        dnsmasq.dismiss(HOST)
    assert "dhcp.pid_file" in caught.value.hint


@in_test_all
@pytest.mark.root
def test_a_real_card_gets_its_address_once_admitted_not_before_and_not_after():
    if os.geteuid():
        pytest.skip("namespaces of a network need root")
    program = find("dnsmasq", "dnsmasq-base")
    with network() as made, daemons.folder() as place:
        hosts, pid = place / "hosts", place / "pid"
        hosts.mkdir()
        words = [program, "--keep-in-foreground", "--conf-file=/dev/null", "--port=0"]
        words += ["--interface=served", "--dhcp-range=10.77.0.0,static,600", "--log-dhcp"]
        words += [f"--dhcp-hostsdir={hosts}", f"--pid-file={pid}", "--dhcp-authoritative"]
        words += [f"--dhcp-leasefile={place}/leases", "--log-facility=-", "--user=root"]
        dnsmasq = Dnsmasq(Settings(folder=str(hosts), pid_file=str(pid)), Here())
        with daemons.running(made.at_server(words), place, pid.exists):
            log = place / "log"
            assert made.ask(HOST.mac) == ""
            asked = f"{HOST.mac} no address"
            daemons.wait("dnsmasq to be asked", lambda: asked in log.read_text())
            dnsmasq.admit(HOST)
            daemons.wait("dnsmasq to notice", lambda: "essaim-" in log.read_text())
            assert made.ask(HOST.mac, tries=60).split() == [HOST.address, "vm-alice"]
            dnsmasq.dismiss(HOST)
            daemons.wait("dnsmasq to look again", lambda: made.ask(HOST.mac) == "")


@in_test_all
@pytest.mark.root
def test_the_folder_may_be_on_another_computer(tmp_path):
    if os.geteuid():
        pytest.skip("making machines out of namespaces needs root")
    keyring = Keyring(tmp_path / "keys")
    with ssh_server("router", keyring, tmp_path) as router:
        made = router.enter("sh", "-c", "mkdir /srv/hosts; sleep 3600 >/dev/null 2>&1 & echo $!")
        router.path("/srv/pid").write_text(made.stdout)
        login = Login(
            host="127.0.0.1",
            port=router.port,
            host_key=router.target.host_key,
            key=str(keyring.user_key()),
        )
        dnsmasq = Dnsmasq(Settings(folder="/srv/hosts", pid_file="/srv/pid"), There(login))
        dnsmasq.admit(HOST)
        dnsmasq.admit(HOST)
        assert dnsmasq.admitted() == [HOST]
        assert len(list(router.path("/srv/hosts").glob("essaim-*"))) == 1
        with pytest.raises(TakenError):
            dnsmasq.admit(replace(HOST, mac="bc:24:11:00:00:06"))
        dnsmasq.dismiss(HOST)
        assert dnsmasq.admitted() == []
        dnsmasq.close()
        other = keyring.host_public_key(replace(router.name, machine="other"))
        stranger = Dnsmasq(Settings(folder="/srv/hosts"), There(replace(login, host_key=other)))
        with pytest.raises(RejectedError):
            stranger.admit(HOST)
        stranger.close()
        router.stop_sshd()
        dnsmasq = Dnsmasq(Settings(folder="/srv/hosts"), There(login))
        with pytest.raises(TransientError):
            dnsmasq.admit(HOST)
        dnsmasq.close()
