"""Every workflow by name: what an engine is given."""

from __future__ import annotations

from essaim.workflows.applying import APPLY
from essaim.workflows.building import BUILD, GATE
from essaim.workflows.cleaning import CLEAN
from essaim.workflows.configuring import CONFIGURE
from essaim.workflows.enrolling import ENROL, MEND, RESET
from essaim.workflows.migrating import MIGRATE
from essaim.workflows.playing import PLAY
from essaim.workflows.powering import HALT, KEEP, REVERT, UNKEEP, WAKE
from essaim.workflows.projecting import HOST, NAME, REHOST, UNHOST
from essaim.workflows.raising import RAISE, REBUILD, START
from essaim.workflows.releasing import RELEASE
from essaim.workflows.renewing import RENEW
from essaim.workflows.renting import RENT
from essaim.workflows.retiring import DESTROY, RETIRE
from essaim.workflows.teaching import ROSTER
from essaim.workflows.withdrawing import REMOVE, WITHDRAW

WORKFLOWS = {
    workflow.name: workflow
    for workflow in (
        *(APPLY, BUILD, CONFIGURE, DESTROY, GATE, RAISE, REBUILD, RETIRE, START),
        *(CLEAN, MIGRATE, RELEASE, RENEW, RENT),
        *(ENROL, MEND, RESET, ROSTER, WITHDRAW, REMOVE),
        *(WAKE, HALT, KEEP, REVERT, UNKEEP),
        *(HOST, NAME, PLAY, REHOST, UNHOST),
    )
}
