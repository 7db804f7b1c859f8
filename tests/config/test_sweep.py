"""Sweeps: one command, several stacks."""

from __future__ import annotations

import pytest

from essaim.config.compose import compose, sweep
from essaim.model.errors import InvalidError


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], [()]),
        (["nodes=3"], [("nodes=3",)]),
        (["nodes=2,4"], [("nodes=2",), ("nodes=4",)]),
        (["nodes=range(1,4)"], [("nodes=1",), ("nodes=2",), ("nodes=3",)]),
        (
            ["scheduler=slurm,gridengine", "nodes=choice(1,2)"],
            [
                ("scheduler=slurm", "nodes=1"),
                ("scheduler=slurm", "nodes=2"),
                ("scheduler=gridengine", "nodes=1"),
                ("scheduler=gridengine", "nodes=2"),
            ],
        ),
        (["scheduler=glob(*)"], [("scheduler=gridengine",), ("scheduler=slurm",)]),
        (["~network", "nodes=1,2"], [("~network", "nodes=1"), ("~network", "nodes=2")]),
        (
            ["topology.nodes.roles=[a],[b]"],
            [("topology.nodes.roles=[a]",), ("topology.nodes.roles=[b]",)],
        ),
    ],
)
def test_a_sweep_is_a_list_of_plain_arguments(lab, overrides, expected):  # R-A5
    assert sweep(str(lab.root / "cluster"), overrides) == expected


def test_every_stack_of_a_sweep_composes(lab):
    where = str(lab.root / "cluster")
    swept = sweep(where, ["scheduler=slurm,gridengine", "nodes=range(0,3)"])
    assert [len(compose(where, each).stack.machines) for each in swept] == [1, 2, 3, 1, 2, 3]


@pytest.mark.parametrize("override", ["nodes=interval(1,2)", "nodes=range(3,3)", "nodes=["])
def test_what_cannot_be_swept_is_refused(lab, override):
    with pytest.raises(InvalidError, match=r"command line, nodes="):
        sweep(str(lab.root / "cluster"), [override])
