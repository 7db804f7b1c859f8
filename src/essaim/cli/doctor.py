"""`doctor`: what this computer, or a site, can do for Essaim, and how to get what is missing."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from essaim.cli.output import print_json, say
from essaim.cli.program import localise
from essaim.cli.stacks import Json, control_plane

if TYPE_CHECKING:
    from collections.abc import Sequence

    from essaim.drivers.doctor import Check

MISSING = 3
#: Where the text of a check begins; its further lines begin there too.
_INDENT = 25

Site = Annotated[
    str, typer.Option("--site", metavar="SITE", help="Examine this site: site/SITE.yaml of a lab.")
]
Lab = Annotated[str, typer.Option(metavar="PATH", help="The lab, or the stack, that has the site.")]


def doctor(site: Site = "", lab: Lab = ".", as_json: Json = False) -> None:
    """Check this computer, or what you may do at a site; say how to get what is missing.

    [bold]essaim doctor[/bold] looks at this computer, where stacks of site=local live.

    [bold]essaim doctor --site rhodey --lab examples/slurm[/bold] looks at the
    server behind examples/slurm/site/rhodey.yaml: whether it is reached and is
    the right one, what your account may do there, and the command that its
    administrator needs for what is missing.  On libvirt it starts a machine
    without a disk for some seconds, and leaves nothing there.  Of a Proxmox
    cluster it looks at the certificate, quorum, nodes and their clocks, templates
    and archives, the token's rights on each path, the pool, storages and bridges;
    of any site also at its DNS, DHCP, desktop and directory servers.

    Each line begins with ok, with !! for what works but could be better or was not
    looked at, or with NO for what must be put right first; then the exit code is 3.
    """
    from essaim.usecases import doctor as use

    with control_plane() as control:
        checks = use.examine_site(control, site, lab) if site else use.examine(control)
    if as_json:
        print_json(checks)
    else:
        for check in checks:
            sys.stdout.write(localise(_line(check)) + "\n")
        say(_summary(checks, site))
    sys.exit(0 if all(check.ok for check in checks) else MISSING)


def _line(check: Check) -> str:
    mark = "NO" if not check.ok else "!!" if check.warn else "ok"
    text = check.text.replace("\n", "\n" + " " * _INDENT)
    return f"{mark}  {check.name:<20} {text}"


def _summary(checks: Sequence[Check], site: str) -> str:
    where = f"site {site}" if site else "this computer"
    wrong = sum(not check.ok for check in checks)
    if wrong:
        return f"{where}: {wrong} of {len(checks)} to be put right before machines can be made"
    better = sum(check.warn for check in checks)
    more = f"; {better} could be better" if better else ""
    return f"{where} can make machines{more}"
