"""Prove a running cluster against its lock, machine by machine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from essaim.model.errors import EssaimError, TransientError
from essaim.model.machines import Networks, Power, Slow
from essaim.plan.lock_compare import Difference, differences, tool_notes
from essaim.plan.lock_node import Expected, Seen, applied, inside, standing
from essaim.remote import roles
from essaim.remote.install import content
from essaim.remote.looking import due_steps, fingerprint, look
from essaim.usecases.locking import make_lock, missing_images
from essaim.usecases.role_facts import RoleFacts, unrecorded
from essaim.workflows.settling import ANSWER_WITHIN

if TYPE_CHECKING:
    from essaim.config.compose import Composed
    from essaim.model.machines import Observed
    from essaim.model.roles import Role
    from essaim.model.stacks import Machine
    from essaim.plan.lock import Lock, LockedNode
    from essaim.remote.roles import Facts
    from essaim.remote.ssh import Target
    from essaim.usecases.services import Services

#: Machines looked at at once.
WIDTH = 16

IDENTICAL, DIFFERENT, UNKNOWN = "identical", "different", "unknown"


@dataclass(slots=True, kw_only=True)
class NodeReport:
    """One machine: what differs, what could not be seen, and what was."""

    name: str
    differences: list[Difference] = field(default_factory=list)
    cannot: list[str] = field(default_factory=list)  #: why it is not known, in words
    #: What two raises of one lock agree in.  Digests of what rests on secrets are keyed.
    seen: dict[str, Any] = field(default_factory=dict)
    free: dict[str, Any] = field(default_factory=dict)  #: what the lock says may differ

    @property
    def verdict(self) -> str:
        """Identical, different, or unknown."""
        return _verdict(self.differences, self.cannot)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A cluster against its lock."""

    stack: str
    description: list[Difference]  #: what is described now, against the lock
    cluster: list[Difference]  #: machines too many, another network
    nodes: list[NodeReport]
    notes: list[str]  #: worth knowing, and no difference

    @property
    def verdict(self) -> str:
        """Identical, different, or unknown when something could not be seen and nothing differs."""
        found = [*self.description, *self.cluster, *(d for n in self.nodes for d in n.differences)]
        return _verdict(found, [why for node in self.nodes for why in node.cannot])


def _verdict(found: list[Difference], cannot: list[str]) -> str:
    return DIFFERENT if found else UNKNOWN if cannot else IDENTICAL


#: Differences that no role mends: only a machine made anew is free of them.
_BEYOND_ROLES = frozenset({"package", "identity", "key", "altered"})


def mending(report: Report, where: str) -> list[str]:
    """Say what to type to make a cluster as it was locked; nothing when it is."""
    if report.verdict != DIFFERENT:
        return []
    up = f"essaim up {where} --locked"
    lines = [f"mend with: {up} --deep"]
    if report.description:
        lines = [
            f"undo the changes to the description, or accept them: essaim lock {where}",
            f"then mend with: {up} --deep",
        ]
    if any(found.kind in _BEYOND_ROLES for node in report.nodes for found in node.differences):
        lines.append(
            f"packages, keys and names need new machines: essaim down {report.stack}, then {up}"
        )
    return lines


def verify(services: Services, lock: Lock, composed: Composed) -> Report:
    """Compare a lock with what is described now, and with every machine there is.

    `composed` is the stack as its files say it now, with the lock's overrides.  Changes nothing.
    """
    now = make_lock(services, composed)
    driver = services.driver(composed.stack.site)
    observed = {seen.name.machine: seen for seen in driver.observe(lock.stack)}
    judge = _Judge(services, lock, now, composed)
    with ThreadPoolExecutor(WIDTH, thread_name_prefix="essaim-verify") as pool:
        nodes = list(pool.map(lambda name: judge.node(name, observed.get(name)), lock.nodes))
    notes = [
        f"image {name} is not in the cache: its content here is not compared"
        for name in missing_images(now)
    ]
    network = driver.network(lock.stack) if isinstance(driver, Networks) else None
    extra = sorted(observed.keys() - lock.nodes.keys())
    cluster = [
        Difference(kind="machine", at=f"{lock.stack}/{name}", what="is not in the lock")
        for name in extra
    ]
    if network is not None and network.cidr != composed.stack.network.cidr:
        what = f"is {network.cidr}, not {composed.stack.network.cidr}"
        cluster.append(Difference(kind="machine", at=f"network of {lock.stack}", what=what))
    return Report(
        stack=lock.stack,
        description=differences(lock, now),
        cluster=cluster,
        nodes=nodes,
        notes=[*notes, *tool_notes(lock, now)],
    )


class _Judge:
    """One verification.  Values that roles provide are read once, whoever asks."""

    def __init__(self, services: Services, lock: Lock, now: Lock, composed: Composed) -> None:
        self._services = services
        self._lock = lock
        self._now = now
        self._stack = composed.stack
        self._machines = {m.name.machine: m for m in composed.stack.machines}
        self._applied = services.stacks.applied(lock.stack)
        self._images = {built.digest: f"image {built.name}" for built in services.images.list()}
        self._keys = frozenset({fingerprint(services.keyring.user_public_key())})
        self._facts = RoleFacts(services, composed.stack, composed.lab)
        driver = services.driver(composed.stack.site)
        self._patience = driver.answers_within() if isinstance(driver, Slow) else ANSWER_WITHIN

    def node(self, name: str, observed: Observed | None) -> NodeReport:
        """Look at one machine; what goes wrong with it is part of its report."""
        node = self._lock.nodes[name]
        image = self._lock.images[node.image]
        report = NodeReport(name=f"{self._lock.stack}/{name}")
        report.differences += standing(report.name, node, image, observed, self._images)
        if observed is None:
            return report
        records = {a.role: a.digest for (m, _), a in self._applied.items() if m == report.name}
        report.differences += applied(report.name, node, records)
        report.seen |= {"image": observed.image, "address": observed.address, "roles": records}
        report.free |= {"boot": observed.boot}
        machine = self._machines.get(name)
        if observed.power is not Power.ON:
            return report
        if machine is None:
            report.cannot.append("is no longer described, so it was not looked into")
            return report
        try:
            self._inside(report, node, machine)
        except TransientError as exc:
            report.cannot.append(_unnamed(exc.what, report.name))
        except EssaimError as exc:
            # Not a matter of time: another host key, or a machine without what a look needs.
            what = _unnamed(exc.what, report.name)
            report.differences.append(Difference(kind="machine", at=report.name, what=what))
        return report

    def _inside(self, report: NodeReport, node: LockedNode, machine: Machine) -> None:
        target = self._facts.target(machine)
        self._services.remote.reach(target, within=self._patience)
        seen = look(self._services.remote, target, sorted(node.files))
        facts = self._known_facts(report, node, machine)
        judged = [self._stack.roles[name] for name in facts]
        described = [self._stack.roles[name] for name in node.roles if name in self._stack.roles]
        expected = Expected(
            contents=dict(self._contents(node, judged, facts)),
            keys=self._keys,
            packages=frozenset(p for role in described for p in role.packages),
        )
        image = self._lock.images[node.image]
        report.differences += inside(report.name, node, image, seen, expected)
        report.differences += self._work(report.name, target, judged, facts)
        report.cannot += [
            f"what {path} holds cannot be judged: it rests on {', '.join(file.rests_on)}"
            for path, file in sorted(node.files.items())
            if file.rests_on and path not in expected.contents
        ]
        report.seen |= self._collected(node, seen)
        report.free |= {"host_key": fingerprint(target.host_key), "keys": list(seen.keys)}

    def _known_facts(
        self, report: NodeReport, node: LockedNode, machine: Machine
    ) -> dict[str, Facts]:
        """Gather what is known of each role that can be judged by what is described now."""
        facts = {}
        for name in node.roles:
            if not self._same(machine.name.machine, name):
                report.cannot.append(
                    f"role {name} has changed since the lock: its steps are not judged"
                )
                continue
            try:
                facts[name] = self._facts.of(machine, self._stack.roles[name])
            except EssaimError as exc:
                report.cannot.append(f"role {name} cannot be judged: {exc.what}")
        return facts

    def _same(self, machine: str, role: str) -> bool:
        """Tell whether a role is still described as it was locked for that machine."""
        now = self._now.nodes.get(machine)
        locked = self._lock.nodes[machine].digests.get(role)
        return now is not None and now.digests.get(role) == locked and role in self._stack.roles

    def _contents(
        self, node: LockedNode, judged: list[Role], facts: Mapping[str, Facts]
    ) -> Iterator[tuple[str, str]]:
        """Render what the lock could not, in memory; only digests leave here."""
        for role in judged:
            for file in role.files:
                locked = node.files.get(file.to)
                if locked is not None and locked.rests_on and locked.role == role.name:
                    body = content(role, file, facts[role.name])
                    yield file.to, hashlib.sha256(body).hexdigest()

    def _work(
        self, name: str, target: Target, judged: list[Role], facts: Mapping[str, Facts]
    ) -> Iterator[Difference]:
        """Say which steps of roles are undone, and which roles do not do their work."""
        remote = self._services.remote
        for role in judged:
            for step in due_steps(remote, target, role, facts[role.name]):
                what = f"step {step} of role {role.name} is undone: it would run again"
                yield Difference(kind="step", at=name, what=what)
            why = roles.probe(remote, target, role, facts[role.name], unrecorded)
            if why:
                what = f"role {role.name} does not do its work: {why}"
                yield Difference(kind="ready", at=name, what=what)

    def _collected(self, node: LockedNode, seen: Seen) -> dict[str, Any]:
        files = {
            path: {
                "kind": file.kind,
                "digest": self._keyed(file.sha256) if node.files[path].rests_on else file.sha256,
                "mode": file.mode,
                "owner": file.owner,
                "group": file.group,
            }
            for path, file in seen.files.items()
        }
        return {
            "hostname": seen.hostname,
            "addresses": list(seen.addresses),
            "packages": dict(seen.packages or {}),
            "files": files,
        }

    def _keyed(self, digest: str) -> str:
        """Say nothing about a file that may hold a secret but whether it is the same."""
        key = self._services.keyring.digest_key()[:64]
        return "keyed:" + hashlib.blake2b(digest.encode(), key=key, digest_size=16).hexdigest()


def _unnamed(what: str, name: str) -> str:
    """Take a machine's name off a sentence that is said of it anyway."""
    return what.removeprefix(name).lstrip(": ")
