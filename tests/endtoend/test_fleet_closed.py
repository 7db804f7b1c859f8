"""A machine that lets nothing in is rented and used like any other (R-D1), by its tenant alone."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from endtoend.fleet_rig import Fleet, Tenant, fleet, wait_for
from essaim.store.schema import lease as table

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]

# In the kernel's own language: let pass what is not IPv4 (addresses must be found), and TCP
# segments that do not begin a connection.  Everything else that comes in is dropped, as a router
# that translates addresses drops it.
PASS, DROP = "6 0 0 4294967295", "6 0 0 2"
NAT = (
    "40 0 0 12",  # the kind of packet
    "21 0 6 2048",  # not IPv4: pass
    "48 0 0 23",  # the protocol
    "21 0 5 6",  # not TCP: drop
    "177 0 0 14",  # the length of the IP header
    "80 0 0 27",  # flags of TCP
    "84 0 0 18",  # SYN and ACK
    "21 1 0 2",  # SYN alone: drop
    PASS,
    DROP,
)


@pytest.fixture(scope="module")
def machines() -> Iterator[Fleet]:
    # A tunnel is made again after up to one interval, and is missed for three of them: what a
    # busy computer takes besides has to fit between.
    with fleet(3, "--tunnel", interval=5.0) as made:
        for machine in made.machines:
            close(made, machine)
        yield made


@pytest.fixture(scope="module")
def ada(machines) -> Tenant:
    return machines.tenant("ada")


@pytest.fixture
def its(machines) -> Iterator[Fleet]:
    yield machines
    machines.tidy()


def close(its: Fleet, machine: str) -> None:
    """Put the machine behind something that lets only its own connections through."""
    inside = ["nsenter", f"--net=/proc/{its.pid(machine)}/ns/net"]
    subprocess.run([*inside, "tc", "qdisc", "add", "dev", "eth0", "clsact"], check=True)
    program = ",".join([str(len(NAT)), *NAT])
    words = ["tc", "filter", "add", "dev", "eth0", "ingress", "bpf", "da", "bytecode", program]
    subprocess.run([*inside, *words], check=True)


def dial(its: Fleet, machine: str) -> int:
    """Try to reach a machine's SSH server from where the server is; 0 when that works."""
    address = its.machines[machine].address
    script = f"import socket; socket.create_connection(({address!r}, 22), 2)"
    beside = ["nsenter", f"--net=/proc/{its.pid('')}/ns/net"]
    done = subprocess.run([*beside, "python3", "-c", script], check=False, capture_output=True)
    return done.returncode


def test_a_machine_behind_nat_is_rented_and_used_through_the_gateway(its, ada, tmp_path):
    """R-D1: nobody can dial it, and yet there is a shell, commands, and files both ways."""
    assert all(dial(its, machine) != 0 for machine in its.machines)
    lease = its.rent(ada)
    machine = its.machine_of(lease)
    assert its.ssh(lease, ada.key, "hostname; id -un").stdout == f"{machine}\n{lease}\n"

    shell = its.ssh(lease, ada.key, stdin="echo $((6*7)); exit 3\n")
    assert shell.stdout.endswith("42\n")
    assert shell.returncode == 3

    terminal = its.ssh(lease, ada.key, "-tt", "stty size; tty", stdin="")
    assert "/dev/pts/" in terminal.stdout

    here, back = tmp_path / "here", tmp_path / "back"
    here.write_bytes(os.urandom(1 << 20))
    assert its.scp(ada.key, str(here), f"{lease}:there").returncode == 0
    assert its.scp(ada.key, f"{lease}:there", str(back)).returncode == 0
    assert back.read_bytes() == here.read_bytes()

    assert dial(its, machine) != 0
    its.release(ada, lease)
    assert its.ssh(lease, ada.key, "id").returncode != 0


def test_a_machine_behind_nat_is_found_again_after_the_server_died(its, ada):
    """R-D1: its agent comes back to the gateway by itself."""
    lease = its.rent(ada)
    its.kill()
    its.serve()
    back = wait_for(lambda: its.ssh(lease, ada.key, "id -un").stdout, "the lease opens again")
    assert back == f"{lease}\n"
    its.release(ada, lease)


def test_a_server_that_was_away_gives_up_no_machine_that_was_well(its, ada):
    """R-D7: the silence was its own; leases stay where they are."""
    lease = its.rent(ada)
    machine = its.machine_of(lease)
    lost = {name: len(its.events("node.lost", node["id"])) for name, node in its.nodes().items()}
    its.kill()
    for name in its.machines:
        wait_for(lambda name=name: failed_beats(its, name) > 2, f"{name} misses the server")
    its.serve()
    before = its.app.fleet.now()
    wait_for(lambda: all(node.beat_at > before for node in its.app.fleet.list()), "all beat again")
    back = wait_for(lambda: its.ssh(lease, ada.key, "id -un").stdout, "its tunnel is there again")
    assert back == f"{lease}\n"
    assert its.machine_of(lease) == machine
    assert its.runs(workflow="migrate", subject=lease) == []
    for name, node in its.nodes().items():
        assert len(its.events("node.lost", node["id"])) == lost[name], name


def failed_beats(its: Fleet, machine: str) -> int:
    """How often the agent has failed since it last succeeded."""
    said = its.root(machine, "cat /var/lib/essaim/log").stdout
    return said.rpartition("answers again")[2].count("trying again")


def test_nobody_gets_anothers_lease_with_their_own_key(its, ada):
    """R-D5: neither through the gateway nor through the API."""
    bob = its.tenant("bob")
    hers, his = its.rent(ada), its.rent(bob)
    assert its.ssh(his, bob.key, "id -un").stdout == f"{his}\n"
    assert its.ssh(hers, bob.key, "id").returncode != 0
    assert its.ssh(his, ada.key, "id").returncode != 0
    assert its.call("GET", f"leases/{hers}", bob.token).status_code == 404
    assert its.call("POST", "release", bob.token, lease=hers).status_code == 404
    assert its.call("POST", "extend", bob.token, lease=hers, seconds=60).status_code == 404
    assert [lease["id"] for lease in its.get("leases", bob.token)] == [his]
    for node in its.nodes().values():
        assert its.ssh(f"node-{node['id']}", bob.key, "id").returncode != 0
    assert its.lease(hers)["state"] == "active"
    for tenant, lease in ((ada, hers), (bob, his)):
        its.release(tenant, lease)


def test_an_expired_lease_opens_nothing_and_leaves_nothing(its, ada):
    """R-D5: its time ends a session that is open, too."""
    lease = its.rent(ada, seconds=60)
    machine = its.machine_of(lease)
    expire(its, lease)
    found = its.await_lease(lease, "ended")
    assert found["reason"] == "its time is over"
    assert its.ssh(lease, ada.key, "id").returncode != 0
    assert its.call("POST", "extend", ada.token, lease=lease, seconds=60).status_code == 409
    its.await_node(machine)
    assert its.accounts(machine) == set()


def expire(its: Fleet, lease: str) -> None:
    """Let a lease's time be over now; the shortest that can be asked for is a minute."""
    now = round(time.time() * 1000)
    change = sa.update(table).where(table.c.id == lease).values(expires_at=now)
    its.app.database.write(lambda connection: connection.execute(change))
