"""The Essaim agent: lets a machine be rented.

Joining takes root once, to make a service account and the helper that makes leased accounts:

    sudo python3 agent.py join --server https://essaim.example.org --token TOKEN

From then on the agent runs as `essaim`, and the only thing it may do as root is the helper.
Take everything away again, leased accounts included, with `sudo python3 agent.py uninstall`.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 refused (to start again is of no use), 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pwd
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from essaim.agent.accounts import expiry_of, known_accounts
from essaim.agent.common import HELPER, SERVICE, STATE, Trouble, as_user, drop_to, tool
from essaim.agent.expiry import clocks, term_of
from essaim.agent.groups import AGENT_OOM, prefer
from essaim.agent.helper import VERBS, run_helper
from essaim.agent.identity import sign_challenge
from essaim.agent.loop import Agent, describe, register, say
from essaim.agent.server import REFUSED, Server, State, ask_challenge, fetch_authority
from essaim.agent.setup import UNIT, install, installed, need_root, systemd_runs, uninstall

if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds in which the helper signs.
SIGN_WITHIN = 60


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is no label: say NAME=VALUE")
    return name, value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="agent.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    join = commands.add_parser("join", help="announce this machine to a server, and run")
    join.add_argument("--server", required=True, help="the server's address: https://NAME[:PORT]")
    join.add_argument(
        "--token",
        default=os.environ.get("ESSAIM_TOKEN", ""),
        help="what `essaim nodes enrol` printed; `-` reads it from standard input, so that nobody "
        "sees it in the process list; default: the variable ESSAIM_TOKEN",
    )
    join.add_argument("--name", default="", help="what to call this machine; default: host name")
    join.add_argument("--site", default="", help="where it is, for those who rent by place")
    join.add_argument("--label", type=_label, action="append", default=[], metavar="NAME=VALUE")
    join.add_argument("--address", default="", help="where the server reaches our SSH server")
    join.add_argument("--port", type=int, default=22, help="of our SSH server")
    join.add_argument(
        "--tunnel", action="store_true", help="nothing gets in: keep a connection to the gateway"
    )
    join.add_argument("--ca", default="", help="believe servers signed by this CA (a PEM file)")
    join.add_argument(
        "--ca-pin",
        default="",
        metavar="sha256:DIGEST",
        help="fetch the CA from the server, and believe it if this is its certificate's SHA-256",
    )
    join.add_argument(
        "--insecure-http",
        "--insecure",
        dest="insecure",
        action="store_true",
        help="allow http to another machine: whoever can listen gets the token and may pose as us",
    )
    join.add_argument("--no-run", action="store_true", help="only register")
    join.add_argument(
        "--again", action="store_true", help="leave the fleet of another server for this one"
    )
    run = commands.add_parser("run", help="go on as the node this machine has joined as")
    status = commands.add_parser("status", help="say who this machine is and how its beats go")
    for command in (join, run, status):
        command.add_argument("--state", type=Path, default=STATE, help=argparse.SUPPRESS)
    setup = commands.add_parser("install", help="make the service account and helper (root)")
    setup.add_argument("--key", default="", help="let the holder of this SSH key in at once")
    setup.add_argument(
        "--playbooks", action="store_true", help="let the server run Ansible here, as root"
    )
    gone = commands.add_parser("uninstall", help="remove all of it, leased accounts too (root)")
    gone.add_argument("--keep-log", action="store_true", help="leave the helper's log")
    helper = commands.add_parser("helper", help="one privileged verb, JSON in and out (root)")
    helper.add_argument("verb", choices=sorted(VERBS))
    return parser


def _join(asked: argparse.Namespace) -> None:
    token = sys.stdin.readline().strip() if asked.token == "-" else asked.token  # noqa: S105
    if not token:
        raise Trouble("joining takes a token: --token TOKEN, as `essaim nodes enrol` printed it")
    state = State(asked.state)
    root = os.geteuid() == 0 and asked.state == STATE
    ca = _authority(asked, root=root)
    if asked.state == STATE and not os.access(STATE, os.W_OK) and not root:
        need_root("join")  # once it is installed, the service account may join by itself
    _check_fleet(asked, state)
    server = Server(asked.server, ca=ca, insecure=asked.insecure)
    # Before anything is installed: a server that we do not trust, or that refuses us, is told.
    challenge = _apart(lambda: ask_challenge(server, token), "nobody" if root else "")
    if root and not installed():
        install()
    # Nothing but the helper needs to be root, least of all what talks to the network.
    who = SERVICE if root else ""
    told = _apart(lambda: describe(asked), who)
    proof = _proof(challenge, told["host_key"])
    _apart(lambda: register(asked, token, ca, state, told=told, proof=proof), who)
    if asked.no_run:
        return
    if root and systemd_runs():
        tool("systemctl", "restart", UNIT.name)
        say(f"the agent runs as {UNIT.name}")
        return
    _run(asked)


def _apart(work: Callable[[], Any], who: str) -> Any:
    """Do something as that user; as who we are when it is empty."""
    if not who:
        return work()
    entry = pwd.getpwnam(who)
    return as_user(entry.pw_uid, entry.pw_gid, work)


def _proof(challenge: str, host_key: str) -> dict[str, str]:
    """Sign with the host key; root may by itself, others through the helper if it is there."""
    if not challenge:
        return {}
    signature = ""
    if os.geteuid() == 0:
        signature = sign_challenge(challenge, host_key)
    elif HELPER.exists():
        with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
            done = subprocess.run(
                ["sudo", "-n", str(HELPER), "sign"],
                input=json.dumps({"challenge": challenge, "host_key": host_key}),
                capture_output=True,
                encoding="utf-8",
                check=False,
                timeout=SIGN_WITHIN,
            )
            signature = json.loads(done.stdout).get("signature") or ""
    if not signature:
        return {}
    return {"Essaim-Challenge": challenge, "Essaim-Signature": signature}


def _authority(asked: argparse.Namespace, *, root: bool) -> str:
    """Read certificates now: the service account may not be able to."""
    path = asked.ca
    if asked.ca_pin:
        who = "nobody" if root else ""
        return str(_apart(lambda: fetch_authority(asked.server, asked.ca_pin), who))
    try:
        return Path(path).read_text(encoding="ascii") if path else ""
    except OSError as exc:
        raise Trouble(f"--ca {path} cannot be read: {exc.strerror}") from exc
    except ValueError as exc:
        raise Trouble(f"--ca {path} is not a PEM file") from exc


def _check_fleet(asked: argparse.Namespace, state: State) -> None:
    """Refuse to leave another server's fleet unasked: it would count this machine as lost."""
    try:
        kept = state.read()
    except Trouble:
        return  # it has not joined, or what it kept is of no use
    if kept["server"] != asked.server.rstrip("/") and not asked.again:
        raise Trouble(
            f"this machine has joined {kept['server']} already, as {kept['id']}: "
            "`agent.py uninstall` leaves that fleet, --again joins this one instead",
            code=REFUSED,
        )


def _run(asked: argparse.Namespace) -> None:
    if os.geteuid() == 0 and asked.state == STATE:
        entry = pwd.getpwnam(SERVICE)
        prefer(os.getpid(), AGENT_OOM)
        drop_to(entry.pw_uid, entry.pw_gid)
        os.environ["HOME"] = entry.pw_dir
        os.chdir(entry.pw_dir)
    os.umask(0o077)
    Agent(State(asked.state)).run()


def _status(asked: argparse.Namespace) -> None:
    state = State(asked.state)
    kept = state.read()
    say(f"node {kept['id']} of {kept['server']}" + (" (tunnel)" if kept["tunnel"] else ""))
    try:
        last = json.loads(state.last.read_text())
    except (OSError, ValueError):
        say("it has not beaten yet: agent.py run")
    else:
        how = "was answered" if last["ok"] else f"failed: {last['error']}"
        say(f"its last beat, {time.time() - last['at']:.0f} s ago, {how}")
    for entry in known_accounts():
        term = term_of(entry.pw_name, expiry_of(entry))
        left = f"for {term.left(clocks()):.0f} s more" if term else "until the agent ends it"
        say(f"leased: {entry.pw_name}, {left}")


def main(words: list[str] | None = None) -> int:
    """Do what the command line says; gives the exit code."""
    asked = _parser().parse_args(words)
    if asked.command == "helper":
        return run_helper(asked.verb)
    try:
        if asked.command == "install":
            install(key=asked.key, playbooks=asked.playbooks)
        elif asked.command == "uninstall":
            uninstall(keep_log=asked.keep_log)
        else:
            {"join": _join, "run": _run, "status": _status}[asked.command](asked)
    except Trouble as exc:
        sys.stderr.write(f"agent.py: {exc}\n")
        return exc.code
    except KeyboardInterrupt:
        return 130
    except OSError as exc:
        where = f"{exc.filename}: " if exc.filename else ""
        sys.stderr.write(f"agent.py: {where}{exc.strerror or exc}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
