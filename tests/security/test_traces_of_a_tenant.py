"""A tenant gets nothing from the one before through what follows a uid, and leaves nothing."""

from __future__ import annotations

import shlex

import pytest

import agent.conftest as machines
from agent.worker import until

pytestmark = pytest.mark.root
box, lease = machines.box, machines.lease

KEYS = """
import ctypes, os, platform, sys
x86 = platform.machine() == "x86_64"
ADD, KEYCTL = (248, 250) if x86 else (217, 219)
libc = ctypes.CDLL(None, use_errno=True)
def keyctl(*words):
    return libc.syscall(KEYCTL, *[ctypes.c_long(w) if isinstance(w, int) else w for w in words])
keyctl(1, None)  # a session of its own, which ends with it
rings = {"user": -4, "session": -5, "persistent": keyctl(22, -1, -3)}
"""
PLANT_KEYS = (
    KEYS
    + """
for ring in sys.argv[1].split(","):
    assert libc.syscall(ADD, b"user", b"left:" + ring.encode(), b"secret", 6, rings[ring]) > 0
if sys.argv[2:] == ["full"]:
    while libc.syscall(ADD, b"user", os.urandom(9).hex().encode(), b"x", 1, rings[ring]) > 0:
        pass
elif len(sys.argv) > 2:
    for ring in sys.argv[1].split(","):
        keyctl(5, rings[ring], int(sys.argv[2], 16))
"""
)
#: What the next account with this uid finds: by search, and by the numbers the kernel lists.
FIND_KEYS = (
    KEYS
    + """
uid = int(sys.argv[1])
os.setgroups([]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
rings = {"user": -4, "session": -5, "persistent": keyctl(22, -1, -3)}
room = ctypes.create_string_buffer(100)
for name, ring in rings.items():
    if (key := keyctl(10, ring, b"user", b"left:" + name.encode(), 0)) > 0:
        print(name, keyctl(11, key, room, 100))
for line in open("/proc/keys"):
    words = line.split()
    if f"_uid.{uid}:" in words or f"_uid_ses.{uid}:" in words:
        size = keyctl(11, int(words[0], 16), room, 100)
        held = [int.from_bytes(room.raw[n:n + 4], "little") for n in range(0, max(size, 0), 4)]
        found = [keyctl(6, key, room, 100) > 0 and room.value for key in held]
        print(*[name.decode() for name in found if name and b"left:" in name])
"""
)
ACL = """
import os, struct, sys
path, kind, tag, who = sys.argv[1:]
entries = [(1, 7), (4, 5), (0x10, 7), (0x20, 5)]
body = [(tag, rights, 0xFFFFFFFF) for tag, rights in entries] + [(int(tag), 7, int(who))]
value = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *one) for one in sorted(body))
os.setxattr(path, "system.posix_acl_" + kind, value)
"""
#: Says which lists of a file name a uid or gid.
NAMES = """
import os, struct, sys
for name in os.listxattr(sys.argv[1]):
    value = os.getxattr(sys.argv[1], name)
    if int(sys.argv[2]) in [one[2] for one in struct.iter_unpack("<HHI", value[4:])]:
        print(name)
"""
JOURNAL = "/{}/log/journal/0123456789abcdef0123456789abcdef"


def python(script: str, *words: str) -> str:
    return shlex.join(["python3", "-c", script, *words])


def rooted(path: str, *, folder: str = "") -> tuple[str, str]:
    """A file of root's, and how to see that it is there."""
    make = f"mkdir -p {folder or path.rpartition('/')[0]}; touch {path}"
    return make, f"ls -d {path} 2>/dev/null || :"


def acl(kind: str, tag: int) -> tuple[str, str]:
    make = (
        f"mkdir -p /srv/shared/of-root; {python(ACL, '/srv/shared/of-root', kind, str(tag))} $UID_"
    )
    return make, f"{python(NAMES, '/srv/shared/of-root')} $UID_"


def keys(rings: str, rights: str = "") -> tuple[str, str]:
    plant = python(PLANT_KEYS, *[rings, rights] if rights else [rings])
    return f"AS {plant}", f"{python(FIND_KEYS)} $UID_"


#: What is planted: how, what shows that it is there, the part of the cleaning it is left to, and
#: how the proof names it.
PLANTED = {
    "user keyring": (*keys("user"), "_forget_keys", "keyring _uid."),
    "user session keyring": (*keys("session"), "_forget_keys", "keyring _uid_ses."),
    "persistent keyring": (*keys("persistent"), "_forget_keys", "keyring _persistent."),
    "keyrings of a used up quota": (*keys("user,persistent", "full"), "_forget_keys", "keyring _"),
    "keyring that may only be read": (*keys("user", "0b0b0000"), "_forget_keys", "keyring _uid."),
    "keyring behind one without rights": (
        *keys("user,session", "00000000"),
        "_forget_keys",
        "keyring _uid",
    ),
    "journal": (
        *rooted(f"{JOURNAL.format('var')}/user-$UID_.journal"),
        "remove_files_named_after",
        "file /var/log/journal/",
    ),
    "archived journal": (
        *rooted(f"{JOURNAL.format('var')}/user-$UID_@0006-00a.journal~"),
        "remove_files_named_after",
        "file /var/log/journal/",
    ),
    "journal until a boot": (
        *rooted(f"{JOURNAL.format('run')}/user-$UID_.journal"),
        "remove_files_named_after",
        "file /run/log/journal/",
    ),
    "core dump": (
        *rooted(
            f"/var/lib/systemd/coredump/core.a.b.$UID_.{'0a' * 16}.77.1700000000000000.zst",
        ),
        "remove_files_named_after",
        "file /var/lib/systemd/coredump/core.a.b.",
    ),
    "sudo by uid": (*rooted("/run/sudo/ts/$UID_"), "remove_files_named_after", "file /run/sudo/ts"),
    "runtime folder": (
        "mkdir -p /run/user/$UID_; mount -t tmpfs -o uid=$UID_ none /run/user/$UID_",
        "grep /run/user/$UID_ /proc/self/mounts || ls -d /run/user/$UID_ 2>/dev/null || :",
        "detach_mounts",
        "mount /run/user/",
    ),
    "access list, user": (*acl("access", 2), "AclSearch.remove", "ACL on /srv/shared/of-root"),
    "access list, group": (*acl("access", 8), "AclSearch.remove", "ACL on /srv/shared/of-root"),
    "default list": (*acl("default", 2), "AclSearch.remove", "ACL on /srv/shared/of-root"),
}
#: What is the account's by its name, whoever owns it.
NAMED = {
    "mail": "/var/mail/$NAME_",
    "cron": "/var/spool/cron/crontabs/$NAME_",
    "linger": "/var/lib/systemd/linger/$NAME_",
    "sudo": "/run/sudo/ts/$NAME_",
    "failed logins": "/run/faillock/$NAME_",
}
#: The cleaning without one part of it.
WITHOUT = """
import sys
sys.path.insert(0, "/usr/local/lib/essaim")
import agent
whole, _, name = sys.argv[1].rpartition(".")
setattr(getattr(agent, whole) if whole else agent, name, lambda *_: None)
agent.remove_account(sys.argv[2])
"""


def filled(text: str, account: str, uid: int) -> str:
    as_account = f"setpriv --reuid {uid} --regid {uid} --clear-groups"
    for name, value in {"$UID_": str(uid), "$NAME_": account, "AS ": f"{as_account} "}.items():
        text = text.replace(name, value)
    return text


@pytest.fixture(autouse=True)
def places(box):
    yield
    box.sh("rm -rf /srv/shared /var/log/journal /run/log /var/lib/systemd/coredump")


@pytest.mark.parametrize("what", PLANTED)
def test_what_follows_a_uid_is_proven_gone(box, lease, what):
    account = lease()
    uid = int(box.sh(f"id -u {account}").stdout)
    plant, look, part, name = [filled(text, account, uid) for text in PLANTED[what]]
    box.sh(plant)
    assert box.sh(look).stdout.strip(), "it was not planted"
    # The proof does not take the cleaning's word for it.
    box.sh('python3 -I -c "$@"', WITHOUT, part, account)
    left = box.helper("verify", {"account": account})
    assert [line for line in left["found"] if line.startswith(name)], left
    assert box.helper("remove", {"account": account})["ok"]
    # The kernel lets go of keys a moment after they are cleared.
    until(lambda: not box.sh(look).stdout.strip(), within=10)
    after = box.helper("verify", {"account": account})
    assert (after["clean"], after["found"]) == (True, [])


@pytest.mark.parametrize("what", NAMED)
def test_what_is_named_after_an_account_goes_with_it(box, lease, what):
    account = lease()
    plant, look = [filled(text, account, 0) for text in rooted(NAMED[what])]
    box.sh(plant)
    assert [line for line in box.helper("verify", {"account": account})["found"] if "/" in line]
    assert box.helper("remove", {"account": account})["ok"]
    assert not box.sh(look).stdout
    assert box.helper("verify", {"account": account})["clean"]


def test_lists_of_others_keep_what_is_not_a_lease(box, lease):
    account = lease()
    uid = int(box.sh(f"id -u {account}").stdout)
    box.sh("mkdir -p /srv/shared/of-root")
    for tag, who in ((2, 1234), (8, uid)):
        box.sh(
            python(
                ACL, "/srv/shared/of-root", "access" if tag == 2 else "default", str(tag), str(who)
            )
        )
    box.helper("remove", {"account": account})
    assert (
        box.sh(python(NAMES, "/srv/shared/of-root", "1234")).stdout == "system.posix_acl_access\n"
    )
    assert box.sh("stat -c %a /srv/shared/of-root").stdout == "775\n"


def test_the_next_tenant_has_another_uid(box, lease):
    uids = []
    for account in ("l-first", "l-second", "l-third"):
        lease(account)
        uids.append(int(box.sh(f"id -u {account}").stdout))
        assert box.helper("remove", {"account": account})["ok"]
    assert len(set(uids)) == 3
    kept = "/var/lib/essaim-helper/uids"
    box.sh(f'sed -i \'s/"last": [0-9]*/"last": 61183/\' {kept}')
    lease("l-around")
    assert box.sh("id -u l-around").stdout == "61000\n"
