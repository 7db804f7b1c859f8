"""The privileges and built-in roles of Proxmox VE 7, 8 and 9, and where rights can be given."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

#: What `version` answers for `--version 7|8|9`.
RELEASES = {7: "7.4-20", 8: "8.4.1", 9: "9.1.1"}
_MAPPING, _GUEST_AGENT = 8, 9  #: the version that brought them

#: Category -> privileges of root only, of admins, of users, of auditors; as version 8 has them.
_PRIVILEGES = {
    "VM": (
        "",
        """VM.Allocate VM.Clone VM.Config.CPU VM.Config.Disk VM.Config.HWType VM.Config.Memory
        VM.Config.Network VM.Config.Options VM.Migrate VM.Monitor VM.Snapshot
        VM.Snapshot.Rollback""",
        "VM.Backup VM.Config.CDROM VM.Config.Cloudinit VM.Console VM.PowerMgmt",
        "VM.Audit",
    ),
    "Sys": (
        "Sys.AccessNetwork Sys.Incoming Sys.Modify Sys.PowerMgmt Permissions.Modify",
        "Sys.Console Sys.Syslog",
        "",
        "Sys.Audit",
    ),
    "Datastore": (
        "",
        "Datastore.Allocate Datastore.AllocateTemplate",
        "Datastore.AllocateSpace",
        "Datastore.Audit",
    ),
    "SDN": ("", "SDN.Allocate", "SDN.Use", "SDN.Audit"),
    "User": ("Realm.Allocate", "Group.Allocate Realm.AllocateUser User.Modify", "", ""),
    "Pool": ("", "Pool.Allocate", "Pool.Audit", "Pool.Audit"),
    "Mapping": ("", "Mapping.Modify", "Mapping.Use", "Mapping.Audit"),
}
#: Of version 7: those who administer the system also give rights away.
_SYS_OF_7 = (
    "Sys.Incoming Sys.Modify Sys.PowerMgmt",
    "Permissions.Modify Sys.Console Sys.Syslog",
    "",
    "Sys.Audit",
)
#: Of version 9: VM.Monitor is gone, what it allowed is split.
_VM_OF_9 = (
    "",
    """VM.Allocate VM.Clone VM.Config.CPU VM.Config.Disk VM.Config.HWType VM.Config.Memory
    VM.Config.Network VM.Config.Options VM.GuestAgent.Unrestricted VM.Migrate VM.Replicate
    VM.Snapshot VM.Snapshot.Rollback""",
    """VM.Backup VM.Config.CDROM VM.Config.Cloudinit VM.Console VM.GuestAgent.FileRead
    VM.GuestAgent.FileSystemMgmt VM.GuestAgent.FileWrite VM.PowerMgmt""",
    "VM.Audit VM.GuestAgent.Audit",
)


def major(version: str) -> int:
    """The first number of a version such as 8.4.1."""
    return int(version.partition(".")[0])


def _privileges(version: int) -> Mapping[str, tuple[str, str, str, str]]:
    found = dict(_PRIVILEGES)
    if version < _MAPPING:
        del found["Mapping"]
        found["Sys"] = _SYS_OF_7
    if version >= _GUEST_AGENT:
        found["VM"] = _VM_OF_9
    return found


@functools.cache
def built_in(version: int) -> Mapping[str, frozenset[str]]:
    """The roles that a version comes with."""
    found: dict[str, set[str]] = {
        "NoAccess": set(), "Administrator": set(), "PVEAdmin": set(), "PVEAuditor": set(),
    }  # fmt: skip
    for name, groups in _privileges(version).items():
        root, admin, user, audit = (set(words.split()) for words in groups)
        found["Administrator"] |= root | admin | user | audit
        found["PVEAdmin"] |= admin | user | audit
        found["PVEAuditor"] |= audit
        found[f"PVE{name}Admin"] = admin | user | audit
        if user:
            found[f"PVE{name}User"] = user | audit
    found["PVEAdmin"].discard("Mapping.Modify")
    found["PVETemplateUser"] = {"VM.Audit", "VM.Clone"}
    return {name: frozenset(privileges) for name, privileges in found.items()}


_NAME = r"[A-Za-z0-9._-]+"
_PATHS = (
    r"/|/access|/access/groups|/access/realm|/nodes|/pool|/sdn|/sdn/zones|/storage|/vms",
    rf"/(access/groups|access/realm|nodes|sdn/zones|storage)/{_NAME}",
    rf"/sdn/zones/{_NAME}/{_NAME}(/[1-9][0-9]{{0,3}})?",
    r"/vms/[1-9][0-9]{2,}",
)
_PATHS_OF_7 = (rf"/pool/{_NAME}", rf"/sdn/vnets/{_NAME}")
_PATHS_OF_8 = (
    rf"/pool/{_NAME}(/{_NAME}){{0,2}}",
    rf"/mapping(/{_NAME}){{0,2}}",
    r"/sdn/(controllers|dns|ipams)(/[A-Za-z0-9_-]+)?",
)
_PATHS_OF_9 = (*_PATHS_OF_8, r"/sdn/(fabrics|prefix-lists|route-maps)(/[A-Za-z0-9]+)?")


@functools.cache
def _paths(version: int) -> re.Pattern[str]:
    more = _PATHS_OF_7 if version < _MAPPING else _PATHS_OF_8
    return re.compile("|".join((*_PATHS, *(_PATHS_OF_9 if version >= _GUEST_AGENT else more))))


def is_path(path: str, version: int) -> bool:
    """Whether rights can be given on that path."""
    return _paths(version).fullmatch(path) is not None


def guards_bridges(version: int) -> bool:
    """Whether a network card needs SDN.Use on its bridge."""
    return version >= _MAPPING
