"""A tenant who takes all processes, memory and cores there are leaves the agent alive."""

from __future__ import annotations

import argparse
import json
import pwd
import subprocess
import sys
import time
from pathlib import Path
from subprocess import PIPE

import pytest

import agent.conftest as machines
from agent.worker import until
from essaim.agent import groups, setup

pytestmark = pytest.mark.root
box, lease = machines.box, machines.lease

NODE = {
    "id": "n-test",
    "credential": "none",
    "server": "http://127.0.0.1:9",  # nobody answers, and it goes on trying
    "interval": 0.3,
    "tunnel": False,
}
#: Forks as long as it is let, each child with as much memory as it is let.
BOMB = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    try:
        if os.fork() == 0:
            held = []
            while True:
                try:
                    held.append(b"x" * (4 << 20))
                except MemoryError:
                    pass
                time.sleep(0.05)
    except OSError:
        time.sleep(0.05)
"""
HOG = "python3 -c 'x = b\"x\" * (200 << 20)'"
GROUP = "/sys/fs/cgroup/{}/essaim-leases/{}"
RENTED = {"cores": 1, "memory_mib": 96, "processes": 40}


@pytest.fixture
def limited(box, lease):
    """A lease with little of a machine that can hold it to that."""
    if box.sh("test -w /sys/fs/cgroup/memory/cgroup.procs", ok=False).exit_code:
        pytest.skip("this machine has no control groups of version 1")
    # Far more processes than the group allows, so that the group is what holds.
    return lease(rented=RENTED, limits={"processes": 400})


@pytest.fixture
def running_agent(box):
    """Its pid, as root sees it."""
    box.sh("install -o essaim -m 600 /dev/stdin /var/lib/essaim/node.json <<'END'\n"
           f"{json.dumps(NODE)}\nEND")  # fmt: skip
    start = "setsid python3 -I /usr/local/lib/essaim/agent.py run </dev/null >/tmp/agent.log 2>&1 &"
    pid = int(box.sh(f"{start} echo $!").stdout)
    until(lambda: beat(box) > 0)
    yield pid
    box.sh(f"kill {pid}; rm -f /var/lib/essaim/node.json /var/lib/essaim/beat.json")


def beat(box) -> int:
    """When the agent tried to beat last, in nanoseconds."""
    stamp = box.sh("stat -c %.9Y /var/lib/essaim/beat.json 2>/dev/null || echo 0").stdout
    return int(float(stamp) * 1e9)


def number(box, path: str) -> int:
    return int(box.sh(f"cat {path}").stdout)


def test_the_agent_outlives_a_fork_bomb_that_eats_memory(box, limited, running_agent):
    memory, pids = GROUP.format("memory", limited), GROUP.format("pids", limited)
    box.put("/tmp/bomb.py", BOMB.encode())
    for _ in range(2):
        box.ssh(limited, "setsid python3 /tmp/bomb.py </dev/null >/dev/null 2>&1 &")
    # It is stopped by what it has rented: refused processes, refused memory.
    until(lambda: "max 0\n" not in box.sh(f"cat {pids}/pids.events").stdout)
    until(lambda: "oom_kill 0\n" not in box.sh(f"cat {memory}/memory.oom_control").stdout)
    # Meanwhile the machine answers, and the agent, still the same, goes on beating.
    first = beat(box)
    until(lambda: beat(box) > first)
    assert box.helper("list", {})["accounts"][0]["account"] == limited
    assert number(box, f"{pids}/pids.current") <= RENTED["processes"]
    assert number(box, f"{memory}/memory.usage_in_bytes") <= RENTED["memory_mib"] << 20
    assert box.sh(f"ps -o user= -p {running_agent}").stdout.strip() == "essaim"
    began = time.monotonic()
    assert box.helper("remove", {"account": limited})["ok"]
    assert time.monotonic() - began < 60
    box.sh("rm -f /tmp/bomb.py")
    after = box.helper("verify", {"account": limited})
    assert (after["clean"], after["found"]) == (True, [])
    assert box.sh(f"ls -d {memory} {pids} 2>/dev/null || :").stdout == ""


def test_memory_ends_with_what_was_rented(box, lease, limited):
    assert box.ssh(limited, HOG).returncode != 0
    assert box.ssh(limited, "python3 -c 'x = b\"x\" * (20 << 20)'").returncode == 0
    # Also where the server says nothing: all of the machine but a reserve.
    other = lease("l-other")
    assert box.ssh(other, HOG).returncode == 0
    total = int(box.sh("sed -n 's/MemTotal: *\\([0-9]*\\) kB/\\1/p' /proc/meminfo").stdout) << 10
    allowed = number(box, f"{GROUP.format('memory', other)}/memory.limit_in_bytes")
    assert allowed <= total - (64 << 20)


def test_a_tenant_does_not_leave_its_group(box, limited):
    tries = (
        "for c in cpu memory pids; do "
        "{ echo $$ >/sys/fs/cgroup/$c/cgroup.procs; mkdir /sys/fs/cgroup/$c/mine; "
        "echo -1 >/sys/fs/cgroup/$c/essaim-leases/$(id -un)/memory.limit_in_bytes; "
        "mkdir /sys/fs/cgroup/$c/essaim-leases/$(id -un)/mine; } 2>/dev/null; done; "
        "cat /proc/self/cgroup; cat /proc/self/oom_score_adj"
    )
    said = box.ssh(limited, tries).stdout
    for name in ("cpu", "memory", "pids"):
        assert f":{name}:/essaim-leases/{limited}\n" in said
    assert said.endswith("\n500\n")
    assert number(box, f"{GROUP.format('cpu', limited)}/cpu.cfs_quota_us") == 100_000


def test_what_starts_past_the_shell_is_gathered_and_groups_come_back_after_a_boot(box, limited):
    uid = int(box.sh(f"id -u {limited}").stdout)
    job = f"setpriv --reuid {uid} --regid {uid} --clear-groups setsid sleep 1000"
    pid = int(box.sh(f"{job} </dev/null >/dev/null 2>&1 & echo $!").stdout)
    until(lambda: box.sh(f"pgrep -u {uid} -x sleep", ok=False).exit_code == 0)
    box.sh(f"rmdir {' '.join(GROUP.format(c, limited) for c in ('cpu', 'memory', 'pids'))}")
    assert box.helper("reap", {})["ok"]
    where = box.sh(f"cat /proc/{pid}/cgroup").stdout
    for name in ("cpu", "memory", "pids"):
        assert f":{name}:/essaim-leases/{limited}\n" in where
    assert number(box, f"{GROUP.format('pids', limited)}/pids.max") == RENTED["processes"]
    assert number(box, f"/proc/{pid}/oom_score_adj") == 500


AGENT = """
import argparse, os, pwd, sys
from essaim.agent import agent, groups
nobody = pwd.getpwnam("nobody")
nobody = pwd.struct_passwd([*nobody[:5], "/", nobody[6]])
agent.pwd = groups.pwd = argparse.Namespace(getpwnam=lambda name: nobody)
def run():
    adjusted = "/proc/self/oom_score_adj"
    print(os.getuid() == nobody.pw_uid, open(adjusted).read().strip(), flush=True)
    input()
    print(open(adjusted).read().strip(), flush=True)
agent.AGENT_OOM = int(sys.argv[1])
agent.Agent = lambda state: argparse.Namespace(run=run)
agent._run(argparse.Namespace(state=agent.STATE))
"""


def test_the_agent_is_the_last_to_go_when_memory_is_short(monkeypatch):
    """Machines of the sandbox may not say so; where root may not either, another number is said."""
    assert groups.AGENT_OOM <= -900
    assert f"OOMScoreAdjust={groups.AGENT_OOM}\n" in setup._UNIT
    may = subprocess.run(["sh", "-c", "echo -900 >/proc/$$/oom_score_adj"], check=False)
    score = groups.AGENT_OOM if may.returncode == 0 else 300
    words = [sys.executable, "-c", AGENT, str(score)]
    with subprocess.Popen(words, stdin=PIPE, stdout=PIPE, text=True) as child:
        assert child.stdout.readline() == f"True {score}\n"
        # Also one that was not started by root: the helper it calls says it.
        Path(f"/proc/{child.pid}/oom_score_adj").write_text("400")
        nobody = pwd.getpwnam("nobody")
        monkeypatch.setattr(groups, "AGENT_OOM", score)
        monkeypatch.setattr(groups, "processes", lambda has: [(child.pid, "agent", nobody.pw_uid)])
        monkeypatch.setattr(groups, "pwd", argparse.Namespace(getpwnam=lambda _name: nobody))
        groups.keep_limits([])
        assert child.communicate("\n")[0] == f"{score}\n"


FACTS = """
import sys
sys.path.insert(0, "/usr/local/lib/essaim")
import agent
told = agent.describe_node(address="", port=22, tunnel=True, server="", labels={"room": "12"})
print(told["labels"])
"""


def test_a_machine_without_control_groups_says_so(box, limited):
    describe = 'runuser -u essaim -- python3 -I -c "$1"'
    assert box.sh(describe, FACTS).stdout == "{'room': '12'}\n"
    hidden = f"unshare -m sh -c 'mount -t tmpfs none /sys/fs/cgroup; exec {describe}' sh \"$1\""
    assert box.sh(hidden, FACTS).stdout == "{'limits': 'none', 'room': '12'}\n"


SYSTEMCTL = """#!/bin/sh
echo "$@" >>/tmp/systemctl.log
mkdir -p "/run/systemd/system.control/$3.d"
"""


def test_with_systemd_the_slice_of_the_account_is_limited(box, lease):
    """A stand-in is told: these machines have no systemd of their own."""
    box.put("/usr/local/sbin/systemctl", SYSTEMCTL.encode())
    box.sh("chmod 755 /usr/local/sbin/systemctl; mkdir -p /run/systemd/system")
    try:
        account = lease(rented=RENTED)
        uid = int(box.sh(f"id -u {account}").stdout)
        said = box.sh("cat /tmp/systemctl.log").stdout.split()
        assert said[:3] == ["set-property", "--runtime", f"user-{uid}.slice"]
        assert {"MemoryMax=96M", "MemorySwapMax=0", "CPUQuota=100%", "TasksMax=40"} <= set(said)
        box.helper("remove", {"account": account})
        assert box.helper("verify", {"account": account})["clean"]
        assert box.sh("ls /run/systemd/system.control").stdout == ""
    finally:
        box.sh("rm -rf /run/systemd /usr/local/sbin/systemctl /tmp/systemctl.log")
