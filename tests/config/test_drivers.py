"""The settings of a site are checked where they are written."""

from __future__ import annotations

import base64

import pytest

from essaim.config.serial import stack_from_json, stack_to_json

BODY = base64.b64encode(b"\0\0\0\x0bssh-ed25519\0\0\0 " + b"k" * 32).decode()
HOST_KEY = f"ssh-ed25519 {BODY}"
SITE = f"""\
driver: libvirt
uri: qemu+ssh://alice@rhodey.example.org/session
host_key: {HOST_KEY}
"""


@pytest.fixture
def rhodey(lab):
    """Gives the lab a site on a server, with these lines more."""

    def write(*lines, base=SITE):
        lab.write("site/rhodey.yaml", base + "".join(f"{line}\n" for line in lines))
        return lab

    return write


def test_a_site_on_a_server_has_the_settings_that_were_given(rhodey):
    lab = rhodey("pool: {name: scratch}", "ports: 30000 - 30100", "slots: {start: 2}")
    site = lab.compose("site=rhodey").stack.site
    assert (site.name, site.driver, site.slots) == ("rhodey", "libvirt", {"start": 2})
    assert site.settings == {
        "uri": "qemu+ssh://alice@rhodey.example.org/session",
        "host_key": HOST_KEY,
        "pool": {"name": "scratch"},
        "ports": "30000-30100",
    }


def test_this_computer_needs_no_key(rhodey):
    lab = rhodey(base="driver: libvirt\nuri: qemu:///session\naccelerator: tcg\npool: mine\n")
    assert lab.compose("site=rhodey").stack.site.settings == {
        "uri": "qemu:///session",
        "accelerator": "tcg",
        "pool": {"name": "mine"},
    }


def test_a_line_of_ssh_keyscan_will_do(rhodey):
    lab = rhodey(base=SITE.replace(HOST_KEY, f"rhodey.example.org {HOST_KEY}"))
    assert lab.compose("site=rhodey").stack.site.settings["host_key"] == HOST_KEY


def test_a_server_without_a_known_key_is_refused_with_the_command_that_shows_it(rhodey):
    base = "driver: libvirt\nuri: qemu+ssh://alice@rhodey.example.org:2222/session\n"
    (problem,) = rhodey(base=base).problems("site=rhodey")
    assert problem.startswith("site/rhodey.yaml:1: site.host_key is missing")
    assert "`ssh-keyscan -t ed25519 -p 2222 rhodey.example.org`" in problem
    assert "host_key: ssh-ed25519" in problem


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            ["acelerator: kvm"],
            "rhodey.yaml:4: unknown key site.acelerator (did you mean accelerator?)",
        ),
        (["slot: {start: 1}"], "rhodey.yaml:4: unknown key site.slot (did you mean slots?)"),
        (
            ["accelerator: kvn"],
            "site.accelerator must be auto, kvm or tcg, not 'kvn' (did you mean kvm?)",
        ),
        (["pool: {pth: /x}"], "rhodey.yaml:4: unknown key site.pool.pth (did you mean path?)"),
        (
            ["pool: {path: x}"],
            "rhodey.yaml:4: site.pool.path must be an absolute path on the server",
        ),
        (["pool: a/b"], "rhodey.yaml:4: site.pool.name must be a name, not 'a/b'"),
        (["network: a/b"], "rhodey.yaml:4: site.network must be a name, not 'a/b'"),
        (["ports: 22-80"], "rhodey.yaml:4: site.ports must be a range of ports above 1023"),
        (["ports: 9000-8000"], "rhodey.yaml:4: site.ports must be a range of ports above 1023"),
        (["ports: 8000-70000"], "rhodey.yaml:4: site.ports must be a range of ports above 1023"),
        (["key: [a]"], "rhodey.yaml:4: site.key must be text, not a list"),
    ],
)
def test_a_wrong_setting_is_named_with_its_line(rhodey, lines, expected):
    assert any(expected in problem for problem in rhodey(*lines).problems("site=rhodey"))


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("ssh://rhodey/session", "must begin with qemu+ssh:// or qemu:///"),
        ("qemu+ssh://rhodey/sesion", "must end in /session or /system"),
        ("qemu+ssh:///session", "must name a server after qemu+ssh://"),
        ("qemu://rhodey/session", "must name a server after qemu+ssh://"),
        ("qemu+ssh://a:b@rhodey/session", "must not hold a password"),
        ("qemu+ssh://-oProxyCommand=x/session", "must name a server and an account of it"),
        ("qemu+ssh://rhodey/session?command=/bin/x", "must not say ?command="),
        ("qemu+ssh://rhodey:many/session", "must be an address"),
    ],
)
def test_a_wrong_address_is_explained(rhodey, uri, expected):
    base = f"driver: libvirt\nuri: {uri}\nhost_key: {HOST_KEY}\n"
    (problem,) = rhodey(base=base).problems("site=rhodey")
    assert problem.startswith("site/rhodey.yaml:2: site.uri " + expected)


@pytest.mark.parametrize(
    "key", ["AAAA", "ssh-ed25519", f"ssh-ed25519 {BODY[:-3]}", f"ssh-rsa {BODY}", "ssh-ed25519 é"]
)
def test_half_a_key_is_none(rhodey, key):
    base = f"driver: libvirt\nuri: qemu+ssh://rhodey/session\nhost_key: {key}\n"
    (problem,) = rhodey(base=base).problems("site=rhodey")
    assert problem.startswith("site/rhodey.yaml:3: site.host_key must be a public key")


def test_settings_of_a_driver_that_does_not_say_are_kept(lab):
    lab.write("site/here.yaml", "driver: sandbox\nanything: [1, {a: b}]\n")
    settings = lab.compose("site=here").stack.site.settings
    assert settings == {"anything": [1, {"a": "b"}]}


def test_machines_are_told_each_others_names_first(rhodey):
    stack = rhodey().compose("site=rhodey").stack
    assert {machine.roles[0] for machine in stack.machines} == {"names"}
    assert stack.roles["names"].members == {"machines": "names"}
    assert {len(machine.roles) for machine in stack.machines} == {2}


def test_a_driver_that_names_machines_itself_needs_no_role_for_it(lab):
    stack = lab.compose().stack
    assert "names" not in stack.roles
    assert {len(machine.roles) for machine in stack.machines} == {1}


def test_a_role_of_the_lab_may_take_the_place_of_names(rhodey):
    lab = rhodey()
    lab.write("roles/names/role.yaml", "summary: by DNS\n")
    assert lab.compose("site=rhodey").stack.roles["names"].summary == "by DNS"


def test_a_group_that_asks_for_names_has_it_once(rhodey):
    lab = rhodey()
    stack = lab.compose("site=rhodey", "topology.nodes.roles=[worker,names]").stack
    assert stack.machines[-1].roles == ("names", "worker")


def test_machines_configure_themselves_when_the_stack_says_so(rhodey):
    lab = rhodey()
    lab.write("roles/worker/role.yaml", "needs: {address: head}\n")
    stack = lab.compose("site=rhodey", "bootstrap=cloud-init").stack
    assert stack.bootstrap == "cloud-init"
    assert stack_from_json(stack_to_json(stack)) == stack
    assert lab.compose("site=rhodey").stack.bootstrap == "ssh"


def test_what_no_machine_can_know_beforehand_is_named_with_its_role(rhodey):
    (problem,) = rhodey().problems("site=rhodey", "bootstrap=cloud-init")
    assert problem.startswith(
        "roles/worker/role.yaml:1: with bootstrap: cloud-init worker cannot be given token: "
        "head reads it with a command"
    )
    assert "say bootstrap: ssh" in problem
    assert "random: /path" in problem


def test_random_text_can_be_drawn_beforehand(rhodey):
    lab = rhodey()
    role = lab.root / "roles/head/role.yaml"
    role.write_text(role.read_text().replace("secret: true", "secret: true, random: /etc/token"))
    stack = lab.compose("site=rhodey", "bootstrap=cloud-init").stack
    assert stack.roles["head"].provides["token"].random == "/etc/token"
    role.write_text(role.read_text().replace("random: /etc/token", "random: token"))
    (problem,) = lab.problems("site=rhodey")
    assert "provides.token.random is the absolute path of the file its command reads" in problem


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            ["bootstrap=cloudinit"],
            "bootstrap must be ssh or cloud-init, not 'cloudinit'",
        ),
        (
            ["bootstrap=cloud-init", "site=local"],
            "machines of the driver sandbox have no cloud-init",
        ),
        (
            ["bootstrap=cloud-init", "+topology.nodes.after=[controller]"],
            "machines begin at once, and nodes would not come after controller",
        ),
    ],
)
def test_what_cannot_be_left_to_machines_is_refused(rhodey, overrides, expected):
    problems = rhodey().problems("site=rhodey", *overrides)
    assert any(expected in problem for problem in problems)


def test_a_playbook_has_nobody_to_play_it(rhodey):
    lab = rhodey()
    lab.write("roles/worker/role.yaml", "ansible: play.yml\n")
    lab.write("roles/worker/play.yml", "[]\n")
    (problem,) = lab.problems("site=rhodey", "bootstrap=cloud-init")
    assert "the role worker cannot be a playbook" in problem
