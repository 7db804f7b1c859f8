"""Makes the keys that processes sign with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from essaim.remote.signing_keys import SigningKeys
    from essaim.store.settings import Settings

#: Seconds by which the clocks of two computers may differ.
SKEW = 60.0


def make_signing_keys(
    folders: Mapping[str, Path], settings: Callable[[], Settings]
) -> Mapping[str, SigningKeys]:
    """Make the keys of every kind, each in its folder."""
    from essaim.remote.signing_keys import SigningKeys
    from essaim.usecases.credentials import ACCESS_SECONDS
    from essaim.usecases.signing_keys import KINDS

    def stored(name: str) -> Callable[[], bytes | None]:
        def look() -> bytes | None:
            found = settings().get(KINDS[name].setting)
            return None if found is None else bytes.fromhex(found)

        return look

    return {
        name: SigningKeys(
            folders[name] / kind.file, stored=stored(name), keep=ACCESS_SECONDS + SKEW
        )
        for name, kind in KINDS.items()
    }
