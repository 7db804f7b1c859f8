"""Snapshots of a domain's disks, kept inside its own qcow2 files.

What is kept is the disks, never the memory: a machine that was restored boots again, with a new
`boot`, so that its roles are applied anew.  libvirt keeps no disks of a running machine but
together with its memory; so that is done, and then the snapshot is entered as one of a machine
that was off.  To restore it then needs no more than the disks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from xml.etree import ElementTree as ET

from essaim.drivers.libvirt.sdk import libvirt
from essaim.model.errors import RejectedError, UnknownError
from essaim.model.machines import Power, Snapshot
from essaim.model.names import MachineName
from essaim.model.spelling import meant

LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,60}[A-Za-z0-9])?")
#: What is written into a snapshot of a machine that ran.
_RAN = "made while the machine ran"


def snapshots(domain: Any) -> Sequence[Snapshot]:
    """List them, oldest first."""
    found = [_read(one.getXMLDesc(0)) for one in domain.listAllSnapshots(0)]
    return sorted(found, key=lambda one: (one.made_at, one.label))


def snapshot(domain: Any, name: MachineName, label: str) -> None:
    """Keep the disks as they are now.  A machine that runs is halted meanwhile, for seconds.

    RejectedError when there is one of that label, or when a disk cannot keep any.
    """
    if not LABEL.fullmatch(label):
        raise RejectedError(
            f"{label!r} cannot name a snapshot", hint="letters, digits, dots and dashes"
        )
    if label in domain.snapshotListNames(0):
        raise RejectedError(
            f"{name} has a snapshot {label} already",
            hint=f"choose another label, or: essaim snapshot drop {name} {label}",
        )
    runs = bool(domain.isActive())
    made = domain.snapshotCreateXML(_wanted(domain, name, label, runs=runs), 0)
    if runs:
        _enter_as_off(domain, made)


def restore(domain: Any, name: MachineName, label: str) -> None:
    """Go back; the machine is off afterwards, and what came after the snapshot is lost.

    Its definition stays as it is now: a port may have moved since.
    """
    found = _find(domain, name, label)
    now = domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE | libvirt.VIR_DOMAIN_XML_SECURE)
    with suppress(libvirt.libvirtError):  # it is off
        domain.destroy()
    try:
        domain.revertToSnapshot(found, 0)
    finally:
        domain.connect().defineXML(now)


def drop_snapshot(domain: Any, label: str) -> None:
    """Forget a snapshot and give its space back.  Nothing if it is gone."""
    try:
        domain.snapshotLookupByName(label, 0).delete(0)
    except libvirt.libvirtError as error:
        if error.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN_SNAPSHOT:
            raise


def _find(domain: Any, name: MachineName, label: str) -> Any:
    known = domain.snapshotListNames(0)
    if label not in known:
        hint = meant(label, known, kind="there are") or f"make one: essaim snapshot make {name}"
        raise UnknownError(f"{name} has no snapshot {label}", hint=hint)
    return domain.snapshotLookupByName(label, 0)


def _read(text: str) -> Snapshot:
    root = ET.fromstring(text)  # noqa: S314 - what libvirt itself wrote
    ran = root.findtext("state") == "running" or root.findtext("description") == _RAN
    return Snapshot(
        label=root.findtext("name", ""),
        made_at=float(root.findtext("creationTime", "0")),
        power=Power.ON if ran else Power.OFF,
    )


def _wanted(domain: Any, name: MachineName, label: str, *, runs: bool) -> str:
    root = ET.Element("domainsnapshot")
    ET.SubElement(root, "name").text = label
    if runs:
        ET.SubElement(root, "description").text = _RAN
    disks = ET.SubElement(root, "disks")
    found = ET.fromstring(domain.XMLDesc(0))  # noqa: S314 - what libvirt itself wrote
    kept = 0
    for disk in found.findall("./devices/disk"):
        target, driver = disk.find("target"), disk.find("driver")
        if target is None:
            continue
        # The seed is read, never written: it is the same before and after.
        fixed = disk.find("readonly") is not None or disk.get("device") != "disk"
        if not fixed and (driver is None or driver.get("type") != "qcow2"):
            raise RejectedError(
                f"{name}: its disk {target.get('dev')} cannot keep snapshots",
                hint="only qcow2 disks can; see essaim inventory",
            )
        kept += not fixed
        attributes = {"name": target.get("dev", ""), "snapshot": "no" if fixed else "internal"}
        ET.SubElement(disks, "disk", attributes)
    if not kept:
        raise RejectedError(f"{name} has no disk of its own, so there is nothing to keep")
    return ET.tostring(root, encoding="unicode")


def _enter_as_off(domain: Any, made: Any) -> None:
    """Describe a snapshot anew, with the disks only; what is in the disks stays as it is."""
    root = ET.fromstring(made.getXMLDesc(libvirt.VIR_DOMAIN_SNAPSHOT_XML_SECURE))  # noqa: S314 - what libvirt itself wrote
    for tag in ("memory", "cookie", "inactiveDomain"):
        for found in root.findall(tag):
            root.remove(found)
    state = root.find("state")
    if state is not None:
        state.text = "shutoff"
    made.delete(libvirt.VIR_DOMAIN_SNAPSHOT_DELETE_METADATA_ONLY)
    again = libvirt.VIR_DOMAIN_SNAPSHOT_CREATE_REDEFINE
    domain.snapshotCreateXML(ET.tostring(root, encoding="unicode"), again)
