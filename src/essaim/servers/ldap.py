"""People of an LDAP directory: OpenLDAP, 389 DS, Active Directory, Samba.

directory:
  kind: ldap
  url: ldaps://ldap.example.org          # ldap:// goes on in TLS (StartTLS) before anything else
  base: dc=example,dc=org
  user: cn=essaim,dc=example,dc=org      # left out: anonymous
  secret: {env: LDAP_PASSWORD}
  ca: ca.pem                             # when no public authority has signed its certificate
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from essaim.model.errors import RejectedError, UnknownError
from essaim.model.school import Person
from essaim.model.spelling import meant
from essaim.servers.ldap_library import escape_filter_chars, parse_dn, wrong
from essaim.servers.ldap_wire import Entry, Wire

_GROUP_KINDS = frozenset({"groupofnames", "groupofuniquenames", "posixgroup", "group"})
_GROUPS = f"(|{''.join(f'(objectClass={kind})' for kind in sorted(_GROUP_KINDS))})"
_GROUP_READ = ("objectClass", "cn", "member", "uniqueMember", "memberUid", "gidNumber")
_PERSON_READ = (
    "objectClass",
    "uid",
    "sAMAccountName",
    "displayName",
    "cn",
    "mail",
    "uidNumber",
    "homeDirectory",
    "unixHomeDirectory",
    "userAccountControl",
)
#: Names in one question: few enough for any server's limit on the length of a filter.
_BATCH = 100
#: In userAccountControl of Active Directory: the account is disabled.
_DISABLED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A directory and the account we have there."""

    url: str
    base: str
    user: str = ""
    secret: str = field(default="", repr=False)
    ca: str = ""
    login: str = ""  #: the attribute with the login: uid, then sAMAccountName, when empty
    within: float = 15.0  #: seconds for one question and its answer


@dataclass(slots=True)
class _Found:
    """What is known while groups are opened one after the other."""

    people: dict[str, Person] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)


class Ldap:
    """People of one directory.  Reads only; each question has a connection of its own."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._wire = Wire(
            url=settings.url,
            base=settings.base,
            user=settings.user,
            secret=settings.secret,
            ca=settings.ca,
            within=settings.within,
        )

    def members(self, group: str) -> Sequence[Person]:
        """The people of a group and of the groups in it, by login; disabled ones are left out.

        The group is its cn, or its whole DN.  UnknownError when there is none.
        """
        with self._wire.open() as wire:
            found = _Found()
            waiting = [self._group(wire, group)]
            while waiting:
                entry = waiting.pop()
                if _same(entry.dn) not in found.seen:
                    found.seen.add(_same(entry.dn))
                    waiting += self._open(wire, entry, found)
        return sorted(found.people.values(), key=lambda person: person.login)

    def _group(self, wire: Wire, name: str) -> Entry:
        if _parts(name):
            entries = list(wire.at(name, _GROUPS, _GROUP_READ))
        else:
            entries = list(
                wire.search(f"(&{_GROUPS}(cn={escape_filter_chars(name)}))", _GROUP_READ)
            )
        if len(entries) > 1:
            raise RejectedError(
                f"{wire} has {len(entries)} groups called {name}",
                hint=f"give its whole name: {' or '.join(entry.dn for entry in entries)}",
            )
        if not entries:
            known = [entry.first("cn") for entry in wire.search(_GROUPS, ("cn",))]
            raise UnknownError(
                f"{wire} has no group {name}", hint=meant(name, known, kind="there are")
            )
        return entries[0]

    def _open(self, wire: Wire, group: Entry, found: _Found) -> list[Entry]:
        """Take the people of one group; gives the groups in it."""
        kind = group.first("cn")
        members = {_same(dn): dn for dn in (*group.all("member"), *group.all("uniqueMember"))}
        groups = []
        filters = [_own_name(dn) for dn in members.values()]
        for entry in self._entries(wire, filters):
            if _same(entry.dn) not in members:
                continue  # another of the same name elsewhere
            if entry.kinds & _GROUP_KINDS:
                groups.append(entry)
            else:
                self._take(entry, kind, found)
        people = [f"(uid={escape_filter_chars(login)})" for login in group.all("memberUid")]
        if "posixgroup" in group.kinds and (number := group.first("gidNumber")):
            # It is also the group of whoever has it as their first.
            people.append(f"(gidNumber={escape_filter_chars(number)})")
        for entry in self._entries(wire, people):
            if not entry.kinds & _GROUP_KINDS:
                self._take(entry, kind, found)
        return groups

    @staticmethod
    def _entries(wire: Wire, filters: Sequence[str]) -> Iterator[Entry]:
        for start in range(0, len(filters), _BATCH):
            either = "".join(filters[start : start + _BATCH])
            yield from wire.search(f"(|{either})", (*_PERSON_READ, *_GROUP_READ))

    def _take(self, entry: Entry, group: str, found: _Found) -> None:
        logins = [self._settings.login] if self._settings.login else ["uid", "sAMAccountName"]
        login = next((value for name in logins if (value := entry.first(name))), "")
        if not login or entry.number("userAccountControl") & _DISABLED:
            return
        found.people.setdefault(
            login,
            Person(
                login=login,
                name=entry.first("displayName") or entry.first("cn"),
                mail=entry.first("mail"),
                group=group,
                uid=entry.number("uidNumber"),
                home=_home(entry),
            ),
        )


def _home(entry: Entry) -> str:
    """Where their files are on UNIX: Windows keeps a share of its own in the same attribute."""
    places = (*entry.all("unixHomeDirectory"), *entry.all("homeDirectory"))
    return next((place for place in places if place.startswith("/")), "")


def _parts(dn: str) -> list[tuple[str, str]]:
    """The attributes and values of a DN; nothing when it is none."""
    try:
        return [(name, _unescaped(value)) for name, value, _ in parse_dn(dn, strip=True)]
    except wrong.LDAPInvalidDnError:
        return []


def _same(dn: str) -> str:
    """A DN as it compares: spaces after commas, capitals and ways to escape do not count."""
    return repr(_parts(dn)).lower()


def _own_name(dn: str) -> str:
    """A filter that finds the entry of a DN by the first part of it."""
    name, value = (_parts(dn) or [("cn", dn)])[0]
    return f"({name}={escape_filter_chars(value)})"


def _unescaped(value: str) -> str:
    r"""The value itself of a part of a DN: `a\,b` and `a\2Cb` are both `a,b`."""
    body = bytearray()
    rest = value
    while rest:
        head, slash, rest = rest.partition("\\")
        body += head.encode()
        if not slash:
            break
        try:
            body.append(int(rest[:2], 16))
            rest = rest[2:]
        except ValueError:
            body += rest[:1].encode()
            rest = rest[1:]
    return body.decode(errors="replace")
