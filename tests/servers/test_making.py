"""Servers made from the settings of a site."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from essaim.config.secrets import read_secret
from essaim.model.errors import InvalidError, SetupError
from essaim.model.school import Host
from essaim.servers import making

SECRET = {"env": "SOME_SECRET"}
PUBLIC = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ"
MADE = {
    "Rfc2136": (
        making.make_names,
        {"kind": "rfc2136", "server": "ns", "zones": ["a.org"], "key": "k", "secret": SECRET},
    ),
    "WindowsDns": (
        making.make_names,
        {"kind": "windows", "server": "dc", "zones": ["a.org"], "secret": SECRET},
    ),
    "Kea": (
        making.make_addresses,
        {
            "kind": "kea",
            "database": "mysql://kea@db/kea",
            "secret": SECRET,
            "subnets": {1: "10.0.0.0/8"},
        },
    ),
    "Dnsmasq": (
        making.make_addresses,
        {
            "kind": "dnsmasq",
            "folder": "/srv/hosts",
            "ssh": {"host": "router", "host_key": PUBLIC, "key": "/key"},
        },
    ),
    "WindowsDhcp": (making.make_addresses, {"kind": "windows", "server": "dc", "auth": "kerberos"}),
    "Guacamole": (
        making.make_desktops,
        {"kind": "guacamole", "url": "https://g.org/g", "user": "u", "secret": SECRET},
    ),
    "Ldap": (making.make_directory, {"kind": "ldap", "url": "ldaps://l.org", "base": "dc=a"}),
}


@pytest.mark.parametrize("name", MADE)
def test_every_kind_is_made_from_plain_settings(monkeypatch, name):
    monkeypatch.setenv("SOME_SECRET", "c2VjcmV0")
    make, settings = MADE[name]
    made = make(settings)
    assert type(made).__name__ == name
    if hasattr(made, "close"):
        made.close()


@pytest.mark.parametrize("name", [name for name in MADE if "secret" in MADE[name][1]])
def test_a_secret_that_is_not_there_is_told(monkeypatch, name):
    monkeypatch.delenv("SOME_SECRET", raising=False)
    make, settings = MADE[name]
    with pytest.raises(SetupError, match="not in the environment") as caught:
        make(settings)
    assert "SOME_SECRET" in caught.value.hint


def test_settings_that_do_not_fit_are_told_all_at_once():
    with pytest.raises(InvalidError) as caught:
        making.make_names({"kind": "rfc2136", "server": "-x", "zone": ["a.org"], "secret": SECRET})
    said = str(caught.value)
    assert "dns.server must be the name or the address of a server" in said
    assert "dns.zones is missing" in said
    assert "unknown key dns.zone (did you mean zones" in said


def test_a_secret_file_must_be_ours_alone(tmp_path):
    file = tmp_path / "secret"
    file.write_text("hidden\n")
    os.chmod(file, 0o644)
    with pytest.raises(SetupError, match="may be read by others") as caught:
        read_secret({"file": str(file)}, "a test")
    assert caught.value.hint == f"chmod 600 {file}"
    os.chmod(file, 0o600)
    assert read_secret({"file": str(file)}, "a test") == "hidden"
    assert read_secret(None, "a test") == ""
    with pytest.raises(SetupError, match="cannot be read"):
        read_secret({"file": str(tmp_path / "none")}, "a test")


def test_a_missing_package_is_told(monkeypatch):
    monkeypatch.setenv("SOME_SECRET", "c2VjcmV0")
    for name in [name for name in sys.modules if name.split(".")[0] == "dns"]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("dns", "dns_wire"):
        monkeypatch.delitem(sys.modules, f"essaim.servers.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "dns.flags", None)
    monkeypatch.setitem(sys.modules, "dns", None)
    with pytest.raises(SetupError, match="the Python package dns") as caught:
        making.make_names(MADE["Rfc2136"][1])
    assert "--prepare school" in caught.value.hint


def test_importing_how_they_are_made_loads_none_of_their_libraries():
    heavy = "dns ldap3 pypsrp requests httpx sqlalchemy asyncssh pydantic"
    program = (
        "import sys, essaim.servers.making;"
        f"found = [m for m in {heavy.split()!r} if m in sys.modules];"
        "sys.exit(' '.join(found) or 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_one_kind_loads_its_own_library_alone(tmp_path):
    program = (
        "import sys; from essaim.servers.making import make_addresses;"
        f"make_addresses({{'kind': 'dnsmasq', 'folder': {str(tmp_path)!r}}});"
        "heavy = ('dns', 'ldap3', 'pypsrp', 'httpx', 'sqlalchemy');"
        "found = [m for m in heavy if m in sys.modules];"
        "sys.exit(' '.join(found) or 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_what_is_made_works(tmp_path):
    (tmp_path / "hosts").mkdir()
    addresses = making.make_addresses(
        {"kind": "dnsmasq", "folder": str(tmp_path / "hosts"), "pid_file": str(tmp_path / "pid")}
    )
    host = Host(name="a.example.org", address="10.0.0.1", mac="bc:24:11:00:00:01")
    addresses.admit(host)
    assert addresses.admitted() == [host]
    assert len(list(Path(tmp_path / "hosts").glob("essaim-*"))) == 1
