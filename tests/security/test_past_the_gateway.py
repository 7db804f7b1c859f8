"""Nobody reaches a rented machine past the gateway, which records and ends every visit."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from endtoend.fleet_rig import PATIENCE, Fleet

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]


def past(its: Fleet, lease: str, key: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Go to the machine itself, from where it can be reached."""
    address = its.machines[its.machine_of(lease)].address
    beside = ["nsenter", f"--net=/proc/{its.pid('')}/ns/net"]
    trusting = ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
    ssh = ["ssh", *trusting, *its.options(key), f"{lease}@{address}", *words]
    return subprocess.run(
        [*beside, *ssh],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_the_tenants_own_key_opens_nothing_on_the_machine_itself(its, tmp_path):
    eve = its.tenant("eva")
    lease = its.rent(eve)
    done = past(its, lease, eve.key, "id -un")
    assert (done.returncode, done.stdout) == (255, ""), done
    assert "Permission denied" in done.stderr
    # Through the gateway all is as before.
    assert its.ssh(lease, eve.key, "id -un").stdout == f"{lease}\n"
    assert "/dev/pts/" in its.ssh(lease, eve.key, "-tt", "tty").stdout
    here, back = tmp_path / "here", tmp_path / "back"
    here.write_text("hello")
    assert its.scp(eve.key, str(here), f"{lease}:there").returncode == 0
    assert its.scp(eve.key, f"{lease}:there", str(back)).returncode == 0
    assert back.read_text() == "hello"
    port = str(its.gateway.getsockname()[1])
    words = ["ssh", *its.options(eve.key), "-p", port, "-W", "localhost:22", f"{lease}@127.0.0.1"]
    through = subprocess.run(
        words, input="", capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert through.stdout.startswith("SSH-2.0-")


def test_the_machine_itself_forwards_no_more_than_the_gateway_does(its):
    """The gateway's own key, in the wrong hands, opens no way into the network."""
    eve = its.tenant("evi")
    lease = its.rent(eve)
    address = its.machines[its.machine_of(lease)].address
    key = its.app.keyring.path("lease")
    assert past(its, lease, key, "id -un").stdout == f"{lease}\n"
    assert past(its, lease, key, "-W", "127.0.0.1:22").stdout.startswith("SSH-2.0-")
    refused = past(its, lease, key, "-W", f"{address}:22")
    assert (refused.stdout, refused.stderr) == ("", "stdio forwarding failed\n")
    back = ("-N", "-o", "ExitOnForwardFailure=yes", "-R", "0:127.0.0.1:22")
    assert "remote port forwarding failed" in past(its, lease, key, *back).stderr
    seen = past(its, lease, key, "-A", "echo agent=$SSH_AUTH_SOCK").stdout
    assert seen == "agent=\n"


def test_a_lease_on_a_machine_that_is_only_reached_through_its_tunnel_opens_there_alone(its):
    """Even the gateway's key is refused from elsewhere."""
    machine = next(iter(its.machines))
    its.join(machine, "--tunnel")
    try:
        its.await_node(machine)
        eve = its.tenant("evo")
        lease = its.rent(eve)
        assert its.ssh(lease, eve.key, "id -un").stdout == f"{lease}\n"
        done = past(its, lease, its.app.keyring.path("lease"), "id -un")
        assert "Permission denied" in done.stderr
    finally:
        its.tidy()
        its.join(machine)
        its.await_node(machine)
