"""The privileged helper: one verb, a JSON object in, a JSON object out, a line in the log."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import sys
import time
from typing import Any

from essaim.agent.access import Entry
from essaim.agent.accounts import (
    ACCOUNT,
    LIMITS,
    entry_of,
    held,
    known_accounts,
    listed,
    make_account,
    next_uid,
    proof,
    put_notice,
    remove_account,
    set_term,
    sweep,
)
from essaim.agent.common import HELPER_LOG, NOTICES, SAFE_PATH, Trouble, as_user, write_file
from essaim.agent.expiry import Term, agreed, checked_moment, clocks
from essaim.agent.groups import Rented, keep_limits
from essaim.agent.homes import Outlet, home_of, pack
from essaim.agent.identity import sign_challenge
from essaim.agent.restoring import MOST, restore_layers

#: Bytes a request may have; what is restored comes after it.
LONGEST_REQUEST = 1 << 20
LONGEST_LOG = 4 << 20
_KEY = re.compile(
    r"((?:sk-)?(?:ssh|ecdsa)-[a-z0-9@.-]{2,60}) ([A-Za-z0-9+/]{16,16384}={0,3})(?: .*)?"
)
_MOST = 1 << 50


#: When what was done last was asked for.
TURN = NOTICES / "turn"


def _take_turn(request: dict[str, Any]) -> None:
    """Refuse what was asked before something that has been done since.

    Whoever asks so late was frozen or cut off, others have gone on meanwhile, and another's account
    may be here.  `at` is milliseconds in the server's one clock, from before it decided to ask.
    """
    if "at" not in request:
        return
    at = _asked_number(request, "at")
    with held("turn"):
        try:
            last = int(TURN.read_text())
        except (FileNotFoundError, ValueError):
            last = 0
        if at < last:
            raise Trouble(
                f"asked {last - at} ms before what was done here last: it comes too late",
                again=True,
            )
        NOTICES.mkdir(mode=0o755, exist_ok=True)
        write_file(TURN, f"{at}\n", 0o600)


def asked_account(request: dict[str, Any]) -> str:
    """Give the account a request is about; nothing else passes that could name something."""
    account = request.get("account")
    if not isinstance(account, str) or not ACCOUNT.fullmatch(account):
        raise Trouble("account must be l- and 4 to 24 letters a-z or digits; this one is refused")
    return account


def _asked_number(request: dict[str, Any], name: str) -> int:
    value = request.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < _MOST:
        raise Trouble(f"{name} must be a number, at least 0")
    return int(value)


def _asked_keys(request: dict[str, Any]) -> list[str]:
    keys = request.get("keys")
    if not isinstance(keys, list) or not keys:
        raise Trouble("keys must be a list of public keys, at least one")
    found = [_KEY.fullmatch(key.strip()) if isinstance(key, str) else None for key in keys]
    if not all(found):
        # Options such as command= would let a key do more, or less, than it says.
        raise Trouble("each key must be one line such as `ssh-ed25519 AAAA…`, without options")
    return [f"{key.group(1)} {key.group(2)}" for key in found if key]


def _asked_entry(request: dict[str, Any]) -> Entry:
    """Give from where the gateway comes, as far as it is known, and what it lets be forwarded."""
    sources = request.get("sources", [])
    if not isinstance(sources, list):
        raise Trouble("sources must be a list of addresses")
    try:
        for each in sources:
            ipaddress.ip_network(str(each))
    except ValueError as exc:
        raise Trouble("each source must be an address or a network such as 10.0.0.0/24") from exc
    return Entry(
        [str(each) for each in sources], forwarding=request.get("forwarding", True) is True
    )


def _asked_term(request: dict[str, Any]) -> Term:
    """Give when a lease ends; `now` is what the server's clock says, ours if it does not say."""
    now = clocks()
    expires_at = _asked_number(request, "expires_at")
    said = _asked_number(request, "now") if "now" in request else now.wall
    checked_moment(expires_at, said)
    return agreed(expires_at, said, now)


def _create(request: dict[str, Any]) -> dict[str, Any]:
    account, keys = asked_account(request), _asked_keys(request)
    given = request.get("limits") or {}
    if not isinstance(given, dict) or not set(given) <= set(LIMITS):
        raise Trouble(f"limits may have {', '.join(LIMITS)} and nothing else")
    limits = {name: _asked_number(given, name) for name in given}
    rented, entry = _asked_rented(request, limits.get("processes", 0)), _asked_entry(request)
    uid = make_account(
        account=account,
        keys=keys,
        term=_asked_term(request),
        limits=limits,
        rented=rented,
        entry=entry,
    )
    return {"uid": uid}


def _asked_rented(request: dict[str, Any], processes: int) -> Rented:
    """Give what an account may use of the machine; what an earlier server does not say is all."""
    given = request.get("rented") or {}
    if not isinstance(given, dict):
        raise Trouble("rented must be an object with cores, memory_mib and processes")
    numbers = {name: _asked_number(given, name) for name in Rented._fields if name in given}
    return Rented(**{"processes": processes, **numbers})


def _expire(request: dict[str, Any]) -> dict[str, Any]:
    rented = _asked_rented(request, 0) if "rented" in request else None
    set_term(asked_account(request), _asked_term(request), rented)
    return {}


def _remove(request: dict[str, Any]) -> dict[str, Any]:
    remove_account(asked_account(request))
    return {}


def _verify(request: dict[str, Any]) -> dict[str, Any]:
    account, others = asked_account(request), request.get("others") or []
    if not isinstance(others, list):
        raise Trouble("others must be the list of the accounts that may be there")
    found = proof(account, [asked_account({"account": other}) for other in others])
    return {"clean": not found, "found": found}


def _list(_request: dict[str, Any]) -> dict[str, Any]:
    return {"accounts": listed()}


def _clean(_request: dict[str, Any]) -> dict[str, Any]:
    accounts = [entry.pw_name for entry in known_accounts()]
    for account in accounts:
        remove_account(account)
    if not accounts:
        sweep("")
    found = proof("", [])
    return {"clean": not found, "found": found, "removed": accounts}


def _reap(_request: dict[str, Any]) -> dict[str, Any]:
    keep_limits(known_accounts())
    accounts = [entry.pw_name for entry in known_accounts()]
    return {"removed": [account for account in accounts if remove_account(account, due=True)]}


def _message(request: dict[str, Any]) -> dict[str, Any]:
    text = request.get("text")
    if not isinstance(text, str):
        raise Trouble("text must be the message to show")
    put_notice(asked_account(request), text)
    return {}


def _save(request: dict[str, Any]) -> None:
    account, most = asked_account(request), _asked_number(request, "most_mib") << 20
    since = _asked_number(request, "since") if "since" in request else 0
    entry = entry_of(account)
    if entry is None:
        raise Trouble(f"there is no account {account} on this machine")
    outlet = Outlet(sys.stdout.buffer, text=bool(request.get("base64")))
    as_user(entry.pw_uid, entry.pw_gid, lambda: pack(home_of(account), most, outlet, since))


def _restore(request: dict[str, Any]) -> dict[str, Any]:
    account, layers = asked_account(request), request.get("layers")
    if not isinstance(layers, list):
        raise Trouble("layers must be the sizes of the layers that follow the request")
    sizes = [_asked_number({"each of layers": size}, "each of layers") for size in layers]
    most = _asked_number(request, "most_mib") << 20 if "most_mib" in request else MOST
    entry = entry_of(account)
    if entry is None:
        raise Trouble(f"there is no account {account} on this machine")
    counts: dict[str, Any] = as_user(
        entry.pw_uid,
        entry.pw_gid,
        lambda: restore_layers(sys.stdin.buffer, sizes, home_of(account), most),
    )
    return counts


def _uid(_request: dict[str, Any]) -> dict[str, Any]:
    with held(""):
        return {"uid": next_uid()}


def _sign(request: dict[str, Any]) -> dict[str, Any]:
    challenge, key = request.get("challenge"), request.get("host_key")
    if not isinstance(challenge, str) or not isinstance(key, str):
        raise Trouble("challenge and host_key must be texts")
    return {"signature": sign_challenge(challenge, key)}


def _turn(_request: dict[str, Any]) -> dict[str, Any]:
    return {}  # it was taken, which is all


#: What changes whose machine this is, and what its owner finds there.
ORDERED = frozenset({"create", "remove", "clean", "restore", "turn"})

VERBS = {
    "create": _create,
    "expire": _expire,
    "remove": _remove,
    "verify": _verify,
    "list": _list,
    "clean": _clean,
    "reap": _reap,
    "message": _message,
    "save": _save,
    "restore": _restore,
    "sign": _sign,
    "turn": _turn,
    "uid": _uid,
}


def run_helper(verb: str) -> int:
    """Do one verb as root; gives the exit code."""
    os.umask(0o022)
    os.environ.clear()
    os.environ["PATH"] = SAFE_PATH
    began = time.time()
    request: dict[str, Any] = {}
    answer: dict[str, Any] | None
    try:
        request = _read_request()
        if verb in ORDERED:
            _take_turn(request)
        answer = VERBS[verb](request)
        if answer is not None:
            answer = {"ok": True, **answer}
    except Trouble as exc:
        answer = {"ok": False, "error": str(exc), "again": exc.again}
    except (OSError, ValueError, KeyError) as exc:
        answer = {"ok": False, "error": f"{verb} failed: {exc}", "again": True}
    ok = answer is None or bool(answer["ok"])
    _log(verb, request, began, ok=ok)
    if verb == "save" and answer is not None:
        sys.stderr.write(answer["error"] + "\n")
    elif answer is not None:
        sys.stdout.write(json.dumps(answer) + "\n")
    return 0 if ok else 1


def _read_request() -> dict[str, Any]:
    if os.geteuid() != 0:
        raise Trouble("the helper must be run by root: sudo -n /usr/local/lib/essaim/helper")
    line = sys.stdin.buffer.readline(LONGEST_REQUEST + 1)
    if len(line) > LONGEST_REQUEST:
        raise Trouble(f"a request has at most {LONGEST_REQUEST} bytes")
    try:
        request = json.loads(line or b"{}")
    except ValueError as exc:
        raise Trouble("a request is one JSON object on one line of standard input") from exc
    if not isinstance(request, dict):
        raise Trouble("a request is one JSON object on one line of standard input")
    return request


def _log(verb: str, request: dict[str, Any], began: float, *, ok: bool) -> None:
    """Keep who was dealt with and when; never what was in the request."""
    account = request.get("account")
    known = isinstance(account, str) and ACCOUNT.fullmatch(account)
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began))
    line = f"{when} {verb} {account if known else '-'} {'ok' if ok else 'failed'}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    try:
        if HELPER_LOG.exists() and HELPER_LOG.stat().st_size > LONGEST_LOG:
            HELPER_LOG.replace(f"{HELPER_LOG}.1")
        with os.fdopen(os.open(str(HELPER_LOG), flags, 0o600), "a") as log:
            log.write(f"{line} {time.time() - began:.2f}s\n")
    except OSError as exc:
        sys.stderr.write(f"the log {HELPER_LOG} cannot be written: {exc}\n")
