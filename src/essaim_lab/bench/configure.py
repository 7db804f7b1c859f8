"""The same roles on the same fresh machines: Essaim beside ansible-playbook at its best."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from essaim_lab.bench import playbook
from essaim_lab.bench.control import CHECKOUT, Essaim, control_plane
from essaim_lab.bench.rows import CannotRunError, Peer, Row
from essaim_lab.bench.slurm import STACK, run_job
from essaim_lab.bench.timing import Measured, end, timed

if TYPE_CHECKING:
    from essaim.model.stacks import Stack

NAME = "ansible-playbook -f 20"
_BARE = ("topology.controller.roles=[]", "topology.nodes.roles=[]")


def measure(*, quick: bool) -> list[Row]:
    """Apply a cluster's roles to machines that are up and have none, by turns with each tool."""
    nodes, rounds = (2, 1) if quick else (8, 2)
    ours, theirs = [], []
    with control_plane("slurm") as essaim:
        for _ in range(rounds):
            ours.append(_essaim(essaim, nodes))
            played = _ansible(essaim, nodes)
            if played:
                theirs.append(played)
    # Each at its best: whatever else this computer does, disturbs both.
    mine = min(ours, key=lambda one: one.wall)
    peer = min(theirs, key=lambda one: one.wall, default=None)
    what = f"roles of SLURM on {nodes} + 1 fresh machines"
    return [
        Row(
            what=what, value=mine.wall, unit="s", command=mine.command,
            peer=_peer(peer, peer.wall if peer else None), least_ratio=5,
        ),
        Row(
            what=f"{what}: CPU of the controller", value=mine.cpu, unit="s", command=mine.command,
            peer=_peer(peer, peer.cpu if peer else None), least_ratio=3,
            note="user and system, of the command and all it starts on this side",
        ),
    ]  # fmt: skip


def _peer(played: Measured | None, value: float | None) -> Peer:
    if played is None:
        return Peer(name=NAME, note="not here")
    return Peer(name=NAME, value=value, command=played.command)


def _essaim(essaim: Essaim, nodes: int) -> Measured:
    essaim.up(STACK, "slurm", f"nodes={nodes}", *_BARE)
    done = essaim.up(STACK, "slurm", f"nodes={nodes}", adopt=True)
    run_job(essaim, nodes)
    essaim.down("slurm")
    return done


def _ansible(essaim: Essaim, nodes: int) -> Measured | None:
    program = Path(sys.executable).with_name("ansible-playbook")
    if not program.is_file():
        return None
    essaim.up(STACK, "slurm", f"nodes={nodes}", *_BARE)
    stack, ssh = _reach(essaim, nodes)
    # A control socket's path must stay short, whatever TMPDIR is.
    with tempfile.TemporaryDirectory(prefix="eb-", dir="/tmp") as name:
        words, environ = playbook.write(Path(name), stack, ssh, essaim.environ)
        done = timed([program, *words], environ=environ, cwd=Path(name), within=300, adopt=True)
        end(done.left)  # the connections it keeps open
    if done.code != 0:
        said = "\n    ".join((done.out + done.err).strip().splitlines()[-30:])
        raise CannotRunError(f"`{done.command}` ended {done.code}\n    {said}")
    run_job(essaim, nodes)
    essaim.down("slurm")
    return done


def _reach(essaim: Essaim, nodes: int) -> tuple[Stack, dict[str, list[str]]]:
    """Give the stack with its roles, and how OpenSSH reaches each of its machines."""
    from essaim.config.compose import compose  # noqa: PLC0415 - Hydra is heavy
    from essaim.usecases.machines import ssh_command  # noqa: PLC0415

    stack = compose(str(CHECKOUT / STACK), (f"nodes={nodes}",)).stack
    app = essaim.app()
    try:
        ssh = {
            machine.name.machine: [
                # All but the program and the destination, which are Ansible's to say.
                *ssh_command(app, str(machine.name), [])[1:-1],
                # OpenSSH's default exchange costs ten times the CPU; Essaim does not use it either.
                *("-o", "KexAlgorithms=curve25519-sha256"),
            ]
            for machine in stack.machines
        }
    finally:
        app.close()
    return stack, ssh
