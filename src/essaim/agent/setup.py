"""Put the agent on a machine, and take it away without a trace.  Both need root."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import sys
from pathlib import Path

from essaim.agent.access import SSHD_RULES, drop_rules, set_rules
from essaim.agent.accounts import LOCKS, known_accounts, proof, remove_account
from essaim.agent.belongings import processes
from essaim.agent.common import (
    HELPER,
    HELPER_LOG,
    NOTICES,
    PROGRAMS,
    SERVICE,
    SHELL,
    STATE,
    Trouble,
    remove_file,
    tool,
    write_file,
)
from essaim.agent.groups import AGENT_OOM, CONTROLLERS, FOLDER, LEASE_OOM, TREE
from essaim.agent.loop import say
from essaim.agent.server import State, admit

SUDOERS = Path("/etc/sudoers.d/essaim")
UNIT = Path("/etc/systemd/system/essaim-agent.service")
RUN = f"{PROGRAMS}/agent.py run"

# Without PAM sshd knows no limits, so the shell that sshd starts for everything sets them.
# A login shell is one without arguments: its name's leading dash is lost on a script.
_SHELL = f"""#!/bin/bash -p
# The shell of leased accounts: sets their limits, then becomes an ordinary one.
name=$(id -un)
while read -r who _ item value; do
  [ "$who" = "$name" ] || continue
  case $item in
    nproc) ulimit -u "$value" ;;
    data) ulimit -d "$value" ;;
    nofile) ulimit -n "$value" ;;
    core) ulimit -c "$value" ;;
  esac
done <"/etc/security/limits.d/essaim-$name.conf" || exit 1
for group in {TREE}/{{{",".join(CONTROLLERS)}}}/{FOLDER}/"$name"/cgroup.procs; do
  [ ! -w "$group" ] || echo $$ >"$group"
done 2>/dev/null
echo {LEASE_OOM} 2>/dev/null >/proc/$$/oom_score_adj
export SHELL=/bin/bash
[ $# != 0 ] || {{ cat "{NOTICES}/$name" 2>/dev/null; exec /bin/bash -l; }}
exec /bin/bash "$@"
"""
# Imported rather than run, so that it is compiled once and not for every lease.
_HELPER = f"""#!/bin/sh
# The only thing {SERVICE} may do as root.
exec /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin python3 -I -c '
import sys
sys.path.insert(0, "{PROGRAMS}")
import agent
sys.exit(agent.main(["helper", *sys.argv[1:]]))' "$@"
"""
_UNIT = f"""[Unit]
Description=Essaim agent
After=network-online.target sshd.service
Wants=network-online.target

[Service]
User={SERVICE}
ExecStart=/usr/bin/env python3 -I {RUN}
Restart=always
RestartSec=5
RestartPreventExitStatus=3
OOMScoreAdjust={AGENT_OOM}

[Install]
WantedBy=multi-user.target
"""


def systemd_runs() -> bool:
    """Say whether services of this machine are systemd's business."""
    return Path("/run/systemd/system").is_dir()


def installed() -> bool:
    """Say whether `install` has been here."""
    return HELPER.exists() and SUDOERS.exists() and SSHD_RULES.exists()


def install(*, key: str = "", playbooks: bool = False) -> None:
    """Make the service account, its one right, and the programs; safe to repeat."""
    need_root("install")
    for name in ("sudo", "sshd", "useradd", "find", "ipcrm", "unshare", "bash"):
        if not shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin"):
            raise Trouble(f"the program {name} is missing on this machine: install it first")
    set_rules()  # first, for it refuses machines that cannot be lent safely
    try:
        entry = pwd.getpwnam(SERVICE)
    except KeyError:
        words = ["-r", "-U", "-d", str(STATE), "-M", "-s", "/bin/sh", "-p", "*"]
        tool("useradd", *words, "-c", "Essaim agent", SERVICE)
        entry = pwd.getpwnam(SERVICE)
    STATE.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.chown(str(STATE), entry.pw_uid, entry.pw_gid)
    STATE.chmod(0o700)
    PROGRAMS.mkdir(mode=0o755, parents=True, exist_ok=True)
    own = Path(__file__).read_text(encoding="utf-8")
    for path, text in ((PROGRAMS / "agent.py", own), (HELPER, _HELPER), (SHELL, _SHELL)):
        write_file(path, text, 0o755)
    _allow(playbooks=playbooks)
    if key:
        admit(STATE, key)
        for path in (STATE / ".ssh", STATE / ".ssh/authorized_keys"):
            os.chown(str(path), entry.pw_uid, entry.pw_gid)
    _add_unit()


def _allow(*, playbooks: bool) -> None:
    rule = f"{SERVICE} ALL=(root) NOPASSWD: {HELPER}\n"
    if playbooks:
        sys.stderr.write(f"WARNING: {SERVICE} may now do anything as root, as playbooks need\n")
        rule = f"{SERVICE} ALL=(root) NOPASSWD: ALL\n"
    draft = SUDOERS.with_name("essaim.draft~")  # sudo ignores names with a tilde
    write_file(draft, rule, 0o440)
    try:
        tool("visudo", "-c", "-q", "-f", str(draft))
        draft.replace(SUDOERS)
    finally:
        remove_file(draft)


def _add_unit() -> None:
    if systemd_runs():
        write_file(UNIT, _UNIT, 0o644)
        tool("systemctl", "daemon-reload")
        tool("systemctl", "enable", UNIT.name)
        say(f"installed; join a fleet, then: systemctl start {UNIT.name}")
    else:
        say(f"installed; join a fleet, then start: runuser -u {SERVICE} -- python3 -I {RUN}")


def uninstall(*, keep_log: bool = False) -> None:
    """Remove everything `install` and the helper have made, leased accounts first."""
    need_root("uninstall")
    if UNIT.exists():
        tool("systemctl", "disable", "--now", UNIT.name, allow=(0, 1, 5))
        remove_file(UNIT)
        tool("systemctl", "daemon-reload")
    remove_file(SUDOERS)
    for account in known_accounts():
        remove_account(account.pw_name)
    drop_rules()
    with contextlib.suppress(KeyError):
        _end_service(pwd.getpwnam(SERVICE).pw_uid)
        tool("userdel", "-f", SERVICE, allow=(0, 6))
    state = State(STATE)
    for path in (state.node, state.last, state.tunnel_key, state.known_hosts):
        remove_file(path)
    remove_file(Path(f"{state.tunnel_key}.pub"))
    for folder in (STATE / ".ssh", PROGRAMS, NOTICES):
        shutil.rmtree(str(folder), ignore_errors=True)
    with contextlib.suppress(OSError):
        STATE.rmdir()  # roles of a stack keep their stamps here too
    for name in (LOCKS, *([] if keep_log else [str(HELPER_LOG), f"{HELPER_LOG}.1"])):
        remove_file(Path(name))
    left = proof("", [])
    if left:
        raise Trouble(f"the agent is gone, but this is left of leases: {'; '.join(left)}")
    say("the agent and all it made are gone")


def _end_service(uid: int) -> None:
    for pid, _name, _uid in processes(lambda one: one == uid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)


def need_root(verb: str) -> None:
    """Refuse a command that changes the machine to whoever may not."""
    if os.geteuid() != 0:
        raise Trouble(f"{verb} changes the machine and needs root: sudo python3 agent.py {verb}")
