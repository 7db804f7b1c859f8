"""Inheritance over levels: global → site → instance → project → feature → command line."""

from __future__ import annotations

import pytest

ORDER = ["built-in", "global", "site", "instance", "project", "feature", "command line"]
FILES = {
    "global": "essaim.yaml",
    "site": "sites/rhodey/site.yaml",
    "instance": "sites/rhodey/blue/instance.yaml",
    "project": "sites/rhodey/blue/algebra/project.yaml",
    "feature": "sites/rhodey/blue/algebra/exam.yaml",
}
STACK = "sites/rhodey/blue/algebra/exam.yaml"


@pytest.fixture
def tall(empty):
    """A lab with a file on each level."""
    for number, (level, file) in enumerate(FILES.items(), start=1):
        extra = "site: {driver: sandbox}\n" if level == "site" else ""
        if level == "feature":
            extra = "name: exam\nimage: tiny\ntopology: {m: {labels: {who: '${who}'}}}\n"
        empty.write(file, f"{extra}who: {level}\nnetwork: {{cidr: 10.{number}.0.0/24}}\n")
    return empty


def test_each_level_overrides_the_one_above(tall):  # R-E3
    composed = tall.compose(where=STACK)
    assert composed.stack.network.cidr == "10.5.0.0/24"
    assert composed.stack.site.name == "rhodey"
    settings = composed.provenance.explain("network.cidr")
    assert [s.level for s in settings] == ORDER[:-1][::-1]
    assert [s.wins for s in settings] == [True] + [False] * 5
    composed = tall.compose("network.cidr=10.9.0.0/24", where=STACK)
    assert [s.level for s in composed.provenance.explain("network.cidr")] == ORDER[::-1]


@pytest.mark.parametrize("level", list(FILES)[:-1])
def test_a_value_set_only_at_a_level_can_be_used_and_overridden(tall, level):  # R-E3
    for file in FILES.values():
        text = (tall.root / file).read_text()
        tall.write(file, "\n".join(x for x in text.splitlines() if not x.startswith("who:")))
    file = FILES[level]
    tall.write(file, (tall.root / file).read_text() + f"\nwho: only-{level}\n")
    assert tall.compose(where=STACK).stack.machines[0].labels == {"who": f"only-{level}"}
    composed = tall.compose("who=me", where=STACK)
    assert composed.stack.machines[0].labels == {"who": "me"}
    assert [s.level for s in composed.provenance.explain("who")] == ["command line", level]


def test_interpolations_reach_across_levels(tall):
    tall.write("essaim.yaml", "network: {cidr: '10.${net}.0.0/24'}\n")
    for level in ("site", "instance", "project", "feature"):
        text = (tall.root / FILES[level]).read_text()
        tall.write(FILES[level], "\n".join(x for x in text.splitlines() if "cidr" not in x))
    tall.write(FILES["project"], "net: 44\nwho: x\n")
    assert tall.compose(where=STACK).stack.network.cidr == "10.44.0.0/24"


def test_the_chosen_site_brings_its_level(lab):  # R-E8
    lab.write(
        "sites/rhodey/site.yaml", "site: {driver: sandbox, slots: {start: 3}}\nimage: other\n"
    )
    text = (lab.root / "cluster/stack.yaml").read_text().replace("image: tiny\n", "")
    lab.write("cluster/stack.yaml", text + "\n")
    lab.write("essaim.yaml", "image: tiny\n")
    assert set(lab.compose().stack.images) == {"tiny"}
    stack = lab.compose("site=rhodey").stack
    assert stack.site.name == "rhodey"
    assert stack.site.slots == {"start": 3}
    assert set(stack.images) == {"other"}


def test_a_sites_level_overrides_the_librarys_option(lab):
    lab.write("site/local.yaml", "driver: sandbox\nslots: {start: 4}\naddress: here\n")
    lab.write("sites/local/site.yaml", "site: {slots: {start: 9}}\n")
    composed = lab.compose()
    assert composed.stack.site.slots == {"start": 9}
    assert composed.stack.site.settings == {"address": "here"}
    assert [s.level for s in composed.provenance.explain("site.slots.start")][:2] == ["site"] * 2


def test_an_inner_levels_choice_of_option_counts(lab):
    lab.write("essaim.yaml", "defaults: [{size: large}, {site: local}]\n")
    lab.write("cluster/stack.yaml", "name: s\nimage: tiny\ntopology: {m: }\n")
    assert lab.compose().stack.machines[0].size.cores == 8
    lab.write(
        "cluster/stack.yaml", "defaults: [{size: medium}]\nname: s\nimage: tiny\ntopology: {m: }\n"
    )
    assert lab.compose().stack.machines[0].size.cores == 2
    composed = lab.compose("size=tiny")
    assert composed.stack.machines[0].size.memory == 256
    choice = [s for s in composed.provenance.explain("size") if s.key == "size"]
    assert [(s.value, s.level) for s in choice] == [
        ("tiny", "command line"),
        ("medium", "feature"),
        ("large", "global"),
        ("small", "built-in"),
    ]


def test_a_config_deep_down_may_choose_the_site(lab):
    lab.write("sites/rhodey/site.yaml", "site: {driver: sandbox}\nwhere: far\n")
    lab.write(
        "cluster/course/algebra.yaml", "# @package _global_\ndefaults: [{override /site: rhodey}]\n"
    )
    lab.write(
        "cluster/stack.yaml",
        """\
        defaults: [{site: local}, {course: algebra}]
        name: s
        image: tiny
        topology: {m: {labels: {w: '${where}'}}}
        """,
    )
    stack = lab.compose().stack
    assert stack.site.name == "rhodey"
    assert stack.machines[0].labels == {"w": "far"}


def test_a_level_may_hold_what_only_other_stacks_use(lab):  # R-E3
    lab.write("essaim.yaml", "mirror: http://mirror.test\n")
    assert lab.compose().values["mirror"] == "http://mirror.test"


def test_a_misspelt_key_of_a_level_is_found(lab):
    lab.write("essaim.yaml", "\nnetwerk: {cidr: 10.0.0.0/24}\n")
    assert lab.problems() == ["essaim.yaml:2: unknown key netwerk (did you mean network?)"]
