"""What the machines of a roster are like: a file beside it, or what was said besides."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from essaim.config.addresses import FIRST, last_host
from essaim.config.documents import Document, read, shown
from essaim.config.drivers import DRIVERS
from essaim.config.images import image_names, read_image
from essaim.config.problems import HintedError, Problems
from essaim.config.schema import SizeSchema
from essaim.config.serial import stack_from_json, stack_to_json
from essaim.config.sites import find_site
from essaim.config.tree import Tree
from essaim.model.errors import InvalidError, Problem
from essaim.model.names import NAME
from essaim.model.spelling import meant
from essaim.model.stacks import Image, Network, Site, Size, Stack

DAY = 86_400.0
PROTOCOLS = {"rdp": 3389, "vnc": 5901, "ssh": 22}
#: Where the student's account on their machine comes from: made there; from the directory the
#: machine has joined, and only the SSH key is put there; or nothing is put there at all.
ACCOUNTS = ("local", "directory", "none")
_GRACE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(d|h|m|s)?")
_UNITS = {"d": DAY, "h": 3600.0, "m": 60.0, "s": 1.0, None: DAY}
_DOMAIN = re.compile(
    r"(?=.{1,200}$)[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Roster:
    """What the machines of a roster are like, composed and checked; who is on it comes apart."""

    name: str
    site: Site
    image: Image
    size: Size
    cidr: str
    first: str  #: addresses that are given out: from this one …
    last: str  #: … to this one
    domain: str = ""
    prefix: str = ""
    grace: float = 30 * DAY  #: seconds from being retired to being destroyed
    protocol: str = ""  #: of desktops: rdp, vnc or ssh; nothing when there are none
    port: int = 0
    desktop: Mapping[str, str] = field(default_factory=dict)  #: settings of desktops
    group: str = ""  #: of the directory, instead of a file
    account: str = ACCOUNTS[0]  #: one of `ACCOUNTS`
    source: str = ""  #: the file, as the user named it
    lab: Path = Path()


def _grace(value: Any) -> Any:
    match = _GRACE.fullmatch(str(value)) if not isinstance(value, bool) else None
    if match is None:
        raise HintedError("must be a time", "such as 30d, 12h or 0")
    return float(match[1]) * _UNITS[match[2]]


def read_grace(text: str) -> float:
    """Read a time of grace: `30d`, `12h`, `0`; days without a unit.  InvalidError if it is none."""
    try:
        seconds: float = _grace(text)
    except HintedError as error:
        raise InvalidError([Problem(f"{text!r} {error}", hint=error.hint)]) from error
    return seconds


def _domain(value: Any) -> Any:
    if value and not (isinstance(value, str) and _DOMAIN.fullmatch(value)):
        raise HintedError("must be a domain", "such as school.example.org")
    return value


def _prefix(value: Any) -> Any:
    if value and not (isinstance(value, str) and re.fullmatch(r"[a-z][a-z0-9-]{0,15}", value)):
        raise HintedError("must begin a host's name", "such as vm-")
    return value


def _cidr(value: Any) -> Any:
    try:
        IPv4Network(value)
    except (ValueError, TypeError) as error:
        raise HintedError("must be a network", "such as 10.60.0.0/20") from error
    return value


def _protocol(value: Any) -> Any:
    if value not in PROTOCOLS:
        raise HintedError("must be rdp, vnc or ssh", meant(str(value), PROTOCOLS))
    return value


def _account(value: Any) -> Any:
    if value not in ACCOUNTS:
        raise HintedError("must be local, directory or none", meant(str(value), ACCOUNTS))
    return value


class DesktopSchema(BaseModel):
    """How people come in from a browser."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)

    protocol: Annotated[str, BeforeValidator(_protocol)] = "rdp"
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    settings: dict[str, str] = {}


class NetworkSchema(BaseModel):
    """Where machines are."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cidr: Annotated[str, BeforeValidator(_cidr)]
    range: str | None = None


class RosterSchema(BaseModel):
    """What stands in a roster's own file, and nothing besides."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    site: str = "local"
    image: str = "base"
    size: Any = "small"
    network: NetworkSchema = NetworkSchema(cidr="10.60.0.0/20")
    domain: Annotated[str, BeforeValidator(_domain)] = ""
    prefix: Annotated[str, BeforeValidator(_prefix)] = ""
    grace: Annotated[float, BeforeValidator(_grace)] = 30 * DAY
    desktop: DesktopSchema | None = None
    group: str = ""
    account: Annotated[str, BeforeValidator(_account)] = ACCOUNTS[0]


def compose_roster(
    where: str,
    options: Mapping[str, Any] | None = None,
    remembered: Callable[[str], Mapping[str, Any]] | None = None,
) -> Roster:
    """Compose a roster: the file of settings beside the CSV, then what was said besides.

    What neither says is as `remembered` has it of the roster of that name, else as usual.

    `where` is the CSV, or the settings of a roster that comes from a directory.  InvalidError lists
    what is wrong, with file and line; UnknownError has a near spelling of a site or an image.
    """
    file = Path(where).absolute()
    beside = file.with_suffix(".yaml")
    tree = Tree(where, file)
    document = read(beside) if beside.is_file() else Document(file, "", {}, {}, shown(file))
    said = {key: value for key, value in (options or {}).items() if value not in (None, "")}
    # What was said on the command line stands in no file.
    problems = Problems(
        lambda path, what, hint: Problem(
            what, None if path and path[0] in said else document.place(path), hint
        )
    )
    values = {"name": file.stem.lower(), **document.data, **said}
    values = {**(remembered(str(values["name"])) if remembered else {}), **values}
    schema = problems.validate(RosterSchema, values)
    if schema is None:
        raise InvalidError(problems.found)
    if not NAME.fullmatch(schema.name):
        problems.add(("name",), f"{schema.name!r} cannot name a roster", "small letters and digits")
    site = find_site(schema.site, str(file.parent))
    image = _image(tree, schema, site, problems)
    size = _size(tree, schema, problems)
    first, last = _range(schema.network, problems)
    problems.check()
    assert image is not None  # noqa: S101 - for the type checker: problems say why it is not
    assert size is not None  # noqa: S101 - likewise
    desktop = schema.desktop
    return Roster(
        name=schema.name,
        site=site,
        image=image,
        size=size,
        cidr=schema.network.cidr,
        first=str(first),
        last=str(last),
        domain=schema.domain,
        prefix=schema.prefix,
        grace=schema.grace,
        protocol=desktop.protocol if desktop else "",
        port=(desktop.port or PROTOCOLS[desktop.protocol]) if desktop else 0,
        desktop=dict(desktop.settings) if desktop else {},
        group=schema.group,
        account=schema.account,
        source=where,
        lab=tree.lab,
    )


def _image(tree: Tree, schema: RosterSchema, site: Site, problems: Problems) -> Image | None:
    image = read_image(tree, schema.image)
    if image is None and DRIVERS[site.driver].stocked:
        # A template of the site needs no file of its own.
        digest = hashlib.sha256(f"template {schema.image}".encode()).hexdigest()
        settings: dict[str, Any] = {"template": schema.image}
        return Image(name=schema.image, builder="template", digest=digest, settings=settings)
    if image is None:
        hint = meant(schema.image, image_names(tree), kind="images")
        problems.add(("image",), f"there is no image {schema.image}", hint)
    return image


def _size(tree: Tree, schema: RosterSchema, problems: Problems) -> Size | None:
    if isinstance(schema.size, dict):
        own = problems.validate(SizeSchema, schema.size, ("size",))
        return Size(**dict(own)) if own else None
    file = tree.find(f"size/{schema.size}.yaml")
    if file is None:
        hint = meant(str(schema.size), tree.options("size"), kind="sizes")
        problems.add(("size",), f"there is no size {schema.size}", hint)
        return None
    document = tree.read(file)
    inner = Problems.of_file(document)
    found = inner.validate(SizeSchema, document.data)
    problems.found += inner.found
    return Size(**dict(found)) if found else None


def _range(network: NetworkSchema, problems: Problems) -> tuple[IPv4Address, IPv4Address]:
    block = IPv4Network(network.cidr)
    first = IPv4Address(int(block.network_address) + FIRST)
    last = IPv4Address(int(block.network_address) + last_host(block))
    if network.range is not None:
        low, _, high = network.range.partition("-")
        try:
            first, last = IPv4Address(low.strip()), IPv4Address(high.strip())
        except ValueError:
            first, last = IPv4Address(1), IPv4Address(0)
        if first not in block or last not in block or first > last:
            what = f"network.range {network.range!r} is not a range of {network.cidr}"
            problems.add(("network", "range"), what, f"such as {block[FIRST]}-{block[-2]}")
    elif first > last:
        problems.add(("network", "cidr"), f"{network.cidr} has no room for machines")
    return first, last


def addresses(roster: Roster) -> Iterable[int]:
    """Every address a machine of the roster may have, as numbers."""
    return range(int(IPv4Address(roster.first)), int(IPv4Address(roster.last)) + 1)


_PLAIN = ("cidr", "first", "last", "domain", "prefix", "grace", "protocol", "port", "group")


def roster_to_json(roster: Roster) -> dict[str, Any]:
    """Return plain JSON values for a roster; secrets stay references."""
    stack = Stack(
        name=roster.name,
        site=roster.site,
        network=Network(cidr=roster.cidr),
        machines=(),
        images={roster.image.name: roster.image},
        roles={},
        source=roster.source,
    )
    return {
        **{key: getattr(roster, key) for key in _PLAIN},
        "stack": stack_to_json(stack),
        "size": asdict(roster.size),
        "desktop": dict(roster.desktop),
        "account": roster.account,
        "lab": str(roster.lab),
    }


def roster_from_json(data: Mapping[str, Any]) -> Roster:
    """Return the roster that `roster_to_json` was given."""
    stack = stack_from_json(data["stack"])
    (image,) = stack.images.values()
    return Roster(
        name=stack.name,
        site=stack.site,
        image=image,
        size=Size(**data["size"]),
        desktop=data["desktop"],
        account=data.get("account", ACCOUNTS[0]),  # earlier versions did not keep it
        source=stack.source,
        lab=Path(data["lab"]),
        **{key: data[key] for key in _PLAIN},
    )


def settings_of(roster: Roster) -> dict[str, Any]:
    """What an earlier apply was told of a roster, for a later one that is not told it again."""
    return {"site": roster.site.name, "image": roster.image.name, "size": asdict(roster.size)}
