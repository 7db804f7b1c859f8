"""Two of each process over one database: any of them may die, and machines stay reachable.

R-B1, R-D2, R-D7.
"""

from __future__ import annotations

import contextlib
import os
import signal

import httpx
import pytest

from endtoend.cluster_rig import cluster
from endtoend.fleet_rig import PATIENCE, wait_for
from essaim.bootstrap.signing_keys import make_signing_keys
from essaim.remote.keyring import Keyring

pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def lab():
    with cluster(2) as made:
        yield made


@pytest.fixture(scope="module")
def tenant(lab):
    return lab.tenant("ada")


@pytest.fixture(scope="module")
def lease(lab, tenant):
    return lab.rent(tenant)


def test_either_gateway_leads_to_a_machine_whose_tunnel_ends_at_one(lab, tenant, lease):
    machine = lab.machine_of(lease)
    assert lab.tunnel_at(machine)
    names = {lab.runs_at(number, lease, tenant.key, "hostname") for number in range(2)}
    assert names == {machine}


def test_each_process_holds_the_keys_it_needs_and_no_others(lab, tenant, lease):
    """An API that is broken into opens no machine; a gateway opens those of its guests alone."""
    assert lab.runs_at(0, lease, tenant.key, "id -un") == lease
    assert {path.name for path in (lab.keys / "gateway").iterdir()} == {"gateway", "lease"}
    assert [path.name for path in (lab.keys / "api").iterdir()] == ["access.keys"]
    assert [path.name for path in (lab.keys / "inner").iterdir()] == ["inner.keys"]
    held = {path.name for path in lab.app.keyring.folder.iterdir()}
    assert "control" in held
    assert not held & {"gateway", "lease"}


def test_check_finds_nothing_wrong(lab, lease):
    done = lab.check()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 api, 2 controller, 2 gateway, 1 worker" in done.stdout
    assert done.stdout.count("its inner door answers") == 2


def test_other_keys_are_refused_with_what_to_do(lab, tmp_path):
    shared = lab.environ.pop("ESSAIM_KEYS", None)
    lab.environ["ESSAIM_KEYS"] = str(tmp_path / "others")
    try:
        lab.essaim("stranger", "controller")
        assert lab.processes["stranger"].wait(PATIENCE) == 3
        assert not list(tmp_path.glob("others/*"))
        Keyring(tmp_path / "others").make("control")
        wrong = lab.check()
    finally:
        del lab.environ["ESSAIM_KEYS"]
        if shared:
            lab.environ["ESSAIM_KEYS"] = shared
    assert "this control plane has one (SHA256:" in lab.said("stranger")
    assert "ESSAIM_KEYS" in lab.said("stranger")
    assert wrong.returncode == 1
    assert "others is SHA256:" in wrong.stdout


def test_keys_are_replaced_while_sessions_are_open_and_nobody_notices(lab, tenant, lease):
    machine = lab.machine_of(lease)
    near = int(lab.tunnel_at(machine)[-1])
    inner = {"inner": lab.keys / "inner", "access": lab.keys / "api"}
    keys = make_signing_keys(inner, lambda: lab.app.settings)["inner"]
    before = keys.signing()
    open_at = [lab.ssh_at(n, lease, tenant.key, "echo here; read line; echo got $line")
               for n in range(2)]  # fmt: skip
    assert [client.stdout.readline() for client in open_at] == ["here\n"] * 2
    for kind in ("controller", "api"):  # each has keys of its own
        done = lab.types("keys", "rotate", of=kind)
        assert done.returncode == 0, done.stderr
    # Nobody restarted anything: the far gateway asks the near one with the new key.
    wait_for(lambda: keys.signing() != before, "the new key signs")
    assert lab.runs_at(1 - near, lease, tenant.key, "hostname") == machine
    forgotten = lab.types("keys", "rotate", "inner", "--forget-previous")
    assert forgotten.returncode == 0, forgotten.stderr
    assert before not in keys.believed()
    assert lab.runs_at(1 - near, lease, tenant.key, "hostname") == machine
    for client in open_at:
        out, _ = client.communicate("on\n", timeout=PATIENCE)
        assert out == "got on\n"
    assert lab.check().returncode == 0
    assert lab.nodes()  # with the access token of before


def test_after_kill_9_of_its_gateway_a_machine_is_reached_through_the_other(lab, tenant, lease):
    machine = lab.machine_of(lease)
    victim = lab.tunnel_at(machine)
    number = int(victim[-1])
    client = lab.ssh_at(number, lease, tenant.key, "echo here; sleep 600")
    assert client.stdout.readline() == "here\n"
    open_before = [visit for visit in lab.app.visits.list(lease=lease) if not visit.closed_at]
    assert open_before
    os.kill(lab.processes[victim].pid, signal.SIGKILL)
    client.communicate(timeout=PATIENCE)
    other = f"gateway-{1 - number}"
    wait_for(lambda: lab.tunnel_at(machine) == other, "the agent goes to the other gateway")
    assert lab.runs_at(1 - number, lease, tenant.key, "hostname") == machine
    kept = {visit.id for visit in open_before}
    wait_for(
        lambda: all(v.closed_at for v in lab.app.visits.list(lease=lease) if v.id in kept),
        "somebody closes the visits of the dead gateway",
    )
    (lab.place / f"{victim}.ready").unlink()
    lab.start_gateway(number)
    lab.ready(victim)
    assert lab.runs_at(number, lease, tenant.key, "hostname") == machine


def test_a_gateway_that_is_told_to_end_lets_sessions_finish(lab, tenant, lease):
    machine = lab.machine_of(lease)
    number = 1 - int(lab.tunnel_at(machine)[-1])
    name = f"gateway-{number}"
    client = lab.ssh_at(number, lease, tenant.key, "echo here; read line; echo got $line")
    assert client.stdout.readline() == "here\n"
    lab.processes[name].send_signal(signal.SIGTERM)
    wait_for(lambda: "stopping" in lab.said(name), "it is told")
    out, _ = client.communicate("on\n", timeout=PATIENCE)
    assert out == "got on\n"
    assert lab.processes[name].wait(PATIENCE) == 0
    lab.start_gateway(number)
    lab.ready(name)


def test_after_kill_9_of_a_controller_nothing_is_lost(lab, tenant):
    os.kill(lab.processes["controller-0"].pid, signal.SIGKILL)
    second = lab.rent(tenant)
    assert lab.runs_at(0, second, tenant.key, "hostname") == lab.machine_of(second)
    lab.release(tenant, second)
    (lab.place / "controller-0.ready").unlink()
    lab.start_controller(0)
    lab.ready("controller-0")


def test_an_api_says_that_it_is_about_to_end_before_it_does(lab):
    seen = []
    lab.processes["api-0"].send_signal(signal.SIGTERM)

    def ended() -> bool:
        # Whoever comes in the moment it ends may be cut off: it has said that it would.
        with contextlib.suppress(httpx.TransportError):
            answer = httpx.get(str(lab.http.base_url.join("/readyz")), timeout=PATIENCE)
            seen.append(answer.status_code)
        return lab.dead("api-0")

    wait_for(ended, "it ends")
    assert lab.processes["api-0"].returncode == 0
    assert 503 in seen
    assert lab.get("nodes")  # the other one answers


def test_all_end_with_0(lab):
    for name in ("controller-0", "controller-1", "gateway-0", "gateway-1", "worker", "api-1"):
        assert lab.end(name) == 0, lab.said(name)
    wait_for(
        lambda: {each.kind for each in lab.app.workers.alive()} <= {"command"},
        "those that ended are gone at once, those that were killed after a while",
    )
