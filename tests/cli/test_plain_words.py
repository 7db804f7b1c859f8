"""Messages are sentences for people: no internals of libraries, no doubled names."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from essaim.cli import report
from essaim.config.overrides import parse
from essaim.model.errors import InvalidError, RejectedError
from essaim.model.machines import Power
from essaim.model.names import MachineName
from essaim.usecases import machines


def test_the_program_s_name_is_said_once(capsys):
    report(RejectedError("essaim: the gateway is away"))
    assert capsys.readouterr().err == "essaim: the gateway is away\n"


def test_an_argument_that_cannot_be_read_is_told_in_our_words():
    with pytest.raises(InvalidError) as caught:
        parse(["+x"])
    assert "it cannot be read" in caught.value.what
    assert "Error parsing" not in caught.value.what


@pytest.mark.parametrize("seen", [[], [Power.OFF]])
def test_a_shell_on_a_machine_that_is_off_is_refused_before_ssh_says_mm_receive_fd(seen):
    name = MachineName("slurm", "nodes-1")
    driver = SimpleNamespace(
        observe=lambda _stack: [SimpleNamespace(name=name, power=power) for power in seen]
    )
    with pytest.raises(RejectedError, match="slurm/nodes-1 is off"):
        machines._must_run(driver, SimpleNamespace(name=name))


def test_a_quota_is_written_out():
    from essaim.usecases import people

    with pytest.raises(InvalidError) as caught:
        people._check_change(None, None, 2e9)
    assert "1000000000" in caught.value.what
