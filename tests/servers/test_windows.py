"""Names and addresses of Windows servers, on a simulator of WinRM: no Windows can run here.

What is proven: the protocol, the logins, what is passed and how errors are told.  The PowerShell
itself is not run.
"""

from __future__ import annotations

import gc
import json
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from essaim.model.errors import ClashError, RejectedError, SetupError, TakenError, TransientError
from essaim.model.school import Host
from essaim.servers import windows_scripts
from essaim.servers.windows import WindowsDhcp, WindowsDns
from essaim.servers.windows_shell import Login
from essaim_lab.simulators.windows_rules import CmdletError, Held
from essaim_lab.simulators.winrm import Simulator
from servers import daemons

ZONE, BACK = "school.example.org", "0.77.10.in-addr.arpa"
HOST = Host(
    name=f"vm-alice.{ZONE}",
    address="10.77.0.5",
    mac="bc:24:11:00:00:05",
    aliases=(f"alice.{ZONE}",),
)
NASTY = '\'; Remove-Item C:\\ -Recurse; $(calc) `n "@{}" é'


@pytest.fixture
def simulator():
    with Simulator() as running:
        running.windows.zones = {ZONE: [Held(ZONE, "www", "A", "10.77.0.200")], BACK: []}
        running.windows.scopes = ["10.77.0.0/24"]
        yield running


@pytest.fixture
def login(simulator) -> Login:
    return Login(
        server=simulator.server,
        port=simulator.port,
        user=simulator.user,
        secret=simulator.secret,
        ca=str(simulator.ca),
        auth="basic",
    )


@pytest.fixture
def dns(login):
    opened = WindowsDns(login, [ZONE, BACK])
    yield opened
    opened.close()


@pytest.fixture
def dhcp(login):
    opened = WindowsDhcp(login)
    yield opened
    opened.close()


def test_a_named_host_has_its_records(simulator, dns):
    dns.name(HOST)
    assert simulator.windows.zones == {
        ZONE: [
            Held(ZONE, "www", "A", "10.77.0.200"),
            Held(ZONE, "vm-alice", "A", "10.77.0.5"),
            Held(ZONE, "alice", "CNAME", f"vm-alice.{ZONE}"),
        ],
        BACK: [Held(BACK, "5", "PTR", f"vm-alice.{ZONE}")],
    }
    assert dns.named() == {
        f"www.{ZONE}": "10.77.0.200",
        f"vm-alice.{ZONE}": "10.77.0.5",
        f"alice.{ZONE}": "10.77.0.5",
    }
    dns.unname(HOST)
    assert simulator.windows.zones[BACK] == []
    assert dns.named() == {f"www.{ZONE}": "10.77.0.200"}


def test_naming_may_be_repeated(simulator, dns):
    dns.unname(HOST)
    dns.name(HOST)
    dns.name(HOST)
    assert len(simulator.windows.zones[ZONE]) == 3
    dns.unname(HOST)
    dns.unname(HOST)
    assert len(simulator.windows.zones[ZONE]) == 1


def test_a_name_of_somebody_else_is_refused_and_nothing_is_left(simulator, dns):
    with pytest.raises(TakenError, match=rf"www.{ZONE} is 10.77.0.200 \(A\) already") as caught:
        dns.name(replace(HOST, name=f"www.{ZONE}", aliases=()))
    assert caught.value.hint
    with pytest.raises(TakenError):
        dns.name(replace(HOST, aliases=(f"www.{ZONE}",)))
    dns.unname(replace(HOST, name=f"www.{ZONE}", aliases=()))
    assert simulator.windows.zones == {ZONE: [Held(ZONE, "www", "A", "10.77.0.200")], BACK: []}


def test_an_admitted_card_is_reserved_its_address(simulator, dhcp):
    dhcp.admit(HOST)
    assert simulator.windows.reservations == {"10.77.0.5": ("bc-24-11-00-00-05", HOST.name)}
    assert dhcp.admitted() == [replace(HOST, aliases=())]
    dhcp.dismiss(HOST)
    assert dhcp.admitted() == []


def test_admitting_may_be_repeated(dhcp):
    dhcp.dismiss(HOST)
    dhcp.admit(HOST)
    dhcp.admit(HOST)
    assert len(dhcp.admitted()) == 1
    dhcp.dismiss(replace(HOST, mac="bc:24:11:00:00:06"))
    assert len(dhcp.admitted()) == 1
    dhcp.dismiss(HOST)
    dhcp.dismiss(HOST)
    assert dhcp.admitted() == []


def test_an_address_of_another_card_is_refused(dhcp):
    dhcp.admit(HOST)
    for other in (
        replace(HOST, mac="bc:24:11:00:00:06"),
        replace(HOST, address="10.77.0.6"),
        replace(HOST, name=f"other.{ZONE}"),
    ):
        said = r"10.77.0.5 is reserved for bc:24:11:00:00:05"
        with pytest.raises(TakenError, match=said) as caught:
            dhcp.admit(other)
        assert isinstance(caught.value, ClashError) == (other.mac != HOST.mac)
    with pytest.raises(RejectedError, match=r"no scope with 192.168.1.1"):
        dhcp.admit(replace(HOST, address="192.168.1.1"))
    with pytest.raises(RejectedError, match="IPv4"):
        dhcp.admit(replace(HOST, address="fd00::1"))


def test_what_a_host_says_is_data_and_the_script_is_always_the_same(simulator, dhcp):
    odd = replace(HOST, name=NASTY, aliases=())
    dhcp.admit(odd)
    dhcp.admit(replace(HOST, address="10.77.0.6", mac="bc:24:11:00:00:06"))
    (first, given), (second, _) = simulator.scripts
    assert first == second == windows_scripts.ADMIT
    assert given["Name"] == NASTY
    assert odd in dhcp.admitted()


def test_scripts_declare_what_they_are_given_and_put_nothing_together():
    for name in ("NAME", "UNNAME", "NAMED", "ADMIT", "DISMISS", "ADMITTED"):
        text = getattr(windows_scripts, name)
        for forbidden in ("Invoke-Expression", "iex ", "[scriptblock]", "Invoke-Command", '& "'):
            assert forbidden not in text
        assert text.count("{") == text.count("}")
        assert text.count("(") == text.count(")")
        # PowerShell takes no notice of capitals: a parameter must not be assigned to.
        head = re.match(r"param\((.*?)\)\n", text)
        for parameter in re.findall(r"\$(\w+)", head[1]) if head else []:
            assert not re.search(rf"\${parameter} = ", text, re.IGNORECASE), (name, parameter)


def test_shells_stay_open_and_are_few(simulator, dhcp):
    hosts = [
        Host(name=f"m{i}.{ZONE}", address=f"10.77.0.{i}", mac=f"bc:24:11:00:01:{i:02x}")
        for i in range(10, 60)
    ]
    spent: list[float] = []

    def one(host: Host) -> None:
        before = time.thread_time()
        dhcp.admit(host)
        spent.append(time.thread_time() - before)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(one, hosts))
    assert len(simulator.windows.reservations) == 50
    assert simulator.calls["Create"] <= 4
    assert sum(spent) / 50 < 0.05
    dhcp.close()
    assert simulator.shells == 0


def test_a_long_answer_comes_whole(simulator, dns):
    for i in range(2000):
        simulator.windows.zones[ZONE].append(
            Held(ZONE, f"m{i}", "A", f"10.78.{i // 250}.{i % 250}")
        )
    assert len(dns.named()) == 2001


def test_a_server_that_was_started_anew_gets_a_new_shell(simulator, dhcp):
    dhcp.admit(HOST)
    simulator.restart()
    dhcp.dismiss(HOST)
    assert simulator.windows.reservations == {}
    assert simulator.calls["Create"] == 2


def test_ntlm_is_spoken_where_it_is_asked_for(simulator, login, monkeypatch):
    monkeypatch.setenv("NTLM_USER_FILE", str(simulator.ntlm_users))
    for auth in ("negotiate", "ntlm"):
        user = f"DC1\\{simulator.user}"
        dhcp = WindowsDhcp(replace(login, auth=auth, user=user))
        dhcp.admit(HOST)
        assert len(dhcp.admitted()) == 1
        dhcp.close()
        with pytest.raises(RejectedError, match=f"does not let .* in by {auth}"):
            WindowsDhcp(replace(login, auth=auth, user=user, secret="wrong-one")).admitted()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_login_this_computer_cannot_do_is_told(login):
    for auth in ("kerberos", "credssp"):
        with pytest.raises(SetupError, match=f"cannot log in by {auth}") as caught:
            WindowsDhcp(replace(login, auth=auth)).admit(HOST)
        assert "pypsrp" in caught.value.hint
    del caught
    gc.collect()  # the library leaves the connection it was about to log in on to the collector


def test_a_wrong_password_is_told_without_it(login):
    wrong = replace(login, secret="wrong-one")
    with pytest.raises(RejectedError, match="does not let essaim in by basic") as caught:
        WindowsDhcp(wrong).admit(HOST)
    assert "secret" in caught.value.hint
    assert "wrong-one" not in f"{caught.value} {caught.value.hint} {wrong!r}"


@pytest.mark.parametrize(
    ("number", "kind", "hint"),
    [
        ("WIN32 5,Add-DnsServerResourceRecordA", RejectedError, "DnsAdmins"),
        ("WIN32 9601,Get-DnsServerResourceRecord", RejectedError, "dns.zones"),
        ("CommandNotFoundException", RejectedError, "Install-WindowsFeature"),
        ("WIN32 1722,Get-DnsServerResourceRecord", TransientError, "service"),
    ],
)
def test_what_windows_says_is_told_with_what_to_do(simulator, dns, number, kind, hint):
    simulator.windows.trouble = [CmdletError("Failed to do so.", number)]
    with pytest.raises(kind, match="Failed to do so") as caught:
        dns.name(HOST)
    assert hint in caught.value.hint
    dns.name(HOST)


def test_two_who_add_the_same_at_once_agree(simulator, dns, dhcp):
    simulator.windows.trouble = [CmdletError("Record exists.", "WIN32 9711,Add-Dns…")]
    dns.name(HOST)
    simulator.windows.trouble = [CmdletError("Reserved.", "DHCP 20022,Add-Dhcp…")]
    dhcp.admit(HOST)
    assert len(dhcp.admitted()) == 1


def test_a_zone_that_is_not_there_is_told(login):
    dns = WindowsDns(login, ["elsewhere.example.org"])
    with pytest.raises(RejectedError, match=r"elsewhere.example.org was not found"):
        dns.name(Host(name="vm.elsewhere.example.org", address="10.77.0.5"))
    dns.close()


def test_a_certificate_nobody_signed_is_refused(login):
    with pytest.raises(RejectedError, match="certificate") as caught:
        WindowsDhcp(replace(login, ca="")).admit(HOST)
    assert "ca" in caught.value.hint


def test_a_server_that_is_away_is_worth_another_try(login):
    with daemons.refusing_port() as port:
        away = replace(login, port=port)
        for verb in (
            lambda: WindowsDns(away, [ZONE, BACK]).name(HOST),
            lambda: WindowsDhcp(away).admit(HOST),
        ):
            with pytest.raises(TransientError, match="does not answer") as caught:
                verb()
            assert "WinRM" in caught.value.hint


def test_the_simulator_is_a_program_too():
    words = [sys.executable, "-m", "essaim_lab.simulators.winrm", "--scope", "10.77.0.0/24"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            dhcp = WindowsDhcp(Login(auth="basic", **json.loads(process.stdout.readline())))
            dhcp.admit(HOST)
            assert len(dhcp.admitted()) == 1
            dhcp.close()
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
