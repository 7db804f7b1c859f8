"""What a client can leave on a machine is found wherever it is; and what stays is said.  R-D6."""

from __future__ import annotations

import time

import pytest

from agent.worker import until

# Each leaves something that outlives the session it was made in.  Runs as the account.
LEFT = {
    "file in /tmp": "touch /tmp/x",
    "file in /var/tmp": "touch /var/tmp/x",
    "file in /dev/shm": "touch /dev/shm/x",
    "file in /run": "touch /run/lock/x",
    "file anywhere else": "touch /srv/open/x",
    "file in another file system": "touch /srv/other/x",
    "file in a folder of others": "touch /srv/open/deep/x",
    "folder": "mkdir -p /tmp/x/y",
    "socket": "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"/tmp/x\")'",
    "pipe": "mkfifo /tmp/x",
    "dangling link": "ln -s /nowhere /tmp/x",
    "file of its group only": "touch /tmp/x; echo /tmp/x > /tmp/chown-me",
    "process of another session": "setsid sleep 1000 >/dev/null 2>&1 </dev/null & ",
    "process that forked twice": "(setsid sh -c 'sleep 1000 & exit' >/dev/null 2>&1 </dev/null &)",
    "process that ignores signals": (
        "setsid sh -c 'trap \"\" TERM HUP INT QUIT; while :; do sleep 1; done' "
        ">/dev/null 2>&1 </dev/null &"
    ),
    "process that is stopped": "exec >/dev/null 2>&1 </dev/null; setsid sleep 1000 & kill -STOP $!",
    "process without a file": (
        "exec >/dev/null 2>&1 </dev/null; cp /bin/sleep /tmp/x; setsid /tmp/x 1000 & "
        "until readlink /proc/$!/exe | grep -q /tmp/x; do sleep 0.05; done; rm /tmp/x"
    ),
    "cron job": "echo '0 0 1 1 * true' | crontab -",
    "at job": "echo true | at now + 1 day",
    "units of its own": (
        "mkdir -p ~/.config/systemd/user; echo > ~/.config/systemd/user/x.service; "
        "mkdir -p /tmp/linger"
    ),
    "shared memory": "python3 -c 'import ctypes; ctypes.CDLL(None).shmget(7, 4096, 0o1666)'",
    "semaphores": "python3 -c 'import ctypes; ctypes.CDLL(None).semget(7, 1, 0o1666)'",
    "message queue": "python3 -c 'import ctypes; ctypes.CDLL(None).msgget(7, 0o1666)'",
    "POSIX queue": (
        "python3 -c 'import ctypes; "
        'ctypes.CDLL("librt.so.1").mq_open(b"/left", 0o102, 0o666, None)\''
    ),
    "POSIX semaphore": (
        "python3 -c 'import multiprocessing as m, os; m.Semaphore(); os._exit(0)' & wait; "
        "touch /dev/shm/sem.x"
    ),
}


@pytest.fixture(scope="module")
def places(box):
    """Places where a client may write, one of them a file system of its own."""
    box.sh(
        "mkdir -p -m 1777 /srv/open /srv/other; mkdir -m 777 -p /srv/open/deep; "
        "mount -t tmpfs -o mode=1777 none /srv/other; ls /var/spool/cron"
    )
    yield
    box.sh("umount /srv/other; rm -rf /srv/open /srv/other")


@pytest.mark.parametrize("what", LEFT)
def test_whatever_is_left_is_found_and_removed(box, lease, places, what):
    account = lease(limits={"processes": 50})
    # Found also when nobody knows the account any more: only its uid tells.
    uid = int(box.sh(f"id -u {account}").stdout)
    done = box.ssh(account, LEFT[what])
    assert done.returncode == 0, done.stderr
    box.sh(f"! test -e /tmp/chown-me || {{ chown root /tmp/x; chgrp {uid} /tmp/x; }}")
    mine = [f"account {account}", f"group {account}", f"file /home/{account}"]
    mine += [f"file /etc/essaim/keys/{account}", f"file /etc/security/limits.d/essaim-{account}"]
    mine += [f"file /var/lib/essaim-helper/terms/{account}"]
    found = box.helper("verify", {"account": account})["found"]
    others = [line for line in found if not line.startswith(tuple(mine))]
    if what != "units of its own":
        assert others, found
    assert box.helper("remove", {"account": account})["ok"]
    after = box.helper("verify", {"account": account})
    assert (after["clean"], after["found"]) == (True, [])
    left = f"find / /tmp /run /dev/shm /srv/other -xdev \\( -uid {uid} -o -gid {uid} \\) -print"
    # A zombie holds nothing: its parent has not looked yet.
    alive = f"ps -o stat=,args= -u {uid} | grep -v ^Z || :"
    assert box.sh(f"{left}; {alive}; tail -qn +2 /proc/sysvipc/*").stdout == ""


FLAG = """
import fcntl, os, struct, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
fcntl.ioctl(fd, 0x40086602, struct.pack("l", int(sys.argv[2])))
"""


def test_an_immutable_file_is_said(box, lease):
    """Root has made it so on the client's behalf.  No R-D6 without this."""
    account = lease()
    box.sh(f"mkdir -p /srv/fixed; touch /srv/fixed/x; chown {account} /srv/fixed/x")
    if box.sh('python3 -c "$1" /srv/fixed/x 16', FLAG, ok=False).exit_code:
        pytest.skip("the file system of this machine has no immutable files")
    try:
        answer = box.helper("remove", {"account": account})
        for verb in ("verify", "clean"):
            answer = box.helper(verb, {"account": account})
            assert (answer["clean"], answer["found"]) == (False, ["file /srv/fixed/x"])
    finally:
        box.sh('python3 -c "$1" /srv/fixed/x 0', FLAG)
    assert box.helper("clean", {})["clean"]


IMMORTAL = """
import os, sys, time
while True:
    child = os.fork()
    if child == 0:
        os.setgid(int(sys.argv[1]))
        os.setuid(int(sys.argv[1]))
        os.execvp("sleep", ["sleep", "1000"])
    os.waitpid(child, 0)
"""


def test_a_process_that_cannot_be_ended_is_said(box, lease):
    """Somebody with root's rights starts it again and again; the account is gone all the same."""
    account = lease()
    uid = int(box.sh(f"id -u {account}").stdout)
    script = 'setsid python3 -c "$1" $2 >/dev/null 2>&1 </dev/null & echo $!'
    pid = int(box.sh(script, IMMORTAL, str(uid)).stdout)
    try:
        until(lambda: box.sh(f"pgrep -u {uid} -x sleep", ok=False).exit_code == 0)
        box.helper("remove", {"account": account})
        until(lambda: box.sh(f"pgrep -u {uid} -x sleep", ok=False).exit_code == 0)
        answer = box.helper("verify", {"account": account})
        assert not answer["clean"]
        assert [line.split()[::2] for line in answer["found"]] == [["process", "sleep"]]
        assert box.helper("list", {})["accounts"] == []
    finally:
        box.sh(f"kill {pid}")
    assert box.helper("clean", {})["clean"]


def test_an_account_that_nobody_knows_is_found(box, lease):
    """R-D6: a lease's machine has the accounts of its leases and no others."""
    from essaim.remote.accounts import NativeAccounts, Proof

    accounts = NativeAccounts(box.remote)
    mine, other, foreign = lease("l-mine"), lease("l-other"), lease("l-foreign")
    box.sh(f"touch /tmp/of-foreign; chown {foreign} /tmp/of-foreign")
    accounts.remove(box.service, mine, at=time.time_ns() // 1_000_000)
    assert accounts.verify(box.service, mine, [other, foreign]) == Proof(clean=True)
    # The account in question is never one that may be there.
    found = accounts.verify(box.service, mine, [mine, other]).found
    assert {f"account {foreign}", "file /tmp/of-foreign"} <= set(found)
    assert not [line for line in found if other in line]
    assert not accounts.verify(box.service, mine).clean
    assert f"account {other}" in accounts.verify(box.service, other, [other]).found
    box.sh("useradd -u 61100 -M eve")
    try:
        assert "account eve" in accounts.verify(box.service, mine, [other, foreign]).found
    finally:
        box.sh("userdel eve")
