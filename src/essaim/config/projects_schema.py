"""The shape of a project's file: machines, where they are, and the playbook for them."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv4Interface
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from essaim.config.problems import HintedError
from essaim.model.names import NAME
from essaim.model.spelling import meant

EXECUTORS = ("runner", "awx")
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_HOSTNAME = re.compile(rf"(?=.{{1,253}}$){_LABEL}(?:\.{_LABEL})*")
_AMOUNT = re.compile(r"([0-9]+)\s*([MGT]?)(?:i?B)?")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_BASE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/+-]{0,200}")
_GROUP = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,60}")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]*")
_CARD = re.compile(r"[a-z]+=[A-Za-z0-9_.:-]+(?:,[a-z]+=[A-Za-z0-9_.:-]+)*")
#: A machine that does not say.
_MEMORY, _CORES = 1024, 1


def _whole(value: Any) -> Any:
    """Read a number, also one in quotes, as people write it who know shells."""
    if isinstance(value, str) and value.strip().isdigit():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise HintedError("must be a whole number", 'such as 4 or "4"')
    return value


def _mebibytes(value: Any) -> Any:
    found = _AMOUNT.fullmatch(str(value)) if not isinstance(value, bool) else None
    if found is None:
        raise HintedError("must be an amount", "a number of MiB such as 4096, or 4G")
    return int(found[1]) << {"": 0, "M": 0, "G": 10, "T": 20}[found[2]]


def _gibibytes(value: Any) -> Any:
    found = _AMOUNT.fullmatch(str(value)) if not isinstance(value, bool) else None
    if found is None or found[2] == "M":
        raise HintedError("must be an amount", "a number of GiB such as 300, or 1T")
    return int(found[1]) << {"": 0, "G": 0, "T": 10}[found[2]]


def _hostname(value: Any) -> Any:
    name = value.lower().rstrip(".") if isinstance(value, str) else value
    if not isinstance(name, str) or not _HOSTNAME.fullmatch(name):
        raise HintedError("must be a host's full name", "such as cloud.school.example.org")
    return name


def _machine(value: Any) -> Any:
    if value and not (isinstance(value, str) and NAME.fullmatch(value)):
        raise HintedError("must name a machine", "small letters, digits and dashes")
    return value


def _interface(value: Any) -> Any:
    hint = "such as 192.168.79.170/24: the address and the length of its network"
    if not isinstance(value, str) or "/" not in value:
        raise HintedError("must be an address with its mask", hint)
    try:
        return str(IPv4Interface(value.strip()))
    except ValueError as error:
        raise HintedError("must be an address with its mask", hint) from error


def _address(value: Any) -> Any:
    if not value:
        return ""
    try:
        return str(IPv4Address(value))
    except ValueError as error:
        raise HintedError("must be an address", "such as 192.168.79.254") from error


def _word(value: Any) -> Any:
    if value and not (isinstance(value, str) and _WORD.fullmatch(value)):
        raise HintedError("must be a name", "letters, digits, dots and dashes")
    return value


def _base(value: Any) -> Any:
    if not isinstance(value, str) or not _BASE.fullmatch(value):
        raise HintedError("must say what it is made from", "such as dirs-nfs:debian-11-standard")
    return value


def _card(value: Any) -> Any:
    """Read the name of a bridge, or a card as Proxmox writes it."""
    plain = isinstance(value, str) and (_WORD.fullmatch(value) or _CARD.fullmatch(value))
    if value and not plain:
        raise HintedError("must name a bridge", "such as vmbr0, or bridge=vmbr0,tag=285")
    return value


def _group(value: Any) -> Any:
    if not isinstance(value, str) or not _GROUP.fullmatch(value):
        raise HintedError("must name a group of an inventory", "letters, digits and _")
    return value


def _playbook(value: Any) -> Any:
    parts = value.split("/") if isinstance(value, str) else []
    if not parts or value.startswith(("/", "-")) or ".." in parts:
        raise HintedError("must name a playbook of the workspace", "such as site.yml")
    return value


def _texts(value: Any) -> Any:
    """Read a list of words, or one line of them separated by commas."""
    if isinstance(value, str):
        return [part for word in value.split(",") if (part := word.strip())]
    return [] if value is None else value


def _tag(value: Any) -> Any:
    if not isinstance(value, str) or not _TAG.fullmatch(value):
        raise HintedError("must be a tag", "letters, digits, _ . : and -")
    return value


def _keys(value: Any) -> Any:
    """Read one key or name, several lines of them, or a list."""
    return value.splitlines() if isinstance(value, str) else [] if value is None else value


def _executor(value: Any) -> Any:
    if value and value not in EXECUTORS:
        raise HintedError("must be runner or awx", meant(str(value), EXECUTORS))
    return value


def _nothing(value: Any) -> Any:
    """Read a key with nothing after it as if it were not there."""
    return {} if value is None else value


Whole = Annotated[int, BeforeValidator(_whole)]
Word = Annotated[str, BeforeValidator(_word)]


class _Schema(BaseModel):
    """A number where text is wanted is text; anything unknown is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)


class MachineSchema(_Schema):
    """One entry of `ct:` or `vm:`."""

    hostname: Annotated[str, BeforeValidator(_hostname)]
    base: Annotated[str, BeforeValidator(_base)]
    ip: Annotated[str, BeforeValidator(_interface)]
    gw: Annotated[str, BeforeValidator(_address)] = ""
    name: Annotated[str, BeforeValidator(_machine)] = ""
    description: str = ""
    node: Word = ""
    memory: Annotated[int, BeforeValidator(_mebibytes), Field(ge=16)] = _MEMORY
    cores: Annotated[Whole, Field(ge=1)] = _CORES
    storage: Word = ""
    net0: Annotated[str, BeforeValidator(_card)] = ""
    rootfs: Annotated[int, BeforeValidator(_gibibytes), Field(ge=0)] = 0
    keys: Annotated[list[str], BeforeValidator(_keys)] = Field(default=[], alias="ssh-public-keys")


class AnsibleSchema(_Schema):
    """The playbook for the machines.  `extravars` are read apart, as Ansible reads them."""

    group: Annotated[str, BeforeValidator(_group)] | None = None
    playbook: Annotated[str, BeforeValidator(_playbook)] | None = None
    tags: Annotated[list[Annotated[str, BeforeValidator(_tag)]], BeforeValidator(_texts)] = []
    extravars: Annotated[dict[str, Any], BeforeValidator(_nothing)] = {}
    executor: Annotated[str, BeforeValidator(_executor)] = ""
    template: str = ""


class ProjectSchema(_Schema):
    """A whole project; its parts are read one by one, so that one mistake hides no other."""

    ct: list[Any] | None = None
    vm: list[Any] | None = None
    cluster: Word = "local"
    workspace: Word = ""
    ansible: dict[str, Any] | None = None
