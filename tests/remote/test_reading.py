"""What a template reads is found without rendering it."""

from __future__ import annotations

import pytest

from essaim.model.roles import Role, RoleFile
from essaim.remote.reading import reads


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("plain", set()),
        ("{{ machine.name }} {{ stack }} {{ members.nodes | length }}", set()),
        ("{{ needs.key }}", {"needs.key"}),
        ("{{ needs['key'] }}", {"needs.key"}),
        ("{{ vars.a.b }} {{ vars['c'] }}", {"vars.a", "vars.c"}),
        ("{% if needs.key == 'x' %}y{% endif %}", {"needs.key"}),
        ("{% set n = needs %}{{ n.key }}", {"needs"}),
        ("{{ vars[machine.name] }}", {"vars"}),
        ("{% for k, v in vars.items() %}{{ v }}{% endfor %}", {"vars.items"}),
        ("{{ vars | tojson }}", {"vars"}),
        ("{% set vars = 1 %}", set()),
    ],
)
def test_a_line_of_content(tmp_path, text, found):
    role = Role(name="r", path=tmp_path, digest=text)
    assert reads(role, RoleFile(to="/x", content=text)) == found


def test_a_template_with_all_that_it_includes(tmp_path):
    (tmp_path / "a.j2").write_text("{% include 'b.j2' %}{{ vars.port }}")
    (tmp_path / "b.j2").write_text("{% include 'a.j2' %}{{ needs.key }}")
    role = Role(name="r", path=tmp_path, digest="includes")
    assert reads(role, RoleFile(to="/x", template="a.j2")) == {"needs.key", "vars.port"}


def test_an_include_that_only_rendering_knows_may_read_anything(tmp_path):
    role = Role(name="r", path=tmp_path, digest="dynamic")
    file = RoleFile(to="/x", content="{% include machine.name %}")
    assert reads(role, file) == {"needs", "vars"}


def test_a_copy_reads_nothing(tmp_path):
    (tmp_path / "c").write_text("{{ needs.key }}")
    role = Role(name="r", path=tmp_path, digest="copy")
    assert reads(role, RoleFile(to="/x", copy="c")) == frozenset()


def test_an_include_that_need_not_be_there_reads_nothing(tmp_path):
    role = Role(name="r", path=tmp_path, digest="gone")
    file = RoleFile(to="/x", content="{% include 'b.j2' ignore missing %}{{ vars.a }}")
    assert reads(role, file) == {"vars.a"}
