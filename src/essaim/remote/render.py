"""Fill a role's templates with what is known of a machine and its stack."""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from essaim.model.errors import RejectedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from types import TracebackType

    import jinja2

    from essaim.model.roles import Role
    from essaim.model.stacks import Machine


@dataclass(frozen=True, slots=True)
class Given:
    """A value another role provided."""

    value: str = field(repr=False)
    secret: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything a role's templates may use, for one machine."""

    stack: str
    network: str  #: cidr
    machine: Machine
    members: Mapping[str, Sequence[Machine]] = field(default_factory=dict)
    vars: Mapping[str, Any] = field(default_factory=dict)
    needs: Mapping[str, Given] = field(default_factory=dict)
    hidden: tuple[str, ...] = field(default=(), repr=False)  #: secrets among the variables

    def secrets(self) -> list[str]:
        """List the values nobody may see."""
        return [*self.hidden, *(given.value for given in self.needs.values() if given.secret)]


def render_file(role: Role, template: str, facts: Facts) -> str:
    """Fill a template of the role's directory; RejectedError names file, line and variable."""
    return _Filling(role, facts, where=str(role.path / template)).file(template)


def render_text(
    role: Role, text: str, facts: Facts | None, *, where: str, secrets: bool = True
) -> str:
    """Fill a template written in role.yaml; `where` says which, for messages.

    Without `secrets` the secret needs are as good as not there.
    """
    if "{" not in text:
        return text  # most values are no templates at all
    return _Filling(role, facts, where=f"{role.path / 'role.yaml'}: {where}").text(
        text, secrets=secrets
    )


class _Filling:
    """One use of one template, with what is needed to explain a failure."""

    def __init__(self, role: Role, facts: Facts | None, *, where: str) -> None:
        self._facts = facts
        self._where = where
        self._jinja = environment(role.path, role.digest)

    def file(self, name: str) -> str:
        return self._fill(lambda: self._jinja.get_template(name), secrets=True)

    def text(self, text: str, *, secrets: bool) -> str:
        return self._fill(lambda: self._jinja.from_string(text), secrets=secrets)

    def _fill(self, load: Callable[[], jinja2.Template], *, secrets: bool) -> str:
        import jinja2  # noqa: PLC0415 - heavy

        context = describe(self._facts, secrets=secrets) if self._facts else {}
        try:
            return load().render(context)
        except jinja2.TemplateNotFound as exc:
            raise RejectedError(f"{self._where}: there is no template {exc}") from exc
        except jinja2.TemplateSyntaxError as exc:
            raise RejectedError(f"{self._where}:{exc.lineno}: {exc.message}") from exc
        except jinja2.UndefinedError as exc:
            line = _line(exc.__traceback__)
            raise RejectedError(
                f"{self._where}:{line}: {exc.message}", hint=self._undefined_hint(str(exc))
            ) from exc
        except (jinja2.TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as exc:
            line = _line(exc.__traceback__)
            raise RejectedError(f"{self._where}:{line}: {exc}") from exc

    def _undefined_hint(self, message: str) -> str:
        needs = self._facts.needs if self._facts else {}
        for name in re.findall(r"'([^']+)'", message):
            if name in needs and needs[name].secret:
                return f"needs.{name} is secret: it may be used in files only"
        return "a template may use machine, members, needs, vars, stack and network"


def describe(facts: Facts, *, secrets: bool = True) -> dict[str, Any]:
    """List what templates and playbooks may use, by name."""
    network = ipaddress.ip_network(facts.network)
    return {
        "stack": facts.stack,
        "machine": _machine(facts.machine),
        "members": {
            name: [_machine(one) for one in machines] for name, machines in facts.members.items()
        },
        "needs": {
            name: given.value for name, given in facts.needs.items() if secrets or not given.secret
        },
        "vars": facts.vars,
        "network": {
            "cidr": facts.network,
            "netmask": str(network.netmask),
            "gateway": str(network[1]),
        },
    }


def _machine(machine: Machine) -> dict[str, Any]:
    return {
        "name": machine.name.machine,
        "stack": machine.name.stack,
        "hostname": machine.name.machine,
        "address": machine.address,
        "group": machine.group,
        "index": machine.index,
        "cores": machine.size.cores,
        "memory": machine.size.memory,
        "disk": machine.size.disk,
        "labels": dict(machine.labels),
        "image": machine.image,
        "roles": list(machine.roles),
    }


@functools.lru_cache(maxsize=64)
def environment(path: Path, digest: str) -> jinja2.Environment:  # noqa: ARG001 - part of the key
    """Give the role's template environment, with its templates compiled once for each digest."""
    import jinja2  # noqa: PLC0415 - heavy
    from jinja2.sandbox import SandboxedEnvironment  # noqa: PLC0415 - heavy

    class Environment(SandboxedEnvironment):
        """Reads `vars.items` as the user's variable of that name, not as the dict's method."""

        @override
        def getattr(self, obj: Any, attribute: str) -> Any:
            if not isinstance(obj, Mapping):
                return super().getattr(obj, attribute)
            if attribute in obj:
                return obj[attribute]
            if hasattr(dict, attribute):
                return super().getattr(obj, attribute)
            known = ", ".join(map(str, obj)) or "nothing"
            return self.undefined(hint=f"there is no '{attribute}' here, there is: {known}")

    return Environment(
        loader=jinja2.FileSystemLoader(path),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )


def _line(traceback: TracebackType | None) -> int:
    """Find the template's line: Jinja puts frames of its own into the traceback."""
    line = 0
    while traceback is not None:
        if "__jinja_exception__" in traceback.tb_frame.f_globals:
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line
