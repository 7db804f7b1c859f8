"""The life of an agent: beat, end leases that are over, keep the tunnel; until told to stop."""

from __future__ import annotations

import contextlib
import os
import queue
import random
import re
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from essaim.agent.accounts import known_accounts
from essaim.agent.common import HELPER, Trouble, tool, write_file
from essaim.agent.server import RefusedError, Server, State, beat_of, describe_node

if TYPE_CHECKING:
    import argparse

INTERVAL = 30.0
REAP_EVERY = 60.0
LONGEST_PAUSE = 120.0
LONGEST_INTERVAL = 3600.0
LAST_PORT = 65535
_HOST = re.compile(r"[A-Za-z0-9:][A-Za-z0-9.:-]{0,253}")


def say(sentence: str) -> None:
    """Tell whoever reads our output."""
    sys.stdout.write(f"{sentence}\n")
    sys.stdout.flush()


def describe(asked: argparse.Namespace) -> dict[str, Any]:
    """Describe this machine as it is to be announced."""
    return describe_node(
        address=asked.address,
        port=asked.port,
        tunnel=asked.tunnel,
        server=asked.server.rstrip("/"),
        labels=dict(asked.label),
    )


def register(
    asked: argparse.Namespace,
    token: str,
    ca: str,
    state: State,
    *,
    told: dict[str, Any],
    proof: dict[str, str],
) -> None:
    """Announce this machine with an enrolment token, and keep what it is given.

    `proof` are headers that show that it has its host key.
    """
    server = Server(asked.server, ca=ca, insecure=asked.insecure)
    former = _former(state, server.address)
    if former:
        proof = {**proof, "Essaim-Credential": former}
    state.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    told.update(token=token, name=asked.name or os.uname().nodename, site=asked.site)
    told["tunnel_key"] = _tunnel_key(state) if asked.tunnel else ""
    given = server.post("/api/workers/register", told, more=proof)
    if not given.get("node_id") or not given.get("credential"):
        raise Trouble(f"{server.address} let us in without a name or a credential: is it Essaim?")
    kept = {
        "id": given["node_id"],
        "credential": given["credential"],
        "server": server.address,
        "server_public_key": given.get("server_public_key", ""),
        "gateway": given.get("gateway") or {},
        "interval": asked_interval(given, INTERVAL),
        "port": asked.port,
        "tunnel": bool(asked.tunnel or given.get("tunnel")),
        "ca": ca,
        "insecure": asked.insecure,
    }
    if kept["tunnel"] and not told["tunnel_key"]:
        _tunnel_key(state)
    state.write(kept)
    say(f"joined {server.address} as {kept['id']}")


def _former(state: State, address: str) -> str:
    """Give what this machine was given when it joined the same server before, if it did."""
    with contextlib.suppress(Trouble):
        kept = state.read()
        return str(kept["credential"]) if kept["server"] == address else ""
    return ""


def _tunnel_key(state: State) -> str:
    if not state.tunnel_key.exists():
        tool(
            "ssh-keygen",
            "-q",
            "-t",
            "ed25519",
            "-N",
            "",
            "-C",
            "essaim",
            "-f",
            str(state.tunnel_key),
        )
    return " ".join(Path(f"{state.tunnel_key}.pub").read_text().split()[:2])


class Agent:
    """One running agent."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._kept = state.read()
        self._server = Server(
            self._kept["server"],
            ca=self._kept.get("ca", ""),
            insecure=self._kept.get("insecure", False),
        )
        # Not an Event: a handler that sets one while this thread begins to wait hangs for ever.
        self._signals: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._ending = False
        self._seq = 0
        self._failures = 0
        self._reaper: subprocess.Popen[bytes] | None = None
        self._tunnel: Tunnel | None = Tunnel(state, self._kept) if self._kept["tunnel"] else None

    def run(self) -> None:
        """Live until a signal; Trouble when the server refuses us."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda told, _frame: self._signals.put(told))
        say(f"{self._kept['id']} beats to {self._kept['server']}")
        beat_at = reap_at = 0.0
        try:
            while not self._told_to_end(0.0):
                now = time.monotonic()
                if now >= reap_at:
                    self._reap()
                    reap_at = now + REAP_EVERY
                if now >= beat_at:
                    beat_at = time.monotonic() + self._beat()
                if self._tunnel:  # after the first beat, which says where gateways are
                    self._tunnel.keep(time.monotonic())
                wake = min(beat_at, reap_at, now + 2.0 if self._tunnel else beat_at)
                self._told_to_end(max(0.0, wake - time.monotonic()))
        except RefusedError as exc:
            self._outlive(exc)
            raise
        finally:
            if self._tunnel:
                self._tunnel.end()
        say("stopped")

    def _outlive(self, why: RefusedError) -> None:
        """End the leases of this machine when their time is over, though nobody wants our beats."""
        if known_accounts():
            say(f"{why}.  Until then it only ends the leases that are still here")
        while known_accounts() and not self._told_to_end(REAP_EVERY):
            self._reap()

    def _told_to_end(self, within: float) -> bool:
        """Whether a signal has said so, or does within so many seconds."""
        if not self._ending:
            with contextlib.suppress(queue.Empty):
                self._ending = bool(self._signals.get(timeout=within))
        return self._ending

    def _beat(self) -> float:
        """Beat once; gives the seconds until the next one."""
        beat = beat_of(self._seq)
        self._seq = beat["seq"]
        try:
            given = self._server.post("/api/workers/heartbeat", beat, self._kept["credential"])
        except RefusedError as exc:
            self._state.note(ok=False, error=str(exc))
            raise RefusedError(
                f"{exc}.  This agent stops: join again with a new token", code=exc.code
            ) from exc
        except Trouble as exc:
            self._failures += 1
            interval = float(self._kept["interval"])
            pause = pause_after(self._failures, interval, random.random())  # noqa: S311 - no secret
            # Three intervals of silence and we count as lost: a server that is back must hear us.
            pause = min(pause, 2 * interval)
            say(f"{exc}; trying again in {pause:.1f} s")
            self._state.note(ok=False, error=str(exc))
            return pause
        if self._failures:
            say(f"{self._kept['server']} answers again after {self._failures} failed beats")
        self._failures = 0
        self._state.note(ok=True)
        if self._tunnel:
            self._tunnel.offer(given.get("gateways"))
        interval = asked_interval(given, self._kept["interval"])
        if interval != self._kept["interval"]:
            say(f"{self._kept['server']} wants a beat every {interval:g} s from now on")
            # Not kept on disk, where somebody may just have joined again: the next life asks anew.
            self._kept["interval"] = interval
        return next_beat(interval, random.random())  # noqa: S311 - no secret

    def _reap(self) -> None:
        """End leases that are over, also while the server is out of reach; does not wait."""
        if self._reaper is not None and self._reaper.poll() is None:
            return
        if HELPER.exists():
            with contextlib.suppress(OSError):
                self._reaper = subprocess.Popen(
                    ["sudo", "-n", str(HELPER), "reap"],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                )


def next_beat(interval: float, chance: float) -> float:
    """Say how long to wait for the next beat: 80 to 100 % of the interval, by chance (0 to 1).

    Many agents are started at once, and must not beat at once for ever.
    """
    return interval * (0.8 + 0.2 * chance)


def pause_after(failures: int, interval: float, chance: float) -> float:
    """Say how long to wait after that many failed beats: longer each time, half of it by chance."""
    longest = min(max(LONGEST_PAUSE, interval), interval * (1 << min(failures - 1, 10)))
    return longest * (0.5 + 0.5 * chance)


def asked_interval(given: dict[str, Any], now: float) -> float:
    """Give the interval the server wants, if it says one that makes sense; else the one we have."""
    asked = given.get("interval")
    if isinstance(asked, bool) or not isinstance(asked, (int, float)):
        return now
    return float(asked) if 0 < asked <= LONGEST_INTERVAL else now


class Tunnel:
    """A connection to the gateway through which it reaches this machine's SSH server."""

    def __init__(self, state: State, kept: dict[str, Any]) -> None:
        gateway = kept["gateway"]
        if not gateway.get("host") or not gateway.get("host_key"):
            raise Trouble("the server named no gateway, and this machine needs a tunnel to one")
        host, port = gateway["host"], int(gateway.get("port") or 22)
        key = " ".join(gateway["host_key"].split()[:2])
        write_file(state.known_hosts, f"essaim-gateway {key}\n", 0o600)
        options = {
            "BatchMode": "yes",
            "ExitOnForwardFailure": "yes",
            "ServerAliveInterval": "10",
            "ServerAliveCountMax": "3",
            "ConnectTimeout": "15",
            "IdentitiesOnly": "yes",
            "StrictHostKeyChecking": "yes",
            "UserKnownHostsFile": str(state.known_hosts),
            "GlobalKnownHostsFile": "/dev/null",
            "HostKeyAlias": "essaim-gateway",
        }
        self._words = ["ssh", "-N", "-T", "-F", "/dev/null", "-i", str(state.tunnel_key)]
        for name, value in options.items():
            self._words += ["-o", f"{name}={value}"]
        self._words += ["-R", f"0:127.0.0.1:{kept['port']}", "-l", f"node-{kept['id']}"]
        #: Where gateways are; each node begins at another one.
        self._told = (host, port)
        self._places = [self._told]
        self._next = zlib.crc32(kept["id"].encode())
        #: As for beats: whoever cannot be reached for three checks is lost.
        self._longest = max(1.0, float(kept.get("interval") or INTERVAL))
        self._process: subprocess.Popen[bytes] | None = None
        self._failures = 0
        self._again_at = 0.0
        self._began = 0.0

    def offer(self, gateways: Any) -> None:
        """Hear where gateways are that live; they all show the key that was pinned."""
        places = []
        for each in gateways if isinstance(gateways, list) else []:
            with contextlib.suppress(KeyError, TypeError, ValueError):
                host, port = str(each["host"]), int(each["port"])
                if _HOST.fullmatch(host) and 0 < port <= LAST_PORT:
                    places.append((host, port))
        # The one we were told at first may be the address of all of them.
        self._places = sorted(set(places)) or [self._told]
        if self._told not in self._places:
            self._places.append(self._told)

    def keep(self, now: float) -> None:
        """Start it when it is not there; not more often than is polite."""
        if self._process is not None:
            code = self._process.poll()
            if code is None:
                return
            lasted = now - self._began
            self._failures = 1 if lasted > LONGEST_PAUSE else self._failures + 1
            pause = pause_after(self._failures, 1.0, random.random())  # noqa: S311 - no secret
            self._again_at = now + min(pause, self._longest)
            self._process = None
            self._next += 1
            say(f"the tunnel ended after {lasted:.0f} s (ssh exited {code}); making it again")
        if now >= self._again_at:
            self._began = now
            host, port = self._places[self._next % len(self._places)]
            self._process = subprocess.Popen(
                [*self._words, "-p", str(port), "--", host],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )

    def end(self) -> None:
        """Close it."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
