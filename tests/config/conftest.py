"""A small lab on disk, with its own roles and image, so that no test leans on the library's."""

from __future__ import annotations

from textwrap import dedent

import pytest

from essaim.config.compose import compose
from essaim.model.errors import InvalidError

STACK = """\
defaults: [{scheduler: slurm}, {size: small}, {site: local}, _self_]
name: ${scheduler.name}
nodes: 4
image: tiny
topology:
  controller: {roles: ["${scheduler.roles.controller}"]}
  nodes: {count: "${nodes}", roles: ["${scheduler.roles.node}"]}
network: {cidr: 10.77.0.0/24}
"""


class Lab:
    """Writes files and composes stacks in a temporary lab."""

    def __init__(self, root):
        self.root = root

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text))
        return file

    def compose(self, *overrides, where="cluster"):
        return compose(str(self.root / where), overrides)

    def problems(self, *overrides, where="cluster"):
        """What is wrong, as the lines a person would read."""
        with pytest.raises(InvalidError) as caught:
            self.compose(*overrides, where=where)
        assert caught.value.exit_code == 2
        return [str(problem) for problem in caught.value.problems]


@pytest.fixture
def empty(tmp_path, monkeypatch):
    """A lab without a stack; the current directory is its root."""
    monkeypatch.chdir(tmp_path)
    lab = Lab(tmp_path)
    lab.write("essaim.yaml", "network: {cidr: 10.1.0.0/24}\n")
    lab.write("images/tiny.yaml", "builder: debian\nsuite: bookworm\n")
    lab.write("images/other.yaml", "builder: debian\nsuite: trixie\n")
    lab.write(
        "roles/head/role.yaml",
        """\
        summary: a controller
        members: {workers: worker}
        vars: {partition: main, key: nothing}
        provides:
          address: {value: "{{ machine.address }}"}
          token: {command: cat /etc/token, secret: true}
        run:
          - {name: start, do: "true"}
        """,
    )
    lab.write(
        "roles/worker/role.yaml",
        """\
        needs: {address: head, token: head}
        files: [{template: token.j2, to: /etc/token, mode: "0400"}]
        run: [{name: join, do: "true", env: {HEAD: "{{ needs.address }}"}}]
        leave: [{name: drain, on: head, do: "true"}]
        """,
    )
    lab.write("roles/worker/token.j2", "{{ needs.token }}\n")
    return lab


@pytest.fixture
def lab(empty):
    """The same lab with a stack in `cluster/`."""
    empty.write("cluster/stack.yaml", STACK)
    for name in ("slurm", "gridengine"):
        empty.write(
            f"cluster/scheduler/{name}.yaml",
            f"""\
            name: {name}
            roles:
              controller: head
              node: worker
            """,
        )
    return empty
