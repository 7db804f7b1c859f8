"""Somebody with a lab on a simulated Proxmox VE that is reached through its API alone.

Its machines are real: sandbox machines behind the simulator.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from endtoend.people import OURS, Person
from endtoend.school_rig import lab_proxmox
from lab.proxmox.client import Client
from testcache import CACHE

_STACK = """\
defaults: [{{site: pve}}, _self_]
name: {name}
image: {image}
topology: {{one: {{count: 1{more}}}}}
network: {{cidr: {cidr}}}
"""


def write_stack(person: Person, name: str, image: str, cidr: str, more: str = "") -> None:
    """Describe a stack of one machine."""
    folder = person.checkout / name
    folder.mkdir()
    text = _STACK.format(name=name, image=image, cidr=cidr, more=more)
    (folder / "stack.yaml").write_text(text)


@contextmanager
def api_only(place: Path) -> Iterator[tuple[Person, Client]]:
    """The person, and a client of the cluster for what others do there."""
    lab = place / "lab"
    for folder in ("site", "images"):
        (lab / folder).mkdir(parents=True)
    (lab / "essaim.yaml").write_text("name: lab\n")
    for image, template in (("vm", "debian-vm"), ("box", "debian-gui")):
        text = f"builder: template\ntemplate: {template}\n"
        (lab / "images" / f"{image}.yaml").write_text(text)
    person = Person(place / "home", lab, OURS, extra={"ESSAIM_CACHE": str(CACHE)})
    person.home.mkdir()
    words = ("--speed", "50", "--port", "0", "--real", "--nodes", "1")
    with lab_proxmox(person, *words) as cluster:
        site = Path(cluster.told["site"]).read_text()
        assert "host_keys: first\n" in site
        (lab / "site" / "pve.yaml").write_text(site.replace("host_keys: first\n", ""))
        yield person, Client.of(cluster.told)
