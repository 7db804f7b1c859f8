"""`python -m essaim_lab.simulators.proxmox`: what `essaim lab proxmox` starts."""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from essaim.cli.signals import ENDING, acting
from essaim.model.errors import EssaimError
from essaim_lab.simulators.proxmox.roles import RELEASES
from essaim_lab.simulators.proxmox.settings import NodeSettings, StorageSettings
from essaim_lab.simulators.proxmox.simulator import Simulator

if TYPE_CHECKING:
    from essaim_lab.simulators.proxmox.backing import Backing

FAILED, SETUP = 1, 3
SNIPPET = """\
driver: proxmox
url: {url}
token: {token}
secret: {{file: {secret}}}
ca: {ca}
ids: 50000-59999
pool: students
storage: {storage}
bridge: vmbr0
"""
#: What a site file says besides where machines are real.
REAL = """\
netmap: {10.0.0.0/8: 127.0.0.0/8, 172.0.0.0/8: 127.0.0.0/8, 192.0.0.0/8: 127.0.0.0/8}
host_keys: first
"""
#: And where one can log in to the nodes.
SSH = """\
ssh:
  key: {key}
  port: {port}
  addresses: {{{addresses}}}
  host_keys: {{{host_keys}}}
"""


def arguments(words: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m essaim_lab.simulators.proxmox")
    parser.add_argument("--folder", type=Path, required=True, help="where the files are written")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--templates", type=int, default=1)
    parser.add_argument("--copies", type=int, default=1)
    parser.add_argument("--gib", type=int, default=8)
    parser.add_argument("--speed", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--slow-listing", type=float, default=0.0)
    parser.add_argument("--stats-seconds", type=float, default=10.0)
    parser.add_argument("--copy-seconds", type=float, default=1.5)
    parser.add_argument("--copy-slots", type=int, default=4)
    parser.add_argument("--linked-seconds", type=float, default=0.8)
    parser.add_argument("--start-seconds", type=float, default=3.0)
    parser.add_argument("--start-slots", type=int, default=4)
    parser.add_argument("--storage", default="vol-ceph-1")
    parser.add_argument("--strict", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--version", type=int, choices=sorted(RELEASES), default=8)
    parser.add_argument("--attached", action="store_true", help="end with whoever feeds stdin")
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--rootfs", type=Path, help="with --real: what machines are made from")
    parser.add_argument("--lxc", action="store_true", help="with --real: containers are LXC's")
    parser.add_argument("--key", type=Path, help="with --lxc: what site files log in to nodes with")
    parser.add_argument("--keys", type=Path, help="with --real: authorized keys of all machines")
    return parser.parse_args(words)


def simulator(asked: argparse.Namespace) -> Simulator:
    """Make the one that was asked for."""
    return Simulator(
        nodes=asked.nodes,
        templates=asked.templates,
        copies=asked.copies,
        storages=[
            StorageSettings(
                name=asked.storage,
                copy_seconds=asked.copy_seconds,
                copies=asked.copy_slots,
                linked_seconds=asked.linked_seconds,
            )
        ],
        node=NodeSettings(
            name="pve",
            start_seconds=asked.start_seconds,
            boot_seconds=2 * asked.start_seconds,
            starts=asked.start_slots,
        ),
        gib=asked.gib,
        seed=asked.seed,
        speed=asked.speed,
        host=asked.host,
        port=asked.port,
        folder=asked.folder,
        slow_listing=asked.slow_listing,
        stats_seconds=asked.stats_seconds,
        strict=asked.strict,
        version=asked.version,
    )


def _private(path: Path, text: str) -> Path:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    return path


def _nodes(sim: Simulator, key: Path, backing: Backing) -> str:
    """What a site file says of nodes that one can log in to."""
    computer = backing.node
    names = sorted(sim.cluster.nodes)
    return SSH.format(
        key=key,
        port=backing.open_node(),
        addresses=", ".join(f"{name}: 127.0.0.1" for name in names),
        host_keys=", ".join(f'{name}: "{computer.host_key if computer else ""}"' for name in names),
    )


def tell(sim: Simulator, asked: argparse.Namespace, backing: Backing | None) -> dict[str, str]:
    """Write the secrets where only their owner reads them; say where everything is."""
    folder = asked.folder
    plane = _private(folder / "token.secret", sim.plane_secret)
    snippet = SNIPPET.format(
        url=sim.url, token=sim.plane_token, secret=plane, ca=sim.ca, storage=asked.storage
    ) + (REAL if asked.real else "")
    if backing and backing.node:
        snippet += _nodes(sim, asked.key, backing)
    told = {
        "url": sim.url,
        "ca": str(sim.ca),
        "token": sim.plane_token,
        "secret": str(plane),
        "root": sim.token,
        "root_secret": str(_private(folder / "root.secret", sim.secret)),
        "root_password": str(_private(folder / "root.password", sim.password)),
        "lab_secret": str(_private(folder / "lab.secret", sim.admin_secret)),
        "site": str(_private(folder / "pve.yaml", snippet)),
    }
    _private(folder / "lab.json", json.dumps(told, indent=2))
    return told


def _watch(over: threading.Event) -> None:
    """End when whoever started us has ended, however that was."""
    # Not through sys.stdin: its lock would be held when the interpreter ends.
    while os.read(0, 1024):
        pass
    over.set()


def main(words: list[str]) -> int:
    """Answer until somebody stops it; the first line on stdout says where, as JSON."""
    asked = arguments(words)
    over = threading.Event()
    if asked.attached:
        threading.Thread(target=_watch, args=(over,), daemon=True).start()
    with acting(over.set, *ENDING):
        return _serve(asked, over)


def _serve(asked: argparse.Namespace, over: threading.Event) -> int:
    asked.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    sim = simulator(asked)
    backing = None
    if asked.real:
        from essaim_lab.simulators.proxmox.backing import Backing  # noqa: PLC0415 - when asked for

        keys = asked.keys.read_text(encoding="utf-8").splitlines() if asked.keys else []
        try:
            backing = Backing(sim, asked.folder / "machines", asked.rootfs, keys, lxc=asked.lxc)
        except EssaimError as error:
            sys.stderr.write(f"{error}\n" + (f"  {error.hint}\n" if error.hint else ""))
            return SETUP
        sim.cluster.machines = backing.machines
    try:
        sim.open(eager=asked.real)
    except OSError as error:
        sys.stderr.write(f"{asked.host}:{asked.port} cannot be listened on: {error.strerror}\n")
        return SETUP
    try:
        sys.stdout.write(json.dumps(tell(sim, asked, backing)) + "\n")
        sys.stdout.flush()
        over.wait()
    finally:
        sim.close()
        if backing:
            backing.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
