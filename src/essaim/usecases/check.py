"""Look at a whole control plane: what is wrong with it, and what to do about it."""

from __future__ import annotations

import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from essaim.model.errors import EssaimError
from essaim.remote.inner import NOBODY, dial_inner
from essaim.usecases.keys import KEYS, is_elsewhere, other_key
from essaim.usecases.signing_keys import (
    INNER,
    KINDS,
    other_signing_key,
    warn_of_database,
)
from essaim.usecases.signing_keys import is_elsewhere as is_signing_key_elsewhere

if TYPE_CHECKING:
    from essaim.store.condition import Condition
    from essaim.usecases.services import Services

#: Seconds by which clocks may differ: leases end by the database's, tokens by ours.
SKEW = 2.0
#: Seconds a door has to answer.
ANSWER_WITHIN = 5.0
#: Days before its end that a certificate is worth a word, or this part of a shorter life: proxies
#: renew those of their own authority, which last hours, when a third is left.
RENEW_BEFORE, LAST_PART = 7, 0.25
DAY = 86400


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing looked at."""

    name: str
    ok: bool
    text: str
    hint: str = ""  #: what to do


class Looks(Protocol):
    """What is needed to look, beside the services."""

    def condition(self) -> Condition:
        """How the database is; EssaimError when it cannot be said."""

    def broker(self) -> str:
        """Where the broker is; nothing when there is none; EssaimError when it is away."""

    @property
    def public_url(self) -> str:
        """How people reach the API; may be empty."""


def check(services: Services, looks: Looks) -> Iterator[Finding]:
    """Look at everything; without a database that can be used there is nothing more to see."""
    try:
        found = looks.condition()
    except EssaimError as error:
        yield _wrong("database", error)
        return
    yield _database(found)
    yield _schema(found)
    yield _clock(found)
    yield from _tried("broker", lambda: _broker(looks))
    if found.schema != found.wanted:
        return
    for look in (_keys, _processes, _waiting, _gateways):
        yield from _tried(look.__name__.strip("_"), lambda look=look: look(services))  # type: ignore[misc]  # the default binds it
    if looks.public_url.startswith("https://"):
        yield from certificate(looks.public_url)


def _tried(name: str, look: Callable[[], Iterator[Finding] | list[Finding]]) -> Iterator[Finding]:
    try:
        yield from look()
    except EssaimError as error:
        yield _wrong(name, error)


def _wrong(name: str, error: EssaimError) -> Finding:
    return Finding(name=name, ok=False, text=error.what, hint=error.hint)


def _database(found: Condition) -> Finding:
    text = f"{found.where}: {found.kind} {found.version}"
    hint = "upgrade it: MariaDB 10.6 or PostgreSQL 13 at least" if found.old else ""
    return Finding(name="database", ok=not found.old, text=text, hint=hint)


def _schema(found: Condition) -> Finding:
    if found.schema == found.wanted:
        return Finding(name="schema", ok=True, text=found.schema)
    if not found.schema:
        text, hint = "the database is empty", "the first process that starts makes the schema"
    elif found.schema < found.wanted:
        text = f"{found.schema}, and this version wants {found.wanted}"
        hint = "the next process of this version that starts brings it up to date"
    elif found.welcome:
        text = f"{found.schema}: newer than this version's, {found.wanted}, which may still be used"
        return Finding(name="schema", ok=True, text=text)
    else:
        text = f"{found.schema} is newer than this version knows ({found.wanted})"
        hint = "use the version of Essaim that the other processes have"
    return Finding(name="schema", ok=False, text=text, hint=hint)


def _clock(found: Condition) -> Finding:
    where = "before" if found.skew > 0 else "behind"
    text = f"{abs(found.skew):.3f} s {where} the database's (±{found.slack:.3f})"
    ok = abs(found.skew) - found.slack < SKEW
    hint = "" if ok else "let both computers follow one clock: see chronyc tracking, timedatectl"
    return Finding(name="clock", ok=ok, text=text, hint=hint)


def _broker(looks: Looks) -> Iterator[Finding]:
    where = looks.broker()
    text = where or "none is named: processes carry runs themselves"
    yield Finding(name="broker", ok=True, text=text)


def _keys(services: Services) -> Iterator[Finding]:
    for name in KEYS:
        if is_elsewhere(services, name):
            yield Finding(name=f"key {name}", ok=True, text="held by other processes alone")
            continue
        problem = other_key(services, name, make=False)
        hint = "share ESSAIM_KEYS between all computers of the control plane" if problem else ""
        text = problem or f"{services.keyring.folder}: as for all"
        yield Finding(name=f"key {name}", ok=not problem, text=text, hint=hint)
    for name in KINDS:
        yield _signing_key(services, name)


def _signing_key(services: Services, name: str) -> Finding:
    if is_signing_key_elsewhere(services, name):
        return Finding(name=f"key {name}", ok=True, text="held by other processes alone")
    problem = other_signing_key(services, name, make=False)
    warning = "" if problem else warn_of_database(services, name)
    if problem:
        hint = "share ESSAIM_KEYS between all computers of the control plane"
    else:
        hint = "when no older process runs any more: essaim keys rotate" if warning else ""
    text = problem or warning or f"{services.signing_keys[name].path}: as for all"
    return Finding(name=f"key {name}", ok=not problem, text=text, hint=hint)


def _processes(services: Services) -> Iterator[Finding]:
    alive = services.workers.alive()
    counts = Counter(each.kind for each in alive)
    text = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "none"
    missing = [kind for kind in ("api", "controller", "gateway") if not counts[kind]]
    ok = bool(alive) and (bool(counts["serve"]) or not missing)
    hint = "" if ok else f"start essaim {' and essaim '.join(missing or ['serve'])}"
    yield Finding(name="processes", ok=ok, text=text, hint=hint)


def _waiting(services: Services) -> Iterator[Finding]:
    served, waiting = services.workers.sites(), services.workers.waiting()
    kinds = {each.kind for each in services.workers.alive()}
    for site in sorted({*served, *waiting} or {""}):
        count = waiting.get(site, 0)
        carried = site in served or bool(kinds & {"serve", "controller"} and not site)
        name = f"workers of {site or 'any'}"
        if carried or not count:
            yield Finding(name=name, ok=True, text=f"{count} runs wait for their turn")
        else:
            start = f"essaim worker --site {site}" if site else "essaim worker"
            text = f"{count} runs wait, and no worker that may carry them is alive"
            yield Finding(name=name, ok=False, text=text, hint=f"start {start}")


def _gateways(services: Services) -> Iterator[Finding]:
    if other_signing_key(services, INNER, make=False):
        return  # said already: without the key no gateway answers
    doors = services.ways.tunnels.alive()
    if not doors:
        yield Finding(
            name="gateway", ok=False, text="none is alive", hint="start essaim gateway, or serve"
        )
    for door in doors:
        where = f"{door.address} port {door.port}"
        try:
            dial_inner(
                (door.address, door.port),
                gateway=door.gateway,
                node=NOBODY,
                key=services.ways.keys.signing().secret,
                within=ANSWER_WITHIN,
            ).close()
        except EssaimError as error:
            hint = error.hint or "let --inner name an address that all processes reach"
            yield Finding(name=door.gateway, ok=False, text=error.what, hint=hint)
        else:
            yield Finding(name=door.gateway, ok=True, text=f"its inner door answers at {where}")


def certificate(url: str) -> Iterator[Finding]:
    """Look at the certificate that people are shown."""
    import socket  # noqa: PLC0415 - beside ssl, only here
    from urllib.parse import urlsplit  # noqa: PLC0415 - likewise

    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or 443
    try:
        with (
            socket.create_connection((host, port), ANSWER_WITHIN) as sock,
            ssl.create_default_context().wrap_socket(sock, server_hostname=host) as wrapped,
        ):
            shown = wrapped.getpeercert() or {}
            since, until = (
                ssl.cert_time_to_seconds(str(shown[key])) for key in ("notBefore", "notAfter")
            )
    except ssl.SSLCertVerificationError as error:
        hint = "of an authority of your own? SSL_CERT_FILE=its-root.crt essaim check"
        yield Finding(name="tls", ok=False, text=f"{url}: {error.verify_message}", hint=hint)
    except (OSError, KeyError) as error:
        hint = "see the proxy that adds TLS, and its certificate"
        yield Finding(name="tls", ok=False, text=f"{url}: {error}", hint=hint)
    else:
        yield _lasting(url, until - time.time(), until - since)


def _lasting(url: str, left: float, life: float) -> Finding:
    """Whether a certificate is good for long enough."""
    ok = left >= min(RENEW_BEFORE * DAY, LAST_PART * life)
    hint = "" if ok else "renew the certificate"
    text = f"{left / DAY:.0f} days" if left >= 2 * DAY else f"{left / 3600:.0f} h"
    return Finding(name="tls", ok=ok, text=f"{url}: good for {text}", hint=hint)
