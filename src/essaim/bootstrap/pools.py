"""How many connections to a database server a process keeps."""

from __future__ import annotations

from essaim.model.errors import SetupError

#: Connections to a database server, kept and for moments, by kind of process: as many as it has
#: threads that ask.  Any other kind has what `store.database` says.  An API under load needs all of
#: them all the time, and to open one costs more than most requests do.
POOLS = {"api": (40, 0), "controller": (4, 16), "gateway": (4, 16), "check": (1, 3)}


def read_pool(said: str) -> tuple[int, int] | None:
    """Read `8` or `8+32`: connections that are kept, and more for moments."""
    if not said:
        return None
    kept, _, more = said.partition("+")
    if not kept.isdigit() or not (more or "0").isdigit() or not int(kept):
        raise SetupError(
            f"ESSAIM_POOL={said}: this is no number of connections", hint="say 8, or 8+32"
        )
    return int(kept), int(more or 0)
