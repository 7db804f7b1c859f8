"""A machine that lets nothing in is used through the connection its agent keeps.  R-D1.

The gateway listens in the network of one machine.  The node is another machine whose only SSH
server listens on its own loopback, so that nobody can dial it; its agent's `ssh -R` dials out.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import subprocess
from pathlib import Path

import pytest

from drivers.lab import PATIENCE
from essaim.gateway import hub
from essaim.gateway.gateway import reach
from essaim.model.errors import TransientError
from gateway.rig import ACCOUNT, finish, new_key, public, read_until, run, running, wait_for

NODE = "n-hidden"
HIDDEN = 2022
OUTSIDE = "10.77.0.11"  # where the gateway is
INSIDE = "10.77.0.12"  # where the node is


def network_of(fleet, number) -> str:
    """The network namespace of a machine, as a path that stays good while the machine runs."""
    inode = fleet.root(number, "readlink /proc/self/ns/net").strip()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.readlink(entry / "ns" / "net") == inode and is_first(entry):
                return f"{entry}/ns/net"
    raise AssertionError(inode)


def is_first(process: Path) -> bool:
    """Whether it is its machine's first process: others may end at any moment."""
    lines = (process / "status").read_text().splitlines()
    (numbers,) = (line.split() for line in lines if line.startswith("NSpid:"))
    return numbers[-1] == "1"


def enter(network: str) -> None:
    """Let this thread, and those it starts, live in another network."""
    fd = os.open(network, os.O_RDONLY)
    try:
        assert ctypes.CDLL(None, use_errno=True).setns(fd, 0x40000000) == 0, ctypes.get_errno()
    finally:
        os.close(fd)


@pytest.fixture
def near(empty_fleet, tmp_path):
    """A gateway in the network of the first machine; the second holds the lease."""
    fleet = empty_fleet
    fleet.sshd(1, f"ListenAddress=127.0.0.1:{HIDDEN}")
    fleet.tunnel_key = new_key(tmp_path / "tunnel")
    fleet.book.node_keys[NODE] = public(fleet.tunnel_key)
    fleet.lease(1, node=NODE, address="", port=0, tunnel=True)
    outside = network_of(fleet, 0)
    fleet.entered = ["nsenter", f"--net={outside}"]
    gateway = fleet.make_gateway(host=OUTSIDE)
    with running(gateway, prepare=lambda: enter(outside)):
        yield fleet


def agent_words(fleet, *flags: str) -> list[str]:
    """What an agent runs, in the network of its machine."""
    options = fleet.options(
        key=fleet.tunnel_key, host=OUTSIDE, ExitOnForwardFailure="yes", ServerAliveInterval="15"
    )
    network = network_of(fleet, 1)
    return ["nsenter", f"--net={network}", "ssh", *options, *flags, f"node-{NODE}@gateway"]


@contextlib.contextmanager
def agent(fleet, *flags: str):
    words = agent_words(fleet, "-N", *(flags or ("-R", f"0:127.0.0.1:{HIDDEN}")))
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE)


@contextlib.contextmanager
def connected(fleet, *flags: str):
    with agent(fleet, *flags) as process:
        wait_for(lambda: NODE in fleet.gateway.tunnelled(), "the tunnel is there")
        yield process


def ssh(fleet, *command, **more):
    return fleet.ssh(*command, host=OUTSIDE, **more)


def test_nobody_can_dial_the_node(near):
    program = f"import socket; socket.create_connection(('{INSIDE}', {HIDDEN}), 20)"
    done = run([*near.entered, "python3", "-c", program])
    assert b"ConnectionRefusedError" in done.stderr


def test_the_lease_is_used_through_the_tunnel(near, tmp_path):
    with connected(near):
        assert ssh(near, "hostname; id -un").stdout == f"m2\n{ACCOUNT}\n".encode()
        body = os.urandom(5_000_000)
        (tmp_path / "file").write_bytes(body)
        words = [*near.entered, "scp", "-q", *near.options(host=OUTSIDE)]
        far = f"{ACCOUNT}@gateway:through"
        assert run([*words, str(tmp_path / "file"), far]).returncode == 0
        assert run([*words, far, str(tmp_path / "back")]).returncode == 0
        assert (tmp_path / "back").read_bytes() == body


def test_a_port_of_the_agents_choice_is_as_good(near):
    with connected(near, "-R", f"22:127.0.0.1:{HIDDEN}"):
        assert ssh(near, "hostname").stdout == b"m2\n"


def test_other_parts_of_the_server_reach_the_node_too(near):
    with connected(near):
        for _ in range(3):
            with near.gateway.dial(NODE) as sock:
                sock.settimeout(PATIENCE)
                assert sock.recv(64).startswith(b"SSH-2.0-OpenSSH")


def test_dialling_in_the_gateways_own_loop_is_refused_rather_than_stuck(near):
    async def inside():
        near.gateway.dial(NODE)

    with pytest.raises(RuntimeError, match="dial blocks"):
        asyncio.run_coroutine_threadsafe(inside(), near.gateway._running.loop).result(PATIENCE)


def test_a_node_without_a_tunnel_is_not_reached(near):
    with pytest.raises(TransientError, match="has had no tunnel to the gateway"):
        near.gateway.dial(NODE, within=0.1)


def test_a_tunnel_that_leads_nowhere_says_so(near):
    with (
        connected(near, "-R", "0:127.0.0.1:9"),
        pytest.raises(TransientError, match="its tunnel leads nowhere"),
    ):
        near.gateway.dial(NODE)


def test_the_tunnel_is_forgotten_when_its_connection_ends_and_waited_for(near, monkeypatch):
    # An agent on a busy computer may take longer to come back than clients are let wait.
    monkeypatch.setattr(hub, "REACH_WITHIN", PATIENCE)
    with connected(near) as first:
        client = near.start("echo ready; cat", host=OUTSIDE)
        read_until(client, b"ready\n")
        first.kill()
        code, _, err = finish(client)
        assert code == 255
        assert b"was lost" in err
        wait_for(lambda: NODE not in near.gateway.tunnelled(), "the tunnel is forgotten")
    waiting = near.start("hostname", host=OUTSIDE)
    with connected(near):
        assert finish(waiting)[1] == b"m2\n"


def test_the_newest_tunnel_wins(near):
    with connected(near, "-R", "0:127.0.0.1:9"), agent(near):

        def through():
            with contextlib.suppress(TransientError), near.gateway.dial(NODE) as sock:
                sock.settimeout(PATIENCE)
                return sock.recv(64).startswith(b"SSH-2.0-OpenSSH")
            return False

        wait_for(through, "the second is used")
        assert ssh(near, "hostname").stdout == b"m2\n"


def test_of_many_tunnels_the_oldest_are_closed(near):
    with agent(near) as first, agent(near) as second, agent(near) as third:
        agents = [first, second, third]
        wait_for(lambda: any(one.poll() is not None for one in agents), "one is closed")
        assert ssh(near, "hostname").stdout == b"m2\n"


def test_a_node_that_is_no_longer_ours_loses_its_tunnel(near):
    with connected(near) as process:
        near.book.node_keys.clear()
        near.gateway.drop(NODE)
        process.wait(PATIENCE)
        wait_for(lambda: not near.gateway.tunnelled(), "it is forgotten")
        assert b"Permission denied" in run(agent_words(near, "-N")).stderr


def test_a_node_that_was_removed_loses_its_tunnel_by_itself(empty_fleet, tmp_path):
    outside = network_of(empty_fleet, 0)
    empty_fleet.tunnel_key = new_key(tmp_path / "tunnel")
    empty_fleet.book.node_keys[NODE] = public(empty_fleet.tunnel_key)
    empty_fleet.lease()
    made = empty_fleet.make_gateway(host=OUTSIDE, check_every=0.01)
    with running(made, prepare=lambda: enter(outside)), connected(empty_fleet) as process:
        empty_fleet.book.node_keys.clear()
        process.wait(PATIENCE)
        wait_for(lambda: not made.tunnelled(), "it is forgotten")


def test_a_node_that_cannot_be_dialled_after_all_is_reached_through_its_tunnel(near):
    near.gateway._running.hub.reach = reach
    near.lease(1, node=NODE, address=INSIDE, port=9)
    assert b"Connection refused" in ssh(near, "true").stderr
    with connected(near):
        assert ssh(near, "hostname").stdout == b"m2\n"


def test_the_wrong_key_makes_no_tunnel(near, tmp_path):
    near.tunnel_key = new_key(tmp_path / "stranger")
    with agent(near) as process:
        assert process.wait(PATIENCE) == 255
        assert b"Permission denied (publickey)" in process.stderr.read()


def test_an_agent_may_do_nothing_else(near):
    forward = ("-R", f"0:127.0.0.1:{HIDDEN}")
    for flags in (["-T"], ["-tt"], ["-W", "127.0.0.1:22"], ["-W", f"{INSIDE}:22"]):
        assert run(agent_words(near, *flags)).returncode == 255, flags
    second = run(agent_words(near, "-N", *forward, "-R", "0:127.0.0.1:9"))
    assert second.returncode == 255
    assert b"remote port forwarding failed" in second.stderr
    path = run(agent_words(near, "-N", "-R", "/tmp/evil:127.0.0.1:22"))
    assert b"remote port forwarding failed" in path.stderr
    assert not near.book.sessions


def test_the_host_key_is_pinned_through_a_tunnel_as_well(near, tmp_path):
    near.book.change(host_key=public(new_key(tmp_path / "other")))
    with connected(near):
        assert b"did not prove who it is" in ssh(near, "true").stderr


def test_a_node_that_can_be_dialled_needs_no_tunnel(empty_fleet):
    outside = network_of(empty_fleet, 0)
    empty_fleet.lease(1, address=INSIDE)
    empty_fleet.entered = ["nsenter", f"--net={outside}"]
    gateway = empty_fleet.make_gateway(host=OUTSIDE, reach=reach)
    with running(gateway, prepare=lambda: enter(outside)):
        assert ssh(empty_fleet, "hostname").stdout == b"m2\n"
        empty_fleet.book.change(port=9)
        assert b"Connection refused" in ssh(empty_fleet, "true").stderr
