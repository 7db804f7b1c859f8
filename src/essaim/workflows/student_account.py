"""The student's account on their machine: made, given its SSH keys, and locked.

Root gets in by the driver's own way where it has one, else over SSH.  What is put there: a local
account (unless the directory has it), and the keys it may log in with in a file of root's,
`/etc/ssh/authorized_keys.d/LOGIN`, so that a home on a file server is never written to.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from essaim.engine.workflow import Context
from essaim.model.errors import EssaimError, NotYetError, RejectedError, TransientError
from essaim.model.machines import Dials, Executed, GuestCommands, Slow
from essaim.model.runs import Again
from essaim.plan.rosters import ACCOUNT, HOME, LOGIN, PERSON, UID, Access, Student
from essaim.remote.meeting import shown_key
from essaim.workflows.schooling import placed, school
from essaim.workflows.settling import ANSWER_WITHIN, LOOK, settle
from essaim.workflows.tools import address_from_here, tools, work

if TYPE_CHECKING:
    from essaim.model.stacks import Machine

#: Seconds the script may take, and a machine that is about to be retired to answer.
WITHIN, LOCK_WITHIN = 60.0, 10.0
_HOST_KEY = re.compile(r"^host_key (ssh-ed25519 [A-Za-z0-9+/=]+)", re.MULTILINE)

# $1 local, directory or lock; $2 login; $3 uid and $4 home, perhaps empty; $5 full name; $6 keys.
# A password of * opens nothing and does not count as locked, as the usual ! does for sshd.
_SCRIPT = r"""
set -eu; umask 022
mode=$1 login=$2 uid=$3 home=$4 person=$5 keys=$6
folder=/etc/ssh/authorized_keys.d
field() { awk -F: -v login="$login" -v n="$1" '$1 == login { print $n }' "$2"; }
refuse() { echo "$1"; exit 70; }
here=$(field 3 /etc/passwd)
if [ "$mode" = lock ]; then
  rm -f "$folder/$login"
  if [ -n "$here" ]; then usermod -e 1 -- "$login"; fi
  exit 0
fi
if [ "$mode" = local ]; then
  if [ -n "$here" ]; then
    [ "$here" -ge 1000 ] || refuse "$login is an account of the system there"
    [ "${uid:-$here}" = "$here" ] || refuse "$login has uid $here there, not $uid"
    usermod -e '' -- "$login"
  else
    if [ -n "$uid" ]; then
      other=$(awk -F: -v uid="$uid" '$3 == uid { print $1; exit }' /etc/passwd)
      [ -z "$other" ] || refuse "uid $uid is $other's there"
      mapped='$1 <= uid && uid - $1 < $3 { ok = 1 } END { exit !ok }'
      awk -v uid="$uid" "$mapped" /proc/self/uid_map ||
        refuse "uid $uid is outside of the ids this container has (extras.idmap of the image)"
    fi
    shell=/bin/sh; [ ! -x /bin/bash ] || shell=/bin/bash
    set -- -m -s "$shell" -p '*' -c "$person"
    [ -z "$uid" ] || set -- "$@" -u "$uid"
    if [ -n "$home" ]; then set -- "$@" -d "$home"; mkdir -p "$(dirname "$home")"; fi
    useradd "$@" -- "$login" 2>/dev/null || useradd --badname "$@" -- "$login"
  fi
  case $(field 2 /etc/shadow) in '!' | '!!' | '!*') usermod -p '*' -- "$login" ;; esac
fi
mkdir -p "$folder"; chmod 755 "$folder"
printf '%s\n' "$keys" >"$folder/.$login.new"; chmod 644 "$folder/.$login.new"
mv "$folder/.$login.new" "$folder/$login"

main=/etc/ssh/sshd_config own=/etc/ssh/sshd_config.d/00-essaim-keys.conf
line="AuthorizedKeysFile .ssh/authorized_keys .ssh/authorized_keys2 $folder/%u"
if ! grep -qsxF "$line" "$own" "$main"; then
  [ -e "$main" ] || refuse "there is no sshd on this machine (no $main)"
  if grep -qE '^[[:space:]]*Include[[:space:]]+/etc/ssh/sshd_config\.d/\*\.conf' "$main"; then
    mkdir -p /etc/ssh/sshd_config.d; printf '%s\n' "$line" >"$own.new"; mv "$own.new" "$own"
  else
    { printf '%s\n' "$line"; cat "$main"; } >"$main.new"
    chmod 644 "$main.new"; mv "$main.new" "$main"
  fi
fi
# Marked when it is done: a reload that was cut short is caught up on.
mark=/run/essaim-sshd-reloaded
if [ ! -e "$mark" ]; then
  if [ -d /run/systemd/system ]; then
    systemctl reload ssh 2>/dev/null || systemctl reload sshd
  else
    for each in /proc/[0-9]*; do
      case $(tr '\0' ' ' <"$each/cmdline" 2>/dev/null) in
        *' -R '*) ;; # a connection
        /usr/sbin/sshd\ * | 'sshd: /usr/sbin/sshd '*) kill -HUP "${each#/proc/}" ;;
      esac
    done
  fi
  : >"$mark"
  echo reloaded
fi
file=/etc/ssh/ssh_host_ed25519_key.pub
if [ -e "$file" ]; then printf 'host_key '; cat "$file"; fi
"""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The account as it is to be."""

    mode: str
    login: str
    uid: str
    home: str
    person: str
    keys: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Differs when something of it does; not for the full name."""
        its = [self.mode, self.login, self.uid, self.home, *self.keys]
        return hashlib.sha256(json.dumps(its).encode()).hexdigest()

    @property
    def command(self) -> list[str]:
        """What makes it so, run as root; may be repeated.  Nothing in it is a secret."""
        its = [self.mode, self.login, self.uid, self.home, self.person, "\n".join(self.keys)]
        return ["sh", "-c", _SCRIPT, "essaim", *its]


def gateway_keys(context: Context) -> Sequence[str]:
    """The keys gateways log in with; where nobody says any, that of the machines themselves."""
    ask = school(context).gateway_keys
    return ask() if ask else (tools(context).keyring.user_public_key(),)


def wanted_account(machine: Machine, key: str, gateway_keys: Sequence[str]) -> Wanted:
    """The account a student is to have on their machine, which gateways log in to as well."""
    labels = machine.labels
    return Wanted(
        mode=labels.get(ACCOUNT, "local"),
        login=labels[LOGIN],
        uid=labels.get(UID, ""),
        home=labels.get(HOME, ""),
        # A field of /etc/passwd.
        person=re.sub(r"[:,\s]+", " ", labels.get(PERSON, "")).strip(),
        keys=(*gateway_keys, key) if key else tuple(gateway_keys),
    )


def make(context: Context) -> Again | None:
    """Make the account on a machine whose disk is new."""
    return _apply(context, fresh=True)


def renew(context: Context) -> Again | None:
    """Make the account as it is wanted now on a machine that the student has worked on."""
    return _apply(context, fresh=False)


def catch_up(context: Context) -> Again | None:
    """Renew the account unless it is as wanted: a key may have come while the machine was off."""
    machine, student = placed(context), _student(context)
    wanted = wanted_account(machine, student.key if student else "", gateway_keys(context))
    if student is None or (student.access.digest == wanted.digest and not student.access.error):
        return None
    return _apply(context, fresh=False)


def lock(context: Context) -> None:
    """Let nobody log in to the account any more, if the machine still answers.

    It is turned off next, so one that does not answer is no reason to wait.
    """
    student, machine = _student(context), placed(context)
    if student is None or not student.access.digest:
        return
    locked = Wanted("lock", machine.labels[LOGIN], "", "", "", ())
    try:
        way = _way(context, machine, student, fresh=False, within=LOCK_WITHIN)
        if way is not None and not isinstance(way, Again):
            way.run(locked.command)
    except EssaimError as error:
        context.note(f"the account was not locked: {error.what}")
    known = Access(host_key=student.access.host_key)
    school(context).rosters.access.put(str(machine.name), known)


def _apply(context: Context, *, fresh: bool) -> Again | None:
    """Bring the account onto the machine.

    What cannot be done is kept for people to see and to retry; the machine is of use without.
    """
    machine, student = placed(context), _student(context)
    if student is None or machine.labels.get(ACCOUNT) == "none":
        return None
    its, access = tools(context), school(context).rosters.access
    before = Access() if fresh else student.access
    name = str(machine.name)
    wanted = wanted_account(machine, student.key, gateway_keys(context))
    try:
        way = _way(context, machine, student, fresh=fresh, within=LOOK)
        if way is None or isinstance(way, Again):
            return way
        host_key = way.finish(_checked(machine, way.run(wanted.command)))
    except NotYetError:
        raise
    except TransientError as error:
        if context.elapsed < _patience(context):
            return Again(1.0, note="waiting to make the student's account")
        access.put(name, replace(before, error=error.what))
        return None
    except EssaimError as error:
        access.put(name, replace(before, error=error.what))
        return None
    finally:
        its.remote.drop(machine.name)  # hundreds of open connections are of no use
    done = Access(digest=wanted.digest, key=student.key, host_key=host_key)
    access.put(name, done)
    return None


@dataclass(frozen=True, slots=True)
class _Way:
    """How commands are run as root on a machine."""

    run: Callable[[Sequence[str]], Executed]
    #: Given what the script printed, waits until sshd is itself again and returns the host key.
    finish: Callable[[str], str]


def _way(
    context: Context, machine: Machine, student: Student, *, fresh: bool, within: float
) -> _Way | Again | None:
    """How a command is run as root on the machine; None when the site gives no way."""
    site = work(context).stack.site
    driver = tools(context).driver(site)
    first = site.settings.get("host_keys") == "first"
    if isinstance(driver, GuestCommands):
        try:
            found = _inside(driver, machine)
        except TransientError:
            # A virtual machine without a guest agent never answers so; SSH may.
            if not first or context.elapsed < _patience(context) / 2:
                raise
            found = None
        if found is not None:
            return found
    if not first and not isinstance(driver, Dials):
        return None
    context.note("waiting for SSH")
    if first:
        _pin(context, machine, "" if fresh else student.access.host_key)
    return _over_ssh(context, machine, within)


def _inside(driver: GuestCommands, machine: Machine) -> _Way | None:
    """The driver's own way; the machine's host key is then learnt from the machine itself."""
    # A command that always succeeds comes first: what fails then is the way, not the script.
    probe = driver.execute(machine.name, ["true"])
    if probe is None:
        return None
    if probe.exit_code:
        raise TransientError(f"{machine.name}: {probe.output.strip()[-300:]}")
    return _Way(lambda command: driver.execute(machine.name, command) or _gone(machine), _told)


def _over_ssh(context: Context, machine: Machine, within: float) -> _Way | Again:
    its, site = tools(context), work(context).stack.site
    target = its.target(site, machine)
    its.remote.reach(target, within=within)
    again = settle(context, machine, strict=False) if isinstance(its.driver(site), Slow) else None
    if again is not None:
        return again

    def run(command: Sequence[str]) -> Executed:
        done = its.remote.run(target, command, within=WITHIN)
        return Executed(exit_code=done.exit_code, output=done.output)

    def finish(printed: str) -> str:
        if "reloaded" in printed.splitlines():
            its.remote.drop(machine.name)
            its.remote.reach(target, within=ANSWER_WITHIN)
        return target.host_key

    return _Way(run, finish)


def _told(printed: str) -> str:
    found = _HOST_KEY.search(printed)
    if found is None:
        raise RejectedError(
            "the machine has no ed25519 host key", hint="ssh-keygen -A in its image"
        )
    return found[1]


def _pin(context: Context, machine: Machine, known: str) -> None:
    """Believe the host key that is known of the machine, or else the one it shows first."""
    address = address_from_here(work(context).stack.site, machine)
    key = known or shown_key(address)
    if not key:
        raise TransientError(f"{machine.name}: nothing at {address} shows a host key")
    tools(context).keyring.pin(machine.name, key)


def _checked(machine: Machine, done: Executed) -> str:
    """Return what the script printed; RejectedError when it failed."""
    if done.exit_code == 0:
        return done.output
    lines = done.output.strip().splitlines() or [f"exit code {done.exit_code}"]
    raise RejectedError(f"{machine.name}: account {machine.labels[LOGIN]}: {lines[-1]}")


def _gone(machine: Machine) -> Executed:
    raise TransientError(f"{machine.name}: the way into it is gone")


def _patience(context: Context) -> float:
    driver = tools(context).driver(work(context).stack.site)
    return driver.answers_within() if isinstance(driver, Slow) else 3 * ANSWER_WITHIN


def _student(context: Context) -> Student | None:
    return school(context).rosters.of_machine(str(placed(context).name))
