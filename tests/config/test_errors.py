"""Every mistake gets one clear message: file, line, and what was probably meant."""

from __future__ import annotations

import pytest

TOPOLOGY = "name: s\nimage: tiny\ntopology:\n"
BASE = "name: s\nimage: tiny\ntopology: {m: {count: 2}}\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (BASE + "imag: x\n", "cluster/stack.yaml:4: unknown key imag (did you mean image?)"),
        (BASE + "foo: x\n", "cluster/stack.yaml:4: unknown key foo (nothing here uses ${foo})"),
        (BASE + "hints: essaim ssh s/m\n", "cluster/stack.yaml:4: hints must be a list"),
        (
            BASE + 'hints: [essaim ssh s/m, "a\\nb"]\n',
            "cluster/stack.yaml:4: hints.1 must be one line of at most 160 characters",
        ),
        (
            BASE + 'hints: ["\\e[2J"]\n',
            "cluster/stack.yaml:4: hints.0 must be one line of at most 160 characters",
        ),
        (BASE + "hydra: {}\n", "cluster/stack.yaml:4: unknown key hydra"),
        ("image: tiny\ntopology: {m: }\n", "cluster/stack.yaml:1: name is missing"),
        ("name: s\n", "topology names no machines (topology: {nodes: {count: 4}})"),
        (
            "name: S_1\nimage: tiny\ntopology: {m: }\n",
            (
                "cluster/stack.yaml:1: name cannot be 'S_1' "
                "(at most 40 small letters, digits and dashes, a letter first)"
            ),
        ),
        (
            TOPOLOGY + "  m:\n    cuont: 2\n",
            "cluster/stack.yaml:5: unknown key topology.m.cuont (did you mean count?)",
        ),
        (
            TOPOLOGY + "  m: {count: many}\n",
            "cluster/stack.yaml:4: topology.m.count must be a whole number, not 'many'",
        ),
        (
            TOPOLOGY + "  m: {count: true}\n",
            "cluster/stack.yaml:4: topology.m.count must be a whole number, not True",
        ),
        (
            TOPOLOGY + "  m: {count: -1}\n",
            "cluster/stack.yaml:4: topology.m.count must be 0 or more, not -1",
        ),
        (
            TOPOLOGY + "  m: 3\n",
            "cluster/stack.yaml:4: topology.m must be a mapping, not 3",
        ),
        (
            TOPOLOGY + "  m: {roles: head}\n",
            "cluster/stack.yaml:4: topology.m.roles must be a list, not 'head'",
        ),
        (
            TOPOLOGY + "  m:\n    roles:\n      - head\n      - hed\n",
            "cluster/stack.yaml:7: there is no role hed (did you mean head?)",
        ),
        (
            TOPOLOGY + "  m: {roles: [head, head]}\n",
            "cluster/stack.yaml:4: the role head is given to m twice",
        ),
        (
            "name: s\nimage: tny\ntopology: {m: }\n",
            "cluster/stack.yaml:2: there is no image tny (did you mean tiny?)",
        ),
        (
            TOPOLOGY + "  m: {image: othr}\n",
            "cluster/stack.yaml:4: there is no image othr (did you mean other?)",
        ),
        (
            TOPOLOGY + "  m: {size: lrge}\n",
            "cluster/stack.yaml:4: there is no size lrge (did you mean large?)",
        ),
        (
            TOPOLOGY + "  m: {size: {cores: 0, memory: big}}\n",
            (
                "cluster/stack.yaml:4: topology.m.size.memory must be an amount such as "
                "512M or 2G, or a number of MiB, not 'big'"
            ),
        ),
        (BASE + "size: {cores: 0}\n", "cluster/stack.yaml:4: size.cores must be 1 or more, not 0"),
        (
            BASE + "site: {driver: sandbx}\n",
            "cluster/stack.yaml:4: there is no driver sandbx (did you mean sandbox?)",
        ),
        (
            "defaults: [{size: smaal}]\n" + BASE,
            "cluster/stack.yaml:1: the group size has no option smaal (did you mean small?)",
        ),
        (
            "defaults:\n  - {site: local}\n  - {sizes: small}\n" + BASE,
            "cluster/stack.yaml:3: there is no group sizes (did you mean size?)",
        ),
        (
            "defaults:\n  - common\n" + BASE,
            "cluster/stack.yaml:2: there is no file common.yaml",
        ),
        (
            "defaults: small\n" + BASE,
            (
                "cluster/stack.yaml:1: defaults must be a list "
                "(a list of file names and of {group: option})"
            ),
        ),
        (
            "defaults:\n  - {site: local, size: small}\n" + BASE,
            (
                "cluster/stack.yaml:2: {'site': 'local', 'size': 'small'} cannot stand in defaults "
                "(a list of file names and of {group: option})"
            ),
        ),
        (
            "defaults: [{override db: x}]\n" + BASE,
            "cluster/stack.yaml:1: the stack does not choose from a group db",
        ),
        (
            "defaults: [_self_, _self_]\n" + BASE,
            "cluster/stack.yaml:1: Duplicate _self_ defined in cluster/stack.yaml",
        ),
        ("name: '${'\n", "cluster/stack.yaml:1: name cannot be read: "),
        ("# @package\n" + BASE, "cluster/stack.yaml:1: the first line cannot be read: "),
        (
            "name: s\ntopology: [a]\n",
            "cluster/stack.yaml:2: topology is a list here and a mapping there: ",
        ),
        ("defaults: [{size: '???'}]\n" + BASE, "an option of size must be chosen"),
        (
            "name: ${nme}\nimage: tiny\ntopology: {m: }\n",
            "cluster/stack.yaml:1: name names nme, which does not exist (did you mean ${name}?)",
        ),
        (
            BASE + "n: '???'\nnetwork: {cidr: '${n}'}\n",
            "cluster/stack.yaml:4: n must be set (for instance n=… on the command line)",
        ),
        (
            "name: ${image}\nimage: ${name}\ntopology: {m: }\n",
            "cluster/stack.yaml:1: name names itself by its interpolations",
        ),
        (
            TOPOLOGY + "  a: {after: [b]}\n  b: {after: [c]}\n  c: {after: [a]}\n",
            "cluster/stack.yaml:4: groups come after each other in a circle: a → b → c → a",
        ),
        (
            TOPOLOGY + "  alpha: {}\n  b: {after: [alfa]}\n",
            "cluster/stack.yaml:5: there is no group alfa (did you mean alpha?)",
        ),
        (
            TOPOLOGY + "  m: {count: 2}\n  m-2: {}\n",
            "cluster/stack.yaml:5: two machines are called m-2: the group m-2 and one of m",
        ),
        (
            TOPOLOGY + "  Big_One: {}\n",
            "cluster/stack.yaml:4: no machine can be called Big_One",
        ),
        (
            BASE + "network: {cidr: 10.1.0.1/24}\n",
            (
                "cluster/stack.yaml:4: network.cidr must be an IPv4 network, not '10.1.0.1/24' "
                "(did you mean 10.1.0.0/24?)"
            ),
        ),
        (
            TOPOLOGY + "  m: {address: 10.2.0.9}\n",
            "cluster/stack.yaml:4: 10.2.0.9 is outside the network 10.1.0.0/24",
        ),
        (
            TOPOLOGY + "  m: {count: 9, address: 10.1.0.250}\n",
            "cluster/stack.yaml:4: 10.1.0.250 … 10.1.1.2 is outside the network 10.1.0.0/24",
        ),
        (
            TOPOLOGY + "  m: {address: 10.1.0.1}\n",
            "cluster/stack.yaml:4: 10.1.0.1 belongs to the site, as the network's first address",
        ),
        (
            TOPOLOGY + "  m: {address: here}\n",
            "cluster/stack.yaml:4: topology.m.address must be an address, not 'here'",
        ),
        (
            TOPOLOGY + "  a: {}\n  b: {address: 10.1.0.10}\n",
            "cluster/stack.yaml:5: a and b would both have the address 10.1.0.10",
        ),
        (
            TOPOLOGY + "  m: {count: 300}\n",
            (
                "essaim.yaml:1: 10.1.0.0/24 has room for 245 of these 300 machines "
                "(use 10.1.0.0/23 or larger)"
            ),
        ),
        (
            BASE + "vars: {heed: {x: 1}}\n",
            "cluster/stack.yaml:4: there is no role heed (did you mean head?)",
        ),
        (
            "name: s\nimage: tiny\ntopology: {m: {roles: [head]}}\nvars: {head: {partitn: 1}}\n",
            "the role head has no variable partitn (did you mean partition?)",
        ),
        (
            "name: s\nimage: tiny\ntopology: {m: {roles: [worker]}}\n",
            (
                "roles/worker/role.yaml:1: worker needs address of head, "
                "but no machine carries head (give the role head to a group)"
            ),
        ),
        ("name: s\nname: t\n", "cluster/stack.yaml:2: the key name is already set on line 1"),
        ("name: [\n", "cluster/stack.yaml:2: not YAML: "),
        ("- a\n", "cluster/stack.yaml:1: the file must hold a mapping: lines of `key: value`"),
        ("name: !foo x\n", "cluster/stack.yaml:1: unknown tag !foo (the only tag is !secret)"),
        ("a: &x [*x]\n", "cluster/stack.yaml:1: an alias that holds itself has no end"),
    ],
)
def test_mistakes_in_a_stack(empty, text, expected):
    empty.write("cluster/stack.yaml", text)
    problems = empty.problems()
    assert any(
        problem.startswith(expected) or problem.endswith(expected) for problem in problems
    ), problems


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("nodez=8", "nodez=8: there is no key nodez in this stack (did you mean nodes?)"),
        ("colour=8", "colour=8: there is no key colour in this stack (to add it, write +colour=8)"),
        ("topology.nodes.cuont=8", "(did you mean topology.nodes.count?)"),
        ("topology.nodes.size=large", "(to add it, write +topology.nodes.size=large)"),
        ("network={cidr: 10.0.0.0/8, mtu: 1}", "there is no key network.mtu in this stack"),
        ("schedulr=oar", "(did you mean scheduler?)"),
        (
            "scheduler=gridengin",
            "the group scheduler has no option gridengin (did you mean gridengine?)",
        ),
        ("site=zzz", "the group site has no option zzz (options: local)"),
        ("+nodes=8", "+nodes=8: nodes is already set (write nodes=8)"),
        ("~colour", "~colour: there is no key colour in this stack"),
        ("nodes=2,4", "nodes=2,4: it names several values"),
        ("nodes=[", "nodes=[: it cannot be read"),
        ("nodes", "nodes: it cannot be read"),
        ("=3", "=3: it names no key"),
        ("hydra.run.dir=x", "hydra.run.dir=x: Hydra's own settings are not part of a stack"),
        ("+foo@bar=x", "there is no group foo"),
        ("size@big=large", "the stack does not choose from a group size@big"),
        ("topology=[a]", "topology is a mapping, not a list"),
        ("topology=3", "topology must be a mapping, not 3"),
        ("nodes=abc", "nodes=abc: topology.nodes.count must be a whole number, not 'abc'"),
        ("+zzz=1", "+zzz=1: unknown key zzz"),
        ("+topology.extra={roles: [hed]}", "there is no role hed (did you mean head?)"),
        ("size=3", "size is a group, of which an option is chosen by name (options: large, "),
        ("image=tny", "image=tny: there is no image tny (did you mean tiny?)"),
        ("network.cidr='${nets}'", "network.cidr names nets, which does not exist"),
    ],
)
def test_mistakes_on_the_command_line(lab, override, expected):
    (problem,) = lab.problems(override)
    assert problem.startswith("command line, ")
    assert expected in problem


def test_the_blame_follows_interpolations(lab):
    lab.write(
        "cluster/scheduler/slurm.yaml", "name: x\nroles:\n  controller: heed\n  node: worker\n"
    )
    assert (
        "cluster/scheduler/slurm.yaml:3: there is no role heed (did you mean head?)"
        in lab.problems()
    )


def test_a_stack_that_is_not_there(lab):
    assert lab.problems(where="clustr") == [
        f"there is no stack at {lab.root}/clustr (did you mean cluster?)"
    ]
    assert lab.problems(where="roles")[0].endswith(
        "is not a stack: it holds no stack.yaml (stacks there: cluster)"
    )


def test_a_file_that_cannot_be_read(lab):
    (lab.root / "cluster/stack.yaml").write_bytes(b"name: \xff\n")
    assert lab.problems() == ["cluster/stack.yaml cannot be read: it is not UTF-8"]


def test_mistakes_in_an_image(lab):
    lab.write("images/tiny.yaml", "suite: x\n")
    assert lab.problems() == [
        "images/tiny.yaml:1: builder must name what makes the image (builder: debian)"
    ]
    lab.write("images/tiny.yaml", "builder: debian\nkey: !secret x\n")
    assert "images/tiny.yaml:2: an image holds no secrets" in lab.problems()[0]


def test_a_mistake_in_a_named_size(lab):
    lab.write("size/odd.yaml", "cores: 1\nmemry: 2G\n")
    lab.write("cluster/stack.yaml", "name: s\nimage: tiny\ntopology: {m: {size: odd}}\n")
    assert lab.problems() == [
        "size/odd.yaml:1: memory is missing",
        "size/odd.yaml:2: unknown key memry (did you mean memory?)",
    ]


def test_yaml_is_read_without_surprises(empty):
    empty.write(
        "cluster/stack.yaml",
        """\
        base: &base {labels: {on: off, at: 12:30, zip: 00123, big: 1e3, hex: 0x10, none: yes}}
        name: s
        image: tiny
        topology:
          m: {<<: *base, count: 1}
          n: {labels: {b: '${base.labels.on}'}}
        """,
    )
    labels = empty.compose().stack.machines[0].labels
    assert labels == {
        "on": "off",
        "at": "12:30",
        "zip": "00123",
        "big": "1000.0",
        "hex": "16",
        "none": "yes",
    }
