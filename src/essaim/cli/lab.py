"""`lab`: servers that are not there, to try things out on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from essaim.cli.output import say

app = typer.Typer(
    no_args_is_help=True,
    help="Simulated servers: try a school's or a cloud's work without having one.",
    rich_markup_mode="rich",
)


@app.callback()
def _lab() -> None:
    """Simulated servers: try a school's or a cloud's work without having one."""


def _seconds(text: str) -> float:
    """Read 2, 2s or 500ms."""
    for unit, factor in (("ms", 0.001), ("s", 1.0)):
        if text.endswith(unit):
            return _seconds(text[: -len(unit)]) * factor
    try:
        return float(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text} is not a time: write 2s or 500ms") from error


@app.command()
def proxmox(
    nodes: Annotated[int, typer.Option(min=1, help="Nodes of the cluster: pve1, pve2, …")] = 3,
    templates: Annotated[
        int, typer.Option(min=1, help="Templates of each kind: debian-gui (LXC), debian-vm (QEMU).")
    ] = 1,
    copies: Annotated[
        int, typer.Option(min=1, help="How many of each template, on different nodes.")
    ] = 1,
    speed: Annotated[
        float, typer.Option(min=0.001, help="Simulated seconds in a second of the wall's.")
    ] = 1.0,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8006,
    gib: Annotated[int, typer.Option(min=1, help="Size of a template's disk.")] = 8,
    copy_seconds: Annotated[
        float, typer.Option(help="To copy a GiB at full speed: what a full clone takes.")
    ] = 1.5,
    copy_slots: Annotated[
        int, typer.Option(min=1, help="Copies at full speed; more of them share that.")
    ] = 4,
    linked_seconds: Annotated[
        float, typer.Option(help="For a linked clone; the storage makes one at a time.")
    ] = 0.8,
    start_seconds: Annotated[float, typer.Option(help="For the start of a container.")] = 3.0,
    start_slots: Annotated[
        int, typer.Option(min=1, help="Starts at full speed on a node; more of them share that.")
    ] = 4,
    slow_listing: Annotated[
        str, typer.Option(metavar="TIME", help="What listings take, such as 2s.")
    ] = "0s",
    stats: Annotated[
        str, typer.Option(metavar="TIME", help="How old powers in cluster/resources may be.")
    ] = "10s",
    seed: Annotated[int, typer.Option(help="Chances are the same for the same seed.")] = 0,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict/--no-strict",
            help="The token has the narrow rights of docs/proxmox.md; or it may use every guest.",
        ),
    ] = True,
    version: Annotated[
        int, typer.Option(min=7, max=9, help="Of Proxmox VE: privileges and checks differ.")
    ] = 8,
    real: Annotated[
        bool, typer.Option("--real", help="Containers are sandbox machines one can log in to.")
    ] = False,
    image: Annotated[
        str, typer.Option(metavar="IMAGE", help="With --real: what they are made from.")
    ] = "base",
    lxc: Annotated[
        bool,
        typer.Option(
            "--lxc", help="With --real, as root: containers are LXC's; hooks and id maps work."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Say where it is as JSON.")] = False,
) -> None:
    """Simulate a Proxmox VE cluster: its API over HTTPS, its tasks, locks and error texts.

    [bold]essaim lab proxmox --nodes 5 --templates 2 --speed 20[/bold] answers until Ctrl-C and
    prints a site file: put it into your lab as site/pve.yaml, and everything that
    works on Proxmox works on it. Secrets are in files that only you can read, below
    ESSAIM_HOME/lab/proxmox.

    Rights are checked on every path, as Proxmox VE does. The token of the site
    file sees its pool, the templates, storages and bridges, and no other guest;
    --no-strict lets it see and use them all.

    Things go wrong on demand, while it runs (docs/simulators.md has them all):
    [bold]curl --cacert CA -H "Authorization: Bearer $(cat lab.secret)" URL/lab/faults
    -d '{"fault": "errors", "share": 0.05}'[/bold]

    It is a simulator: nothing runs in its machines. With --real, a machine with the
    address 10.1.2.3 is a sandbox machine that answers ssh at 127.1.2.3. With --real
    --lxc its containers are real ones, in user namespaces, with the hooks, id maps and
    mounts of their configuration, and one can log in to the nodes (docs/proxmox.md).
    """
    from essaim.bootstrap import state_home

    folder = state_home(os.environ) / "lab" / "proxmox"
    given: dict[str, object] = {
        "folder": folder, "nodes": nodes, "templates": templates, "copies": copies, "speed": speed,
        "port": port, "gib": gib, "copy-seconds": copy_seconds, "copy-slots": copy_slots,
        "linked-seconds": linked_seconds, "start-seconds": start_seconds,
        "start-slots": start_slots, "slow-listing": _seconds(slow_listing),
        "stats-seconds": _seconds(stats), "seed": seed, "version": version,
    }  # fmt: skip
    _check_port(port)
    if lxc and not real:
        raise typer.BadParameter("--lxc says what real machines are: add --real")
    if real:
        given |= _real(folder, image)
    words = [f"--{key}={value}" for key, value in given.items()]
    flags = (("--real", real), ("--lxc", lxc), ("--no-strict", not strict))
    words += [word for word, wanted in flags if wanted]
    sys.exit(_follow(words, as_json=as_json))


def _check_port(port: int) -> None:
    """See that nobody listens there, before secrets of one that does are written over."""
    import socket

    from essaim.model.errors import SetupError

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise SetupError(
                f"127.0.0.1:{port} cannot be listened on: {error.strerror}",
                hint="does a simulator run already? --port 0 takes any port that is free",
            ) from error


def _real(folder: Path, image: str) -> dict[str, object]:
    """Have what real machines are made from, and the key this control plane logs in with."""
    from essaim.cli.progress import Notes
    from essaim.cli.stacks import control_plane
    from essaim.config.images import find_image

    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with control_plane() as control:
        rootfs = control.images.build(find_image(image, "."), Notes())
        keys = folder / "authorized_keys"
        keys.write_text(control.keyring.user_public_key() + "\n", encoding="utf-8")
        key = control.keyring.user_key()
    return {"rootfs": rootfs, "keys": keys, "key": key}


def _follow(words: list[str], *, as_json: bool) -> int:
    """Run the simulator until it ends or somebody stops us; gives its exit code."""
    command = [sys.executable, "-m", "essaim_lab.simulators.proxmox", "--attached", *words]
    # In a group of its own: Ctrl-C reaches it through us, once.  It ends with us, even if killed.
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0
    ) as child:

        def stop(_number: int, _frame: object) -> None:
            child.terminate()

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            line = child.stdout.readline() if child.stdout else ""
            if line:
                _tell(json.loads(line), as_json=as_json)
            return child.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _tell(told: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()
        return
    say(f"A simulated Proxmox VE answers at {told['url']}")
    say(f"  its authority    {told['ca']}")
    say(f"  token            {told['token']}, its value in {told['secret']}")
    say(f"  as root          {told['root']}, its value in {told['root_secret']}")
    say(f"  to cause faults  {told['lab_secret']}")
    say("As a site of your lab, site/pve.yaml:\n")
    sys.stdout.write(Path(told["site"]).read_text(encoding="utf-8"))
    sys.stdout.flush()
    say("\nCtrl-C ends it.")
