"""Both provisioners on one real machine end in the same state: R-D4."""

from __future__ import annotations

import os
import shlex
import time
from types import SimpleNamespace

import pytest

from agent.worker import worker
from essaim.model.errors import RejectedError, TransientError
from essaim.remote.accounts import AnsibleAccounts, NativeAccounts, Proof
from essaim.remote.keyring import Keyring
from patience import in_test_all


def now() -> int:
    """What the database's clock would say."""
    return time.time_ns() // 1_000_000


ACCOUNT = "l-7k2m9x4q"
LIMITS = {"processes": 40, "memory_mib": 256, "open_files": 200}
STATE = (
    "getent passwd {a}; getent shadow {a}; getent group {a}; id {a}; "
    "cd /home/{a}; find . -printf '%P %y %m %U %G %s\\n' | sort; "
    "cd /etc/essaim/keys; cat {a}; stat -c '%n %a %U %G' .. . {a}; "
    "stat -c '%a %U' /var/lib/essaim-helper/terms/{a}; "
    "cd /etc/security/limits.d; cat essaim-{a}.conf; stat -c '%a %U' essaim-{a}.conf; "
    "grep {a} /etc/subuid /etc/subgid; sudo -n -l -U {a}; passwd -S {a}"
)


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    if os.geteuid():
        pytest.skip("the accounts of these machines need root's uids")
    with worker(tmp_path_factory.mktemp("accounts")) as one:
        one.install("--playbooks")
        yield one


@pytest.fixture
def native(node):
    return NativeAccounts(node.remote)


@pytest.fixture
def provisioners(node, native, logs):
    ansible = AnsibleAccounts(
        node.remote, node.keyring, record=logs.record, note=logs.note, proxy=node.proxy
    )
    return {"native": native, "ansible": ansible}


def seen(node):
    return node.sh(STATE.format(a=ACCOUNT), ok=False).stdout


@in_test_all
@pytest.mark.root
def test_both_end_in_the_same_state(node, provisioners):
    key = node.keyring.user_public_key() + " {{ lookup('pipe', 'touch /tmp/broken-into') }}"
    until = int(time.time()) + 3600
    while any((until + more) % 86400 < 1800 for more in (0, 200_000)):
        until += 1800  # the system knows only days, and each of the two looks at the clock itself
    states, later, logins = {}, {}, {}
    for name, accounts in provisioners.items():
        last = """echo '{"last": 61183, "boot_id": "", "used": []}' >/var/lib/essaim-helper/uids"""
        node.sh(f"mkdir -p /var/lib/essaim-helper; {last}")
        accounts.create(node.service, ACCOUNT, [key], until, LIMITS, at=now())
        states[name] = seen(node)
        accounts.create(node.service, ACCOUNT, [key], until, LIMITS, at=now())
        assert seen(node) == states[name]
        # What an administrator or the account itself has bent is straightened.
        node.sh(f"usermod -aG daemon {ACCOUNT}; chmod 755 /home/{ACCOUNT}")
        node.sh(f"cd /etc/essaim/keys; echo more >>{ACCOUNT}; chmod 777 {ACCOUNT} .")
        node.sh(f"usermod -e '' {ACCOUNT}")
        accounts.create(node.service, ACCOUNT, [key], until + 200_000, {"processes": 41}, at=now())
        later[name] = seen(node)
        logins[name] = node.ssh(ACCOUNT, "id; ulimit -u; ulimit -n; sudo -n true; pwd").stdout
        assert not accounts.verify(node.service, ACCOUNT).clean
        accounts.remove(node.service, ACCOUNT, at=now())
        assert accounts.verify(node.service, ACCOUNT) == Proof(clean=True)
        accounts.remove(node.service, ACCOUNT, at=now())
        assert (
            node.sh(
                "ls -A /etc/essaim/keys /var/lib/essaim-helper/terms | grep l-", ok=False
            ).stdout
            == ""
        )
    assert states["native"] == states["ansible"]
    assert later["native"] == later["ansible"]
    assert logins["native"] == logins["ansible"]
    expected = f"{ACCOUNT}:x:61000:61000:essaim lease until {until}:/home/{ACCOUNT}:"
    assert states["native"].startswith(expected)
    assert f"{ACCOUNT}:*:" in states["native"]
    assert "is not allowed to run sudo" in states["native"]
    assert "nproc 41" in later["native"]
    assert "nofile" not in later["native"]
    assert "lookup" not in states["native"]
    assert f"{ACCOUNT}:100000" not in states["native"]
    for text in states["native"], later["native"]:
        assert f".. 755 root root\n. 755 root root\n{ACCOUNT} 644 root root\n" in text


@pytest.mark.root
@pytest.mark.parametrize("name", ["native", pytest.param("ansible", marks=in_test_all)])
def test_a_client_cannot_keep_its_access(node, provisioners, name, tmp_path):
    """What the client puts into its home lets nobody in, neither before nor after.  R-D4."""
    accounts, first = provisioners[name], node.keyring.user_public_key()
    mine, second = Keyring(tmp_path / "mine"), Keyring(tmp_path / "second")
    accounts.create(node.service, ACCOUNT, [first], int(time.time()) + 600, {}, at=now())
    script = 'mkdir -p .ssh; mv .ssh away; mkdir -m 700 .ssh; echo "$0" >.ssh/authorized_keys'
    done = node.ssh(ACCOUNT, shlex.join(["sh", "-c", script, mine.user_public_key()]))
    assert done.returncode == 0
    assert node.ssh(ACCOUNT, "true", key=mine.user_key()).returncode != 0
    accounts.create(
        node.service, ACCOUNT, [second.user_public_key()], int(time.time()) + 600, {}, at=now()
    )
    assert node.ssh(ACCOUNT, "cat .ssh/authorized_keys", key=second.user_key()).returncode == 0
    for key in (mine.user_key(), node.keyring.user_key()):
        assert "Permission denied" in node.ssh(ACCOUNT, "true", key=key).stderr
    accounts.remove(node.service, ACCOUNT, at=now())
    assert accounts.verify(node.service, ACCOUNT) == Proof(clean=True)


@pytest.mark.root
@pytest.mark.parametrize("name", ["native", pytest.param("ansible", marks=in_test_all)])
def test_a_server_whose_clock_is_a_year_off_lends_as_long(
    node, provisioners, native, name, monkeypatch
):
    """Only how long it lasts counts.  R-D4."""
    accounts, key = provisioners[name], node.keyring.user_public_key()
    real = time.time
    for skew in (-365 * 86400, 365 * 86400) if name == "native" else (365 * 86400,):
        monkeypatch.setattr(
            "essaim.remote.accounts.time", SimpleNamespace(time=lambda s=skew: real() + s)
        )
        accounts.create(node.service, ACCOUNT, [key], int(real() + skew + 600), {}, at=now())
        for _ in range(2):
            node.sh("echo '{}' | /usr/local/lib/essaim/helper reap")
        assert node.ssh(ACCOUNT, "true").returncode == 0
        accounts.create(node.service, ACCOUNT, [key], int(real() + skew - 1), {}, at=now())
        node.sh("echo '{}' | /usr/local/lib/essaim/helper reap")
        assert native.list(node.service) == []


@pytest.mark.root
def test_a_home_goes_to_the_next_machine(node, native):
    native.create(
        node.service, ACCOUNT, [node.keyring.user_public_key()], 2_000_000_000, {}, at=now()
    )
    node.ssh(ACCOUNT, "head -c 6000000 /dev/urandom > big; sha256sum big > sum")
    data = [native.save(node.service, ACCOUNT, 100)]
    node.ssh(ACCOUNT, "echo later > later; rm .bashrc")
    data.append(native.save(node.service, ACCOUNT, 100, since=int(time.time() * 1000) - 600_000))
    native.remove(node.service, ACCOUNT, at=now())
    native.create(
        node.service, ACCOUNT, [node.keyring.user_public_key()], 2_000_000_000, {}, at=now()
    )
    native.restore(node.service, ACCOUNT, data, at=now(), most_mib=64)
    native.message(node.service, ACCOUNT, "moved here")
    assert node.ssh(ACCOUNT, "sha256sum -c sum; cat later").stdout == "big: OK\nlater\n"
    assert node.ssh(ACCOUNT, "cat .bashrc").returncode != 0
    native.restore(node.service, ACCOUNT, [], at=now(), most_mib=64)
    assert [one["account"] for one in native.list(node.service)] == [ACCOUNT]
    assert native.clean(node.service, at=now()) == Proof(clean=True)
    with pytest.raises(RejectedError, match="there is no account"):
        native.save(node.service, ACCOUNT, 1)
    with pytest.raises(RejectedError, match="there is no account"):
        native.restore(node.service, ACCOUNT, data, at=now(), most_mib=64)


@pytest.mark.root
def test_a_machine_that_sends_more_than_was_asked_for_is_stopped(node, native):
    script = "#!/bin/sh\nexec cat /dev/zero\n"
    node.sh("cd /usr/local/lib/essaim; mv helper kept; printf '%s' \"$1\" >helper", script)
    node.sh("chmod 755 /usr/local/lib/essaim/helper")
    try:
        with pytest.raises(RejectedError, match="larger than was asked for"):
            native.save(node.service, ACCOUNT, 1)
    finally:
        node.sh("mv /usr/local/lib/essaim/kept /usr/local/lib/essaim/helper")


@pytest.mark.root
@pytest.mark.parametrize("name", ["native", "ansible"])
def test_what_is_no_lease_is_refused_here(node, provisioners, name):
    accounts, key = provisioners[name], node.keyring.user_public_key()
    for account in ("root", "l-../x", "l-ab cd", "l-abcd\n", "-l"):
        with pytest.raises(RejectedError, match="cannot be the account of a lease"):
            accounts.create(node.service, account, [key], 1, {}, at=now())
        with pytest.raises(RejectedError, match="cannot be the account of a lease"):
            accounts.remove(node.service, account, at=now())
    for keys in ([], ["x"], [f'command="sh" {key}'], [f"{key}\n{key}"]):
        with pytest.raises(RejectedError, match="public SSH keys"):
            accounts.create(node.service, ACCOUNT, keys, 1, {}, at=now())
    with pytest.raises(RejectedError, match="no such limit: nice"):
        accounts.create(node.service, ACCOUNT, [key], 1, {"nice": 1}, at=now())
    node.sh("useradd l-other1")
    with pytest.raises(RejectedError, match="did not make it"):
        accounts.create(node.service, "l-other1", [key], 1, {}, at=now())
    node.sh("userdel l-other1")


@pytest.mark.root
def test_a_playbook_where_only_the_helper_is_allowed_says_what_to_do(node, provisioners):
    node.install()
    try:
        with pytest.raises(RejectedError, match="sudo") as caught:
            provisioners["ansible"].remove(node.service, ACCOUNT, at=now())
    finally:
        node.install("--playbooks")
    assert "--playbooks" in caught.value.hint


@pytest.mark.root
def test_a_machine_without_the_helper_says_so(node, native):
    node.sh("mv /usr/local/lib/essaim/helper /root/helper")
    try:
        with pytest.raises(RejectedError, match=r"list: sudo: .*command not found") as caught:
            native.list(node.service)
    finally:
        node.sh("mv /root/helper /usr/local/lib/essaim/helper")
    assert "agent is installed" in caught.value.hint


@pytest.mark.root
@pytest.mark.parametrize("kind", ["native", "ansible"])
def test_what_was_asked_before_something_newer_comes_too_late(node, provisioners, native, kind):
    accounts, key = provisioners[kind], node.keyring.user_public_key()
    long = int(time.time()) + 600
    before = now()
    native.create(node.service, ACCOUNT, [key], long, {}, at=before + 1)
    for late in (
        lambda: accounts.create(node.service, "l-other1", [key], long, {}, at=before),
        lambda: accounts.remove(node.service, ACCOUNT, at=before),
        lambda: native.clean(node.service, at=before),
        lambda: native.restore(node.service, ACCOUNT, [b"x"], at=before, most_mib=64),
    ):
        with pytest.raises(TransientError, match="it comes too late"):
            late()
    assert [each["account"] for each in native.list(node.service)] == [ACCOUNT]
    assert native.clean(node.service, at=before + 2) == Proof(clean=True)
    with pytest.raises(TransientError, match="1 ms before what was done here last"):
        native.create(node.service, ACCOUNT, [key], long, {}, at=before + 1)
    assert native.list(node.service) == []
    native.create(node.service, ACCOUNT, [key], long, {}, at=before + 2)
    native.clean(node.service, at=now())
