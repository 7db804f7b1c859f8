"""When leased accounts end, by this machine alone: whatever its clock does, wherever the server is.

The server says when a lease ends and what time it is there, so that the two clocks need not agree.
What is left runs by the time since boot, which nobody can set and which goes on during sleep.
After a boot it runs by this machine's clock; if that is then earlier than when the lease was made,
by the time since boot again, so that a clock that lost its battery makes no lease last for ever.
All that is relied on: root's files stay, and an agent or somebody else calls `reap` each minute.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import NamedTuple

from essaim.agent.common import NOTICES, Trouble, tool, write_file

TERMS = NOTICES / "terms"  #: one file for each account
DAY = 86400


class Clocks(NamedTuple):
    """What this machine's clocks say."""

    boot_id: str
    since_boot: float
    wall: float


class Term(NamedTuple):
    """The end of a lease by this machine's clocks."""

    expires_at: int  #: what the server said
    boot_id: str
    until_boot: float
    made_wall: float
    until_wall: float

    def left(self, now: Clocks) -> float:
        """Give the seconds that are left; none are left when it is over."""
        if now.boot_id == self.boot_id:
            return self.until_boot - now.since_boot
        if now.wall >= self.made_wall:
            return self.until_wall - now.wall
        return self.until_wall - self.made_wall - now.since_boot


def agreed(expires_at: int, said: float, now: Clocks) -> Term:
    """Translate the end of a lease; `said` is what the server's clock said just now."""
    left = expires_at - said
    return Term(expires_at, now.boot_id, now.since_boot + left, now.wall, now.wall + left)


def clocks() -> Clocks:
    """Look at the clocks."""
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return Clocks(boot_id, time.clock_gettime(time.CLOCK_BOOTTIME), time.time())


def put_term(account: str, term: Term) -> None:
    """Keep when an account ends."""
    for folder in (NOTICES, TERMS):
        folder.mkdir(mode=0o755, exist_ok=True)
    write_file(TERMS / account, json.dumps(term._asdict()) + "\n", 0o644)


def term_of(account: str, expires_at: int) -> Term | None:
    """Give what was kept; None when it is not about this end, or was not kept whole."""
    try:
        term = Term(**json.loads((TERMS / account).read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return term if term.expires_at == expires_at else None


def last_day(term: Term) -> str:
    """Give the day from which the system itself lets nobody in: it knows only days."""
    return time.strftime("%Y-%m-%d", time.gmtime((int(term.until_wall) // DAY + 1) * DAY))


def keep_day(account: str, term: Term, now: Clocks) -> None:
    """Put that day off if the clock has jumped over it while there is time left."""
    needed = int(now.wall + term.left(now)) // DAY + 1
    for line in Path("/etc/shadow").read_text().splitlines():
        fields = line.split(":")
        if fields[0] == account and fields[7] and int(fields[7]) < needed:
            day = time.strftime("%Y-%m-%d", time.gmtime(needed * DAY))
            tool("usermod", "-e", day, account)


def checked_moment(expires_at: int, said: float) -> None:
    """Refuse ends that no lease can have, which the tools of the system could not take."""
    if abs(expires_at - said) > 36525 * DAY:
        raise Trouble("expires_at must be within a hundred years of now")
