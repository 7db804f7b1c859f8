"""Names in real name servers: BIND, and PowerDNS in `make test-all`."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from essaim.model.errors import ClashError, RejectedError, TakenError, TransientError
from essaim.model.school import Host
from essaim.servers.dns import Rfc2136
from patience import in_test_all
from servers import daemons
from servers.nameservers import BACK, FORWARD, OTHER, bind, look, powerdns

KINDS = {"bind": bind, "powerdns": powerdns}
_numbers = itertools.count(1)


@pytest.fixture(scope="module", params=["bind", pytest.param("powerdns", marks=in_test_all)])
def server(request):
    with KINDS[request.param]() as settings:
        yield settings


@pytest.fixture
def names(server) -> Rfc2136:
    return Rfc2136(server)


@pytest.fixture
def host() -> Host:
    """One that no other test uses."""
    number = next(_numbers)
    return Host(
        name=f"vm-{number}.{FORWARD}",
        address=f"10.77.0.{number}",
        aliases=(f"desk-{number}.{FORWARD}", f"alice-{number}.{FORWARD}"),
    )


def back(host: Host) -> str:
    return f"{host.address.rpartition('.')[2]}.{BACK}"


def test_a_named_host_is_found_by_name_by_alias_and_by_address(server, names, host):
    names.name(host)
    assert look(server.port, host.name, "A") == {host.address}
    assert look(server.port, back(host), "PTR") == {f"{host.name}."}
    for alias in host.aliases:
        assert look(server.port, alias, "A") == {f"{host.name}.", host.address}


def test_an_unnamed_host_leaves_nothing(server, names, host):
    names.name(host)
    names.unname(host)
    for name in (host.name, *host.aliases):
        assert look(server.port, name, "A") == set()
    assert look(server.port, back(host), "PTR") == set()


def test_an_ipv6_host_is_named_both_ways(server, names):
    host = Host(name=f"six.{FORWARD}", address="fd00::1:6")
    names.name(host)
    assert look(server.port, host.name, "AAAA") == {host.address}
    way_back = "6.0.0.0.1.0.0.0." + "0.0.0.0." * 5 + "0.0.d.f.ip6.arpa"
    assert look(server.port, way_back, "PTR") == {f"{host.name}."}
    names.unname(host)
    assert look(server.port, host.name, "AAAA") == look(server.port, way_back, "PTR") == set()


def test_every_verb_may_be_repeated(server, names, host):
    names.unname(host)
    names.name(host)
    names.name(host)
    assert look(server.port, host.name, "A") == {host.address}
    names.unname(host)
    names.unname(host)
    assert look(server.port, host.name, "A") == set()


def test_a_half_named_host_is_completed(server, names, host):
    names.name(replace(host, aliases=host.aliases[:1]))
    names.name(host)
    assert look(server.port, host.aliases[1], "CNAME") == {f"{host.name}."}


def test_eight_who_name_the_same_host_at_once_agree(server, names, host):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: names.name(host), range(8)))
    assert look(server.port, host.name, "A") == {host.address}
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: names.unname(host), range(8)))
    assert look(server.port, host.name, "A") == set()


def test_of_two_addresses_that_want_a_name_at_once_one_gets_it(server, names, host):
    start = threading.Barrier(2)

    def one(address: str) -> bool:
        start.wait()
        try:
            names.name(replace(host, address=address))
        except TakenError:
            return False
        return True

    for _ in range(5):
        rivals = [host.address, f"10.77.0.{200 + next(_numbers) % 50}"]
        with ThreadPoolExecutor(2) as pool:
            won = list(pool.map(one, rivals))
        assert sorted(won) == [False, True]
        winner = rivals[won.index(True)]
        assert look(server.port, host.name, "A") == {winner}
        loser = rivals[won.index(False)]
        assert look(server.port, f"{loser.rpartition('.')[2]}.{BACK}", "PTR") == set()
        names.unname(replace(host, address=winner))


@pytest.mark.parametrize(("taken", "said"), [("www", "10.77.0.200"), ("mail", "MX")])
def test_a_name_of_somebody_else_is_refused(server, names, host, taken, said):
    with pytest.raises(TakenError, match=f"{taken}.{FORWARD} .*{said}"):
        names.name(replace(host, name=f"{taken}.{FORWARD}"))
    with pytest.raises(TakenError, match=said):
        names.name(replace(host, aliases=(*host.aliases, f"{taken}.{FORWARD}")))
    # Nothing of the host is there: an update is whole or not at all.
    assert look(server.port, host.name, "A") == set()
    assert look(server.port, f"www.{FORWARD}", "A") == {"10.77.0.200"}


def test_an_address_that_leads_to_another_name_undoes_the_name(server, names, host):
    names.name(host)
    other = replace(host, name=f"other-{host.name}", aliases=())
    with pytest.raises(ClashError, match=f"{back(host)} is {host.name} already"):
        names.name(other)
    assert look(server.port, other.name, "A") == set()
    assert look(server.port, back(host), "PTR") == {f"{host.name}."}


def test_unnaming_leaves_what_belongs_to_another_address_now(server, names, host):
    names.name(host)
    before = replace(host, address="10.77.0.199")
    names.unname(before)
    assert look(server.port, host.name, "A") == {host.address}
    for alias in host.aliases:
        assert look(server.port, alias, "CNAME") == {f"{host.name}."}


def test_aliases_that_outlived_their_host_go_with_the_next_unname(server, names, host):
    names.name(host)
    names.unname(replace(host, aliases=()))
    assert look(server.port, host.aliases[0], "CNAME") == {f"{host.name}."}
    names.unname(host)
    assert look(server.port, host.aliases[0], "CNAME") == set()


def test_every_name_is_listed_with_its_address(names, host):
    names.name(host)
    listed = names.named()
    assert listed[host.name] == listed[host.aliases[0]] == host.address
    assert listed[f"www.{FORWARD}"] == "10.77.0.200"
    assert FORWARD not in listed
    assert not any(name.endswith(".arpa") for name in listed)


def test_a_name_outside_the_zones_is_refused_before_anybody_is_asked(names, host):
    with pytest.raises(RejectedError, match=r"vm.example.com is in none of the zones") as caught:
        names.name(replace(host, name="vm.example.com"))
    assert "dns.zones" in caught.value.hint
    with pytest.raises(RejectedError, match=r"in-addr.arpa is in none"):
        names.name(replace(host, address="192.168.1.1"))


def test_a_site_without_reverse_zones_names_forward_only(server, host):
    names = Rfc2136(replace(server, zones=[FORWARD]))
    names.name(host)
    assert look(server.port, host.name, "A") == {host.address}
    assert look(server.port, back(host), "PTR") == set()


def test_a_wrong_secret_is_told_and_nothing_is_changed(server, host):
    names = Rfc2136(replace(server, secret=OTHER))
    with pytest.raises(RejectedError, match=r"essaim|refused") as caught:
        names.name(host)
    assert "key" in caught.value.hint
    assert OTHER not in str(caught.value)
    assert OTHER not in repr(server)
    with pytest.raises(RejectedError):
        names.named()
    assert look(server.port, host.name, "A") == set()


def test_an_unknown_key_is_told(server, host):
    with pytest.raises(RejectedError) as caught:
        Rfc2136(replace(server, key="stranger")).name(host)
    assert "key" in caught.value.hint


def test_a_secret_that_is_no_base_64_is_told(server):
    with pytest.raises(RejectedError, match="not in base 64"):
        Rfc2136(replace(server, secret="wrong"))


def test_a_zone_of_another_server_is_told(server, host):
    names = Rfc2136(replace(server, zones=["elsewhere.example.org"]))
    with pytest.raises(RejectedError, match=r"refused to update elsewhere.example.org"):
        names.name(replace(host, name="vm.elsewhere.example.org", aliases=()))


def test_a_zone_the_key_may_not_change_is_told(server, host):
    names = Rfc2136(replace(server, zones=["locked.example.org"]))
    with pytest.raises(RejectedError, match=r"refused to update locked.example.org") as caught:
        names.name(replace(host, name="vm.locked.example.org", aliases=()))
    assert caught.value.hint


def test_a_server_that_is_away_is_worth_another_try(server, host):
    with (
        daemons.refusing_port() as port,  # of TCP
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent,
    ):
        silent.bind(("127.0.0.1", port))
        names = Rfc2136(replace(server, port=port, within=0.3))
        for verb in (lambda: names.name(host), lambda: names.unname(host), names.named):
            with pytest.raises(TransientError, match="does not answer"):
                verb()


def test_naming_a_host_costs_little(names):
    """600 machines have 100 ms of CPU each for everything: names may take a fifth of it."""
    hosts = [Host(name=f"m{i}.{FORWARD}", address=f"10.77.0.{i}") for i in range(100, 150)]
    before = time.thread_time()
    for host in hosts:
        names.name(host)
    assert (time.thread_time() - before) / len(hosts) < 0.02
    for host in hosts:
        names.unname(host)
