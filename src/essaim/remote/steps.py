"""Whether a role's step is due is decided on the machine, in the same command that runs it."""

from __future__ import annotations

import hashlib
import json
import urllib.parse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from essaim.model.roles import Role, RoleStep

STAMPS = "/var/lib/essaim"
#: First line of output: what became of the step.
SKIPPED, RAN = "skip", "run"

# A stamp's first line is the digest of the step itself, its second that of the files it watches,
# both as they were when it last succeeded.  A stamp that is missing differs from everything.
RUN_STEP = r"""
stamp=$1 own=$2 kind=$3 unless=$4 do=$5
shift 5
watched() {
  for file; do { sha256sum <"$file"; } 2>/dev/null || echo absent; done | sha256sum
}
files=-
[ $# = 0 ] || files=$(watched "$@")
old_own= old_files=
[ ! -f "$stamp" ] || { read -r old_own; read -r old_files; } <"$stamp"
lacking() { ! sh -c "$unless" >/dev/null 2>&1; }
due() {
  case $kind in
    once) [ "$own" != "$old_own" ] ;;
    watch) [ "$own" != "$old_own" ] || [ "$files" != "$old_files" ] ;;
    unless) lacking ;;
    both) [ "$files" != "$old_files" ] || lacking ;;
  esac
}
due || { echo skip; exit 0; }
echo run
sh -c "$do" 2>&1
code=$?
[ $code = 0 ] || exit $code
[ $# = 0 ] || files=$(watched "$@")
mkdir -p "${stamp%/*}" && printf '%s\n%s\n' "$own" "$files" >"$stamp.new" &&
  mv -f "$stamp.new" "$stamp" || { echo "$stamp could not be written"; exit 1; }
"""


def step_words(role: Role, step: RoleStep, env: Mapping[str, str]) -> list[str]:
    """Give the program and arguments that run a step if it is due."""
    body = json.dumps([step.do, sorted(env.items())]).encode()
    return [
        "sh",
        "-c",
        RUN_STEP,
        "essaim-step",
        f"{STAMPS}/{_file_name(role.name)}/{_file_name(step.name)}",
        hashlib.sha256(body).hexdigest(),
        _kind(step),
        step.unless or "",
        step.do,
        *step.watch,
    ]


def _kind(step: RoleStep) -> str:
    if step.unless is not None:
        return "both" if step.watch else "unless"
    return "watch" if step.watch else "once"


def _file_name(name: str) -> str:
    return urllib.parse.quote(name, safe="")
