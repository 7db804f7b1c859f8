"""Locks to compare, and machines to judge by them."""

from __future__ import annotations

from typing import Any

from essaim.model.machines import Observed, Power
from essaim.model.names import MachineName
from essaim.plan.lock import (
    Lock,
    LockedFile,
    LockedImage,
    LockedNode,
    MayDiffer,
    seed_digest,
)
from essaim.plan.lock_node import Seen, SeenFile

ADDRESS = "10.9.0.10/24"
IMAGE = LockedImage(
    description="d" * 64,
    builder="debian",
    form="rootfs",
    content="c" * 64,
    packages={"bash": "5.2", "openssh-server": "1:9.2"},
    altered=("/var/cache/apt",),
)
FILE = LockedFile(role="mark", mode="644", owner="root", group="", sha256="5" * 64)
NODE = LockedNode(
    hostname="one",
    address=ADDRESS,
    seed=seed_digest("one", ADDRESS),
    image="base",
    size={"cores": 1, "memory": 256, "disk": 0},
    roles=("mark",),
    digests={"mark": "a:b:c:d"},
    files={"/etc/mark": FILE},
)
SEEN_FILE = SeenFile(
    kind="file", sha256="5" * 64, mode="644", owner="root", group="root", own_group="root"
)
SEEN = Seen(
    hostname="one",
    addresses=(ADDRESS, "127.0.0.1/8"),
    packages=dict(IMAGE.packages),
    files={"/etc/mark": SEEN_FILE},
    altered=frozenset({"/var/cache/apt"}),
    keys=("SHA256:ours",),
)
OBSERVED = Observed(
    name=MachineName("lab", "one"), power=Power.ON, address="10.9.0.10", image="d" * 64, boot="1"
)


def lock(**changes: Any) -> Lock:
    settings: dict[str, Any] = {
        "stack": "lab",
        "source": "stack.yaml",
        "overrides": ("nodes=1",),
        "wanted": "w" * 64,
        "configuration": {"nodes": 1, "vars": {"mark": {"token": {"!secret": "token"}}}},
        "files": {"stack.yaml": "1" * 64, "roles/mark/role.yaml": "2" * 64},
        "images": {"base": IMAGE},
        "nodes": {"one": NODE},
        "tools": {"essaim": "0.2.0"},
        "may_differ": (MayDiffer(what="boot", why="changes", paths=("/run/*",)),),
    }
    return Lock(**{**settings, **changes})
