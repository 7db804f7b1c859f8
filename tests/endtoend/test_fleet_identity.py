"""Nodes that lie, repeat themselves, or are two: wrong clocks, copied beats, copied keys (R-D1)."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from endtoend.fleet_rig import Fleet, Tenant, fleet, wait_for

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]

YEAR = 366 * 24 * 3600


@pytest.fixture(scope="module")
def machines() -> Iterator[Fleet]:
    # An agent that is stopped and started again on a busy computer is not lost meanwhile.
    with fleet(3, interval=4.0) as made:
        yield made


@pytest.fixture(scope="module")
def ada(machines) -> Tenant:
    return machines.tenant("ada")


@pytest.fixture
def its(machines) -> Iterator[Fleet]:
    yield machines
    machines.tidy()


# -- copied beats -------------------------------------------------------------------------------


class Tap:
    """Somebody on the way between a machine and the server, who keeps what passes by."""

    def __init__(self, its: Fleet) -> None:
        self.heard: list[tuple[str, dict[str, str], bytes]] = []
        tap, base = self, its.http.base_url

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                kept = ("authorization", "content-type", "essaim-")
                headers = {n: v for n, v in self.headers.items() if n.lower().startswith(kept)}
                url = base.join(self.path)
                answer = httpx.post(url, content=body, headers=headers, timeout=60)
                # Only now: what the server never got would not be refused later.
                tap.heard.append((self.path.removeprefix("/api/"), headers, body))
                self.send_response(answer.status_code)
                self.send_header("Content-Length", str(len(answer.content)))
                self.end_headers()
                self.wfile.write(answer.content)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("", 0), Handler, bind_and_activate=False)
        self._server.socket.close()
        self._server.socket = its.driver.listen(its.stack.name, 0)  # type: ignore[attr-defined]
        host, port = self._server.socket.getsockname()
        self.address = f"http://{host}:{port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def beats(self) -> list[tuple[str, dict[str, str], bytes]]:
        return [one for one in self.heard if one[0] == "workers/heartbeat"]

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def test_a_heartbeat_that_was_overheard_is_refused_when_sent_again(its):
    """R-D1: neither the last one nor an earlier one keeps a dead machine alive."""
    machine = next(iter(its.machines))
    with contextlib.closing(Tap(its)) as tap:
        its.join(machine, server=tap.address)
        its.await_node(machine)
        wait_for(lambda: len(tap.beats()) > 2, "three beats were overheard")
        its.stop_agent(machine)
    overheard = tap.beats()
    before = its.nodes()[machine]["beat_at"]
    for path, headers, body in (overheard[0], overheard[-1]):
        again = its.http.post(path, content=body, headers=headers)
        assert again.status_code == 409, again.text
    # Nor does what was overheard let anybody in as a person, or with another's number.
    path, headers, body = overheard[-1]
    assert its.http.get("nodes", headers=headers).status_code == 401
    forged = json.dumps({**json.loads(body), "seq": 2**40}).encode()
    wrong = {**headers, "Authorization": "Bearer node_guessed"}
    assert its.http.post(path, content=forged, headers=wrong).status_code == 401
    assert its.nodes()[machine]["beat_at"] == before
    its.await_node(machine, "lost")
    its.join(machine)
    its.await_node(machine)


# -- copied keys --------------------------------------------------------------------------------


COPIED = "/etc/ssh/ssh_host_copied_key"
SSHD = f"/usr/sbin/sshd -h {COPIED} -p 2022"


def test_of_two_agents_with_one_identity_the_first_is_refused_and_an_operator_sees_it(its):
    """R-D1: a copied host key is the same node, which then is where the copy is."""
    first, second, _ = its.machines
    before = its.nodes()[first]
    kept = json.loads(its.root(first, "cat /var/lib/essaim/node.json").stdout)
    key = its.root(first, "cat /etc/ssh/ssh_host_ed25519_key").stdout
    its.stop_agent(second)
    its.root(second, f"umask 077; cat >{COPIED} && {SSHD} -o PidFile=/run/copied.pid",
             stdin=key.encode())  # fmt: skip
    its.join(second, "--port", "2022")

    said = wait_for(lambda: refusal(its, first), "the first agent is refused")
    assert "another has taken its place" in said
    old = {"Authorization": f"Bearer {kept['credential']}"}
    beat = {"boot_id": "whatever", "seq": 1}
    assert its.http.post("workers/heartbeat", json=beat, headers=old).status_code == 401

    nodes = {node["id"]: node for node in its.get("nodes")}
    assert nodes[before["id"]]["address"] == its.machines[second].address
    assert nodes[before["id"]]["port"] == 2022
    told = its.events("node.joined", before["id"])
    assert "anew" in told[-1]["text"]

    its.stop_agent(second)
    its.root(second, f"kill $(cat /run/copied.pid); rm {COPIED}")
    for machine in (first, second):
        its.join(machine)
        its.await_node(machine)
    assert its.nodes()[first]["id"] == before["id"]


def refusal(its: Fleet, machine: str) -> str:
    said = its.root(machine, "cat /var/lib/essaim/log").stdout
    return said if "refuses us" in said else ""


# -- joining twice ------------------------------------------------------------------------------

#: A helper whose first cleaning takes until it is told to go on.
SLOW = """
cd /usr/local/lib/essaim && mv helper helper.right && cat >helper <<'END'
#!/bin/sh
if [ "$1" = clean ] && mkdir /run/slow 2>/dev/null; then
  while [ ! -e /run/go ]; do sleep 0.1; done
fi
exec /usr/local/lib/essaim/helper.right "$@"
END
chmod 755 helper
"""
RIGHT = "cd /usr/local/lib/essaim && mv helper.right helper; rm -rf /run/slow /run/go"


def test_a_machine_that_joins_twice_in_a_row_is_not_cleaned_under_its_tenants_feet(its, ada):
    """R-D3: the first of two cleanings may be the slower one."""
    machine = next(iter(its.machines))
    its.root(machine, SLOW)
    try:
        its.join(machine, "--label", "joined=twice")
        slow = "test -e /run/slow"
        wait_for(lambda: its.root(machine, slow, ok=False).exit_code == 0, "it is being cleaned")
        its.join(machine, "--label", "joined=twice")
        wish = {"public_key": ada.public_key, "labels": {"joined": "twice"}, "patience": 5}
        lease = its.post("rent", ada.token, **wish)["id"]
        its.root(machine, "touch /run/go")
        its.await_lease(lease, "active")
        wait_for(
            lambda: all(run.state.over for run in its.runs(workflow="clean")), "nothing is cleaned"
        )
        assert its.ssh(lease, ada.key, "id -un").stdout == f"{lease}\n"
    finally:
        its.root(machine, f"touch /run/go; {RIGHT}")


# -- wrong clocks -------------------------------------------------------------------------------

SKEWED = "import time; right = time.time; time.time = lambda: right() + ({skew})"


@contextlib.contextmanager
def skewed(its: Fleet, machine: str, skew: int) -> Iterator[None]:
    """Let what runs on a machine for us see another time.

    The clock of a sandbox machine is this computer's, and not to be set: so the agent and the
    helper are told another one.
    """
    place = "/usr/local/lib/essaim"
    its.stop_agent(machine)
    its.root(machine, f"cp -a {place}/agent.py /root/right.py; rm -rf {place}/__pycache__")
    line = SKEWED.format(skew=skew)
    its.root(machine, f"sed -i '0,/^import os$/s//import os\\n{line}/' {place}/agent.py")
    its.root(machine, f"grep -c 'right() + ({skew})' {place}/agent.py")
    its.start_agent(machine)
    try:
        yield
    finally:
        its.stop_agent(machine)
        its.root(machine, f"cp -a /root/right.py {place}/agent.py; rm -rf {place}/__pycache__")
        its.start_agent(machine)


@pytest.mark.parametrize("skew", [-YEAR, YEAR], ids=["behind", "ahead"])
def test_a_node_whose_programs_are_told_a_clock_a_year_off_is_still_judged_right(its, ada, skew):
    """R-D1: it serves, is lost when silent, returns; a lease there lasts as long as it should."""
    machine = list(its.machines)[2]
    label = {"clock": "wrong"}
    its.join(machine, "--label", "clock=wrong")
    with skewed(its, machine, skew):
        its.await_node(machine)
        lease = its.rent(ada, labels=label)
        assert its.machine_of(lease) == machine
        # The agent ends leases that are over as soon as it starts.
        its.stop_agent(machine)
        reaped = "grep -c reap /var/log/essaim-helper.log || true"
        count = int(its.root(machine, reaped).stdout)
        its.start_agent(machine)
        wait_for(lambda: int(its.root(machine, reaped).stdout) > count, "the agent has reaped")
        assert its.accounts(machine) == {lease}
        if skew > 0:  # else sshd, which nobody told another clock, knows an account of last year
            assert its.ssh(lease, ada.key, "id -un").stdout == f"{lease}\n"
        assert its.nodes()[machine]["state"] == "held"
        its.release(ada, lease)

        its.await_node(machine)
        its.signal_agent(machine, "STOP")
        its.await_node(machine, "lost")
        its.signal_agent(machine, "CONT")
        its.await_node(machine)
        assert its.accounts(machine) == set()
