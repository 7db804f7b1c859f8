"""The script that makes a student's account, on a real machine; and what is wanted of it."""

from __future__ import annotations

import shlex
import subprocess
from types import SimpleNamespace

import pytest

import testcache
from drivers.lab import lab
from essaim.model.names import MachineName
from essaim.model.stacks import Machine, Size
from essaim.workflows.student_account import Wanted, wanted_account

PLANE, KEY = "ssh-ed25519 AAAAplane", "ssh-ed25519 AAAAstudent"


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """A machine that answers, and what runs a shell line there as root."""
    rootfs = testcache.images().build(testcache.base_image(), lambda _line: None)
    with lab(rootfs, tmp_path_factory.mktemp("account")) as it:
        (name,) = it.up(it.stack(), 1)

        def ssh(line: str) -> subprocess.CompletedProcess[str]:
            it.await_ssh(name)  # it may be reloading
            return it.ssh(name, line)

        def run(line: str) -> str:
            it.await_ssh(name)
            return it.run(name, line)

        yield SimpleNamespace(run=run, ssh=ssh)


def account(machine, login: str, *, fails: str = "", keys=(PLANE, KEY), **its: str) -> str:
    """Make an account, twice; it must be refused with these words when it `fails`."""
    values = {"mode": "local", "uid": "", "home": "", "person": "", **its}
    command = shlex.join(Wanted(login=login, keys=tuple(keys), **values).command)
    for _ in range(2):
        done = machine.ssh(command)
        if fails:
            assert done.returncode == 70
            assert fails in done.stdout
        else:
            assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout


def passwd(machine, login: str) -> list[str]:
    return machine.run(f"getent passwd {login}").strip().split(":")


def test_the_account_has_its_uid_home_name_and_keys(machine):
    account(machine, "alice", uid="2001", home="/home/students/alice", person="Alice Doe")
    assert passwd(machine, "alice")[2:] == [
        "2001", "2001", "Alice Doe", "/home/students/alice", "/bin/bash",
    ]  # fmt: skip
    assert machine.run("stat -c '%U %a' /home/students/alice").startswith("alice 7")
    where = "/etc/ssh/authorized_keys.d/alice"
    assert machine.run(f"cat {where}") == f"{PLANE}\n{KEY}\n"
    assert machine.run(f"stat -c '%U %a' {where}") == "root 644\n"
    assert machine.run("ls -A /etc/ssh/authorized_keys.d | grep new || true") == ""
    # Another key takes the place of the one before.
    account(machine, "alice", uid="2001", keys=(PLANE,))
    assert machine.run(f"cat {where}") == f"{PLANE}\n"


@pytest.mark.parametrize("login", ["al.ice", "2fast", "a_b-c", "x" * 32])
def test_every_login_of_a_roster_can_have_an_account(machine, login):
    account(machine, login)
    assert int(passwd(machine, login)[2]) >= 1000
    assert machine.run(f"getent shadow {login}").split(":")[1] == "*"  # `!` would be locked


def test_an_account_that_the_template_has_is_taken_over(machine):
    machine.run("useradd -m -u 2100 olga")
    account(machine, "olga", uid="2100")
    assert machine.run("getent shadow olga").split(":")[1] == "*"
    machine.run("echo olga:secret | chpasswd")
    account(machine, "olga", uid="2100")
    assert machine.run("getent shadow olga").split(":")[1].startswith("$"), "a password stays"


def test_what_would_be_somebody_elses_is_refused(machine):
    machine.run("useradd -m -u 2200 oscar")
    account(machine, "peggy", uid="2200", fails="uid 2200 is oscar's there")
    account(machine, "oscar", uid="2201", fails="oscar has uid 2200 there, not 2201")
    account(machine, "root", fails="root is an account of the system there")
    account(machine, "daemon", uid="1", fails="daemon is an account of the system there")
    assert machine.run("ls /etc/ssh/authorized_keys.d | grep -e root -e daemon || true") == ""


def test_a_uid_that_the_container_does_not_have_is_refused_before_anything_is_made(machine):
    ranges = [line.split() for line in machine.run("cat /proc/self/uid_map").splitlines()]
    outside = max(int(first) + int(size) for first, _, size in ranges)
    if outside > 2**31 - 1:
        pytest.skip("this machine has every uid")
    account(machine, "quinn", uid=str(outside), fails=f"uid {outside} is outside of the ids")
    assert machine.run("getent passwd quinn || true") == ""


def test_one_of_the_directory_gets_its_key_and_no_account(machine):
    account(machine, "rupert", mode="directory", uid="600000001", home="/home/nfs/rupert")
    assert machine.run("getent passwd rupert || true") == ""
    assert machine.run("cat /etc/ssh/authorized_keys.d/rupert") == f"{PLANE}\n{KEY}\n"
    assert machine.run("ls /home/nfs 2>/dev/null || true") == ""


def test_it_is_locked_and_opened_again(machine):
    account(machine, "sybil")
    account(machine, "sybil", mode="lock", keys=())
    assert machine.run("ls /etc/ssh/authorized_keys.d | grep sybil || true") == ""
    assert machine.run("getent shadow sybil").split(":")[7] == "1"
    account(machine, "nobody-here", mode="lock", keys=())
    account(machine, "sybil")
    assert machine.run("getent shadow sybil").split(":")[7] == ""
    assert KEY in machine.run("cat /etc/ssh/authorized_keys.d/sybil")


def test_sshd_is_told_once_where_the_keys_are(machine):
    first = account(machine, "trudy")
    assert "reloaded" not in first.splitlines(), "the second time there is nothing to reload"
    line = "AuthorizedKeysFile .ssh/authorized_keys .ssh/authorized_keys2"
    assert line in machine.run("sshd -T -o HostKey=/root/none 2>&1 || cat /etc/ssh/sshd_config.d/*")
    # One whose configuration includes nothing is told in its only file.
    machine.run(
        "cp /etc/ssh/sshd_config /root/before; sed -i /Include/d /etc/ssh/sshd_config;"
        "rm /etc/ssh/sshd_config.d/00-essaim-keys.conf /run/essaim-sshd-reloaded"
    )
    account(machine, "trudy")
    assert machine.run("head -n 1 /etc/ssh/sshd_config").startswith(line)
    assert machine.run(f"grep -c '^{line}' /etc/ssh/sshd_config") == "1\n"


def test_what_is_wanted_comes_from_the_labels_of_the_machine():
    labels = {"login": "alice", "uid": "2001", "home": "/h", "person": "A: Doe,\tx"}
    values = {"group": "students", "index": 1, "address": "10.0.0.1", "image": "gui"}
    wanted = Machine(
        name=MachineName("promo", "alice"), size=Size(cores=1, memory=1), labels=labels, **values
    )
    found = wanted_account(wanted, KEY, [PLANE])
    assert found.command[4:] == ["local", "alice", "2001", "/h", "A Doe x", f"{PLANE}\n{KEY}"]
    assert found.digest != wanted_account(wanted, "", [PLANE]).digest
