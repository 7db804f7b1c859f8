"""Play a project's playbook on all its machines: here by ansible-runner, or by AWX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from essaim.config.plays import resolve
from essaim.config.projected import play_of
from essaim.engine.workflow import Backoff, Context, OnFailure, Step, Workflow
from essaim.model.errors import StuckError
from essaim.model.plans import Applied
from essaim.model.runs import Again
from essaim.plan.rosters import HOST as FULL_NAME
from essaim.remote import playing, roles
from essaim.remote.render import Given
from essaim.workflows.configuring import recorder
from essaim.workflows.tools import tools, work

if TYPE_CHECKING:
    from essaim.config.plays import Play
    from essaim.model.stacks import Machine
    from essaim.remote.awx import Awx
    from essaim.remote.keyring import Keyring
    from essaim.remote.playing import Player

#: Under this name it is kept what was played on a machine, as if it were a role.
PLAYBOOK = "playbook"
#: Seconds between two looks at a job of AWX: soon at first, later less often.
SOONEST, LATEST = 1.0, 15.0


def launch(context: Context) -> dict[str, Any]:
    """Begin a job of AWX, or find the one that was begun; nothing when we play ourselves."""
    wanted = _play(context)
    if wanted.executor != "awx":
        return {}
    hidden: list[str] = []
    extravars = resolve(wanted.extravars, work(context).lab, hidden)
    with _awx(context) as awx:
        context.note("telling AWX of the machines")
        # By the addresses of their own network: AWX is there, whatever we see of it.
        machines = work(context).stack.machines
        awx.tell(wanted.group, [(_called(each), each.address) for each in machines])
        job = awx.launch(wanted, extravars, run=context.run.id)
    context.note(f"AWX job {job}")
    return {"job": job}


def play(context: Context) -> Again | None:
    """Play it, or wait for AWX to have played it."""
    wanted, its, at = _play(context), tools(context), work(context)
    if wanted.executor == "awx":
        return _follow(context, context.outputs["launch"]["job"])
    hidden: list[str] = []
    extravars = resolve(wanted.extravars, at.lab, hidden)
    playing.play(
        wanted,
        _players(context),
        extravars,
        secrets=hidden,
        keyring=its.keyring,
        proxy=its.proxy(at.stack.site),
        record=recorder(context),
        note=context.note,
    )
    return None


def record(context: Context) -> None:
    """Remember what was played on which machines, so that the next plan leaves it alone."""
    its, at = tools(context), work(context)
    hidden: list[str] = []
    resolve(_play(context).extravars, at.lab, hidden)
    needs = secrets_digest(hidden, its.keyring)
    digest = context.run.input["digest"]
    its.stacks.record_applied(
        *(
            Applied(machine=str(each.name), role=PLAYBOOK, digest=digest, needs=needs)
            for each in at.stack.machines
        )
    )


def secrets_digest(secrets: Sequence[str], keyring: Keyring) -> str:
    """Digest secrets so that the digest tells nothing about them."""
    given = {str(number): Given(secret, secret=True) for number, secret in enumerate(secrets)}
    return roles.needs_digest(given, keyring.digest_key())


# No undo: what a playbook did is not taken back; the machines are kept for a person to look at,
# and the same command, or resuming the run, plays it again.
PLAY = Workflow(
    "play",
    tuple(
        Step(name=do.__name__, do=do, retry=Backoff(attempts=4), on_failure=OnFailure.STOP)
        for do in (launch, play, record)
    ),
)


def _play(context: Context) -> Play:
    found = play_of(work(context).stack)
    if found is None:
        raise StuckError(f"{work(context).stack.name} has no playbook")
    return found


def _players(context: Context) -> list[Player]:
    its, at = tools(context), work(context)
    return [
        playing.Player(
            name=_called(each),
            target=its.target(at.stack.site, each),
            vars={"essaim_machine": str(each.name)},
        )
        for each in at.stack.machines
    ]


def _called(wanted: Machine) -> str:
    return wanted.labels.get(FULL_NAME) or wanted.name.machine


def _awx(context: Context) -> Awx:
    from essaim.remote.awx import Awx  # noqa: PLC0415 - few have one

    at = work(context)
    return Awx(at.stack.site, at.lab)


def _follow(context: Context, job: int) -> Again | None:
    with _awx(context) as awx:
        state = awx.state(job)
        if not state.over:
            note = f"AWX job {job}: {state.doing or state.status}"
            return Again(min(LATEST, SOONEST + context.elapsed / 10), note=note)
        hidden: list[str] = []
        wanted = _play(context)
        resolve(wanted.extravars, work(context).lab, hidden)
        names = {each.name: str(each.target.name) for each in _players(context)}
        awx.tell_end(job, state, wanted, names, secrets=hidden, record=recorder(context))
    return None
