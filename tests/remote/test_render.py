"""Templates see what they should, and a mistake in one is found from its message."""

from __future__ import annotations

from dataclasses import replace

import pytest

from essaim.model.errors import RejectedError
from essaim.model.names import MachineName
from essaim.remote.render import Facts, Given, render_file, render_text
from remote.conftest import machine

FACTS = Facts(
    stack="lab",
    network="10.77.0.0/24",
    machine=machine(MachineName("lab", "nodes-1")),
    members={
        "nodes": [
            machine(MachineName("lab", f"nodes-{n}"), address=f"10.77.0.{n + 1}", index=n)
            for n in (1, 2)
        ]
    },
    vars={"queue": "all", "items": ["a", "b"]},
    needs={"token": Given("sesame", secret=True), "leader": Given("10.77.0.9")},
)


@pytest.mark.parametrize(
    ("template", "filled"),
    [
        ("plain $HOME", "plain $HOME"),
        ("{{ machine.name }} {{ machine.hostname }}", "nodes-1 nodes-1"),
        ("{{ machine.stack }}/{{ stack }}", "lab/lab"),
        ("{{ machine.address }} {{ machine.group }}-{{ machine.index }}", "10.77.0.2 nodes-1"),
        ("{{ machine.cores }} {{ machine.memory }} {{ machine.disk }}", "2 512 4"),
        ("{{ machine.labels.rack }} {{ machine.image }}", "a base"),
        ("{{ machine.roles | join }}", "worker"),
        ("{% for m in members.nodes %}{{ m.address }} {% endfor %}", "10.77.0.2 10.77.0.3 "),
        ("{{ needs.token }} {{ needs.leader }}", "sesame 10.77.0.9"),
        ("{{ vars.queue }}", "all"),
        ("{{ vars.items | join('+') }}", "a+b"),
        ("{{ network.cidr }} {{ network.netmask }}", "10.77.0.0/24 255.255.255.0"),
        ("{{ network.gateway }}", "10.77.0.1"),
        ("{{ 'a' }}\n", "a\n"),
        ("{{ '<&>' }}", "<&>"),
    ],
)
def test_what_templates_may_use(make_role, template, filled):
    assert render_text(make_role(), template, FACTS, where="here") == filled
    assert render_file(make_role(sources={"t.j2": template}), "t.j2", FACTS) == filled


def test_an_unknown_variable_is_named_with_file_and_line(make_role):
    role = make_role(sources={"t.j2": "first\nsecond\n{{ vars.kueue }}\n"})
    with pytest.raises(RejectedError, match=r"worker/t\.j2:3: .*'kueue'.*queue, items"):
        render_file(role, "t.j2", FACTS)
    role = make_role(sources={"u.j2": "\n{% if 1 %}\n{{ machin.name }}{% endif %}\n"})
    with pytest.raises(RejectedError, match=r"worker/u\.j2:3: 'machin' is undefined") as caught:
        render_file(role, "u.j2", FACTS)
    assert "machine, members" in caught.value.hint


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% if %}", r"role\.yaml: env A:1: "),
        ("{{ 1 / 0 }}", r"role\.yaml: env A:1: division by zero"),
        ("{{ vars | nofilter }}", r"role\.yaml: env A:1: "),
        ("{{ ''.__class__.__mro__ }}", r"unsafe"),
    ],
)
def test_other_mistakes_are_the_authors_too(make_role, template, message):
    with pytest.raises(RejectedError, match=message):
        render_text(make_role(), template, FACTS, where="env A")


def test_a_template_that_is_missing_or_outside_is_refused(make_role, tmp_path):
    (tmp_path / "secret").write_text("x")
    for name in ("none.j2", "../../secret"):
        with pytest.raises(RejectedError, match="there is no template"):
            render_file(make_role(), name, FACTS)


def test_secrets_stay_out_of_the_environment(make_role):
    assert render_text(make_role(), "{{ needs.leader }}", FACTS, where="x", secrets=False)
    with pytest.raises(RejectedError) as caught:
        render_text(make_role(), "{{ needs.token }}", FACTS, where="env TOKEN", secrets=False)
    assert caught.value.hint == "needs.token is secret: it may be used in files only"
    assert "sesame" not in repr(FACTS)


def test_a_changed_role_is_read_again(make_role):
    role = make_role(sources={"t.j2": "one"})
    assert render_file(role, "t.j2", FACTS) == "one"
    role = replace(make_role(sources={"t.j2": "two"}), digest="other")
    assert render_file(role, "t.j2", FACTS) == "two"
