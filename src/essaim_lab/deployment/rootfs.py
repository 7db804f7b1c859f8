"""Root file systems of the images a registry would otherwise give, built once and kept."""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from essaim.config.images import find_image
from essaim.images import debian
from essaim.images.inside import check_tools

#: What they hold beside a minimal Debian.
PACKAGES: Mapping[str, tuple[str, ...]] = {
    "base": ("python3", "ca-certificates"),
    "mariadb": ("mariadb-server",),
    "redis": ("redis-server",),
    "caddy": ("caddy", "ca-certificates"),
}
#: What packages leave that must not be shared: a database that was made when they were installed.
REMOVED: Mapping[str, tuple[str, ...]] = {"mariadb": ("/var/lib/mysql/*",)}


def build(name: str, cache: Path, say: Callable[[str], None]) -> Path:
    """Give the root file system of an image of PACKAGES; made unless it is there already."""
    settings = _settings(name)
    text = json.dumps(settings, sort_keys=True)
    home = cache.absolute() / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    for folder in (cache / "archives", cache / "logs", cache / "locks"):
        folder.mkdir(parents=True, exist_ok=True)
    with (cache / "locks" / home.name).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if home.is_dir():
            return home
        check_tools()
        fresh = home.with_name(f".new-{home.name}")
        shutil.rmtree(fresh, ignore_errors=True)
        debian.build(
            name,
            debian.recipe(name, settings),
            target=fresh,
            archives=cache / "archives",
            log=cache / "logs" / f"{home.name}.log",
            lock=lock.fileno(),
            say=say,
        )
        fresh.rename(home)
    return home


def _settings(name: str) -> dict[str, Any]:
    """The shipped image's leanings, with other packages."""
    base = find_image("base", str(Path.cwd())).settings
    remove = (*base["remove"], *REMOVED.get(name, ()))
    return {"suite": base["suite"], "packages": PACKAGES[name], "remove": remove}
