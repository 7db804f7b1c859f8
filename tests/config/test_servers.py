"""The servers a site names: what they may be, and how a mistake is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from essaim.config.problems import Problems
from essaim.config.servers import read_servers
from essaim.model.errors import Place, Problem

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ"
GOOD = {
    "dns": {
        "kind": "rfc2136",
        "server": "ns1.example.org",
        "zones": ["school.example.org", "0.77.10.in-addr.arpa"],
        "key": "essaim",
        "secret": {"env": "DNS_KEY"},
    },
    "dhcp": {
        "kind": "kea",
        "database": "mysql://kea@db.example.org/kea",
        "secret": {"file": "secrets/kea"},
        "subnets": {1: "10.77.0.0/24"},
        "ca": "ca.pem",
    },
    "desktop": {
        "kind": "guacamole",
        "url": "https://desktops.example.org/guacamole/",
        "user": "essaim",
        "secret": {"env": "GUACAMOLE"},
        "wake": True,
    },
    "directory": {
        "kind": "ldap",
        "url": "ldaps://ldap.example.org",
        "base": "dc=example,dc=org",
    },
}


def read(values: dict) -> tuple[dict, list[str]]:
    where = Place("/lab/site/pve.yaml", 7)
    problems = Problems(lambda path, what, hint: Problem(what, where, hint))
    found = read_servers(values, problems)
    return found, [str(problem) for problem in problems.found]


def test_good_settings_are_read_and_paths_are_of_the_lab():
    found, problems = read({"driver": "proxmox", **GOOD})
    assert problems == []
    assert found["dns"] == GOOD["dns"]
    assert found["dhcp"]["secret"] == {"file": "/lab/secrets/kea"}
    assert found["dhcp"]["ca"] == "/lab/ca.pem"
    assert found["desktop"]["url"] == "https://desktops.example.org/guacamole"


def test_a_site_needs_none_of_them():
    assert read({"driver": "sandbox"}) == ({}, [])


def test_paths_of_a_home_stay_there():
    ssh = {"host": "router.example.org", "host_key": f"{KEY} me", "key": "~/.ssh/id"}
    found, problems = read({"dhcp": {"kind": "dnsmasq", "folder": "/etc/hosts.d", "ssh": ssh}})
    assert problems == []
    assert found["dhcp"]["ssh"]["key"] == str(Path("~/.ssh/id").expanduser())
    assert found["dhcp"]["ssh"]["host_key"] == KEY


WRONG = [
    ("dns", {"kind": "rfc2137"}, "site.dns.kind is rfc2137", "did you mean rfc2136"),
    ("dns", {"kind": None}, "site.dns.kind is missing", "rfc2136"),
    ("dns", {"zones": []}, "site.dns.zones must be a list of zones", "in-addr.arpa"),
    ("dns", {"zones": ["a b"]}, "which 'a b' is not", "in-addr.arpa"),
    ("dns", {"zone": ["a.org"]}, "unknown key site.dns.zone", "zones"),
    ("dns", {"server": "-oProxy"}, "site.dns.server must be the name", "ns1.example.org"),
    ("dns", {"port": 0}, "site.dns.port must be 1 or more, not 0", ""),
    ("dns", {"port": 70000}, "site.dns.port must be 65535 or less, not 70000", ""),
    ("dns", {"algorithm": "hmac-md5"}, "must be hmac-sha256", ""),
    ("dns", {"secret": {"env": "A", "file": "b"}}, "must say where the secret is", "{env: NAME}"),
    ("dns", {"secret": {"vault": "x"}}, "must say where the secret is", "{env: NAME}"),
    ("dhcp", {"database": "sqlite:///x"}, "must begin with mysql:// or", "mysql://kea@"),
    ("dhcp", {"database": "mysql://db/kea"}, "must name an account", "mysql://kea@"),
    ("dhcp", {"subnets": {"x": "10.0.0.0/8"}}, "Kea's id before each network", "{1:"),
    ("dhcp", {"subnets": {1: "10.0.0.1/8"}}, "which '10.0.0.1/8' is not", "{1:"),
    ("dhcp", {"subnets": ["10.0.0.0/8"]}, "must be a mapping of Kea's subnets", "{1:"),
    ("desktop", {"url": "http://desktops.example.org"}, "must begin with https://", "https://"),
    ("desktop", {"url": "https://u@d.org/"}, "must name a server and a path", "user"),
    ("directory", {"url": "ldap:///x"}, "must begin with ldaps:// or ldap://", "ldaps://"),
    ("directory", {"url": "ldaps://l.org/dc=x"}, "must name a server and a port", "base"),
]


@pytest.mark.parametrize(("part", "change", "said", "hint"), WRONG)
def test_a_mistake_is_told_with_its_line_and_what_to_write(part, change, said, hint):
    values = {**GOOD[part], **change}
    values = {key: value for key, value in values.items() if value is not None}
    found, problems = read({part: values})
    assert found == {}
    assert any(said in problem and hint in problem for problem in problems), problems
    assert all(problem.startswith("/lab/site/pve.yaml:7: ") for problem in problems)


@pytest.mark.parametrize(
    "values",
    [
        {**GOOD["dns"], "secret": "hunter2"},
        {**GOOD["dhcp"], "kind": "kea", "database": "mysql://kea:hunter2@db.example.org/kea"},
    ],
)
def test_a_secret_among_the_settings_is_told_and_not_shown(values):
    part = "dhcp" if values["kind"] == "kea" else "dns"
    found, problems = read({part: values})
    assert found == {}
    assert problems
    assert "hunter2" not in " ".join(problems)


def test_a_server_must_be_a_mapping():
    _, problems = read({"dns": "ns1.example.org"})
    assert problems == ["/lab/site/pve.yaml:7: site.dns must be a mapping ({kind: rfc2136, …})"]


def test_a_router_needs_a_pinned_key():
    ssh = {"host": "router.example.org", "host_key": "trust-me", "key": "k"}
    _, problems = read({"dhcp": {"kind": "dnsmasq", "folder": "hosts", "ssh": ssh}})
    assert any("host_key must be a public key" in problem for problem in problems)
    assert any("folder must be an absolute path" in problem for problem in problems)
