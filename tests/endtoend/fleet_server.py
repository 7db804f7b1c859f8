"""Control planes under test: `fleet_server.py API-FD GATEWAY-FD ADDRESS`, among machines.

The two sockets are where the tests reach them; ADDRESS is where the machines do.  For each line
`null` that it reads it starts a server, in a process of its own that need not import anything any
more, and prints its pid and how to reach it as a line of JSON; another line when it has ended.
Each line that a server reads names a workflow, one of its steps, and a moment: the process then
kills itself just before that step is done, or just after, with nothing of it written down.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from typing import Any

import uvicorn  # noqa: F401 - now, and not in every server

import essaim.api.app
import essaim.controllers.loops
import essaim.gateway.gateway
import essaim.store.migrate  # noqa: F401 - likewise
from essaim.bootstrap import App
from essaim.cli.plane import Plane, listening
from essaim.engine.workflow import Context, Step, Workflow
from essaim.usecases.people import first_admin
from essaim.workflows.table import WORKFLOWS

API_PORT, GATEWAY_PORT = 8080, 2222
LENDING = ("rent", "migrate", "release", "clean")

#: The (workflow, step, moment) that this process shall not survive.
fatal: list[tuple[str, str, str]] = []


def pass_by(workflow: str, step: str, moment: str) -> None:
    if (workflow, step, moment) in fatal:
        os.kill(os.getpid(), signal.SIGKILL)


def mortal(workflow: str, step: Step) -> Step:
    """The same step, which may be this process's last."""

    def do(context: Context) -> Any:
        pass_by(workflow, step.name, "before")
        answer = step.do(context)
        pass_by(workflow, step.name, "after")
        return answer

    return dataclasses.replace(step, do=do)


def all_mortal() -> None:
    for name in LENDING:
        steps = tuple(mortal(name, step) for step in WORKFLOWS[name].steps)
        WORKFLOWS[name] = Workflow(name, steps)


def tell(answer: object) -> None:
    os.write(1, json.dumps(answer).encode() + b"\n")


def lines() -> Iterator[Any]:
    """Give what is read, line by line, and take no byte more than that: a child reads the next."""
    line = b""
    while byte := os.read(0, 1):
        line += byte
        if byte == b"\n":
            yield json.loads(line)
            line = b""


def serve(api: socket.socket, gateway: socket.socket, address: str) -> None:
    """Serve until killed, or until there is nothing to read any more."""
    app = App()
    app.own_only = False
    plane = Plane(
        app,
        api=[api, listening(address, API_PORT)],
        gateway=(address, GATEWAY_PORT),
        gateway_sockets=[gateway],
        homes_every=1.0,
    )
    plane.start()
    password = first_admin(app) or ""
    tell({"pid": os.getpid(), "admin": password, "gateway_key": plane.gateway_key})
    for line in lines():
        fatal[:] = [tuple(line)]
        tell(None)
    plane.stop()
    app.close()


def main() -> None:
    all_mortal()
    api, gateway = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    for _ in lines():
        child = os.fork()
        if child == 0:
            serve(api, gateway, sys.argv[3])
            return
        _, status = os.waitpid(child, 0)
        tell(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
