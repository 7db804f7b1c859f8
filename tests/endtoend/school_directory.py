"""A school's directory (OpenLDAP) that runs on the computer that plays the nodes of a cluster."""

from __future__ import annotations

import contextlib
import datetime as dt
import ipaddress
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from databases import find
from servers import daemons

BASE = "dc=school,dc=example,dc=org"
ADDRESS = "10.0.0.1"  #: of the node on the containers' network
BIND_PASSWORD = "reads-the-directory"
PASSWORDS = {"alice": "wonder-land-1", "bob": "build-er-2", "admin": "root-of-all-3"}
UIDS = {"alice": 600000001, "bob": 600000002, "admin": 600000900, "small": 33}
_ADMINS = 600000500

_CONFIGURATION = """
include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/inetorgperson.schema
include /etc/ldap/schema/nis.schema
modulepath /usr/lib/ldap
moduleload back_mdb
TLSCertificateFile {place}/server.pem
TLSCertificateKeyFile {place}/server.key
security simple_bind=128
database mdb
suffix "{base}"
directory {place}/data
maxsize 67108864
access to attrs=userPassword by * auth
access to * by dn.exact="cn=machines,{base}" read by self read by * auth
"""


def entries() -> str:
    """People with passwords, and the administrators' group."""
    found = [
        f"dn: {BASE}\nobjectClass: organization\nobjectClass: dcObject\no: School\ndc: school\n"
    ]
    found += [
        f"dn: ou={unit},{BASE}\nobjectClass: organizationalUnit\n" for unit in ("people", "groups")
    ]
    found.append(
        f"dn: cn=machines,{BASE}\nobjectClass: organizationalRole\n"
        f"objectClass: simpleSecurityObject\nuserPassword: {BIND_PASSWORD}\n"
    )
    for login, uid in UIDS.items():
        found.append(
            f"dn: uid={login},ou=people,{BASE}\nobjectClass: inetOrgPerson\n"
            f"objectClass: posixAccount\ncn: {login}\nsn: {login}\nuidNumber: {uid}\n"
            f"gidNumber: {_ADMINS if login == 'admin' else uid}\nhomeDirectory: /home/{login}\n"
            f"userPassword: {PASSWORDS.get(login, 'pass-word-9')}\n"
        )
    found.append(
        f"dn: cn=admins,ou=groups,{BASE}\nobjectClass: posixGroup\ngidNumber: {_ADMINS}\n"
        "memberUid: admin\n"
    )
    return "\n".join(found)


def make_certificates(place: Path) -> None:
    """An authority (`ca.pem`), and a certificate it signed for the directory's address."""
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "School CA")])
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, ADDRESS)])
    now = dt.datetime.now(dt.UTC)

    def signed(subject: x509.Name, public: ec.EllipticCurvePublicKey, *, ca: bool) -> bytes:
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )
        if not ca:
            address = x509.IPAddress(ipaddress.ip_address(ADDRESS))
            made = made.add_extension(x509.SubjectAlternativeName([address]), critical=False)
        return made.sign(ca_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    (place / "ca.pem").write_bytes(signed(issuer, ca_key.public_key(), ca=True))
    (place / "server.pem").write_bytes(signed(name, key.public_key(), ca=False))
    (place / "server.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )


@dataclass(frozen=True)
class NodeShell:
    """Root's shell on a node, as a site file says it is reached."""

    command: tuple[str, ...]

    @classmethod
    def of(cls, site: Path, place: Path) -> NodeShell:
        ssh = yaml.safe_load(site.read_text())["ssh"]
        known = place / "known_nodes"
        known.write_text(f"[127.0.0.1]:{ssh['port']} {ssh['host_keys']['pve1']}\n")
        options = (
            "IdentitiesOnly=yes",
            "BatchMode=yes",
            f"UserKnownHostsFile={known}",
            "KexAlgorithms=curve25519-sha256",
        )
        words = [word for option in options for word in ("-o", option)]
        port = str(ssh["port"])
        return cls(("ssh", "-F", "none", "-i", ssh["key"], "-p", port, *words, "root@127.0.0.1"))

    def run(self, command: str, stdin: bytes = b"") -> str:
        done = subprocess.run(
            [*self.command, command], input=stdin, capture_output=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()


@contextlib.contextmanager
def directory(node: NodeShell) -> Iterator[Path]:
    """Run slapd there, where containers reach it at `ADDRESS`; gives a folder with `ca.pem`."""
    program = find("slapd", "slapd")
    with daemons.folder() as place:
        (place / "data").mkdir()
        make_certificates(place)
        conf, data = place / "slapd.conf", place / "people.ldif"
        conf.write_text(_CONFIGURATION.format(place=place, base=BASE))
        data.write_text(entries())
        load = [find("slapadd", "slapd"), "-q", "-f", conf, "-l", data]
        done = subprocess.run(load, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        where = f"'ldaps://{ADDRESS} ldap://{ADDRESS}'"
        command = f"echo $$ >/run/slapd.pid; exec {program} -d 0 -f {conf} -h {where}"

        def answers() -> bool:
            words = [*node.command, f"bash -c ': </dev/tcp/{ADDRESS}/636'"]
            return subprocess.run(words, check=False, capture_output=True).returncode == 0

        with daemons.running([*node.command, command], place, answers):
            try:
                yield place
            finally:
                node.run("kill $(cat /run/slapd.pid)")
