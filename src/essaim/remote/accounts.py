"""Ephemeral accounts on the machines of a fleet, made natively or by a playbook, proven gone.

Both ways end in the same state; only the native one needs no more than the helper's rights.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from essaim.model.errors import RejectedError, TransientError
from essaim.model.roles import Role
from essaim.model.stacks import Machine, Size
from essaim.remote.ansible import play
from essaim.remote.render import Facts, Given

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from essaim.remote.keyring import Keyring
    from essaim.remote.logs import Record
    from essaim.remote.ssh import Remote, Target

HELPER = "/usr/local/lib/essaim/helper"
PLAYBOOK = Path(__file__).parents[1] / "library" / "playbooks" / "lease_account.yml"
LIMITS = frozenset({"processes", "memory_mib", "open_files"})
#: Seconds for what is quick, and for what looks at every file of a machine.
QUICK, THOROUGH = 60.0, 900.0

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
    bad = [name for name, value in limits.items() if name not in LIMITS or int(value) < 0]
    if bad:
        raise RejectedError(
            f"no such limit: {', '.join(bad)}", hint=f"there are {', '.join(sorted(LIMITS))}"
        )
    return {name: int(value) for name, value in limits.items()}


class NativeAccounts:
    """Accounts made by the helper on the machine, over the pooled connection.

    Targets log in as `essaim`.  Every verb may be repeated.  RejectedError says what the helper
    said; TransientError when a retry may help.
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
    ) -> None:
        """Make the account, or make it as asked when it is there; `expires_at` is unix seconds."""
        request = {
            "account": checked_account(account),
            "keys": checked_keys(keys),
            "expires_at": int(expires_at),
            "limits": checked_limits(limits),
        }
        self._ask(target, "create", request, within=QUICK)

    def remove(self, target: Target, account: str) -> None:
        """Remove the account and all it has on the machine.  Nothing if it is gone."""
        self._ask(target, "remove", {"account": checked_account(account)}, within=THOROUGH)

    def verify(self, target: Target, account: str) -> Proof:
        """Look for anything that is left of the account, or of leases nobody knows."""
        request = {"account": checked_account(account)}
        return _proof(self._ask(target, "verify", request, within=THOROUGH))

    def clean(self, target: Target) -> Proof:
        """Remove every lease's account there is, and look for anything that is left."""
        return _proof(self._ask(target, "clean", {}, within=THOROUGH))

    def list(self, target: Target) -> list[dict[str, Any]]:
        """List the accounts of leases: account, uid, processes, expires_at."""
        accounts: list[dict[str, Any]] = self._ask(target, "list", {}, within=QUICK)["accounts"]
        return accounts

    def save(self, target: Target, account: str, most_mib: int) -> bytes:
        """Give a tar.gz of the home, at most that large: files that do not fit are left out."""
        request = {"account": checked_account(account), "most_mib": most_mib, "base64": True}
        pieces: list[str] = []
        result = self._remote.run(
            target,
            ["sudo", "-n", HELPER, "save"],
            stdin=json.dumps(request).encode() + b"\n",
            within=THOROUGH,
            on_output=pieces.append,
        )
        text = "".join(pieces)
        if result.exit_code:
            raise _refusal(target, "save", text)
        try:
            return base64.b64decode(text, validate=True)
        except binascii.Error as exc:
            raise TransientError(f"{target.name}: the saved home of {account} is damaged") from exc

    def restore(self, target: Target, account: str, data: bytes) -> None:
        """Unpack what `save` gave into the account's home, and nowhere else."""
        request = {"account": checked_account(account)}
        self._ask(target, "restore", request, within=THOROUGH, data=data)

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
    ) -> None:
        """Make the account, or make it as asked when it is there; `expires_at` is unix seconds."""
        text = "".join(f"{key}\n" for key in checked_keys(keys))
        its = {"expires_at": int(expires_at), "limits": checked_limits(limits)}
        self._play(target, "create", account, its, {"keys": Given(text)})

    def remove(self, target: Target, account: str) -> None:
        """Remove the account and all it has on the machine.  Nothing if it is gone."""
        self._play(target, "remove", account, {}, {})

    def verify(self, target: Target, account: str) -> Proof:
        """Look for anything that is left: not a playbook's business, so the helper does it."""
        return self._native.verify(target, account)

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
        try:
            play(
                role,
                [(replace(target, become=("sudo", "-n")), facts)],
                self._playbook,
                proxy=self._proxy,
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
