"""Many who want one address at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from essaim.model.errors import TakenError
from essaim.model.school import Addresses, Host


def winner_of_eight(server: Addresses, host: Host) -> Host:
    """Let eight cards ask for one address at once; the one that was given it, and no other was."""
    rivals = [replace(host, mac=f"bc:24:11:00:01:{i:02x}") for i in range(8)]

    def one(rival: Host) -> bool:
        try:
            server.admit(rival)
        except TakenError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(one, rivals))
    assert won.count(True) == 1
    return rivals[won.index(True)]
