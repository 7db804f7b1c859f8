"""Ephemeral accounts on the machines of a fleet, made natively or by a playbook, proven gone.

Both ways end in the same state; only the native one needs no more than the helper's rights.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import re
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from essaim.model.errors import RejectedError, TransientError
from essaim.model.roles import Role
from essaim.model.stacks import Machine, Size
from essaim.remote.ansible import play
from essaim.remote.door import door
from essaim.remote.entry import ANYWHERE, Entry
from essaim.remote.render import Facts, Given

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from essaim.remote.keyring import Keyring
    from essaim.remote.logs import Record
    from essaim.remote.ssh import Remote, Target

HELPER = "/usr/local/lib/essaim/helper"
PLAYBOOK = Path(__file__).parents[1] / "library" / "playbooks" / "lease_account.yml"
LIMITS = frozenset({"processes", "memory_mib", "open_files"})
#: What the account may use in all, and as what it is told: agents of an earlier version do not
#: know it, and take it from here without a word.
RENTED = {"rented_cores": "cores", "rented_memory_mib": "memory_mib", "processes": "processes"}
#: Seconds for what is quick, and for what looks at every file of a machine.
QUICK, THOROUGH = 60.0, 900.0
#: Bytes a machine may send beyond what it was asked for: what went wrong, in a few lines.
_MARGIN = 64 * 1024

_ACCOUNT = re.compile(r"l-[a-z0-9]{4,24}")
_KEY = re.compile(
    r"((?:sk-)?(?:ssh|ecdsa)-[a-z0-9@.-]{2,60}) ([A-Za-z0-9+/]{16,16384}={0,3})(?: .*)?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What was found of an account that should be gone: nothing, when the machine is clean."""

    clean: bool
    found: tuple[str, ...] = ()


def checked_account(account: str) -> str:
    """Give the name back; RejectedError when it is not one of a lease."""
    if not _ACCOUNT.fullmatch(account):
        raise RejectedError(
            f"{account!r} cannot be the account of a lease",
            hint="l- and 4 to 24 letters a-z or digits",
        )
    return account


def checked_keys(keys: Sequence[str]) -> list[str]:
    """Give public keys without their comments; RejectedError for anything that is no plain key."""
    found = [_KEY.fullmatch(key.strip()) for key in keys]
    if not found or None in found:
        raise RejectedError(
            "a lease takes public SSH keys, one line each and without options",
            hint="ssh-keygen -t ed25519, then the content of ~/.ssh/id_ed25519.pub",
        )
    return [f"{key[1]} {key[2]}" for key in found if key]


def checked_limits(limits: Mapping[str, int]) -> dict[str, int]:
    """Give the limits back; RejectedError for one that does not exist."""
    known = LIMITS | RENTED.keys()
    bad = [name for name, value in limits.items() if name not in known or int(value) < 0]
    if bad:
        raise RejectedError(
            f"no such limit: {', '.join(bad)}", hint=f"there are {', '.join(sorted(known))}"
        )
    return {name: int(value) for name, value in limits.items() if name in LIMITS}


def rented(limits: Mapping[str, int]) -> dict[str, int]:
    """Give what an account may use in all."""
    return {RENTED[name]: int(value) for name, value in limits.items() if name in RENTED}


class _Pieces:
    """What a machine sends, piece by piece; not more than it was asked for."""

    def __init__(self, target: Target, account: str, most: int) -> None:
        self._whose = f"{target.name}: the saved home of {account}"
        self._left = most
        self._pieces: list[str] = []

    def add(self, piece: str) -> None:
        self._left -= len(piece)
        if self._left < 0:
            raise RejectedError(
                f"{self._whose} is larger than was asked for",
                hint="see whether the machine's agent is the server's: agent.py install",
            )
        self._pieces.append(piece)

    def text(self) -> str:
        return "".join(self._pieces)


class NativeAccounts:
    """Accounts made by the helper on the machine, over the pooled connection.

    Targets log in as `essaim`.  Every verb may be repeated.  RejectedError says what the helper
    said; TransientError when a retry may help.  `at` is a moment of the database's clock, before
    it was found that this is to be done: a machine refuses what comes after something newer.
    """

    def __init__(self, remote: Remote) -> None:
        self._remote = remote

    def create(
        self,
        target: Target,
        account: str,
        keys: Sequence[str],
        expires_at: int,
        limits: Mapping[str, int],
        *,
        at: int,
        entry: Entry = ANYWHERE,
    ) -> None:
        """Make the account, or make it as asked when it is there; `expires_at` is unix seconds."""
        request = {
            "at": at,
            "account": checked_account(account),
            "keys": checked_keys(keys),
            "expires_at": int(expires_at),
            "now": int(time.time()),
            "limits": checked_limits(limits),
            "rented": rented(limits),
            # Helpers of earlier versions know nothing of these, and make the account without.
            "sources": list(entry.sources),
            "forwarding": entry.forwarding,
        }
        self._ask(target, "create", request, within=QUICK)

    def remove(self, target: Target, account: str, *, at: int, within: float = THOROUGH) -> None:
        """Remove the account and all it has on the machine.  Nothing if it is gone."""
        request = {"account": checked_account(account), "at": at}
        self._ask(target, "remove", request, within=within)

    def verify(self, target: Target, account: str, others: Sequence[str] = ()) -> Proof:
        """Look for anything left of the account, and of any that is not one of the `others`."""
        request = {
            "account": checked_account(account),
            "others": [checked_account(other) for other in others],
        }
        return _proof(self._ask(target, "verify", request, within=THOROUGH))

    def clean(self, target: Target, *, at: int) -> Proof:
        """Remove every lease's account there is, and look for anything that is left."""
        return _proof(self._ask(target, "clean", {"at": at}, within=THOROUGH))

    def take_turn(self, target: Target, at: int) -> None:
        """Let the machine refuse from now on what was asked for earlier; TransientError if we are.

        For those who then change it by other means.
        """
        self._ask(target, "turn", {"at": at}, within=QUICK)

    def list(self, target: Target) -> list[dict[str, Any]]:
        """List the accounts of leases: account, uid, processes, expires_at."""
        accounts: list[dict[str, Any]] = self._ask(target, "list", {}, within=QUICK)["accounts"]
        return accounts

    def save(
        self,
        target: Target,
        account: str,
        most_mib: int,
        *,
        since: int = 0,
        within: float = THOROUGH,
    ) -> bytes:
        """Give the home as a layer, a tar.gz of at most that size; the largest files stay behind.

        Its first member, `.essaim-layer`, is JSON: `at`, when the walk began in ms of the
        machine's own clock, and `names`, all that is kept.  With `since`, an `at` of the same
        machine, only what has changed from then on.
        """
        request = {
            "account": checked_account(account),
            "most_mib": most_mib,
            "since": int(since),
            "base64": True,
        }
        pieces = _Pieces(target, account, (most_mib << 20) * 4 // 3 + _MARGIN)
        result = self._remote.run(
            target,
            ["sudo", "-n", HELPER, "save"],
            stdin=json.dumps(request).encode() + b"\n",
            within=within,
            on_output=pieces.add,
        )
        if result.exit_code:
            raise _refusal(target, "save", pieces.text())
        try:
            return base64.b64decode(pieces.text(), validate=True)
        except binascii.Error as exc:
            raise TransientError(f"{target.name}: the saved home of {account} is damaged") from exc

    def restore(
        self, target: Target, account: str, layers: Sequence[bytes], *, at: int, most_mib: int
    ) -> None:
        """Make the home what the layers say, one over the other; what the last lacks goes.

        RejectedError when one is damaged, leads out of the home, or unpacks to more than a home
        of `most_mib`: the home is then in between.
        """
        if not layers:
            return
        request = {
            "account": checked_account(account),
            "layers": [len(layer) for layer in layers],
            "most_mib": most_mib,
            "at": at,
        }
        self._ask(target, "restore", request, within=THOROUGH, data=b"".join(layers))

    def message(self, target: Target, account: str, text: str) -> None:
        """Leave a message for the next login; an empty one takes it back."""
        request = {"account": checked_account(account), "text": text}
        self._ask(target, "message", request, within=QUICK)

    def _ask(
        self,
        target: Target,
        verb: str,
        request: Mapping[str, Any],
        *,
        within: float,
        data: bytes = b"",
    ) -> dict[str, Any]:
        result = self._remote.run(
            target,
            ["sudo", "-n", HELPER, verb],
            stdin=json.dumps(request).encode() + b"\n" + data,
            within=within,
        )
        try:
            answer = json.loads(result.stdout)
        except ValueError:
            raise _refusal(target, verb, result.output) from None
        if not answer.get("ok"):
            kind = TransientError if answer.get("again") else RejectedError
            raise kind(f"{target.name}: {verb}: {answer.get('error', 'no reason given')}")
        return dict(answer)


class AnsibleAccounts:
    """Accounts made by a playbook, which an administrator may extend.

    Targets log in as `essaim`, whose agent was installed with `--playbooks`.
    """

    def __init__(
        self,
        remote: Remote,
        keyring: Keyring,
        *,
        record: Record,
        note: Callable[[str], None],
        proxy: Callable[[Target], list[str]] | None = None,
        playbook: Path = PLAYBOOK,
    ) -> None:
        self._native = NativeAccounts(remote)
        self._keyring = keyring
        self._record = record
        self._note = note
        self._proxy = proxy
        self._playbook = playbook

    def create(
        self,
        target: Target,
        account: str,
        keys: Sequence[str],
        expires_at: int,
        limits: Mapping[str, int],
        *,
        at: int,
        entry: Entry = ANYWHERE,
    ) -> None:
        """Make the account, or make it as asked when it is there; `expires_at` is unix seconds."""
        self._native.take_turn(target, at)
        text = "".join(f"{entry.options()} {key}\n" for key in checked_keys(keys))
        its = {
            "expires_at": int(expires_at),
            "now": int(time.time()),
            "limits": checked_limits(limits),
            "rented": rented(limits),
        }
        self._play(target, "create", account, its, {"keys": Given(text)})

    def remove(self, target: Target, account: str, *, at: int) -> None:
        """Remove the account and all it has on the machine.  Nothing if it is gone."""
        self._native.take_turn(target, at)
        self._play(target, "remove", account, {}, {})

    def verify(self, target: Target, account: str, others: Sequence[str] = ()) -> Proof:
        """Look for anything that is left: not a playbook's business, so the helper does it."""
        return self._native.verify(target, account, others)

    def _play(
        self,
        target: Target,
        verb: str,
        account: str,
        its: Mapping[str, Any],
        needs: Mapping[str, Given],
    ) -> None:
        facts = Facts(
            stack=target.name.stack,
            network="0.0.0.0/0",
            machine=Machine(
                name=target.name,
                group="fleet",
                index=1,
                address=target.address,
                image="",
                size=Size(cores=1, memory=0),
            ),
            vars={"verb": verb, "account": checked_account(account), **its},
            needs=needs,
        )
        role = Role(name="lease_account", path=self._playbook.parent, digest="")
        # One that is only dialled has no address, and OpenSSH wants some name.
        where = replace(target, address=target.address or target.name.machine)
        with contextlib.ExitStack() as open_:
            proxy = self._proxy
            if proxy is None and target.dial is not None:
                proxy = open_.enter_context(door(target.dial))
            self._run(role, replace(where, become=("sudo", "-n")), facts, proxy)

    def _run(
        self,
        role: Role,
        target: Target,
        facts: Facts,
        proxy: Callable[[Target], list[str]] | None,
    ) -> None:
        try:
            play(
                role,
                [(target, facts)],
                self._playbook,
                proxy=proxy,
                keyring=self._keyring,
                record=self._record,
                note=self._note,
            )
        except RejectedError as exc:
            if "sudo" not in exc.what:
                raise
            hint = "playbooks need root there: sudo python3 agent.py install --playbooks"
            raise RejectedError(exc.what, hint=hint) from exc


def _proof(answer: Mapping[str, Any]) -> Proof:
    return Proof(clean=bool(answer["clean"]), found=tuple(answer["found"]))


def _refusal(target: Target, verb: str, said: str) -> RejectedError:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return RejectedError(
        f"{target.name}: {verb}: {lines[-1] if lines else 'the helper said nothing'}",
        hint="see whether the agent is installed there: agent.py status",
    )
