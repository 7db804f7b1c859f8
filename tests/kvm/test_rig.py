"""The server of these tests is what it says, and a socket that others reach is noticed."""

from __future__ import annotations

import subprocess
import time

import pytest

from hypervisor import Listener, watching

# The first of these tests may have to install everything.
pytestmark = pytest.mark.timeout(900)

LISTEN = """\
import socket, sys, time
kept = []
for kind, where in (("STREAM", "127.0.0.1"), ("STREAM", "0.0.0.0"), ("DGRAM", "0.0.0.0")):
    kept.append(socket.socket(socket.AF_INET, getattr(socket, "SOCK_" + kind)))
    kept[-1].bind((where, 0))
    if kind == "STREAM":
        kept[-1].listen()
    print(kept[-1].getsockname()[1], flush=True)
sys.stdin.read()
"""


def test_the_account_may_use_libvirt_and_nothing_else(server):
    assert server.virsh("uri").strip() == "qemu:///session"
    assert server.domains() == {}
    assert server.run("id", "-u").stdout.strip() == str(server.uid) != "0"
    assert server.run("sh", "-c", ": >/etc/anything").returncode != 0
    assert server.run("test", "-r", "/dev/kvm").returncode != 0


def test_it_is_reached_over_ssh_with_its_key_alone(server):
    words = ["ssh", "-F", "none", "-i", str(server.key), "-o", "BatchMode=yes",
             "-o", f"UserKnownHostsFile={server.known_hosts()}", "-o", "StrictHostKeyChecking=yes",
             "-p", str(server.port), f"{server.user}@127.0.0.1", "virsh -c qemu:///session uri",
    ]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "qemu:///session", done.stderr


def look_until_noticed(server) -> None:
    deadline = time.monotonic() + 60
    with watching(server, 0.02) as watch:
        while not watch.strays and time.monotonic() < deadline:
            time.sleep(0.02)


def test_a_socket_that_others_reach_is_noticed(server):
    # In a network of its own, where nobody is.
    words = ["unshare", "--net", *server.command("/usr/bin/python3", "-c", LISTEN)]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) as process:
        private, public, datagrams = (int(process.stdout.readline()) for _ in range(3))
        seen = server.listeners()
        with pytest.raises(AssertionError, match=r"0\.0\.0\.0"):
            look_until_noticed(server)
        process.stdin.close()
    strays = {Listener("tcp", "0.0.0.0", public), Listener("udp", "0.0.0.0", datagrams)}
    assert seen == {Listener("tcp", "127.0.0.1", private), *strays}
    assert {one for one in seen if not one.private} == strays
