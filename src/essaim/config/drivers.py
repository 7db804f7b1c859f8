"""The drivers a site may name, and how a site is read for its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from essaim.config import drivers_libvirt, drivers_proxmox
from essaim.config.kinds import Kind
from essaim.config.paths import make_absolute
from essaim.config.schema import SiteSchema
from essaim.config.servers import read_servers
from essaim.model.spelling import meant
from essaim.model.stacks import Site

if TYPE_CHECKING:
    from collections.abc import Mapping

    from essaim.config.problems import Problems

#: The drivers a site may name; each is a module of `essaim.drivers`.
DRIVERS: Mapping[str, Kind[Any]] = {
    "libvirt": drivers_libvirt.KIND,
    "proxmox": drivers_proxmox.KIND,
    "sandbox": Kind(SiteSchema, names=True, seeds=False, shares=True, enclosed=True),
}


def read_site(values: Mapping[str, Any], problems: Problems) -> Site | None:
    """Read a site and its driver's settings; None when they do not fit, and problems say why."""
    general = problems.validate(SiteSchema, values, ("site",))
    if general is None:
        return None
    kind = DRIVERS.get(general.driver)
    if kind is None:
        hint = meant(general.driver, DRIVERS, kind="drivers")
        problems.add(("site", "driver"), f"there is no driver {general.driver}", hint)
        return None
    if not kind.showable(values, problems):
        return None
    schema: SiteSchema | None = problems.validate(kind.schema, values, ("site",))
    if schema is None:
        return None
    kind.check(schema, problems)
    own = schema.model_fields_set - {"name", "driver", "slots"}
    settings = {key: _plain(getattr(schema, key)) for key in values if key in own}
    make_absolute(settings, problems, ("site",))
    settings |= read_servers(values, problems)
    return Site(name=schema.name, driver=schema.driver, settings=settings, slots=dict(schema.slots))


def _plain(value: Any) -> Any:
    return value.model_dump(exclude_unset=True) if isinstance(value, BaseModel) else value
