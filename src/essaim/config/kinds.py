"""What the configuration knows of a driver; each driver's own part lies beside, in drivers_*.py."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

from pydantic import BeforeValidator

from essaim.config.problems import HintedError
from essaim.config.schema import SiteSchema

if TYPE_CHECKING:
    from essaim.config.problems import Problems

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")

Schema = TypeVar("Schema", bound=SiteSchema)


def _word(value: Any) -> Any:
    if isinstance(value, str) and not _WORD.fullmatch(value):
        raise HintedError("must be a name", "letters, digits, dots and dashes")
    return value


#: A name that a server knows something by.
Word = Annotated[str, BeforeValidator(_word)]


@dataclass(frozen=True, slots=True)
class Kind(Generic[Schema]):
    """A driver as the configuration knows it.  What it does not say is as for any driver."""

    schema: type[Schema]
    names: bool  #: it tells machines each other's names itself
    seeds: bool  #: its machines run cloud-init at their first boot
    stocked: bool = False  #: machines may be made from what a site has, by the name it has there
    bridged: bool = False  #: each machine is put onto the network that it names
    shares: bool = False  #: machines of a stack can have folders in common
    enclosed: bool = False  #: machines reach nothing outside unless the stack says so
    #: Whether the values may be looked at further: problems quote what does not fit.
    showable: Callable[[Mapping[str, Any], Problems], bool] = lambda _values, _problems: True
    #: Notes what does not fit together.
    check: Callable[[Schema, Problems], None] = lambda _schema, _problems: None
