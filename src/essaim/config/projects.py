"""A project: one file that says which machines there are, and which playbook is for them.

A project is a stack.  What only projects have, their play, is kept among the stack's variables.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any

from essaim.config.documents import Document, shown
from essaim.config.drivers import DRIVERS
from essaim.config.images import image_names, read_image
from essaim.config.plays import (
    Play,
    files_digest,
    find_playbook,
    group_of,
    play_to_json,
    read_extravars,
)
from essaim.config.problems import Problems
from essaim.config.projected import (
    BRIDGE,
    DESCRIPTION,
    GATEWAY,
    HOST,
    IP,
    KEYS,
    NODE,
    PROJECT,
    STORAGE,
    VLAN,
)
from essaim.config.projects_schema import (
    EXECUTORS,
    AnsibleSchema,
    MachineSchema,
    ProjectSchema,
)
from essaim.config.sites import find_site
from essaim.config.tree import Tree
from essaim.model.errors import InvalidError, Problem, UnknownError
from essaim.model.names import NAME, MachineName
from essaim.model.spelling import meant
from essaim.model.stacks import Image, Machine, Network, Site, Size, Stack

KINDS = {"ct": "lxc", "vm": "qemu"}
_KEY = re.compile(r"(?:ssh|ecdsa|sk)-[a-z0-9@.-]+ +[A-Za-z0-9+/]+=*(?: .*)?")
_SLUG = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """A project as its file says, checked."""

    stack: Stack
    lab: Path


def compose_project(where: str, *, site: str = "", name: str = "") -> Project:
    """Read a project's file.  `site` and `name` count instead of what the file says.

    InvalidError lists all that is wrong with it, each with its file and line.
    """
    file = Path(where).absolute()
    if not file.is_file():
        beside = [shown(path) for path in file.parent.glob("*.y*ml")]
        hint = meant(shown(file), beside, kind="there are")
        raise InvalidError([Problem(f"there is no file {where}", hint=hint)])
    tree = Tree(where, file.parent.resolve() / file.name)
    return _Reading(tree, tree.read(tree.stack)).project(where, site, name)


class _Reading:
    """One file being read; what is wrong with it is gathered, to be told at once."""

    def __init__(self, tree: Tree, document: Document) -> None:
        self.tree = tree
        self.document = document
        self.problems = Problems.of_file(document)
        self.images: dict[str, Image] = {}
        data = document.data
        self.top = self.problems.validate(ProjectSchema, data) or _rest(data)
        self.entries = [
            ((kind, str(index)), entry)
            for kind in KINDS
            for index, part in enumerate(getattr(self.top, kind) or ())
            if (entry := self.problems.validate(MachineSchema, part, (kind, str(index))))
        ]
        read = self.problems.validate(AnsibleSchema, self.top.ansible or {}, ("ansible",))
        self.ansible = read or AnsibleSchema()

    def project(self, where: str, site: str, name: str) -> Project:
        stack = self.name(name)
        found = self.site(site or self.top.cluster, chosen=bool(site))
        machines = tuple(self.machines(stack, found))
        networks = [str(IPv4Interface(each.labels[IP]).network) for each in machines]
        self.check_networks(networks, found)
        play = self.play(stack, found)
        self.problems.found.sort(key=lambda each: each.place.line if each.place else 0)
        self.problems.check()
        assert found is not None  # noqa: S101 - for the type checker: problems would say why
        kept: dict[str, Any] = {"workspace": self.top.workspace}
        if play is not None:
            kept["play"] = play_to_json(play)
        return Project(
            stack=Stack(
                name=stack,
                site=found,
                network=Network(cidr=networks[0]),
                machines=machines,
                images=self.images,
                roles={},
                vars={PROJECT: kept},
                source=where,
            ),
            lab=self.tree.lab,
        )

    def name(self, said: str) -> str:
        word = said or self.ansible.group or self.tree.stack.stem
        name = _SLUG.sub("-", word.lower()).strip("-")
        if not NAME.fullmatch(name):
            at = ("ansible", "group") if not said and self.ansible.group else ()
            what = f"{word!r} cannot name a project"
            self.problems.add(at, what, "at most 40 letters, digits, _ and -, a letter first")
        return name

    def site(self, name: str, *, chosen: bool) -> Site | None:
        try:
            return find_site(name, str(self.tree.stack.parent))
        except UnknownError as error:
            if chosen:
                raise
            hint = error.hint or f"describe it in site/{name}.yaml, or say --site"
            self.problems.add(("cluster",), f"there is no site {name}", hint)
        except InvalidError as error:
            self.problems.found += error.problems
        return None

    # -- machines -------------------------------------------------------------------------------

    def machines(self, stack: str, site: Site | None) -> Iterator[Machine]:
        if not (self.top.ct or self.top.vm):
            what = "the project has no machines"
            self.problems.add((), what, "list containers under ct: or machines under vm:")
        self.check_unique()
        for index, (at, entry) in enumerate(self.entries, 1):
            name = entry.name or entry.hostname.partition(".")[0]
            if not NAME.fullmatch(name):
                what = f"{'.'.join(at)}.hostname: {name!r} cannot name a machine"
                hint = "add name: with small letters, digits and dashes, a letter first"
                self.problems.add((*at, "hostname"), what, hint)
            image = self.image(at, entry, site) if site else None
            yield Machine(
                name=MachineName(stack, name),
                group=at[0],
                index=index,
                address=str(IPv4Interface(entry.ip).ip),
                image=image.name if image else "",
                size=Size(cores=entry.cores, memory=entry.memory, disk=entry.rootfs),
                labels=self.labels(at, entry),
            )

    def check_unique(self) -> None:
        first: dict[tuple[str, str], tuple[str, ...]] = {}
        for at, entry in self.entries:
            self.check_address(at, entry)
            name = entry.name or entry.hostname.partition(".")[0]
            called = "name" if entry.name else "hostname"
            # Whose full names are the same have the same short one: that is said once.
            twice = ("host", entry.hostname) in first
            for kind, key, value in (
                ("host", "hostname", entry.hostname),
                ("ip", "ip", entry.ip.partition("/")[0]),
                *(() if twice else (("name", called, name),)),
            ):
                before = first.setdefault((kind, value), (*at, key))
                if before == (*at, key):
                    continue
                line = self.document.place(before).line
                what = f"{'.'.join(at)}.{key}: {value} is already that of line {line}"
                hint = "give one of them a name: of its own" if kind == "name" else ""
                self.problems.add((*at, key), what, hint)

    def check_address(self, at: tuple[str, str], entry: MachineSchema) -> None:
        own = IPv4Interface(entry.ip)
        block, where = own.network, ".".join(at)
        small = block.num_addresses < 4  # noqa: PLR2004 - its two ends, the site and a machine
        if small or own.ip in (block[0], block[1], block[-1]):
            what = f"{where}.ip: {own.ip} cannot be a machine's address in {block}"
            hint = f"its first address, {block[min(1, block.num_addresses - 1)]}, is the site's own"
            self.problems.add((*at, "ip"), what, hint)
        if not entry.gw:
            return
        gateway = IPv4Interface(entry.gw).ip
        if gateway not in block or gateway == own.ip:
            what = f"{where}.gw: {entry.gw} cannot be a gateway of {block}"
            self.problems.add((*at, "gw"), what, f"an address of {block} other than the machine's")

    def check_networks(self, networks: list[str], site: Site | None) -> None:
        if site is None or DRIVERS[site.driver].bridged or len(set(networks)) <= 1:
            return
        other = next(index for index, each in enumerate(networks) if each != networks[0])
        at = self.entries[other][0]
        what = f"{'.'.join(at)}.ip is in {networks[other]}, the first in {networks[0]}"
        hint = f"machines of a project on site {site.name} ({site.driver}) share one network"
        self.problems.add((*at, "ip"), what, hint)

    def labels(self, at: tuple[str, str], entry: MachineSchema) -> dict[str, str]:
        card = dict(part.split("=", 1) for part in entry.net0.split(",") if "=" in part)
        labels = {
            HOST: entry.hostname if "." in entry.hostname else "",
            IP: entry.ip,
            NODE: entry.node,
            STORAGE: entry.storage,
            BRIDGE: card.get("bridge", "") if card else entry.net0,
            VLAN: card.get("tag", ""),
            GATEWAY: entry.gw,
            DESCRIPTION: entry.description,
            KEYS: "\n".join(self.keys(at, entry)),
        }
        return {key: value for key, value in labels.items() if value}

    def keys(self, at: tuple[str, str], entry: MachineSchema) -> Iterator[str]:
        for said in entry.keys:
            for word in [said] if _KEY.fullmatch(said.strip()) else said.split(","):
                yield from self.key(at, word.strip())

    def key(self, at: tuple[str, str], word: str) -> Iterator[str]:
        if not word or _KEY.fullmatch(word):
            yield from [word] if word else []
            return
        file = self.tree.find(f"keys/{word.removesuffix('.pub')}.pub")
        if file is None:
            known = self.tree.names("keys", "*.pub")
            hint = meant(word, known, kind="there are") or f"put it into keys/{word}.pub of the lab"
            what = f"{'.'.join(at)}.ssh-public-keys: there is no key {word}"
            self.problems.add((*at, "ssh-public-keys"), what, hint)
            return
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            if not line.strip() or line.startswith("#"):
                continue
            if _KEY.fullmatch(line.strip()):
                yield line.strip()
            else:
                what = f"line {number} of {shown(file)} is no public key"
                self.problems.add((*at, "ssh-public-keys"), what, "such as ssh-ed25519 AAAA…")

    # -- images ---------------------------------------------------------------------------------

    def image(self, at: tuple[str, str], entry: MachineSchema, site: Site) -> Image | None:
        """What a machine is made from: an image of the lab, or something the site has."""
        base = entry.base
        mapped = (site.settings.get("bases") or {}).get(base)
        tail = base.rpartition(":")[2]
        for name in (mapped, base, tail):
            image = read_image(self.tree, str(name)) if name else None
            if image is not None:
                return self.images.setdefault(image.name, image)
        if DRIVERS[site.driver].stocked:
            image = _stock(str(mapped or base), KINDS[at[0]])
            return self.images.setdefault(image.name, image)
        what = f"{'.'.join(at)}.base: site {site.name} has nothing called {mapped or base}"
        wrong = str(mapped or tail)
        near = meant(wrong, image_names(self.tree))
        hint = near or f'bases: {{"{base}": IMAGE}} in its site file says which image that is there'
        self.problems.add((*at, "base"), what, hint)
        return None

    # -- the playbook ---------------------------------------------------------------------------

    def play(self, stack: str, site: Site | None) -> Play | None:
        said = self.ansible
        if said.playbook is None:
            if said.tags or said.extravars:
                hint = "playbook: the file that uses them"
                self.problems.add(("ansible",), "ansible.playbook is missing", hint)
            return None
        awx = bool(site and site.settings.get("awx"))
        executor = said.executor or EXECUTORS[awx]
        if executor == "awx" and site is not None and not awx:
            what = f"ansible.executor: site {site.name} names no AWX"
            hint = "awx: {url: https://awx.example.org, token: {env: AWX_TOKEN}} in its site file"
            self.problems.add(("ansible", "executor"), what, hint)
        playbook, known = find_playbook(self.tree, self.top.workspace, said.playbook)
        if playbook is None and executor == "runner":
            what = f"ansible.playbook: there is no playbook {said.playbook}"
            where = "beside this file, or in workspaces/ansible/playbooks of the lab"
            hint = meant(said.playbook, known) or f"put it {where}"
            self.problems.add(("ansible", "playbook"), what, hint)
            return None
        return Play(
            group=said.group or group_of([stack]),
            playbook=playbook or Path(said.playbook),
            tags=tuple(said.tags),
            extravars=read_extravars(self.document),
            executor=executor,
            template=said.template,
            files=files_digest(playbook) if playbook else "",
        )


def _rest(data: Mapping[str, Any]) -> ProjectSchema:
    """What can be read of a file in which something else is wrong."""
    kinds: dict[str, type] = {"ct": list, "vm": list, "ansible": dict, "cluster": str}
    fits = {key: data[key] for key, kind in kinds.items() if isinstance(data.get(key), kind)}
    return ProjectSchema.model_construct(**fits)


def _stock(base: str, kind: str) -> Image:
    """Something a site has: an archive `STORAGE:NAME` for containers, else a template."""
    settings: dict[str, Any] = {"kind": kind}
    if ":" not in base:
        settings |= {"template": base, "clone": "full"}
    elif kind == "lxc":
        settings["ostemplate"] = base
    else:
        settings["iso" if ":iso/" in base else "disk"] = base
    text = json.dumps(["template", settings], sort_keys=True)
    slug = _SLUG.sub("-", base.lower()).strip("-")
    return Image(
        name=f"{slug}-{kind}",
        builder="template",
        digest=hashlib.sha256(text.encode()).hexdigest(),
        settings=settings,
    )
