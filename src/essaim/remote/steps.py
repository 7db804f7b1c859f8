"""Whether a role's step is due is decided on the machine, in the same command that runs it."""

from __future__ import annotations

import hashlib
import json
import shlex
import urllib.parse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from essaim.model.roles import Role, RoleStep

STAMPS = "/var/lib/essaim"
#: First line of output: what became of the step.
SKIPPED, RAN, DUE = "skip", "run", "due"

# A stamp's first line is the digest of the step itself, its second that of the files it watches,
# both as they were when it last succeeded.  A stamp that is missing differs from everything.
# The role's scripts are evaluated in subshells: as arguments they would be legible in the process
# list, where their own `pgrep -f` finds them.
_IS_DUE = r"""
_stamp=$1 _own=$2 _kind=$3 _unless=$4 _do=$5
shift 5
_watched() {
  for _file; do { sha256sum <"$_file"; } 2>/dev/null || echo absent; done | sha256sum
}
_files=-
[ $# = 0 ] || _files=$(_watched "$@")
_old_own= _old_files=
[ ! -f "$_stamp" ] || { read -r _old_own; read -r _old_files; } <"$_stamp"
_due=0
case $_kind in
  unless | both)
    (set --; eval "$_unless") >/dev/null 2>&1
    [ $? = 0 ] || _due=1
    ;;
  *) [ "$_own" = "$_old_own" ] || _due=1 ;;
esac
case $_kind in watch | both) [ "$_files" = "$_old_files" ] || _due=1 ;; esac
[ $_due = 1 ] || { echo skip; exit 0; }
"""
_RUN = r"""
echo run
(set --; eval "$_do") 2>&1
_code=$?
[ $_code = 0 ] || exit $_code
[ $# = 0 ] || _files=$(_watched "$@")
mkdir -p "${_stamp%/*}" && printf '%s\n%s\n' "$_own" "$_files" >"$_stamp.new" &&
  mv -f "$_stamp.new" "$_stamp" || { echo "$_stamp could not be written"; exit 1; }
"""


def step_script(role: Role, step: RoleStep, env: Mapping[str, str]) -> str:
    """Give the script that runs a step if it is due."""
    return _with_words(role, step, env) + _IS_DUE + _RUN


def due_script(role: Role, step: RoleStep, env: Mapping[str, str]) -> str:
    """Give the script that says whether a step is due, and changes nothing."""
    return f"{_with_words(role, step, env)}{_IS_DUE}echo {DUE}\n"


def _with_words(role: Role, step: RoleStep, env: Mapping[str, str]) -> str:
    body = json.dumps([step.do, sorted(env.items())]).encode()
    words = [
        f"{STAMPS}/{_file_name(role.name)}/{_file_name(step.name)}",
        hashlib.sha256(body).hexdigest(),
        _kind(step),
        step.unless or "",
        step.do,
        *step.watch,
    ]
    return f"set -- {shlex.join(words)}\n"


def _kind(step: RoleStep) -> str:
    if step.unless is not None:
        return "both" if step.watch else "unless"
    return "watch" if step.watch else "once"


def _file_name(name: str) -> str:
    return urllib.parse.quote(name, safe="")
