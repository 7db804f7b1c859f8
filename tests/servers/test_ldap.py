"""People of a real directory (OpenLDAP), shaped as schools shape theirs."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from databases import find, free_port
from essaim.model.errors import RejectedError, TransientError, UnknownError
from essaim.model.school import Person
from essaim.servers.ldap import Ldap, Settings
from essaim_lab.simulators.loopback import make_certificate
from servers import daemons

BASE = "dc=example,dc=org"
READER, PASSWORD = f"cn=reader,{BASE}", "reads-only"
MANY = 600

_CONFIGURATION = """
include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/inetorgperson.schema
include /etc/ldap/schema/nis.schema
include /etc/ldap/schema/msuser.schema
modulepath /usr/lib/ldap
moduleload back_mdb
pidfile {place}/pid
TLSCertificateFile {place}/ca.pem
TLSCertificateKeyFile {place}/key.pem
security simple_bind=128
database mdb
suffix "{base}"
directory {place}/data
maxsize 67108864
sizelimit size.soft=200 size.hard=200 size.prtotal=unlimited
access to attrs=userPassword by * auth
access to * by dn.exact="{reader}" read by * auth
"""


def person(login: str, number: int, **more: str) -> str:
    lines = [
        f"dn: uid={login},ou=people,{BASE}",
        "objectClass: inetOrgPerson",
        "objectClass: posixAccount",
        f"uid: {login}",
        f"cn: {more.pop('cn', login.title())}",
        f"sn: {login}",
        f"uidNumber: {number}",
        f"gidNumber: {more.pop('gid', 100)}",
        f"homeDirectory: /home/{login}",
        f"mail: {login}@example.org",
        *(f"{key}: {value}" for key, value in more.items()),
    ]
    return "\n".join(lines) + "\n\n"


def entry(dn: str, *lines: str) -> str:
    return "\n".join([f"dn: {dn},{BASE}", *lines]) + "\n\n"


def group(name: str, *members: str, kind: str = "groupOfNames", at: str = "ou=groups") -> str:
    lines = [f"objectClass: {kind}", f"cn: {name}", *members]
    return entry(f"cn={name},{at}", *lines)


def member(login: str) -> str:
    return f"member: uid={login},ou=people,{BASE}"


def people() -> str:
    """A directory of two classes, a whole year, and everything that is odd about directories."""
    text = (
        f"dn: {BASE}\nobjectClass: organization\nobjectClass: dcObject\no: School\ndc: example\n\n"
    )
    text += entry(
        "cn=reader",
        "objectClass: organizationalRole",
        "objectClass: simpleSecurityObject",
        f"userPassword: {PASSWORD}",
    )
    for unit in ("people", "groups", "others", "windows"):
        text += entry(f"ou={unit}", "objectClass: organizationalUnit")
    text += person("alice", 1001, cn="Alice", displayName="Alice A.")
    text += person("bob", 1002) + person("carol", 1003, gid="5000") + person("dan", 1004)
    text += person("zoe\\, the (2*x)", 1005).replace("uid: zoe\\,", "uid: zoe,", 1)
    text += group("g1", member("alice"), member("gone"))
    # Another way to write the same name, a group inside, and that group inside itself.
    text += group(
        "g2",
        f"member: UID=Bob, OU=People, {BASE}",
        f"member: cn=g1,ou=groups,{BASE}",
        f"member: cn=g2,ou=groups,{BASE}",
    )
    text += group("unix", "gidNumber: 5000", "memberUid: dan", "memberUid: left", kind="posixGroup")
    text += group("unique", f"uniqueMember: uid=dan,ou=people,{BASE}", kind="groupOfUniqueNames")
    text += group("odd", f"member: uid=zoe\\, the (2*x),ou=people,{BASE}")
    text += group("twice", member("alice")) + group("twice", member("bob"), at="ou=others")
    # Another alice elsewhere, who is in no group.
    text += person("alice", 2001).replace("ou=people", "ou=others")
    many = [f"p{i:03}" for i in range(MANY)]
    text += "".join(person(login, 3000 + i) for i, login in enumerate(many))
    text += group("everybody", *(member(login) for login in many))
    text += group(
        "listed", "gidNumber: 6000", *(f"memberUid: {m}" for m in many), kind="posixGroup"
    )
    return text + windows()


def windows() -> str:
    """As Active Directory has it: names are not logins, and accounts are disabled in place."""
    top = ("instanceType: 4", "nTSecurityDescriptor: x", "objectCategory: cn=x")
    text = ""
    for name, login, control, home in (
        ("Eve E", "eve", 512, "/export/eve"),
        ("Off O", "off", 514, "/export/off"),
        ("Win W", "win", 512, "\\\\server\\win"),
    ):
        text += entry(
            f"cn={name},ou=windows",
            "objectClass: user",
            f"cn: {name}",
            f"sAMAccountName: {login}",
            f"userAccountControl: {control}",
            f"homeDirectory: {home}",
            *top,
        )
    return text + entry(
        "cn=Etudiants,ou=windows",
        "objectClass: group",
        "cn: Etudiants",
        "groupType: -2147483646",
        f"member: CN=Eve E,OU=windows,{BASE}",
        f"member: CN=Off O,OU=windows,{BASE}",
        f"member: CN=Win W,OU=windows,{BASE}",
        *top,
    )


@dataclass(frozen=True, slots=True)
class Directory:
    secure: int
    plain: int
    place: Path


@pytest.fixture(scope="module")
def directory():
    program = find("slapd", "slapd")
    with daemons.folder() as place:
        (place / "data").mkdir()
        make_certificate(place)
        conf, data = place / "slapd.conf", place / "people.ldif"
        conf.write_text(_CONFIGURATION.format(place=place, base=BASE, reader=READER))
        data.write_text(people())
        # -s: what Active Directory would have made by itself is not checked.
        load = [find("slapadd", "slapd"), "-q", "-s", "-f", conf, "-l", data]
        done = subprocess.run(load, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        made = Directory(free_port(), free_port(), place)
        where = f"ldaps://127.0.0.1:{made.secure} ldap://127.0.0.1:{made.plain}"
        where += f" ldaps://127.0.0.2:{made.secure}"  # which its certificate does not name
        with daemons.running(
            [program, "-d", "0", "-f", conf, "-h", where], place, lambda: listens(made.secure)
        ):
            yield made


def listens(port: int) -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.connect(("127.0.0.1", port))
        return True
    return False


@pytest.fixture
def settings(directory) -> Settings:
    return Settings(
        url=f"ldaps://127.0.0.1:{directory.secure}",
        base=BASE,
        user=READER,
        secret=PASSWORD,
        ca=str(directory.place / "ca.pem"),
        within=daemons.PATIENCE,
    )


def logins(settings: Settings, name: str) -> list[str]:
    return [person.login for person in Ldap(settings).members(name)]


def test_a_group_gives_its_people_with_what_is_known_of_them(settings):
    assert Ldap(settings).members("g1") == [
        Person(
            login="alice",
            name="Alice A.",
            mail="alice@example.org",
            group="g1",
            uid=1001,
            home="/home/alice",
        )
    ]


def test_groups_inside_a_group_count_and_may_go_round(settings):
    found = Ldap(settings).members("g2")
    assert [(p.login, p.group) for p in found] == [("alice", "g1"), ("bob", "g2")]


def test_a_posix_group_has_those_it_lists_and_those_whose_first_group_it_is(settings):
    assert logins(settings, "unix") == ["carol", "dan"]


def test_a_group_of_unique_names_is_a_group(settings):
    assert logins(settings, "unique") == ["dan"]


@pytest.mark.parametrize("name", ["everybody", "listed"])
def test_a_whole_year_is_read_in_pages(settings, name):
    found = logins(settings, name)
    assert len(found) == MANY
    assert found == sorted(found)


def test_windows_people_are_found_by_their_account_and_disabled_ones_are_not(settings):
    eve, win = Ldap(settings).members("Etudiants")
    assert (eve.login, eve.name, eve.home) == ("eve", "Eve E", "/export/eve")
    assert (win.login, win.home) == ("win", "")


def test_a_group_is_also_found_by_its_whole_name(settings):
    assert logins(settings, f"CN=g1, OU=groups, {BASE}") == ["alice"]
    assert logins(settings, f"cn=twice,ou=others,{BASE}") == ["bob"]


def test_two_groups_of_a_name_are_told_apart_by_the_caller(settings):
    with pytest.raises(RejectedError, match="2 groups called twice") as caught:
        Ldap(settings).members("twice")
    assert f"cn=twice,ou=others,{BASE}" in caught.value.hint


def test_names_with_signs_in_them_are_names(settings):
    assert logins(settings, "odd") == ["zoe, the (2*x)"]


@pytest.mark.parametrize("name", ["*", "g1)(cn=*", "g\\31", "", f"cn=none,{BASE}", "gg1"])
def test_no_group_is_told_with_what_there_is(settings, name):
    with pytest.raises(UnknownError, match="has no group") as caught:
        Ldap(settings).members(name)
    assert "g1" in caught.value.hint


def test_a_plain_address_goes_on_in_tls(directory, settings):
    # The server refuses passwords that do not come in TLS.
    assert logins(replace(settings, url=f"ldap://127.0.0.1:{directory.plain}"), "g1") == ["alice"]


def test_a_certificate_nobody_signed_is_refused(directory, settings, tmp_path):
    make_certificate(tmp_path)
    for url in (settings.url, f"ldap://127.0.0.1:{directory.plain}"):
        for ca in ("", str(tmp_path / "ca.pem")):
            with pytest.raises(RejectedError, match="certificate") as caught:
                Ldap(replace(settings, url=url, ca=ca)).members("g1")
            assert "directory.ca" in caught.value.hint


def test_a_certificate_of_another_name_is_refused(settings):
    url = settings.url.replace("127.0.0.1", "127.0.0.2")
    with pytest.raises(RejectedError, match="certificate") as caught:
        Ldap(replace(settings, url=url)).members("g1")
    assert "directory.url" in caught.value.hint


def test_a_wrong_password_is_told_without_it(settings):
    wrong = replace(settings, secret="wrong-one")
    with pytest.raises(RejectedError, match="does not let us in") as caught:
        Ldap(wrong).members("g1")
    assert "directory.secret" in caught.value.hint
    assert "wrong-one" not in f"{caught.value} {wrong!r}"


def test_an_account_that_may_read_nothing_is_told(settings):
    with pytest.raises((RejectedError, UnknownError)) as caught:
        Ldap(replace(settings, user="", secret="")).members("g1")
    assert caught.value.hint
    with pytest.raises(RejectedError, match="wants a password"):
        Ldap(replace(settings, secret="")).members("g1")
    with pytest.raises(RejectedError, match=r"directory\.base"):
        Ldap(replace(settings, base="dc=elsewhere")).members("g1")


def test_a_server_that_is_away_is_worth_another_try(settings):
    with (
        daemons.refusing_port() as port,
        pytest.raises(TransientError, match="does not answer"),
    ):
        Ldap(replace(settings, url=f"ldaps://127.0.0.1:{port}")).members("g1")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        for scheme in ("ldap", "ldaps"):
            quick = replace(settings, url=f"{scheme}://127.0.0.1:{port}", within=0.5)
            with pytest.raises(TransientError, match="does not answer"):
                Ldap(quick).members("g1")
