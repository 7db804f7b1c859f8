"""A misspelt pool is called a pool that is not there, whatever rights the account has."""

from __future__ import annotations

import pytest

from drivers.lab import NETWORK
from drivers.proxmox_lab import TEMPLATE, prox_lab
from essaim.model.errors import RejectedError


def refusal(it, **settings) -> RejectedError:
    machine = it.machine("lab", 1)
    with pytest.raises(RejectedError) as caught:
        it.new_driver(**settings).create(machine, NETWORK, TEMPLATE, it.seed(machine))
    return caught.value


@pytest.mark.parametrize("narrow", [True, False])
def test_a_pool_that_is_not_there_is_named_with_a_near_spelling(narrow):
    with prox_lab(narrow=narrow) as it:
        it.stack("lab")
        error = refusal(it, pool="studnets")
        assert "there is no pool studnets" in error.what
        assert error.hint.startswith("did you mean students? pool: in the site file names it")
        assert "PVE" not in error.hint  # no roles
        assert "there are: students" in refusal(it, pool="elsewhere").hint


def test_what_is_denied_for_another_reason_is_still_said_to_be_denied():
    with prox_lab() as it:
        it.stack("lab")
        access = it.sim.cluster.access
        access.roles["PVETemplateUser"] -= {"VM.Clone"}
        access.changed()
        denied = refusal(it)
        assert "there is no" not in denied.what
        assert "VM.Clone on /vms/9000" in denied.hint
