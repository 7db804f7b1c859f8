"""Read and verify the audit trail, and record what a command on this computer does."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from essaim.model.audit import Entry, Link, Sealed, chain_hash
from essaim.model.errors import ForbiddenError
from essaim.model.fleet import Role

if TYPE_CHECKING:
    from essaim.model.fleet import User
    from essaim.usecases.services import Services

#: One JSON document a line, for whoever collects logs.
log = logging.getLogger("essaim.audit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What came of verifying the trail."""

    entries: int
    head: Link
    problem: str = ""  #: the first place where it was changed; empty when it is whole


def write_line(entry: Entry) -> None:
    """Write an entry to the log."""
    log.info("%s", json.dumps(asdict(entry), sort_keys=True))


def record_local(services: Services, action: str, subject: str, who: str) -> None:
    """Record what somebody does with a command on this computer."""
    entry = Entry(action=action, outcome="done", name=who, address="local", object=subject)
    write_line(entry)
    services.audit.add([entry])


def seal(services: Services) -> None:
    """Chain new entries, and say the newest link in the log: from there nothing can be cut."""
    newest = services.audit.seal()
    if newest is not None:
        log.info("%s", json.dumps({"head": str(newest)}))


def entries(
    services: Services, by: User, *, since: int = 0, who: str = "", after: int = 0, limit: int = 100
) -> list[Sealed]:
    """List entries after a place and a time, the oldest first, for administrators."""
    _may(by)
    services.audit.seal()
    return services.audit.entries(since=since, who=who, after=after, limit=limit)


def verify(services: Services, by: User) -> Verdict:
    """Say whether entries were changed or removed, for administrators."""
    _may(by)
    services.audit.seal()
    # Before the entries: what is sealed meanwhile is then behind it, and no gap.
    head, anchor = services.audit.head(), services.audit.anchor()
    return check_chain(services.audit.chain(), anchor, head)


def check_chain(found: Iterable[Sealed], anchor: Link, head: Link) -> Verdict:
    """Follow the chain from where it begins to its newest link."""
    last, count = anchor, 0
    for each in found:
        if each.place <= anchor.place:  # pruning was cut short
            continue
        problem = _problem(each, last)
        if problem:
            return Verdict(entries=count, head=head, problem=problem)
        last, count = Link(place=each.place, hash=each.hash), count + 1
        if each.place == head.place and each.hash != head.hash:
            return Verdict(entries=count, head=head, problem=f"entry {each.place} was replaced")
    if last.place < head.place:
        problem = f"entries {last.place + 1} to {head.place} were removed at the end"
        return Verdict(entries=count, head=head, problem=problem)
    return Verdict(entries=count, head=last)


def _problem(each: Sealed, last: Link) -> str:
    if each.place != last.place + 1:
        return f"entries {last.place + 1} to {each.place - 1} were removed"
    if each.previous != last.hash:
        return f"entry {each.place} does not follow entry {last.place}"
    if each.hash != chain_hash(each.previous, each.place, each.at, each.entry):
        return f"entry {each.place} was changed"
    return ""


def _may(by: User) -> None:
    if by.role is not Role.ADMIN:
        raise ForbiddenError("only administrators may read the audit trail")
