"""`make audit`: what Essaim is made of, and which of it is known to be vulnerable.

Writes a CycloneDX bill of materials from the lock files, then asks OSV, the database that holds
PyPI's own advisories, about every package in it.  Ends with 0 when nothing is known, 1 when
something is, and 3 when no database could be asked: then nothing was checked, and that is said.

Without the internet, fetch OSV's export for PyPI elsewhere and name it with --database:
https://osv-vulnerabilities.storage.googleapis.com/PyPI/all.zip
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import urllib.request
import uuid
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import essaim

FINE, VULNERABLE, NOT_CHECKED = 0, 1, 3
OSV = "https://api.osv.dev/v1/querybatch"
#: Lock files, and whether every installation has what is in them.
LOCKS = {
    "requirements.lock": "required",
    "requirements-compare.lock": "optional",
    "requirements-libvirt.lock": "optional",
    "requirements-nix.lock": "optional",
}
_PIN = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^\s;\\]+)(?:\s*;\s*([^\\]+?))?\s*\\?$")
_HASH = re.compile(r"\s+--hash=sha256:([0-9a-f]{64})")
_WITHIN = 30.0


@dataclass(frozen=True, slots=True)
class Package:
    """One line of a lock file, with its hashes."""

    name: str
    version: str
    marker: str  #: of the environments it is for; empty for all
    scope: str
    hashes: tuple[str, ...]

    @property
    def purl(self) -> str:
        """The name that every database knows it by."""
        plain = re.sub(r"[-_.]+", "-", self.name).lower()
        return f"pkg:pypi/{plain}@{self.version}"


def read_lock(text: str, scope: str) -> Iterator[Package]:
    """Read a lock file; ValueError when a line is neither a pin nor its hash."""
    pin, hashes = None, list[str]()
    for line in [*(line for line in text.splitlines() if not line.startswith("#")), ""]:
        if found := _HASH.match(line):
            hashes.append(found[1])
            continue
        if pin is not None:
            yield Package(pin[1], pin[2], pin[3] or "", scope, tuple(hashes))
        pin, hashes = _PIN.match(line), []
        if line.strip() and pin is None:
            raise ValueError(f"a lock file has a line that is not understood: {line}")


def read_locks(root: Path) -> list[Package]:
    """Read all lock files of what is shipped; what two of them hold is there once."""
    found: dict[str, Package] = {}
    for name, scope in LOCKS.items():
        for package in read_lock((root / name).read_text(encoding="utf-8"), scope):
            found.setdefault(package.purl, package)
    return [found[purl] for purl in sorted(found)]


def bill(packages: Sequence[Package], version: str) -> dict[str, Any]:
    """Write the bill of materials (CycloneDX 1.6); the same lock files give the same."""
    content = hashlib.sha256(repr((version, packages)).encode()).hexdigest()
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, content)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": "essaim",
                "name": "essaim",
                "version": version,
            }
        },
        "components": [_component(package) for package in packages],
    }


def _component(package: Package) -> dict[str, Any]:
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": package.purl,
        "name": package.name,
        "version": package.version,
        "purl": package.purl,
        "scope": package.scope,
        "hashes": [{"alg": "SHA-256", "content": content} for content in package.hashes],
    }
    if package.marker:
        component["properties"] = [{"name": "python:marker", "value": package.marker}]
    return component


def ask(packages: Sequence[Package], address: str = OSV) -> dict[str, list[str]]:
    """Ask OSV for known vulnerabilities, by package; OSError when it does not answer."""
    queries = [{"package": {"purl": package.purl}} for package in packages]
    request = urllib.request.Request(  # noqa: S310 - https, or what a test names
        address,
        json.dumps({"queries": queries}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=_WITHIN) as answer:  # noqa: S310 - likewise
        results = json.load(answer)["results"]
    known = zip(packages, results, strict=True)
    return {
        package.purl: [each["id"] for each in result["vulns"]]
        for package, result in known
        if result.get("vulns")
    }


def look_up(packages: Iterable[Package], database: Path) -> dict[str, list[str]]:
    """Look vulnerabilities up in OSV's export for PyPI; OSError when it cannot be read."""
    wanted = {package.purl: package for package in packages}
    found: dict[str, list[str]] = {}
    try:
        with zipfile.ZipFile(database) as archive:
            for name in sorted(archive.namelist()):
                advisory = json.loads(archive.read(name))
                for purl in _affected(advisory) & wanted.keys():
                    found.setdefault(purl, []).append(advisory["id"])
    except (zipfile.BadZipFile, ValueError) as error:
        raise OSError(f"{database} is not an export of OSV: {error}") from error
    return found


def _affected(advisory: dict[str, Any]) -> set[str]:
    if "withdrawn" in advisory:
        return set()
    return {
        Package(each["package"]["name"], version, "", "", ()).purl
        for each in advisory.get("affected", ())
        if each.get("package", {}).get("ecosystem") == "PyPI"
        for version in each.get("versions", ())
    }


def main(words: Sequence[str] | None = None) -> int:
    """Write the bill, check what is in it, say how that went."""
    parser = argparse.ArgumentParser(
        prog="make audit",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: python -m essaim_lab.audit --bill sbom.json --database all.zip",
    )
    root = Path(__file__).resolve().parents[2]
    parser.add_argument("--bill", type=Path, default=root / "sbom.json", help="where it is written")
    parser.add_argument("--database", type=Path, help="an export of OSV, instead of asking it")
    parser.add_argument("--address", default=OSV, help="where OSV is asked")
    asked = parser.parse_args(words)
    packages = read_locks(root)
    text = json.dumps(bill(packages, essaim.__version__), indent=1)
    asked.bill.write_text(f"{text}\n", encoding="utf-8")
    say = sys.stdout.write
    say(f"{asked.bill}: {len(packages)} packages (CycloneDX 1.6)\n")
    try:
        known = (
            look_up(packages, asked.database) if asked.database else ask(packages, asked.address)
        )
    except OSError as error:
        say(f"NOT CHECKED for vulnerabilities: no database could be asked ({error})\n")
        say(
            "hint: where there is no internet, fetch OSV's export and name it: --database all.zip\n"
        )
        return NOT_CHECKED
    for purl, ids in known.items():
        say(f"VULNERABLE {purl}: {', '.join(ids)}\n")
    if known:
        return VULNERABLE
    say("no known vulnerability\n")
    return FINE


if __name__ == "__main__":
    sys.exit(main())
