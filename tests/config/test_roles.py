"""Roles: read into the model, and refused with a line when they cannot work."""

from __future__ import annotations

import hashlib

import pytest

from essaim.config.roles import read_role, role_names
from essaim.config.tree import LIBRARY, Tree
from essaim.model.roles import Leave, Provide, Ready, Retry, RoleFile, RoleStep

STACK = "name: s\nimage: tiny\ntopology: {m: {roles: [odd]}}\n"


def test_a_role_is_read_whole(lab):
    lab.write("roles/full/playbook.yaml", "")
    lab.write("roles/full/a.conf", "a")
    lab.write(
        "roles/full/role.yaml",
        """\
        summary: everything
        members: {peers: worker}
        needs: {address: head}
        vars: {size: 3}
        provides:
          x: {value: "{{ vars.size }}"}
          y: {command: cat /y, secret: true}
        packages: [vim]
        files:
          - {copy: a.conf, to: /etc/a, owner: www, group: adm, mode: 0600}
          - {content: "hi\\n", to: /etc/b}
        run:
          - name: one
            do: |
              echo one
            unless: "false"
            watch: [/etc/a]
            env: {N: 3}
            retry: {times: 2, wait: 500ms}
            within: 2m
        ready: {command: "true", every: 0.2, within: 1h}
        leave: [{name: bye, on: head, do: "true", within: 5}]
        """,
    )
    read = read_role(Tree(str(lab.root / "cluster")), "full")
    role = read.role
    assert role.path == lab.root / "roles/full"
    assert role.vars == {"size": 3}
    assert role.provides == {
        "x": Provide(value="{{ vars.size }}"),
        "y": Provide(command="cat /y", secret=True),
    }
    assert role.files == (
        RoleFile(to="/etc/a", copy="a.conf", owner="www", group="adm", mode=0o600),
        RoleFile(to="/etc/b", content="hi\n"),
    )
    assert role.run == (
        RoleStep(
            name="one",
            do="echo one\n",
            unless="false",
            watch=("/etc/a",),
            env={"N": "3"},
            retry=Retry(times=2, wait=0.5),
            within=120.0,
        ),
    )
    assert role.ready == Ready(command="true", every=0.2, within=3600.0)
    assert role.leave == (Leave(name="bye", on="head", do="true", within=5.0),)


def test_the_digest_covers_every_file(lab):
    def digest():
        return read_role(Tree(str(lab.root / "cluster")), "worker").role.digest

    first = digest()
    assert digest() == first
    assert len(first) == len(hashlib.sha256().hexdigest())
    extra = lab.write("roles/worker/deep/er.txt", "1")
    second = digest()
    extra.write_text("2")
    assert len({first, second, digest()}) == 3
    extra.unlink()
    assert digest() == first


def test_only_the_roles_a_stack_needs_are_read(lab):
    lab.write("roles/broken/role.yaml", "[")
    assert set(lab.compose().stack.roles) == {"head", "worker"}


def test_roles_are_found_near_the_stack_first(lab):
    lab.write(
        "cluster/roles/head/role.yaml", "provides: {address: {value: x}, token: {value: y}}\n"
    )
    assert lab.compose().stack.roles["head"].path == lab.root / "cluster/roles/head"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("summry: x\n", "roles/odd/role.yaml:1: unknown key summry (did you mean summary?)"),
        ("run:\n- {name: a}\n", "roles/odd/role.yaml:2: run.0.do is missing"),
        (
            "run:\n- {name: a, do: x, onless: y}\n",
            "unknown key run.0.onless (did you mean unless?)",
        ),
        ("run:\n- {name: a, do: x, within: soon}\n", "run.0.within must be a time such as"),
        ("run:\n- {name: a, do: x}\n- {name: a, do: y}\n", ":3: two steps of run are called a"),
        (
            "files:\n- {to: /x, mode: 7}\n",
            'files.0.mode must be a file mode in quotes, such as "0644"',
        ),
        ("files:\n- {to: /x}\n", ":2: a file has one of template, copy and content"),
        (
            "files:\n- {to: /x, content: a, copy: b}\n",
            ":2: a file has one of template, copy and content",
        ),
        ("files:\n- {to: /x, template: no.j2}\n", ":2: there is no file no.j2 in roles/odd"),
        ("files:\n- {to: /x, copy: ../head/role.yaml}\n", ":2: there is no file ../head/role.yaml"),
        ("files:\n- {to: x, content: a}\n", ":2: files.0.to must begin with /, not 'x'"),
        ("files:\n- {to: /x, content: '{{ a'}\n", ":2: files.0.content is not a template: "),
        ("run:\n- {name: a, do: x, env: {A: '{% if %}'}}\n", ":2: run.0.env.A is not a template: "),
        ("provides:\n  x: {value: '{{'}\n", ":2: provides.x.value is not a template: "),
        ("provides:\n  x: {value: a, command: b}\n", ":2: provides.x has one of value and command"),
        ("provides:\n  x: {}\n", ":2: provides.x has one of value and command"),
        ("files:\n- {to: /x, template: bad.j2}\n", "roles/odd/bad.j2:2: not a template: "),
        ("ansible: no.yaml\n", ":1: there is no file no.yaml in roles/odd"),
        (
            "packages: [vim]\nansible: bad.j2\n",
            ":2: a role with ansible has no files, run or packages",
        ),
        ("needs:\n  address: hed\n", ":2: there is no role hed (did you mean head?)"),
        ("members:\n  x: hed\n", ":2: there is no role hed (did you mean head?)"),
        ("leave:\n- {name: a, on: hed, do: x}\n", ":2: there is no role hed (did you mean head?)"),
        ("needs:\n  address: head\n", ":2: odd needs address of head, but no machine carries head"),
        (
            "needs: {adddres: head}\n",
            ":1: odd needs adddres, which head does not provide (did you mean address?)",
        ),
        (
            "needs: {token: head}\nrun:\n- {name: a, do: x, env: {T: '{{ needs.token }}'}}\n",
            ":3: needs.token is secret and may be used in files only, not in env",
        ),
        (
            (
                "needs: {token: head}\nleave:\n"
                "- {name: a, on: head, do: x, env: {T: '{{ needs[\"token\"] }}'}}\n"
            ),
            ":3: needs.token is secret and may be used in files only, not in env",
        ),
        ("packages: [!secret x]\n", ":1: the secret x may stand under vars only"),
        ("vars: {x: !secret nowhere}\n", ":1: there is no secret nowhere"),
    ],
)
def test_mistakes_in_a_role(lab, text, expected):
    lab.write("roles/odd/bad.j2", "fine\n{{ broken\n")
    lab.write("roles/odd/role.yaml", text)
    lab.write("cluster/stack.yaml", STACK)
    problems = lab.problems()
    assert any(expected in problem for problem in problems), problems


def test_roles_that_need_each_other_are_refused(lab):
    lab.write("roles/odd/role.yaml", "provides: {x: {value: a}}\nneeds: {y: even}\n")
    lab.write("roles/even/role.yaml", "provides: {y: {value: a}}\nneeds: {x: odd}\n")
    lab.write("cluster/stack.yaml", "name: s\nimage: tiny\ntopology: {m: {roles: [odd, even]}}\n")
    (problem,) = lab.problems()
    assert "roles need each other in a circle: " in problem
    assert "role.yaml:2: " in problem


def test_a_role_of_no_machine_may_need_anything(lab):
    lab.write(
        "cluster/stack.yaml", "name: s\nimage: tiny\ntopology: {m: {count: 0, roles: [worker]}}\n"
    )
    assert lab.compose().stack.machines == ()


def test_every_role_of_the_library_is_sound(lab):
    tree = Tree(str(lab.root / "cluster"))
    for name in role_names(tree):
        assert read_role(tree, name).role.name == name
    assert (LIBRARY / "size" / "small.yaml").is_file()
