"""The shape of a stack and of a role, and nothing besides: unknown keys are refused."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from essaim.config.problems import HintedError
from essaim.config.shared import check_shared

#: Who applies the roles of a new machine: we, over SSH, or the machine itself.
BOOTSTRAPS = ("ssh", "cloud-init")

#: Characters of a line of `hints`.
LONGEST_HINT = 160

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)?")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}
_AMOUNT = re.compile(r"([0-9]+)\s*([MGT])(?:i?B)?")


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("must be a whole number")  # noqa: TRY004 - what pydantic understands
    return value


def _mebibytes(value: Any) -> Any:
    match = _AMOUNT.fullmatch(value) if isinstance(value, str) else None
    if match:
        return int(match[1]) << {"M": 0, "G": 10, "T": 20}[match[2]]
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError("must be an amount such as 512M or 2G, or a number of MiB")


def _gibibytes(value: Any) -> Any:
    match = _AMOUNT.fullmatch(value) if isinstance(value, str) else None
    if match and match[2] != "M":
        return int(match[1]) << {"G": 0, "T": 10}[match[2]]
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError("must be an amount such as 20G, or a number of GiB")


def _duration(value: Any) -> Any:
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match:
        return float(match[1]) * _SECONDS[match[2]]
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
        return float(value)
    raise ValueError("must be a time such as 0.5s, 30s or 2m")


def _mode(value: Any) -> Any:
    if isinstance(value, str) and re.fullmatch(r"0?[0-7]{3,4}", value):
        return int(value, 8)
    raise ValueError('must be a file mode in quotes, such as "0644"')


def _bootstrap(value: Any) -> Any:
    if value not in BOOTSTRAPS:
        raise ValueError(f"must be {' or '.join(BOOTSTRAPS)}")
    return value


def _hint(value: Any) -> Any:
    """One line, of characters that leave a terminal as it is."""
    if isinstance(value, str) and 0 < len(value) <= LONGEST_HINT and value.isprintable():
        return value
    raise HintedError(
        f"must be one line of at most {LONGEST_HINT} characters",
        "such as essaim run lab/controller -- srun hostname",
    )


def _netmap(value: Any) -> Any:
    """Networks of the same size, each seen as the one after it."""
    hint = "such as {192.168.79.0/24: 10.200.79.0/24}"
    if not isinstance(value, dict):
        raise HintedError("must say which network is seen as which", hint)
    for inner, seen in value.items():
        try:
            sizes = {ipaddress.IPv4Network(each).prefixlen for each in (inner, seen)}
        except ValueError as error:
            raise HintedError(f"must map networks ({error})", hint) from error
        if len(sizes) > 1:
            raise HintedError(f"maps {inner} to {seen}, which has another size", hint)
    return value


def _flat(value: Any) -> Any:
    """Unfold lists in a list: an interpolation inside one may itself give one."""
    if not isinstance(value, list):
        return value
    return [i for item in value for i in (item if isinstance(item, list) else [item])]


def _mapping(value: Any) -> Any:
    """Read a key with nothing after it as a mapping without keys."""
    return {} if value is None else value


Whole = Annotated[int, BeforeValidator(_number)]
Count = Annotated[Whole, Field(ge=0)]
Duration = Annotated[float, BeforeValidator(_duration)]
Names = Annotated[list[str], BeforeValidator(_flat)]
Texts = Annotated[dict[str, str], BeforeValidator(_mapping)]


class _Schema(BaseModel):
    """A number where text is wanted is text; anything unknown is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)


class SizeSchema(_Schema):
    """What a machine offers."""

    cores: Annotated[Whole, Field(ge=1)]
    memory: Annotated[int, BeforeValidator(_mebibytes), Field(ge=1)]
    disk: Annotated[int, BeforeValidator(_gibibytes), Field(ge=0)] = 0


class GroupSchema(_Schema):
    """Machines that are alike.  `size` is a name or a mapping."""

    count: Count | None = None
    roles: Names = []
    image: str | None = None
    size: Any = None
    labels: Texts = {}
    after: Names = []
    address: str | None = None


class NetworkSchema(_Schema):
    """The stack's own network."""

    cidr: str
    internet: bool = False


class AwxSchema(_Schema):
    """Who plays the playbooks of projects there."""

    url: str
    token: dict[str, str]
    template: str | None = None
    inventory: str | None = None
    ca: str | None = None


class SiteSchema(BaseModel):
    """A site; what is not named here is the driver's business."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str
    driver: str
    slots: Annotated[dict[str, Count], BeforeValidator(_mapping)] = {}
    # Servers of its network: see `config.servers`.
    dns: dict[str, Any] | None = None
    dhcp: dict[str, Any] | None = None
    desktop: dict[str, Any] | None = None
    directory: dict[str, Any] | None = None
    #: Networks of the site, and how this computer sees them.
    netmap: Annotated[dict[str, str], BeforeValidator(_netmap)] | None = None
    # For projects: see docs/projects.md.
    bases: Annotated[dict[str, str], BeforeValidator(_mapping)] | None = None
    awx: AwxSchema | None = None
    #: How a key is believed that a machine made itself and nobody can read: never, or once shown.
    host_keys: Literal["pinned", "first"] = "pinned"


class StackSchema(_Schema):
    """A whole stack."""

    name: str
    image: str
    topology: dict[str, Annotated[GroupSchema, BeforeValidator(_mapping)]]
    network: NetworkSchema
    size: Any = None
    site: SiteSchema
    vars: Annotated[
        dict[str, Annotated[dict[str, Any], BeforeValidator(_mapping)]], BeforeValidator(_mapping)
    ] = {}
    bootstrap: Annotated[str, BeforeValidator(_bootstrap)] = BOOTSTRAPS[0]
    shared: Annotated[tuple[str, ...], BeforeValidator(check_shared)] = ()
    hints: list[Annotated[str, BeforeValidator(_hint)]] = []


class RetrySchema(_Schema):
    """How often to try again."""

    times: Count = 0
    wait: Duration = 1.0


class FileSchema(_Schema):
    """A file on the machine."""

    to: str
    template: str | None = None
    copy_: str | None = Field(default=None, alias="copy")
    content: str | None = None
    owner: str = "root"
    group: str | None = None
    mode: Annotated[int, BeforeValidator(_mode)] = 0o644


class StepSchema(_Schema):
    """A command of a role."""

    name: str
    do: str
    unless: str | None = None
    watch: list[str] = []
    env: Texts = {}
    retry: RetrySchema = RetrySchema()
    within: Duration = 120.0


class LeaveSchema(_Schema):
    """A command to run elsewhere before a machine goes."""

    name: str
    on: str
    do: str
    env: Texts = {}
    within: Duration = 120.0


class ProvideSchema(_Schema):
    """A value for other roles."""

    value: str | None = None
    command: str | None = None
    secret: bool = False
    random: str | None = None


class ReadySchema(_Schema):
    """A probe."""

    command: str
    every: Duration = 0.5
    within: Duration = 60.0


class RoleSchema(_Schema):
    """A role."""

    summary: str = ""
    members: Texts = {}
    needs: Texts = {}
    provides: Annotated[dict[str, ProvideSchema], BeforeValidator(_mapping)] = {}
    vars: Annotated[dict[str, Any], BeforeValidator(_mapping)] = {}
    packages: list[str] = []
    files: list[FileSchema] = []
    run: list[StepSchema] = []
    ready: ReadySchema | None = None
    leave: list[LeaveSchema] = []
    ansible: str | None = None
