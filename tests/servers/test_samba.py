"""People of a real Active Directory, as Samba makes it, in a network of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from databases import find
from essaim_lab.simulators.loopback import make_certificate
from patience import in_test_all
from servers import daemons
from servers.network import namespace

pytestmark = [in_test_all, pytest.mark.root]

PASSWORD = "Passw0rd-of-a-test"
BASE = "dc=ad,dc=example,dc=org"
#: More values than Active Directory gives of an attribute at once.
MANY = 1600

_FILL = """
import sys
from samba.auth import system_session
from samba.param import LoadParm
from samba.samdb import SamDB
loaded = LoadParm()
loaded.load(sys.argv[1])
samdb = SamDB(url=sys.argv[2], session_info=system_session(loaded), lp=loaded)
base, many = sys.argv[3], int(sys.argv[4])
samdb.transaction_start()
def add(name, kind, *more):
    samdb.add_ldif(chr(10).join((f"dn: cn={name},cn=users,{base}", f"objectClass: {kind}", *more)))
def user(login, name, control):
    add(name, "user", f"sAMAccountName: {login}", f"userAccountControl: {control}")
user("alice", "Alice A", 544)
user("bob", "Bob, the (2nd)".replace(",", "\\\\,"), 544)
user("off", "Off O", 546)
for i in range(many):
    user(f"p{i:04}", f"Person {i:04}", 544)
members = [f"member: cn=Person {i:04},cn=users,{base}" for i in range(many)]
add("inner", "group", "sAMAccountName: inner", f"member: cn=Alice A,cn=users,{base}",
    f"member: cn=Off O,cn=users,{base}")
add("promo", "group", "sAMAccountName: promo", f"member: cn=inner,cn=users,{base}",
    f"member: cn=Bob\\\\, the (2nd),cn=users,{base}")
add("everybody", "group", "sAMAccountName: everybody", *members)
samdb.transaction_commit()
"""

_ASK = """
import json, sys
from essaim.servers.ldap import Ldap, Settings
given = json.load(sys.stdin)
people = Ldap(Settings(**given["settings"])).members(given["group"])
print(json.dumps([[p.login, p.name, p.group] for p in people]))
"""


@dataclass(frozen=True, slots=True)
class Domain:
    inside: int
    place: Path

    def members(self, group: str) -> list[list[str]]:
        settings = {
            "url": "ldaps://127.0.0.1",
            "base": BASE,
            "user": "Administrator@ad.example.org",
            "secret": PASSWORD,
            "ca": str(self.place / "ca.pem"),
        }
        words = ["nsenter", "-t", str(self.inside), "-n", "--", sys.executable, "-c", _ASK]
        given = json.dumps({"settings": settings, "group": group})
        done = subprocess.run(words, input=given, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def domain() -> Iterator[Domain]:
    if os.geteuid():
        pytest.skip("a domain controller needs root")
    program, tool = find("samba", "samba"), find("samba-tool", "samba-common-bin")
    find("/usr/share/samba/setup", "samba-ad-provision")
    find("/usr/lib/x86_64-linux-gnu/samba/ldb/samldb.so", "samba-dsdb-modules")
    find("/usr/lib/x86_64-linux-gnu/samba/vfs/acl_xattr.so", "samba-vfs-modules")
    find("ss", "iproute2")
    with daemons.folder() as place, namespace() as inside:
        enter = ["nsenter", "-t", str(inside), "-n", "--"]
        subprocess.run([*enter, "ip", "link", "set", "lo", "up"], check=True)
        make_certificate(place)
        provision = [tool, "domain", "provision", f"--targetdir={place}/ad"]
        provision += ["--realm=AD.EXAMPLE.ORG", "--domain=AD", f"--adminpass={PASSWORD}"]
        provision += ["--server-role=dc", "--dns-backend=NONE", "--host-name=dc1"]
        provision += ["--host-ip=127.0.0.1"]
        done = subprocess.run([*enter, *provision], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        conf, sam = place / "ad/etc/smb.conf", place / "ad/private/sam.ldb"
        fill = ["/usr/bin/python3", "-c", _FILL, str(conf), str(sam), BASE, str(MANY)]
        done = subprocess.run(fill, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        options = {
            "server services": "ldap",
            "interfaces": "lo",
            "bind interfaces only": "yes",
            "tls certfile": place / "ca.pem",
            "tls keyfile": place / "key.pem",
            "tls cafile": place / "ca.pem",
        }
        words = [program, "--interactive", f"--configfile={conf}", "--no-process-group"]
        words += [f"--option={key}={value}" for key, value in options.items()]
        listens = [*enter, "ss", "-Hltn", "sport = :636"]
        with daemons.running(
            [*enter, *words], place, lambda: subprocess.check_output(listens), stdin=subprocess.PIPE
        ):
            yield Domain(inside, place)


def test_groups_inside_groups_and_disabled_accounts_are_understood(domain):
    assert domain.members("promo") == [
        ["alice", "Alice A", "inner"],
        ["bob", "Bob, the (2nd)", "promo"],
    ]


def test_a_group_larger_than_an_answer_is_read_whole(domain):
    assert len(domain.members("everybody")) == MANY
