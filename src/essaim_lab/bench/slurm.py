"""From Enter to a job that ran on eight nodes of a new SLURM cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from essaim_lab.bench.control import Essaim, control_plane
from essaim_lab.bench.rows import CannotRunError, Row

if TYPE_CHECKING:
    from essaim_lab.bench.timing import Measured

STACK = "examples/slurm"
_TARGET = 8.0


def measure(*, quick: bool) -> list[Row]:
    """Raise a cluster with its image in the cache and run one job across all of its nodes."""
    nodes = 4 if quick else 8
    with control_plane("slurm") as essaim:
        up = essaim.up(STACK, "slurm", f"nodes={nodes}")
        job = run_job(essaim, nodes)
    return [
        Row(
            what=f"SLURM with {nodes} nodes, to `srun -N{nodes} hostname` answered",
            value=up.wall + job.wall, unit="s", most=_TARGET,
            command=f"{up.command} && {job.command}",
            note=f"up {up.wall:.2f} s, job {job.wall:.2f} s, CPU of both {up.cpu + job.cpu:.2f} s",
        ),
    ]  # fmt: skip


def run_job(essaim: Essaim, nodes: int) -> Measured:
    """Have every node say its name; CannotRunError unless each did."""
    job = essaim("run", "slurm/controller", "--", "srun", f"-N{nodes}", "hostname")
    said, wanted = set(job.out.split()), {f"nodes-{n}" for n in range(1, nodes + 1)}
    if not wanted <= said:
        missing = " ".join(sorted(wanted - said))
        raise CannotRunError(f"`{job.command}`: no answer from {missing}")
    return job
