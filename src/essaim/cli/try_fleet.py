"""The sandbox machines of `serve --try`: made, joined, resized with `nodes try`, removed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from essaim.cli.asking import agree
from essaim.cli.carrying import carry_out
from essaim.cli.output import duration, say
from essaim.model.errors import SetupError, TransientError

if TYPE_CHECKING:
    from essaim.bootstrap import App
    from essaim.model.fleet import Lease, Node
    from essaim.usecases.node_removal import NodeRemoval
    from essaim.usecases.sandbox_fleet import SandboxFleet

STACK = "try"
#: More would not fit into the network of the stack.
MOST = 200
#: Seconds between heartbeats, unless ESSAIM_INTERVAL says otherwise: a lost machine is soon seen.
INTERVAL = "5"
#: Seconds that machines have to join.
JOIN_WITHIN = 120.0
LOOK_EVERY = 0.2


def settings() -> dict[str, str]:
    """The environment of a server that people try out: anybody may sign up, unless it says not."""
    usual = {"ESSAIM_INTERVAL": INTERVAL, "ESSAIM_SIGNUP": "open"}
    return {**os.environ, **{key: os.environ.get(key) or value for key, value in usual.items()}}


def sandbox_fleet(app: App, name: str = STACK) -> SandboxFleet:
    """The machines of a stack as a fleet."""
    from essaim.agent import source
    from essaim.usecases.sandbox_fleet import SandboxFleet

    return SandboxFleet(app, name, source)


def listeners(fleet: SandboxFleet) -> dict[str, Any]:
    """Listen on the machines' network: what `Plane` takes so that they find API and gateway."""
    from essaim.usecases.sandbox_fleet import GATEWAY_PORT

    api, gateway = fleet.listen()
    return {"gateway_sockets": [gateway], "agents": [(api, (fleet.address, GATEWAY_PORT))]}


class TryFleet:
    """The machines of one `serve --try`: `begin`, `join`, and at the end `retire` and `remove`."""

    def __init__(self, app: App, count: int) -> None:
        self.app, self.count = app, count
        self.fleet = sandbox_fleet(app)
        self._lock = contextlib.ExitStack()

    def begin(self) -> dict[str, Any]:
        """Make the machines, or take over those that an earlier process left.

        Gives the control plane's sockets on their network, as `Plane` takes them.
        """
        self._lock.enter_context(_locked(self.app.home))
        left = len(self.fleet.stack.machines) if self.fleet.made else 0
        if left:
            say("try      machines of an earlier serve --try are here: taking them over")
        if left > self.count:
            # They may be rented: whoever wants fewer is asked about that.
            say(f"         all {left} of them; for fewer: essaim nodes {STACK} {self.count}")
        if code := resize_stack(self.app, self.fleet, max(left, self.count)):
            if not left:
                self._undo()
            raise SystemExit(code)
        return listeners(self.fleet)

    def join(self) -> None:
        """Let the machines join, once the API answers."""
        gone = self.fleet.missing()
        if gone:
            _removal(self.app, gone).finish("its machine was removed", within=0.0)
        # An earlier server may have died while it was ending.
        _removal(self.app, self.fleet.nodes()).drain(on=False)
        join(self.app, self.fleet)

    def retire(self) -> None:
        """End the leases on the machines and forget the nodes, while the server still runs."""
        removal = _removal(self.app, self.fleet.nodes())
        removal.drain()
        if ended := removal.finish("serve --try has ended"):
            say(f"try      ended with their machines: {', '.join(ended)}")

    def remove(self) -> None:
        """Remove the machines, when nothing serves them any more."""
        gone = self.fleet.take_down()
        self._lock.close()
        what = "the machines are removed" if gone else f"machines are left: essaim down {STACK}"
        say(f"try      {what}")

    def _undo(self) -> None:
        """Remove what was begun: with another app, as Ctrl-C has stopped the engine of this one."""
        from essaim.bootstrap import App

        fresh = App(settings(), kind="serve")
        try:
            sandbox_fleet(fresh).take_down()
        finally:
            fresh.close()
            self._lock.close()


def resize(app: App, count: int, *, yes: bool) -> int:
    """Make it so many machines while `serve --try` runs; gives the exit code."""
    fleet = sandbox_fleet(app)
    if not _is_served(app.home):
        raise SetupError(
            f"no essaim serve --try runs with {app.home}",
            hint=f"start one: essaim serve --try {count}",
        )
    leaving = fleet.leaving(count)
    if leaving:
        _empty(_removal(app, leaving), yes=yes)
    if code := resize_stack(app, fleet, count):
        return code
    join(app, fleet)
    return 0


def resize_stack(app: App, fleet: SandboxFleet, count: int) -> int:
    """Make and remove machines until there are so many; gives the exit code."""
    from essaim.usecases import stacks as use

    before = app.watch
    try:
        plan_it = partial(use.make_plan, app, fleet.compose(count))
        return int(carry_out(app, fleet.name, plan_it, yes=True, wait=True)["exit_code"])
    finally:
        app.watch = before


def join(app: App, fleet: SandboxFleet) -> None:
    """Let every machine of the stack join, and wait until each serves."""
    began, since = time.monotonic(), app.fleet.now()
    fleet.join()
    wanted = len(fleet.stack.machines)
    while len(joined := fleet.joined(since)) < wanted:
        if time.monotonic() - began > JOIN_WITHIN:
            raise TransientError(
                f"{wanted - len(joined)} of {wanted} machines did not join in {JOIN_WITHIN:g} s",
                hint="the same command tries again; essaim events --all says what happened",
            )
        time.sleep(LOOK_EVERY)
    names = f"{wanted} machines serve" if wanted > 1 else "1 machine serves"
    say(f"try      {names}, after {duration(time.monotonic() - began)}")


def _removal(app: App, nodes: Sequence[Node]) -> NodeRemoval:
    from essaim.usecases.node_removal import NodeRemoval

    return NodeRemoval(app, nodes, "serve --try")


def _empty(removal: NodeRemoval, *, yes: bool) -> None:
    """Move leases off machines that go; ask before those end for which no machine is free."""
    removal.drain()
    try:
        move, end = removal.split()
        if end:
            say(f"try      no other machine is free for {_names(removal.leases(end))}")
            agree("They end, and all files on them are lost. Go on?", yes=yes)
        if move:
            say(f"try      moving {_names(removal.leases(move))} to other machines")
            removal.move(move)
        removal.finish("its machine was removed")
    except BaseException:
        removal.drain(on=False)
        raise


def _names(leases: Collection[Lease]) -> str:
    return ", ".join(lease.id for lease in leases)


def _lock_file(home: Path) -> Path:
    return home / "try.lock"


@contextlib.contextmanager
def _locked(home: Path) -> Iterator[None]:
    """Be the only `serve --try` with this home; the system lets go when the process dies."""
    home.mkdir(parents=True, exist_ok=True)
    with _lock_file(home).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise SetupError(
                f"another essaim serve --try runs with {home} (process {file.read().strip()})",
                hint="essaim nodes try N makes its fleet larger or smaller",
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def _is_served(home: Path) -> bool:
    """Whether a `serve --try` runs with this home."""
    try:
        with _locked(home):
            return False
    except SetupError:
        return True
