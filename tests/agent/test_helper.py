"""The helper on a real machine: R-D4 (accounts come and go whole), R-D6 (proven clean)."""

from __future__ import annotations

import io
import json
import shlex
import tarfile
import time

import pytest

from agent.worker import until

# What a client may leave behind.  Runs as the account.  What forks without end comes last: it
# leaves the other commands no process to be.
NASTY = r"""
set -e
setsid sh -c 'trap "" TERM HUP INT; while :; do sleep 1; done' >/dev/null 2>&1 </dev/null &
echo '* * * * * touch /tmp/from-cron' | crontab -
echo 'sleep 600' | at now + 1 hour 2>/dev/null
mkdir -p /tmp/deep/er; touch /tmp/deep/er/file /var/tmp/file /dev/shm/posix
mkdir -p /run/lock/mine; touch /run/lock/mine/x
ln /var/tmp/file /var/tmp/second
touch "/tmp/a
b" "/tmp/ -rf" /tmp/-delete "$(printf '/tmp/\377\033[31m')" "/tmp/\$(reboot)"
touch /srv/open/file
mkdir -m 777 /tmp/shared
python3 - <<'END'
import ctypes, os
c = ctypes.CDLL(None, use_errno=True)
assert c.shmget(0x1234, 4096, 0o1666) >= 0
assert c.semget(0x1235, 1, 0o1666) >= 0
assert c.msgget(0x1236, 0o1666) >= 0
os.chdir("/tmp")
for _ in range(600):
    os.mkdir("d" * 200)
    os.chdir("d" * 200)
END
setsid sh -c 'n() { sleep 0.1; n & n & }; n' >/dev/null 2>&1 </dev/null &
"""
QUEUE = r"""
import ctypes
rt = ctypes.CDLL("librt.so.1", use_errno=True)
assert rt.mq_open(b"/essaim-test", 0o100 | 2, 0o666, None) >= 0
"""
TRACES = (
    "find / -xdev \\( -uid {uid} -o -gid {uid} \\) 2>/dev/null; "
    "find /tmp /run /dev/shm -uid {uid}; "
    # A zombie holds nothing: its parent has not looked yet.
    "ps -o stat=,args= -U {uid} | grep -v ^Z; "
    "ls /var/spool/cron/crontabs /var/spool/cron/atjobs | grep -v '^/\\|^$\\|SEQ'; "
    "tail -qn +2 /proc/sysvipc/*; getent passwd {uid}; getent group {uid}; true"
)


def uid_of(box, account):
    return int(box.sh(f"id -u {account}").stdout)


def test_creating_twice_converges(box, lease):
    lease(limits={"processes": 50})
    uid = uid_of(box, "l-test1")
    lease(seconds=7200, limits={"open_files": 99})
    assert uid_of(box, "l-test1") == uid
    assert 61000 <= uid <= 64000
    listed = box.helper("list", {})["accounts"]
    assert [(one["account"], one["uid"], one["processes"]) for one in listed] == [
        ("l-test1", uid, 0)
    ]
    assert listed[0]["expires_at"] > time.time() + 3700
    limits = box.sh("cat /etc/security/limits.d/essaim-l-test1.conf").stdout
    assert "nofile 99" in limits
    assert "nproc" not in limits


def test_the_key_lets_in_and_nothing_else_does(box, lease, tmp_path):
    account = lease()
    done = box.ssh(account, "id -un; id -Gn; pwd; stat -c %a .; echo $SHELL")
    assert done.stdout.split() == [account, account, f"/home/{account}", "700", "/bin/bash"]
    assert box.ssh(account, "sudo -n true").returncode != 0
    assert box.ssh(account, "sudo -n /usr/local/lib/essaim/helper list").returncode != 0
    assert box.ssh(account, "su -c true </dev/null").returncode != 0
    assert box.ssh(account, f"echo x >> /etc/essaim/keys/{account}").returncode != 0
    assert box.ssh(account, "cat /var/lib/essaim/.ssh/authorized_keys").returncode != 0
    assert box.sh(f"getent shadow {account}").stdout.split(":")[1] == "*"
    assert "will expire" not in done.stderr
    from essaim.remote.keyring import Keyring

    stranger = Keyring(tmp_path).user_key()
    assert "Permission denied" in box.ssh(account, "true", key=stranger).stderr


def test_a_client_cannot_keep_or_widen_its_access(box, lease, tmp_path):
    """Keys are outside of the home: what is in it lets nobody in.  R-D4."""
    from essaim.remote.keyring import Keyring

    others, mine = Keyring(tmp_path / "others"), Keyring(tmp_path / "mine")
    account = lease()
    assert box.ssh(account, "test ! -e .ssh").returncode == 0
    # All that a client can do to its home.
    script = "mkdir .ssh; mv .ssh away; mkdir -m 700 .ssh; echo $0 > .ssh/authorized_keys; "
    script += "cp .ssh/authorized_keys .ssh/authorized_keys2; chmod 600 .ssh/*; "
    script += "echo 'touch /tmp/rc-was-here' > .ssh/rc; "
    script += "echo 'PATH=/tmp' > .ssh/environment; : > /etc/essaim/keys/x"
    done = box.ssh(account, shlex.join(["bash", "-c", script, mine.user_public_key()]))
    assert "/etc/essaim/keys/x: Permission denied" in done.stderr
    assert box.sh(f"cat /home/{account}/.ssh/authorized_keys").stdout.startswith("ssh-ed25519 ")
    assert "Permission denied" in box.ssh(account, "true", key=mine.user_key()).stderr
    lease(keys=[others.user_public_key()])
    assert box.ssh(account, "true", key=others.user_key()).returncode == 0
    for key in (box.keyring.user_key(), mine.user_key()):
        assert "Permission denied" in box.ssh(account, "true", key=key).stderr
    place = f"/etc/essaim /etc/essaim/keys /etc/essaim/keys/{account}"
    assert box.sh(f"stat -c '%U %a' {place}").stdout == "root 755\nroot 755\nroot 644\n"
    assert others.user_public_key().split()[1] in box.sh(f"cat /etc/essaim/keys/{account}").stdout
    box.sh("test ! -e /tmp/rc-was-here")
    box.helper("remove", {"account": account})
    assert box.sh("ls /etc/essaim/keys").stdout == ""


def test_an_account_is_entered_only_from_where_it_is_said(box, lease):
    account = lease(sources=["192.0.2.7", "10.9.0.0/24"])
    assert "Permission denied" in box.ssh(account, "true").stderr
    lease(sources=["192.0.2.7", "0.0.0.0/0", "::/0"])
    assert box.ssh(account, "true").returncode == 0
    request = {"account": account, "keys": [box.keyring.user_public_key()], "expires_at": 2**40}
    for wrong in (['" command="id'], "127.0.0.1", ["anywhere"], [None]):
        answer = box.helper("create", {**request, "sources": wrong})
        assert not answer["ok"]
        assert "source" in answer["error"]


def test_the_image_has_the_rules_that_install_sets(box):
    from essaim.agent.access import RULES

    assert box.sh("cat /etc/ssh/sshd_config.d/essaim.conf").stdout == RULES


def test_limits_hold(box, lease):
    account = lease(limits={"processes": 20, "memory_mib": 200, "open_files": 64})
    done = box.ssh(account, "ulimit -u; ulimit -n; ulimit -d; ulimit -c; ulimit -u 21")
    assert done.stdout.split() == ["20", "64", str(200 * 1024), "0"]
    assert "ulimit" in done.stderr
    forks = (
        "import os,time\nn=0\ntry:\n  while 1:\n    if os.fork()==0: time.sleep(2);os._exit(0)\n"
    )
    forks += "    n+=1\nexcept BlockingIOError: print(n)\n"
    done = box.ssh(account, f"python3 -c '{forks}'")
    assert 5 < int(done.stdout) < 20
    assert box.ssh(account, "python3 -c 'x=bytearray(300<<20)'").returncode != 0
    assert box.ssh(account, "python3 -c 'x=bytearray(50<<20)'").returncode == 0


@pytest.mark.parametrize(
    "account",
    ["root", "essaim", "l-", "l-abc", "l-../../x", "l-ab cd", "l-abcd\n", "l-abcd/", "L-abcd",
     "l-" + "a" * 25, "-abcd", "", None, 7, ["l-abcd"], "l-äbcd", "l-abcd\0"],
)  # fmt: skip
@pytest.mark.parametrize("verb", ["create", "remove", "verify", "save", "restore", "message"])
def test_other_names_are_refused(box, verb, account):
    body = json.dumps({"account": account, "keys": [], "text": "x", "most_mib": 1})
    done = box.sh(
        f"printf '%s\\n' {shlex.quote(body)} | /usr/local/lib/essaim/helper {verb}", ok=False
    )
    assert done.exit_code == 1
    assert "account must be l-" in done.output


def test_what_is_no_request_is_refused(box):
    key = box.keyring.user_public_key()
    good = {"account": "l-abcd", "keys": [key], "expires_at": 2e9}
    for change in (
        {"keys": []},
        {"keys": ['command="x" ' + key]},
        {"keys": [key + "\nssh-rsa AAAA"]},
        {"keys": key},
        {"expires_at": "soon"},
        {"expires_at": -1},
        {"expires_at": True},
        {"limits": {"nice": 1}},
        {"limits": {"processes": "1\nroot - nproc 1"}},
    ):
        answer = box.helper("create", {**good, **change})
        assert not answer["ok"], change
    for body in (b"nonsense\n", b"[]\n", b"{" + b" " * (2 << 20) + b"}\n"):
        assert "JSON" in (said := box.helper("list", body)["error"]) or "bytes" in said
    assert box.helper("list", {})["accounts"] == []


def test_an_account_essaim_has_not_made_is_left_alone(box):
    box.sh("useradd -m l-mine1")
    try:
        for verb in ("create", "remove"):
            request = {"account": "l-mine1", "keys": [box.keyring.user_public_key()]}
            answer = box.helper(verb, {**request, "expires_at": 2e9})
            assert "did not make it" in answer["error"]
        assert box.helper("clean", {})["clean"]
        box.sh("test -d /home/l-mine1")
    finally:
        box.sh("userdel -r l-mine1", ok=False)


def test_everything_an_account_left_is_removed(box, lease):
    box.sh("mkdir -p -m 1777 /srv/open; pgrep -x cron || cron; pgrep -x atd || atd")
    account = lease(limits={"processes": 60})
    uid = uid_of(box, account)
    assert box.ssh(account, f"python3 -c '{QUEUE}'").returncode == 0
    done = box.ssh(account, NASTY)
    assert done.returncode == 0, done.stderr
    # Others have put something into a folder of the account.
    box.sh("echo kept > /tmp/shared/of-root; mkdir /tmp/shared/dir; echo x > /tmp/shared/dir/x")
    box.helper("message", {"account": account, "text": "hello"})
    before = box.helper("verify", {"account": account})
    assert not before["clean"]
    kinds = {line.split()[0] for line in before["found"]}
    assert {"account", "group", "process", "file", "shm", "sem", "msg", "queue"} <= kinds
    assert box.helper("remove", {"account": account}) == {"ok": True}
    after = box.helper("verify", {"account": account, "uid": uid})
    assert (after["clean"], after["found"]) == (True, [])
    assert box.sh(TRACES.format(uid=uid)).stdout == ""
    box.sh("! ls -d /home/l-* /var/lib/essaim-helper/l-* /etc/security/limits.d/essaim-l-*")
    # And again: there is nothing to remove.
    assert box.helper("remove", {"account": account}) == {"ok": True}
    box.sh("for p in $(pgrep -x cron) $(pgrep -x atd); do kill $p; done")


def test_a_leftover_that_cannot_be_removed_is_named(box, lease):
    account = lease()
    uid = uid_of(box, account)
    box.sh(
        "mkdir -p /srv/fixed; touch /srv/fixed/thing; "
        f"chown {uid} /srv/fixed/thing; mount --bind /srv/fixed /srv/fixed; "
        "mount -o remount,bind,ro /srv/fixed"
    )
    try:
        assert box.helper("remove", {"account": account})["ok"]
        for verb in ("verify", "clean"):
            answer = box.helper(verb, {"account": account})
            assert (answer["clean"], answer["found"]) == (False, ["file /srv/fixed/thing"])
    finally:
        box.sh("umount /srv/fixed")
    assert box.helper("clean", {})["clean"]
    box.sh("test ! -e /srv/fixed/thing")


def test_what_a_vanished_account_left_is_found_by_its_uid(box, lease):
    account = lease()
    box.sh(f"touch '/tmp/two\nlines'; chown {account}: '/tmp/two\nlines'; userdel -f {account}")
    answer = box.helper("verify", {"account": account})
    assert "file /tmp/two\\nlines" in answer["found"]
    assert f"file /home/{account}" in answer["found"]
    assert box.helper("clean", {})["clean"]


def test_others_are_left_alone(box, lease):
    one, two = lease("l-first"), lease("l-second")
    box.sh(f"touch /tmp/of-two; chown {two}: /tmp/of-two; runuser -u {two} -- setsid sleep 300 &")
    until(lambda: box.helper("list", {})["accounts"][1]["processes"] == 1)
    box.helper("remove", {"account": one})
    assert box.helper("verify", {"account": one, "others": [two]})["clean"]
    assert box.helper("verify", {"account": one})["found"][0] == f"account {two}"
    box.sh("test -e /tmp/of-two")
    assert [a["processes"] for a in box.helper("list", {})["accounts"]] == [1]
    assert box.helper("clean", {})["removed"] == [two]


def test_accounts_made_at_once_have_uids_of_their_own(box, lease):
    from concurrent.futures import ThreadPoolExecutor

    names = [f"l-many{number}" for number in range(6)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lease, [*names, names[0]]))
    listed = box.helper("list", {})["accounts"]
    assert sorted(one["account"] for one in listed) == names
    assert len({one["uid"] for one in listed}) == 6
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda name: box.helper("remove", {"account": name}), [*names, names[0]]))
    assert box.helper("verify", {"account": names[0]})["clean"]


def test_a_message_is_shown_at_login(box, lease):
    account = lease()
    box.helper("message", {"account": account, "text": "moved to \033[31mtwo\nbye"})
    # As sshd does for somebody at a terminal.
    shown = box.sh(f"echo exit | runuser -u {account} -- /usr/local/lib/essaim/shell").stdout
    assert "moved to [31mtwo\nbye\n" in shown
    assert "moved" not in box.ssh(account, "true").stdout
    box.helper("message", {"account": account, "text": ""})
    assert (
        "moved"
        not in box.sh(f"runuser -u {account} -- /usr/local/lib/essaim/shell </dev/null").stdout
    )


def test_the_log_names_accounts_and_holds_no_secrets(box, lease):
    account = lease()
    box.helper("message", {"account": account, "text": "password123"})
    box.helper("remove", {"account": "../../etc"})
    log = box.sh("cat /var/log/essaim-helper.log; stat -c %a%U /var/log/essaim-helper.log").stdout
    assert f"create {account} ok" in log
    assert "remove - failed" in log
    assert log.endswith("600root\n")
    assert "password123" not in log
    assert box.keyring.user_public_key().split()[1] not in log


def test_a_home_is_carried_over(box, lease):
    """R-D7."""
    from essaim.remote.accounts import NativeAccounts

    accounts = NativeAccounts(box.remote)
    one = lease("l-first")
    script = "mkdir -p a/b c .ssh; chmod 500 c; echo hi > a/b/f; chmod 750 a/b/f; ln a/b/f hard; "
    script += "ln -s /etc/passwd soft; mkfifo pipe; echo x > \"$(printf 'n\\nl\\377')\"; "
    script += "echo own > .ssh/known_hosts; rm .bashrc; head -c 9000000 /dev/urandom > big; "
    script += "touch secret; chmod 0 secret"
    assert box.ssh(one, script).returncode == 0
    layers = [accounts.save(box.service, one, 64)]
    assert box.ssh(one, "rm -r a; mv big d; chmod 640 d; echo more > e; mv c C").returncode == 0
    layers.append(accounts.save(box.service, one, 64, since=begun(layers[0])))
    two = lease("l-second")
    accounts.restore(box.service, two, layers, at=time.time_ns() // 1_000_000, most_mib=64)
    what = "! -name pipe ! -name secret -printf '%P %y %m %s %l %T@\\n'"
    listing = f"cd; find . -mindepth 1 {what} | sort; cat .ssh/known_hosts; sha256sum d"
    seen = box.ssh(two, listing).stdout
    assert seen == box.ssh(one, listing).stdout
    assert "C d 500" in seen
    assert ".bashrc" not in seen
    assert box.sh(f"find /home/{two} ! -user {two}").stdout == ""
    small = accounts.save(box.service, one, 2)
    assert len(small) < 2 << 20
    with tarfile.open(fileobj=io.BytesIO(small)) as tar:
        names = tar.getnames()
    assert {"hard", ".ssh/known_hosts", "e"} <= set(names)
    assert {"d", "secret", "pipe"}.isdisjoint(names)


def begun(layer):
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        return json.loads(tar.extractfile(".essaim-layer").read())["at"]


def test_a_hostile_archive_does_no_harm(box, lease):
    """Restoring has the rights of the account and no others.  R-D4."""
    account = lease()
    for name in ("../../etc/essaim/keys/l-test1", "/etc/essaim/keys/l-test1", "d/../../../x"):
        body = io.BytesIO()
        with tarfile.open(fileobj=body, mode="w:gz") as tar:
            tar.addfile(tarfile.TarInfo(name))
        data = body.getvalue()
        answer = box.helper("restore", {"account": account, "layers": [len(data)]}, data)
        assert "leads out of the home" in answer["error"]
    for layers in (None, {}, [-1], ["1"], [True], [9]):
        answer = box.helper("restore", {"account": account, "layers": layers}, b"nonsense")
        assert not answer["ok"]
    assert box.ssh(account, "true").returncode == 0
