"""Wait for machines that prepare, or configure, themselves."""

from __future__ import annotations

from dataclasses import replace

from essaim.engine.workflow import Context
from essaim.model.errors import RejectedError, TransientError
from essaim.model.machines import Driver, Slow
from essaim.model.roles import Role
from essaim.model.runs import Again
from essaim.model.stacks import Machine
from essaim.remote.seeds_roles import DONE, HOME, PATIENCE
from essaim.remote.ssh import Result, Target
from essaim.workflows import host_keys
from essaim.workflows.tools import Work, tools, work

#: Seconds cloud-init may take once the machine answers, besides what its roles may take; and how
#: often the time its driver gives it to answer, when that is more.
SETTLED_WITHIN, TIMES = 600.0, 2
#: Seconds a machine may take from power-on to its first answer before it counts as silent, where
#: its driver does not say; and how many times that is enough for any other.
ANSWER_WITHIN, LONGEST = 20.0, 5.0
#: Seconds a look may keep a thread, as commands of roles do.
LOOK = 5.0
_NOT_YET, _FAILED = 75, 70

# Looks at the files cloud-init writes: the command itself takes seconds on an emulated processor.
# A machine without cloud-init, or where it has nothing to do, has settled.
_LOOK = r"""
[ -d /run/cloud-init ] && [ ! -e /run/cloud-init/disabled ] || exit 0
result=/run/cloud-init/result.json
while [ ! -e "$result" ]; do
  [ "$LOOKS" -gt 0 ] || exit 75
  LOOKS=$((LOOKS - 1))
  sleep 0.5
done
tr -d ' \n' <"$result" | grep -q '"errors":\[\]' && exit 0
# Which of our roles it was says more than what cloud-init makes of it.
grep '^essaim: role .* exited' /var/log/cloud-init-output.log | tail -n 1 | grep . && exit 70
tr -d '\n' <"$result"
echo
tail -n 3 /var/log/cloud-init-output.log
exit 70
"""


def patience(driver: Driver) -> float:
    """How many times longer things may take there than on a sandbox machine."""
    if not isinstance(driver, Slow):
        return 1.0
    return min(max(1.0, driver.answers_within() / ANSWER_WITHIN), LONGEST)


def unhurried(role: Role, times: float) -> Role:
    """Give a role with its time limits multiplied: its author wrote them for a quick machine."""
    steps = tuple(replace(step, within=step.within * times) for step in role.run)
    ready = role.ready and replace(role.ready, within=role.ready.within * times)
    return replace(role, run=steps, ready=ready)


def autonomous(at: Work) -> bool:
    """Tell whether the machines of a stack configure themselves."""
    return at.stack.bootstrap == "cloud-init"


def catch_up(context: Context, of: Machine) -> Again | None:
    """Wait for a machine that is on, though nobody may have lived to see it answer.

    One that this plan starts has answered before its roles come.
    """
    its, at = tools(context), work(context)
    driver = its.driver(at.stack.site)
    starts = ("raise", "start", "rebuild")
    ours = any(c.verb in starts and c.machine == str(of.name) for c in at.plan.changes)
    if ours or not isinstance(driver, Slow):
        return None
    if (again := host_keys.learn(context, of)) is not None:
        return again
    context.note("waiting for SSH")
    its.remote.reach(its.target(at.stack.site, of), within=driver.answers_within())
    return settle(context, of, strict=False)


def settle(context: Context, of: Machine, *, strict: bool = True) -> Again | None:
    """Wait until cloud-init has done its part on a machine that answers.

    Unless `strict`, it is enough that it has ended, well or not.
    """
    context.note("waiting for cloud-init")
    its, at = tools(context), work(context)
    result = _look(context, its.target(at.stack.site, of))
    if result.exit_code == 0 or (result.exit_code == _FAILED and not strict):
        return None
    driver = its.driver(at.stack.site)
    within = max(SETTLED_WITHIN, TIMES * driver.answers_within()) if isinstance(driver, Slow) else 0
    within += PATIENCE if autonomous(at) else 0
    if result.exit_code == _NOT_YET and context.elapsed < within:
        return Again(1.0, note="waiting for cloud-init")
    hint = f"essaim ssh {of.name}, and look at /var/log/cloud-init.log"
    if autonomous(at):
        hint += f" and {HOME}/log"
    if result.exit_code == _NOT_YET:
        what = f"cloud-init has not ended after {context.elapsed:.0f} s"
        raise RejectedError(f"{of.name}: {what}", hint=hint)
    raise RejectedError(f"{of.name}: cloud-init failed: {result.output.strip()}", hint=hint)


def _look(context: Context, target: Target) -> Result:
    """Look whether cloud-init has ended; a machine too busy to answer has not."""
    try:
        looks = {"LOOKS": f"{LOOK * 2:.0f}"}
        return tools(context).remote.run(target, _LOOK, env=looks, within=60)
    except TransientError as error:
        return Result(exit_code=_NOT_YET, output=error.what, stdout="", seconds=0)


def applied_by_itself(context: Context, target: Target, role: str, digest: str) -> bool:
    """Tell whether a machine has applied this very role to itself since it was started."""
    result = tools(context).remote.run(target, ["cat", DONE], within=60)
    return result.exit_code == 0 and f"{role} {digest}" in result.stdout.splitlines()


def leave_to_us(context: Context, target: Target, role: str) -> None:
    """Make a machine forget how to apply a role, for what it knows is no longer what is wanted."""
    words = ["sh", "-c", 'rm -rf "$1"/[0-9][0-9]-"$2"', "sh", HOME, role]
    tools(context).remote.run(target, words, within=60)
