"""Every workflow by name: what an engine is given."""

from __future__ import annotations

from essaim.workflows.applying import APPLY
from essaim.workflows.building import BUILD, GATE
from essaim.workflows.cleaning import CLEAN
from essaim.workflows.configuring import CONFIGURE
from essaim.workflows.migrating import MIGRATE
from essaim.workflows.raising import RAISE, REBUILD, START
from essaim.workflows.releasing import RELEASE
from essaim.workflows.renewing import RENEW
from essaim.workflows.renting import RENT
from essaim.workflows.retiring import DESTROY, RETIRE

WORKFLOWS = {
    workflow.name: workflow
    for workflow in (
        *(APPLY, BUILD, CONFIGURE, DESTROY, GATE, RAISE, REBUILD, RETIRE, START),
        *(CLEAN, MIGRATE, RELEASE, RENEW, RENT),
    )
}
