"""The simulated QEMU guest agent answers and refuses as Proxmox VE's API does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from proxmoxer.core import ResourceException

HOST_KEY = "/etc/ssh/ssh_host_ed25519_key.pub"


def refused(ask, **said) -> tuple[int, str]:
    with pytest.raises(ResourceException) as caught:
        ask(**said)
    return caught.value.status_code, str(caught.value.content).strip()


@pytest.fixture
def machine(sim, root):
    """A virtual machine that runs, and whose agent answers."""
    root.made(101, "qemu")
    it = root.node().qemu(101)
    assert root.done(it.status.start.post()) == "OK"
    sim.clock.advance(5.0)
    return it


def test_an_agent_that_cannot_be_asked_is_refused_in_three_ways(sim, root):
    root.made(101, "qemu")
    it = root.node().qemu(101)
    read = it.agent("file-read").get
    assert refused(read, file=HOST_KEY) == (500, "VM 101 is not running")
    it.config.put(delete="agent")
    assert refused(read, file=HOST_KEY) == (500, "No QEMU guest agent configured")
    it.config.put(agent="0")
    root.done(it.status.start.post())
    sim.clock.advance(60.0)
    # What is set to 0 counts as configured, and nobody answers.
    assert refused(read, file=HOST_KEY) == (500, "QEMU guest agent is not running")
    it.config.put(agent="enabled=1,type=virtio")
    assert read(file=HOST_KEY)["content"].startswith("ssh-ed25519 ")
    sim.cluster.agents = False  # configured, but not installed
    assert refused(read, file=HOST_KEY) == (500, "QEMU guest agent is not running")


def test_files_are_read_and_written(machine):
    agent = machine.agent
    assert agent("file-write").post(file="/etc/motd", content="é\n") is None
    assert agent("file-read").get(file="/etc/motd") == {"content": "é\n", "bytes-read": 3}
    assert agent("file-write").post(file="/etc/motd", content="aGk=", encode=0) is None
    assert agent("file-read").get(file="/etc/motd")["content"] == "hi"
    code, said = refused(agent("file-read").get, file="/none")
    assert (code, said) == (
        500,
        "Agent error: failed to open file '/none' (mode: 'r'): No such file or directory",
    )
    code, _ = refused(agent("file-write").post, file="/etc/motd", content="x" * 61441)
    assert code == 400


def test_a_command_is_begun_and_asked_about(machine):
    agent = machine.agent
    pid = agent("exec").post(command=["true", "-x"])["pid"]
    assert agent("exec-status").get(pid=pid) == {"exited": 1, "exitcode": 0}
    assert refused(agent("exec-status").get, pid=pid) == (
        500,
        f"Agent error: PID {pid} does not exist",
    )
    code, said = refused(agent("exec").post, command=["reboot"])
    assert code == 500
    assert said.startswith("Agent error: Guest agent command failed")


@pytest.mark.parametrize(
    ("version", "privilege", "allowed"),
    [
        ("8.4.1", "VM.Monitor", {"ping", "file-read", "exec"}),
        ("8.4.1", "VM.Audit", set()),
        ("9.0.3", "VM.Monitor", set()),
        ("9.0.3", "VM.GuestAgent.Audit", {"ping"}),
        ("9.0.3", "VM.GuestAgent.FileRead", {"file-read"}),
        ("9.0.3", "VM.GuestAgent.Unrestricted", {"ping", "file-read", "exec"}),
    ],
)
@pytest.mark.usefixtures("machine")
def test_who_may_ask_it_depends_on_the_version(sim, person, version, privilege, allowed):
    sim.cluster.settings = replace(sim.cluster.settings, version=version)
    sim.cluster.access.roles["Agent"] = frozenset({privilege})
    agent = person("bob", ("/vms/101", "Agent")).node().qemu(101).agent
    asks = {
        "ping": (agent("ping").post, {}),
        "file-read": (agent("file-read").get, {"file": HOST_KEY}),
        "exec": (agent("exec").post, {"command": ["true"]}),
    }
    for name, (ask, said) in asks.items():
        if name in allowed:
            ask(**said)
            continue
        code, text = refused(ask, **said)
        assert code == 403
        assert "Permission check failed (/vms/101, VM." in text
