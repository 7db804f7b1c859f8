"""Who makes which image: a table of builders, each a module that is loaded when it is needed."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

from essaim.model.errors import RejectedError
from essaim.model.machines import Form
from essaim.model.spelling import meant

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from essaim.model.stacks import Image

#: Name of the file or folder that is the image, in the folder `Job.home`.
RESULT = {Form.ROOTFS: "rootfs", Form.DISK: "disk.qcow2", Form.TEMPLATE: "template.json"}

_MODULES = {
    ("debian", Form.ROOTFS): "essaim.images.debian_root",
    ("debian", Form.DISK): "essaim.images.debian_disk",
    ("tiny", Form.DISK): "essaim.images.tiny",
    ("nix", Form.DISK): "essaim.images.nix",
    ("import", Form.DISK): "essaim.images.imported",
    ("packer", Form.DISK): "essaim.images.packer",
    ("template", Form.TEMPLATE): "essaim.images.template",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One build, under the image's lock.  What is left in `home` afterwards goes into the cache."""

    image: Image
    form: Form
    home: Path  #: a new, empty folder; thrown away when the build fails
    archives: Path  #: downloads that all builds share; may be emptied at any time
    log: Path  #: where to write what programs print
    lock: int  #: hand it to programs (`pass_fds`), so that it is held until the last has ended
    say: Callable[[str], None]  #: short lines for a person who waits

    @property
    def result(self) -> Path:
        """Where the image must be when the build has ended."""
        return self.home / RESULT[self.form]


class Builder(Protocol):
    """A way of making images in one form: a module with these names in it.

    The cache sees to locks, to what an interrupted build leaves, and to the manifest.
    """

    @property
    def EDITION(self) -> str:  # noqa: N802 - a constant of a module
        """A word that changes when the builder makes something else from the same settings."""

    def check(self, image: Image) -> None:
        """Raise RejectedError for settings that make no sense, SetupError for a missing tool.

        Called before anything is made; must not change anything.
        """

    def build(self, job: Job) -> Mapping[str, Any]:
        """Make `job.result`, and say for the manifest from what and with what it was made.

        The cache adds `name, digest, builder, form, settings, mode, built_at, seconds`, and for
        disks `sha256` and `virtual_size`.
        """


def builder_of(image: Image, form: Form) -> Builder:
    """Find who makes the image in that form; RejectedError when nobody does."""
    known = forms_of(image)
    if form not in known:
        raise RejectedError(
            f"image {image.name}: builder {image.builder} makes no {form}, only {known[0]}",
            hint="take another site, or an image of builder debian, which makes both",
        )
    return cast("Builder", importlib.import_module(_MODULES[image.builder, form]))


def forms_of(image: Image) -> list[Form]:
    """List the forms the image can be made in; RejectedError when its builder is not known."""
    if forms := [form for name, form in _MODULES if name == image.builder]:
        return forms
    names = {name for name, _form in _MODULES}
    raise RejectedError(
        f"image {image.name}: builder {image.builder!r} is not known",
        hint=meant(image.builder, names, kind="there are"),
    )
