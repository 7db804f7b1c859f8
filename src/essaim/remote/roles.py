"""Apply a role to a machine: its packages and files, its steps, its probe, its good-bye."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from essaim.model.errors import RejectedError, TransientError
from essaim.remote.install import INSTALL_FILES, INSTALL_PACKAGES, archive, package_words
from essaim.remote.logs import Log, Record, last_line, mask
from essaim.remote.render import Facts, Given, render_text
from essaim.remote.ssh import CutOffError, Result
from essaim.remote.steps import RAN, SKIPPED, step_script

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from essaim.model.roles import Leave, Role, RoleStep
    from essaim.remote.ssh import Remote, Target

__all__ = [
    "Facts",
    "Given",
    "Record",
    "leave",
    "needs_digest",
    "probe",
    "provided",
    "put",
    "run_steps",
    "step_env",
]

#: Seconds the parts of a role have that its author does not limit.
PACKAGES_WITHIN = 900.0
FILES_WITHIN = 120.0
VALUE_WITHIN = 60.0


def provided(remote: Remote, target: Target, role: Role, name: str, facts: Facts | None) -> Given:
    """Give a value the role provides: its template filled, or what its command prints."""
    provide = role.provides[name]
    if provide.command is None:
        text = render_text(role, provide.value or "", facts, where=f"value {name}")
        return Given(text, provide.secret)
    result = remote.run(target, provide.command, within=VALUE_WITHIN)
    if result.exit_code:
        # What a secret's command printed may be half of the secret.
        said = "" if provide.secret else f": {last_line(result.output)}"
        raise RejectedError(
            f"{target.name}: role {role.name}: the command of value {name} "
            f"exited {result.exit_code}{said}",
            hint=f"try it there: essaim ssh {target.name}",
        )
    return Given(result.stdout.strip(), provide.secret)


def put(remote: Remote, target: Target, role: Role, facts: Facts, record: Record) -> list[str]:
    """Install missing packages, then write the files that differ; gives the paths it changed."""
    shell = _Shell(remote, target, Log(record, str(target.name), facts.secrets()))
    _install_packages(shell, role)
    if not role.files:
        return []
    result = shell.run(
        f"{role.name}: files",
        ["sh", "-c", INSTALL_FILES],
        stdin=archive(role, facts),
        within=FILES_WITHIN,
        unless_silent=True,
    )
    if result.exit_code:
        raise RejectedError(
            f"{target.name}: role {role.name}: {last_line(result.output)}", hint=_see(target)
        )
    lines = (line.partition("\t") for line in result.stdout.splitlines())
    return [path for word, _, path in lines if word == "changed"]


def _install_packages(shell: _Shell, role: Role) -> None:
    if not role.packages:
        return
    words = ["sh", "-c", INSTALL_PACKAGES, "essaim-packages", *package_words(role)]
    result = shell.run(f"{role.name}: packages", words, within=PACKAGES_WITHIN, unless_silent=True)
    if result.exit_code:
        missing = result.output.partition("\n")[0].removeprefix("missing:").strip()
        raise RejectedError(
            f"{shell.target.name}: role {role.name}: {missing} could not be installed: "
            f"{last_line(result.output)}",
            hint="put the packages into the image, or give the stack `network: {internet: true}`",
        )


def run_steps(  # noqa: PLR0917 - the same five as its neighbours, and whom to tell
    remote: Remote,
    target: Target,
    role: Role,
    facts: Facts,
    record: Record,
    note: Callable[[str], None],
) -> None:
    """Run the role's steps that are due, in order; RejectedError at the first that fails for good.

    May be repeated at will: a step that is not due is left alone.
    """
    shell = _Shell(remote, target, Log(record, str(target.name), facts.secrets()))
    for step in role.run:
        env = step_env(role, step, facts)
        attempts = step.retry.times + 1
        for attempt in range(1, attempts + 1):
            note(step.name if attempt == 1 else f"{step.name}, attempt {attempt} of {attempts}")
            failure = _run_step(shell, role, step, env)
            if failure is None:
                break
            if attempt == attempts:
                raise RejectedError(
                    f"{target.name}: role {role.name}: step {step.name} {failure}",
                    hint=_see(target),
                )
            time.sleep(step.retry.wait * 2 ** (attempt - 1))


def _run_step(shell: _Shell, role: Role, step: RoleStep, env: Mapping[str, str]) -> str | None:
    """Run a step once if it is due; gives what went wrong, None when nothing did."""
    name = f"{role.name}/{step.name}: {step.do}"
    script = step_script(role, step, env)
    try:
        result = shell.run(name, script, env=env, within=step.within, verdict=True)
    except CutOffError as exc:
        if not exc.late:
            raise
        return f"did not end in {step.within:g} s: {last_line(exc.output)}"
    return f"exited {result.exit_code}: {last_line(result.output)}" if result.exit_code else None


def probe(
    remote: Remote,
    target: Target,
    role: Role,
    facts: Facts,
    record: Record,
    *,
    within: float | None = None,
) -> str | None:
    """Look once whether the role does its work; gives the reason when it does not, else None.

    Only the look that succeeds is recorded: a role may be looked at hundreds of times.
    """
    if role.ready is None:
        return None
    log = Log(record, str(target.name), facts.secrets())
    started_at = time.time()
    limit = min(within or role.ready.within, role.ready.within)
    try:
        result = remote.run(target, role.ready.command, within=limit)
    except TransientError as exc:
        return exc.what
    if result.exit_code:
        said = last_line(mask(result.output, log.secrets))
        return f"exit {result.exit_code}: {said}" if said else f"exit {result.exit_code}"
    log.keep(f"{role.name}/ready: {role.ready.command}", result, started_at)
    return None


def leave(
    remote: Remote,
    target_on: Target,
    role: Role,
    facts: Facts,
    record: Record,
    *,
    steps: Sequence[Leave] | None = None,
) -> None:
    """Run the role's commands for a leaving machine on the machine that must know.

    `facts` are the leaving machine's.  `steps` are those of `role.leave` whose `on` is a role
    of `target_on`; all of them when not given.
    """
    shell = _Shell(remote, target_on, Log(record, str(target_on.name), facts.secrets()))
    for step in role.leave if steps is None else steps:
        name = f"{role.name}/{step.name} for {facts.machine.name}: {step.do}"
        result = shell.run(name, step.do, env=step_env(role, step, facts), within=step.within)
        if result.exit_code:
            raise RejectedError(
                f"{facts.machine.name}: role {role.name}: {step.name} on {target_on.name} "
                f"exited {result.exit_code}: {last_line(result.output)}",
                hint=_see(target_on),
            )


@dataclass(frozen=True, slots=True)
class _Shell:
    """Runs commands on one machine and records them; what it gives back is masked."""

    remote: Remote
    target: Target
    log: Log

    def run(
        self,
        name: str,
        command: Sequence[str] | str,
        *,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        within: float,
        unless_silent: bool = False,  #: do not record a success that printed nothing
        verdict: bool = False,  #: the first line says whether the step was due
    ) -> Result:
        started_at = time.time()
        try:
            result = self.remote.run(self.target, command, env=env, stdin=stdin, within=within)
        except CutOffError as exc:
            output = exc.output.removeprefix(f"{RAN}\n") if verdict else exc.output
            cut = Result(
                exit_code=-1,
                output=f"{output}\n[{exc.what}]",
                stdout="",
                seconds=time.time() - started_at,
            )
            self.log.keep(name, cut, started_at)
            exc.output = mask(output, self.log.secrets)
            raise
        if verdict:
            word, _, output = result.output.partition("\n")
            result = dataclasses.replace(result, output=output)
            if word == SKIPPED:
                return result
        if unless_silent and not result.exit_code and not result.output:
            return result
        return dataclasses.replace(result, output=self.log.keep(name, result, started_at))


def needs_digest(needs: Mapping[str, Given], key: bytes) -> str:
    """Give a digest that changes with the values and, without the key, says nothing about them."""
    digest = hashlib.blake2b(key=key[:64], digest_size=16)
    for name, given in sorted(needs.items()):
        for part in (name, given.value):
            body = part.encode()
            digest.update(len(body).to_bytes(8, "big") + body)
    return digest.hexdigest()


def step_env(role: Role, step: RoleStep | Leave, facts: Facts) -> dict[str, str]:
    """Fill the templates of a step's environment; secrets are as good as not there."""
    return {
        name: render_text(role, text, facts, where=f"{step.name}: env {name}", secrets=False)
        for name, text in step.env.items()
    }


def _see(target: Target) -> str:
    return f"essaim logs {target.name}"
