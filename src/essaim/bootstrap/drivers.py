"""Makes the driver of a site."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from essaim.model.errors import MissingExtraError, TransientError, UnknownError
from essaim.model.machines import Form
from essaim.model.spelling import meant

if TYPE_CHECKING:
    from pathlib import Path

    from essaim.bootstrap import App
    from essaim.images.cache import Images
    from essaim.model.machines import Driver
    from essaim.model.stacks import Image, Site


def make_driver(app: App, site: Site) -> Driver:
    """Make the driver a site asks for."""
    if site.driver == "sandbox":
        from essaim.drivers.sandbox.driver import Sandbox

        return Sandbox(app.home / "sandbox", functools.partial(_image, app.images, Form.ROOTFS))
    if site.driver == "libvirt":
        from essaim.drivers.libvirt.driver import Libvirt

        return Libvirt(
            site,
            functools.partial(_image, app.images, Form.DISK),
            reservations=app.reservations,
            plane=app.plane,
            state=app.home / "libvirt" / site.name,
        )
    if site.driver == "proxmox":
        return _proxmox(app, site)
    from essaim.config.drivers import DRIVERS

    raise UnknownError(
        f"no driver called {site.driver}", hint=meant(site.driver, DRIVERS, kind="there are")
    )


def _proxmox(app: App, site: Site) -> Driver:
    try:
        from essaim.drivers.proxmox.driver import Proxmox
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"the Python package {error.name} is not installed", "proxmox"
        ) from error
    from essaim.store.limits import Limits

    return Proxmox(
        site,
        reservations=app.reservations,
        limits=Limits(app.database),
        plane=app.plane,
    )


def _image(images: Images, form: Form, image: Image) -> Path:
    """Where an image lies; the plan has seen to it that it was built."""
    path = images.ready(image, form)
    if path is None:
        raise TransientError(f"image {image.name} is not in the cache any more")
    return path
