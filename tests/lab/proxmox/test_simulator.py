"""The simulator as a whole: HTTPS, its two clocks, its bound, its command."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import ssl
import stat
import threading
import time
from pathlib import Path

import pytest
import requests
from proxmoxer import ResourceException

from essaim_lab.simulators.proxmox import PveError, Simulator, VirtualClock
from lab.proxmox.client import Client, start_lab, stop_lab

PATIENCE = 120.0


def test_it_is_trusted_by_its_authority_and_by_no_other(sim):
    with pytest.raises(requests.exceptions.SSLError):
        requests.get(f"{sim.url}/api2/json/version", timeout=60)
    answer = requests.get(f"{sim.url}/api2/json/version", verify=str(sim.ca), timeout=60)
    assert answer.status_code == 401


def test_an_error_is_in_the_reason_phrase_and_in_the_body(sim):
    headers = {"Authorization": f"PVEAPIToken={sim.token}={sim.secret}"}
    url = f"{sim.url}/api2/json/nodes/pve1/lxc/100/config"
    answer = requests.get(url, headers=headers, verify=str(sim.ca), timeout=60)
    text = "Configuration file 'nodes/pve1/lxc/100.conf' does not exist"
    assert (answer.status_code, answer.reason) == (500, text)
    assert answer.json() == {"data": None, "message": f"{text}\n"}
    answer = requests.get(f"{url}?x=1", headers=headers, verify=str(sim.ca), timeout=60)
    assert answer.reason == "Parameter verification failed."
    assert set(answer.json()["errors"]) == {"x"}


def test_a_connection_is_kept_until_something_is_refused(sim):
    context = ssl.create_default_context(cafile=str(sim.ca))
    link = http.client.HTTPSConnection("127.0.0.1", sim.port, context=context, timeout=60)
    headers = {"Authorization": f"PVEAPIToken={sim.token}={sim.secret}"}
    for path, kept in (("version", True), ("cluster/nextid", True), ("nothing", False)):
        link.request("GET", f"/api2/json/{path}", headers=headers)
        answer = link.getresponse()
        answer.read()
        assert (answer.getheader("Connection") != "close") == kept
    link.close()


def test_requests_that_are_none_end_the_connection(sim):
    context = ssl.create_default_context(cafile=str(sim.ca))
    for said in (b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"x" * (2 << 20)):
        plain = socket.create_connection(("127.0.0.1", sim.port), timeout=60)
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as link:
            try:
                link.sendall(said)
                answer = link.recv(1 << 16)
            except OSError:
                answer = b""
            assert answer[9:12] in (b"400", b"501", b"")
    assert Client(sim).api.version.get()


def test_it_is_asked_without_https_as_well(sim):
    upid = sim.ask("POST", "/nodes/pve1/lxc/9000/clone", newid=101, full=1)
    with pytest.raises(PveError, match=r"CT is locked \(disk\)"):
        sim.ask("POST", "/nodes/pve1/lxc/9000/clone", newid=102)
    while sim.ask("GET", f"/nodes/pve1/tasks/{upid}/status")["status"] == "running":
        assert sim.clock.jump()
    sim.ask("PUT", "/nodes/pve1/lxc/101/config", memory=1024)
    assert sim.ask("GET", "/nodes/pve1/lxc/101/config")["memory"] == 1024
    # What has to wait moves time, as requests over HTTPS do.
    sim.ask("POST", "/nodes/pve1/qemu/9500/clone", newid=103, full=1)
    sim.clock.advance(0.5)
    before = sim.clock.now()
    with pytest.raises(PveError, match="got timeout"):
        sim.ask("PUT", "/nodes/pve1/qemu/103/config", cores=2)
    assert sim.clock.now() - before == 10.0


def test_in_the_walls_time_it_is_waited_for():
    with Simulator(nodes=1, slow_listing=2.0, speed=100.0) as sim:
        assert sim.ask("GET", "/cluster/resources", type="vm")
        assert Client(sim).api.cluster.resources.get(type="vm")


def test_slow_listings_take_their_time():
    with Simulator(nodes=1, slow_listing=2.0, clock=VirtualClock()) as sim:
        root = Client(sim)
        before = sim.clock.now()
        root.api.version.get()
        assert sim.clock.now() == before
        root.api.pools.get()
        root.api.cluster.resources.get()
        assert sim.clock.now() - before == 4.0


def _class(seed: int, students: int = 12, clients: int = 4) -> tuple[float, list]:
    """A few clients clone and start machines over HTTPS in virtual time; gives the history."""
    clock = VirtualClock(clients=clients)
    with Simulator(nodes=2, copies=2, seed=seed, clock=clock, gib=2) as sim:
        sim.fault("errors", share=0.1)
        todo = [50000 + number for number in range(students)]
        threads = [
            threading.Thread(target=_teacher, args=(sim, todo, number)) for number in range(clients)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert not any(thread.is_alive() for thread in threads)
        assert sum(guest.running for guest in sim.cluster.guests.values()) == students
        assert not sim.cluster.kernel.defects
        return clock.now(), sim.cluster.history


def _teacher(sim, todo, number) -> None:
    root = Client(sim)
    with sim.clock.client(number):
        while todo:
            _provide(root, todo.pop(0))


def _provide(root: Client, vmid: int) -> None:
    """Ask until the machine is there and on, as one must where answers are lost."""
    source, node = 9000 + vmid % 2, f"pve{vmid % 2 + 1}"
    while True:
        guest = root.sim.cluster.guests.get(vmid)
        if guest and guest.running:
            return
        with contextlib.suppress(ResourceException):
            if guest is None:
                root.clone(vmid, source=source, node=node, full=1)
            elif not guest.conf.get("lock"):
                root.node(node).lxc(vmid).status.start.post()
        root.sim.clock.sleep(1.0)


def test_the_same_clients_and_the_same_seed_give_the_same_history():
    first, second, other = _class(7), _class(7), _class(8)
    assert first == second
    assert other[1] != first[1]


def test_it_runs_in_a_process_of_its_own():
    from essaim_lab.simulators.proxmox.process import SimulatorProcess

    with SimulatorProcess(nodes=2, speed=50, gib=2) as sim:
        headers = {"Authorization": f"PVEAPIToken={sim.token}={sim.secret}"}
        base = f"{sim.url}/api2/json/nodes/pve1"
        more = {"headers": headers, "verify": str(sim.ca), "timeout": 60}
        codes = [
            requests.post(f"{base}/lxc/9000/clone", data={"newid": newid}, **more).status_code
            for newid in (101, 102)
        ]
        sim.fault("quorum")
        codes.append(requests.post(f"{base}/lxc/9000/status/start", **more).status_code)
        sim.heal()
        counts = sim.counts()
        assert counts["requests"] == {
            "POST /nodes/*/lxc/*/clone": 2,
            "POST /nodes/*/lxc/*/status/start": 1,
        }
        assert codes in ([200, 500, 500], [200, 200, 500])  # the first may have been done
        assert counts["refusals"]["500 cluster not ready - no quorum?"] == 1
        assert sim.cpu() > 0
        assert sim.lower_bound(10, full=False) == pytest.approx(10 * 0.8 + 3.0)


def test_a_request_costs_little():
    """Six hundred machines are simulated beside what is measured: it must not cost more."""
    with Simulator(nodes=5, clock=VirtualClock(), stats_seconds=0.0) as sim:
        root = Client(sim)
        sim.fault("foreign", ids="50000-50599")
        token = {"Authorization": f"PVEAPIToken={sim.token}={sim.secret}"}
        upid = root.clone(101)
        path = f"/api2/json/nodes/pve1/tasks/{upid}/status"
        link = http.client.HTTPSConnection(
            "127.0.0.1",
            sim.port,
            context=ssl.create_default_context(cafile=str(sim.ca)),
            timeout=60,
        )
        thread = sim._server._thread.native_id
        before = _cpu(thread)
        for _ in range(400):
            link.request("GET", path, headers=token)
            link.getresponse().read()
        assert (_cpu(thread) - before) / 400 < 0.0015
        link.close()


def _cpu(thread: int) -> float:
    words = Path(f"/proc/self/task/{thread}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def test_the_command_says_where_everything_is_and_ends_when_told_to(tmp_path):
    child, told = start_lab(tmp_path, "--nodes", "5", "--templates", "2", "--speed", "50")
    try:
        for name in ("secret", "root_secret", "lab_secret", "site"):
            path = Path(told[name])
            assert path.is_relative_to(tmp_path / "lab" / "proxmox")
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        site = Path(told["site"]).read_text()
        assert f"url: {told['url']}" in site
        assert Path(told["secret"]).read_text() not in site
        headers = {
            "Authorization": f"PVEAPIToken={told['token']}={Path(told['secret']).read_text()}"
        }
        url = f"{told['url']}/api2/json/nodes"
        answer = requests.get(url, headers=headers, verify=told["ca"], timeout=60)
        assert len(answer.json()["data"]) == 5
    finally:
        stop_lab(child)
    with pytest.raises(requests.exceptions.ConnectionError):
        requests.get(told["url"], verify=told["ca"], timeout=60)


def test_it_ends_with_the_command_even_if_that_is_killed(tmp_path):
    child, told = start_lab(tmp_path)
    requests.get(told["url"], verify=told["ca"], timeout=60)
    with child:
        child.kill()
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            requests.get(told["url"], verify=told["ca"], timeout=60)
        except requests.exceptions.ConnectionError:
            return
        assert time.monotonic() < deadline
        time.sleep(0.05)
