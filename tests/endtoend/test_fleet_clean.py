"""Whatever a client leaves is gone and proven gone, or the machine is set aside (R-D4, R-D6)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from endtoend.fleet_rig import Fleet, Tenant, fleet, wait_for

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]

#: As much of a nuisance as a client without privileges can be.
LITTER = r"""
set -e
setsid sleep 10001 >/dev/null 2>&1 </dev/null &
( ( exec setsid sh -c 'trap "" TERM HUP INT; while :; do sleep 10002; done' ) \
    >/dev/null 2>&1 </dev/null & )
echo '* * * * * touch /tmp/from-cron' | crontab -
echo 'touch /tmp/from-at' | at now + 1 hour 2>/dev/null
for place in /tmp /var/tmp /dev/shm; do
  mkdir -p "$place/deep $USER/er"
  echo x > "$place/deep $USER/er/file"
  echo x > "$place/.hidden-$USER"
done
chmod 000 "/tmp/deep $USER"
ln -s /etc/passwd "/tmp/link-$USER"
mkfifo "/tmp/pipe-$USER"
ipcmk -M 4096 >/dev/null; ipcmk -S 2 >/dev/null; ipcmk -Q >/dev/null
python3 - <<'EOP'
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
librt = ctypes.CDLL("librt.so.1", use_errno=True)
name = ("/" + os.environ["USER"]).encode()
assert librt.mq_open(name, os.O_CREAT | os.O_RDWR, 0o600, None) >= 0, ctypes.get_errno()
assert librt.shm_open(name, os.O_CREAT | os.O_RDWR, 0o600) >= 0, ctypes.get_errno()
EOP
id -u
"""

#: All that is left of a uid, as an administrator would look for it.
SEARCH = """
say() {{ sed "s|^|$1: |"; }}
find / -xdev -uid {uid} 2>/dev/null | say file
find /tmp /var/tmp /dev/shm /run -xdev -uid {uid} 2>/dev/null | say file
unshare -m sh -c 'mount -t mqueue none /mnt && find /mnt -uid {uid}' | say queue
ps -u {uid} -o pid=,args= | say process
crontab -l -u {account} 2>/dev/null | say cron
atq | grep -w {account} | say at
for kind in m s q; do ipcs -$kind | grep -w -e {uid} -e {account} | say ipc-$kind; done
getent passwd {account} | say passwd
getent group {account} | say group
ls -d /home/{account} /var/mail/{account} 2>/dev/null | say folder
grep -rls --exclude='*-' {account} /etc /var/spool | say mention
true
"""
KINDS = ("file", "queue", "process", "cron", "at", "ipc-m", "ipc-s", "ipc-q", "passwd", "group")


@pytest.fixture(scope="module")
def machines() -> Iterator[Fleet]:
    # None is given up only because a busy computer lets it be silent for some seconds.
    with fleet(2, interval=3.0) as made:
        for machine in made.machines:
            made.root(machine, "cron; atd || true")
        yield made


@pytest.fixture(scope="module")
def ada(machines) -> Tenant:
    return machines.tenant("ada")


@pytest.fixture
def its(machines) -> Iterator[Fleet]:
    yield machines
    machines.tidy()


def litter(its: Fleet, lease: str, tenant: Tenant) -> int:
    """Leave everything one can; gives the uid that did."""
    done = its.ssh(lease, tenant.key, "bash -s", stdin=LITTER)
    assert done.returncode == 0, done.stdout + done.stderr
    return int(done.stdout.split()[-1])


def left(its: Fleet, machine: str, uid: int, account: str) -> str:
    return its.root(machine, SEARCH.format(uid=uid, account=account)).stdout


def proofs(its: Fleet, lease: str) -> dict[str, Any]:
    """What the run that ended a lease wrote down of each of its nodes."""
    (run,) = its.runs(workflow="release", subject=lease)
    steps = {step.name: step.output for step in its.app.journal.steps(run.id)}
    return dict(steps["remove"] or {})


def test_nothing_of_a_client_is_left_after_release_and_that_is_written_down(its, ada):
    """R-D4: processes that will not end, jobs for later, files, shared memory, queues."""
    lease = its.rent(ada)
    machine = its.machine_of(lease)
    uid = litter(its, lease, ada)
    before = left(its, machine, uid, lease)
    assert [kind for kind in KINDS if f"{kind}: " not in before] == []
    for trace in ("sleep 10001", "/tmp/deep", "/var/tmp/.hidden", "/dev/shm/deep", "/tmp/pipe"):
        assert trace in before
    its.release(ada, lease)
    assert left(its, machine, uid, lease) == ""
    node = its.await_node(machine)
    assert proofs(its, lease) == {node["id"]: {"clean": True}}
    assert its.ssh(lease, ada.key, "id").returncode != 0


def test_a_machine_with_a_leftover_that_cannot_be_removed_serves_nobody_until_it_is_clean(its, ada):
    """R-D4, R-D6: it is set aside, an operator is told, and only a proof brings it back."""
    lease = its.rent(ada)
    machine = its.machine_of(lease)
    other = next(name for name in its.machines if name != machine)
    path = f"/tmp/immortal-{lease}"
    assert its.ssh(lease, ada.key, f"echo x > {path}").returncode == 0
    its.from_outside(machine, "chattr", "+i", path)
    try:
        its.release(ada, lease)
        node = its.await_node(machine, "quarantined")
        assert path in node["reason"]
        assert path in str(proofs(its, lease)[node["id"]]["found"])

        (told,) = its.events("node.quarantined", node["id"])
        assert told["urgent"]
        assert path in told["text"]

        # Whoever asks gets the other machine or waits; nobody gets this one.
        second = its.rent(ada)
        assert its.machine_of(second) == other
        third = its.post("rent", ada.token, public_key=ada.public_key, patience=1)
        assert (third["state"], third["position"]) == ("queued", 1)

        # Joining anew does not help, and asking for it does not while it is not clean.
        its.join(machine)
        assert its.nodes()[machine]["state"] == "quarantined"
        its.post(f"nodes/{node['id']}/readmit", its.admin)
        its.await_node(machine, "quarantined")
        assert its.lease(third["id"])["state"] == "queued"
    finally:
        its.from_outside(machine, "chattr", "-i", path)
    its.post(f"nodes/{node['id']}/readmit", its.admin)
    its.await_lease(third["id"], "active")
    assert its.machine_of(third["id"]) == machine
    assert its.root(machine, f"test -e {path}", ok=False).exit_code != 0
    assert its.ssh(third["id"], ada.key, "hostname").stdout == f"{machine}\n"
    for each in (second, third["id"]):
        its.release(ada, each)


def test_a_member_neither_hears_of_machines_nor_readmits_them(its, ada):
    """R-D5: that is operators' business."""
    key = next(iter(its.nodes().values()))["id"]
    assert its.call("POST", f"nodes/{key}/readmit", ada.token).status_code == 403
    headers = {"Authorization": f"Bearer {ada.token}"}
    assert its.http.get("events?all=true", headers=headers).status_code == 403


def test_a_machine_that_returns_from_the_dead_is_cleaned_though_the_server_was_new(its, ada):
    """R-D6: even if the server restarted meanwhile."""
    lease = its.rent(ada)
    machine = its.machine_of(lease)
    uid = litter(its, lease, ada)
    its.cut_power(machine)
    wait_for(lambda: its.machine_of(lease) != machine, "the lease has moved")
    its.await_lease(lease, "active")
    its.kill()
    its.serve()
    its.power_on(machine)
    assert its.root(machine, f"id {lease}", ok=False).exit_code == 0  # still there on its disk
    its.start_agent(machine)
    its.await_node(machine)
    assert left(its, machine, uid, lease) == ""
    its.release(ada, lease)
