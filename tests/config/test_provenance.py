"""Provenance agrees with what was composed, whatever was overridden."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from essaim.config.composition import hydrate, with_references
from essaim.config.provenance import Origin, Provenance
from essaim.config.tree import Tree
from essaim.model.errors import UnknownError
from patience import EVERYTHING

OVERRIDES = [
    "nodes=8",
    "scheduler=gridengine",
    "size=large",
    "size.memory=3G",
    "+extra={a: 1, b: {c: [1, 2]}}",
    "++topology.nodes.labels.room=12",
    "topology.nodes.roles=[head]",
    "topology.controller.roles.0=worker",
    "++network={cidr: 10.5.0.0/24, mtu: 9000}",
    "~network.cidr",
    "topology.controller=null",
    "vars.head.partition=fast",
    "vars.head={key: '${secret:k}'}",
    "sized=plain",
    "mapped.x=2",
]


@pytest.fixture
def rich(lab):
    """A stack that uses most of what merging can do."""
    lab.write(
        "essaim.yaml",
        "network: {cidr: 10.1.0.0/24}\nsized: {a: 1, b: 2}\nmapped: text\nleft: '???'\n",
    )
    text = (lab.root / "cluster/stack.yaml").read_text()
    text += "vars: {head: {partition: main, key: !secret a/key}}\n"
    text += "sized: {b: '${nodes}', c: [1, {d: '${size.cores}'}]}\nmapped: {x: 1}\nleft: here\n"
    lab.write("cluster/stack.yaml", text)
    lab.write("sites/local/site.yaml", "size: {cores: 64}\nleft: '???'\nempty: {}\n")
    return lab


def record(lab, *overrides):
    return hydrate(Tree(str(lab.root / "cluster")), overrides).provenance


def leaves(value, path=()):
    if isinstance(value, dict) and value:
        for key, below in value.items():
            yield from leaves(below, (*path, key))
    else:
        yield ".".join(path), value


CASES = [
    (),
    *((o,) for o in OVERRIDES),
    *zip(OVERRIDES, OVERRIDES[4:] + OVERRIDES[:4], strict=True),
]


def test_the_winner_is_the_composed_value(rich):
    checked = 0
    for overrides in CASES if EVERYTHING else CASES[::3]:
        composition = hydrate(Tree(str(rich.root / "cluster")), overrides)
        raw = with_references(OmegaConf.to_container(composition.raw, resolve=False))
        for key, value in leaves(raw):
            winner, *others = [s for s in composition.provenance.explain(key) if s.key == key]
            assert winner.wins, (overrides, key)
            assert winner.value == value, (overrides, key)
            assert not any(other.wins for other in others)
            checked += 1
        assert {".".join(p) for p in composition.provenance.leaves()} == dict(leaves(raw)).keys()
    assert checked > 200


def test_every_place_is_a_line_that_says_so(rich):
    provenance = record(rich, "sized=plain")
    for path in provenance.leaves():
        for setting in provenance.explain(".".join(path)):
            if setting.place is None:
                assert setting.level == "command line"
            elif setting.key != "site.name":  # a site's name is that of its file
                line = Path(setting.place.file).read_text().splitlines()[setting.place.line - 1]
                assert setting.key.rpartition(".")[2] in line or "defaults" in line


def test_a_subtree_lists_all_its_leaves(rich):
    keys = [s.key for s in record(rich).explain("topology") if s.wins]
    assert "topology.controller.roles" in keys
    assert "topology.nodes.count" in keys


def test_an_interpolation_leads_to_what_it_names(rich):
    settings = record(rich, "nodes=2").explain("sized.b")
    assert [(s.key, s.value, s.level) for s in settings] == [
        ("sized.b", "${nodes}", "feature"),
        ("sized.b", 2, "global"),
        ("nodes", 2, "command line"),
        ("nodes", 4, "feature"),
    ]


def test_a_secret_is_shown_by_name(rich):
    setting = record(rich).explain("vars.head.key")[0]
    assert str(setting.value) == "!secret a/key"


def test_a_part_of_a_list_is_explained_by_the_list(rich):
    provenance = record(rich)
    assert provenance.explain("sized.c[0]") == provenance.explain("sized.c.0")
    assert provenance.explain("sized.c[0]")[0].key == "sized.c"


def test_a_key_behind_an_interpolation_is_followed():
    provenance = Provenance()
    provenance.merge(
        (), {"a": "${b.c}", "b": {"c": {"d": 1}, "e": "${.c.d}"}}, lambda _: Origin("x")
    )
    assert [s.key for s in provenance.explain("a.d")] == ["a", "b.c.d"]
    assert [s.key for s in provenance.explain("b.e")] == ["b.e", "b.c.d"]


def test_interpolations_in_a_circle_are_explained_once():
    provenance = Provenance()
    provenance.merge((), {"a": "${b}", "b": "${a}"}, lambda _: Origin("x"))
    assert [s.key for s in provenance.explain("a")] == ["a", "b"]


def test_a_key_may_hold_dots():
    provenance = Provenance()
    provenance.merge((), {"labels": {"example.org/room": "1"}}, lambda _: Origin("x"))
    assert provenance.explain("labels.example.org/room")[0].value == "1"


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("topologgy", "did you mean topology?"),
        ("topology.nodes.cuont", "did you mean topology.nodes.count?"),
        ("network.cdir", "did you mean network.cidr?"),
        ("zzz", ""),
    ],
)
def test_an_unknown_key_gets_a_near_spelling(rich, key, hint):
    with pytest.raises(UnknownError) as caught:
        record(rich).explain(key)
    assert caught.value.hint == hint
    assert caught.value.exit_code == 2
