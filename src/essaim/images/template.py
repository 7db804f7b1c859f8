"""The builder `template`: something a Proxmox site has already, which machines are made from.

Settings, one of: `template` (name or id of a template there, with `clone: linked|full`),
`ostemplate` (a container archive, such as local:vztmpl/debian-12-standard_12.7-1_amd64.tar.zst),
`disk` (a disk image to import), `iso`.  Beside it `kind: lxc|qemu`, `user`, `extras`, `config`.
Nothing is built: what is kept here are the settings, checked.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from essaim.model.errors import RejectedError
from essaim.model.spelling import meant

if TYPE_CHECKING:
    from collections.abc import Mapping

    from essaim.images.builders import Job
    from essaim.model.stacks import Image

EDITION = ""

#: What a machine can be made from, and the kinds of machines it makes.
SOURCES = {"template": ("lxc", "qemu"), "ostemplate": ("lxc",), "disk": ("qemu",), "iso": ("qemu",)}
_SETTINGS = {"summary", "kind", "clone", "user", "extras", "config", *SOURCES}


def check(image: Image) -> None:
    """See that the settings name one thing to make machines from."""
    unknown = image.settings.keys() - _SETTINGS
    if unknown:
        raise RejectedError(
            f"image {image.name}: builder template knows no setting {min(unknown)}",
            hint=meant(min(unknown), _SETTINGS, kind="there are"),
        )
    sources = [source for source in SOURCES if image.settings.get(source)]
    if len(sources) != 1:
        raise RejectedError(
            f"image {image.name}: names {' and '.join(sources) or 'nothing'} to make machines from",
            hint=f"say one of {', '.join(SOURCES)}",
        )
    kinds = SOURCES[sources[0]]
    if (kind := image.settings.get("kind", kinds[0])) not in kinds:
        raise RejectedError(
            f"image {image.name}: {sources[0]} makes no {kind}", hint=f"kind: {' or '.join(kinds)}"
        )
    if (clone := image.settings.get("clone", "linked")) not in ("linked", "full"):
        raise RejectedError(f"image {image.name}: clone {clone!r} is not known", hint="linked|full")


def build(job: Job) -> Mapping[str, Any]:
    """Keep the settings: the image itself is at the site."""
    check(job.image)
    text = json.dumps(dict(job.image.settings), sort_keys=True, default=str)
    job.result.write_text(text + "\n", encoding="utf-8")
    return {"sha256": hashlib.sha256(text.encode()).hexdigest()}
