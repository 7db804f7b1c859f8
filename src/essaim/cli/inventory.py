"""`inventory` and `adopt`: machines that somebody else made."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from essaim.cli.doctor import Lab
from essaim.cli.output import print_json, say, table
from essaim.cli.stacks import Json, Overrides, control_plane

if TYPE_CHECKING:
    from essaim.bootstrap import App
    from essaim.model.machines import Found
    from essaim.model.names import MachineName

Site = Annotated[str, typer.Option("--site", metavar="SITE", help="site/SITE.yaml of the lab.")]
ForAnsible = Annotated[
    bool, typer.Option("--list", help="Our own machines, as Ansible asks an inventory script.")
]
OneHost = Annotated[
    str | None, typer.Option("--host", metavar="NAME", help="One of these, likewise.")
]
OnlyStack = Annotated[
    list[str] | None, typer.Option("--stack", metavar="STACK", help="Of this stack alone.")
]


def inventory(
    site: Site = "",
    lab: Lab = ".",
    for_ansible: ForAnsible = False,
    host: OneHost = None,
    stack: OnlyStack = None,
    as_json: Json = False,
) -> None:
    """List every machine of a site: ours, and those that others made.  Changes nothing.

    [bold]essaim inventory --site rhodey[/bold]

    Machines without an owner are strangers: Essaim looks at them and never
    touches them, until you say [bold]essaim adopt[/bold].

    With [bold]--list[/bold] it is an inventory for plain Ansible: write
    [bold]exec essaim inventory "$@"[/bold] into a script, make it executable, and
    [bold]ansible-playbook -i ./SCRIPT site.yml[/bold] reaches the machines of our stacks.
    """
    from essaim.usecases import inventory as use

    if for_ansible or host is not None:
        with control_plane() as app:
            ours = use.for_ansible(app, stack or ())
        print_json(ours if host is None else ours["_meta"]["hostvars"].get(host, {}))
        return
    if not site:
        raise typer.BadParameter("say --site SITE, or --list for Ansible")
    with control_plane() as app:
        found = use.list_all(app, site, lab)
    if as_json:
        print_json(found)
        return
    if not found:
        say(f"site {site} has no machines, or shows none to your account")
        return
    headings = ("MACHINE", "OWNER", "POWER", "CORES", "MEMORY", "ID", "")
    sys.stdout.write(table([_row(one) for one in found], headings) + "\n")


def adopt(
    site: Annotated[str, typer.Argument(metavar="SITE", help="site/SITE.yaml of the lab.")],
    which: Annotated[str, typer.Argument(metavar="ID", help="Its id or name, from `inventory`.")],
    machine: Annotated[
        str, typer.Argument(metavar="STACK/MACHINE", help="What it is to be for us.")
    ] = "",
    overrides: Overrides = None,
    where: Annotated[
        str, typer.Option("--stack", metavar="PATH", help="The stack that describes it.")
    ] = ".",
    host_key: Annotated[
        str,
        typer.Option(
            metavar="KEY",
            help="Its public host key, 'ssh-ed25519 AAAA…'; needed unless the site can read it in "
            "the machine: through its guest agent, or SSH to its node.",
        ),
    ] = "",
    back: Annotated[
        bool, typer.Option("--give-back", help="Let go of it again; it stays as it is.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Take a machine that others made under our care, as a machine of a stack.

    Describe it first in a stack, with the address at which it answers:
    [bold]topology: {old: {count: 1, address: 192.168.122.40}}[/bold].  Then

    [bold]essaim adopt rhodey 3f2a91c4 lab/old-1 --stack ./lab
    --host-key 'ssh-ed25519 AAAA…'[/bold]

    writes a note into its definition, and nothing else: disk, power and name stay.
    [bold]--host-key[/bold] may be left out where the site can read it in the machine: on
    Proxmox, through the guest agent of a virtual machine, or with SSH to the nodes.
    From then on [bold]essaim up ./lab[/bold] starts it when it is off and applies its roles,
    over SSH as root, from the server to that address: the key in
    [bold]essaim adopt --json[/bold]'s answer must be in its authorized_keys.

    It is never destroyed: where Essaim would remove a machine (`down`, a smaller
    stack, another image) an adopted one is given back as it is, running or not,
    with its disk.  [bold]essaim adopt --give-back rhodey 3f2a91c4[/bold] does it at once.
    """
    with control_plane() as app:
        if back:
            answer, text = _give_back(app, site, where, which)
        else:
            answer, text = _adopt(
                app, site, which, _name(machine), where, overrides or [], host_key
            )
    if as_json:
        print_json(answer)
    else:
        say(text)


def _give_back(app: App, site: str, lab: str, which: str) -> tuple[dict[str, Any], str]:
    from essaim.usecases import inventory as use

    name = use.give_back(app, site, lab, use.find(app, site, lab, which))
    answer = {"machine": str(name), "adopted": False}
    return answer, f"{name} is given back: it stays as it is, and is never touched any more"


def _adopt(
    app: App,
    site: str,
    which: str,
    name: MachineName,
    where: str,
    overrides: list[str],
    host_key: str,
) -> tuple[dict[str, Any], str]:
    from essaim.config.compose import compose
    from essaim.usecases import inventory as use

    composed = compose(where, [*overrides, f"site={site}"])
    found = use.find(app, site, where, which)
    machine = use.adopt(app, composed, name, found, " ".join(host_key.split()[:2]))
    key = app.keyring.user_public_key()
    answer = {
        "machine": str(name),
        "adopted": True,
        "id": found.id,
        "address": machine.address,
        "authorized_key": key,
    }
    text = (
        f"{name} is {found.name} from now on, at {machine.address}; let Essaim in there, as root:\n"
        f"  echo '{key}' >> /root/.ssh/authorized_keys\n"
        f"then: essaim up {where} {' '.join([*overrides, f'site={site}'])}"
    )
    return answer, text


def _name(text: str) -> MachineName:
    from essaim.model.names import MachineName

    try:
        return MachineName.parse(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text or 'nothing'} names no machine: say STACK/MACHINE, such as lab/old-1"
        ) from None


def _row(found: Found) -> tuple[str, ...]:
    its = found.detail
    return (
        found.name,
        found.owner or "-",
        found.power.value,
        its.get("cores", ""),
        its.get("memory", ""),
        found.id,
        its.get("note", ""),
    )
