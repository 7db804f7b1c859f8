"""Parameters are refused as Proxmox VE refuses them."""

from __future__ import annotations

import pytest
import requests
from proxmoxer import ResourceException

from essaim_lab.simulators.proxmox.condense import condense, pattern, wanted
from essaim_lab.simulators.proxmox.schema import UNDEFINED, join, routes, split


def wrong(act) -> dict[str, str]:
    with pytest.raises(ResourceException) as error:
        act()
    assert (error.value.status_code, error.value.content) == (400, "Parameter verification failed.")
    return error.value.errors


def test_a_parameter_that_does_not_exist_is_refused(sim, root):
    assert wrong(lambda: root.clone(101, colour="blue")) == {"colour": UNDEFINED}
    assert wrong(lambda: root.api.version.get(colour="blue")) == {"colour": UNDEFINED}
    assert 101 not in sim.cluster.guests


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"newid": 99}, "value must have a minimum value of 100"),
        ({"newid": 10**9}, "value must have a maximum value of 999999999"),
        ({"newid": "abc"}, "type check ('integer') failed - got 'abc'"),
        ({"full": "yes"}, "type check ('boolean') failed - got 'yes'"),
        ({"bwlimit": -1}, "value must have a minimum value of 0"),
        ({"snapname": "x" * 41}, "value may only be 40 characters long"),
        ({"hostname": "no_such"}, "invalid format - value does not look like a valid DNS name\n"),
    ],
)
def test_a_value_must_fit(root, given, error):
    name = next(iter(given))
    said = {"newid": 101, **given}
    assert wrong(lambda: root.node().lxc(9000).clone.post(**said)) == {name: error}


def test_what_is_needed_must_be_said(root):
    text = "property is missing and it is not optional"
    assert wrong(root.node().lxc(9000).clone.post) == {"newid": text}


def test_a_choice_must_be_one_of_those_there_are(root):
    (text,) = wrong(lambda: root.clone(101, "qemu", format="zip", full=1)).values()
    assert text == "value 'zip' does not have a value in the enumeration 'raw, qcow2, vmdk'"


def test_numbered_parameters(root):
    root.made(101)
    put = root.node().lxc(101).config.put
    put(net1="name=eth1,bridge=vmbr1,ip=10.0.0.5/24,tag=285")
    assert "hwaddr=BC:24:11:" in root.node().lxc(101).config.get()["net1"]
    assert wrong(lambda: put(netx="name=eth1")) == {"netx": UNDEFINED}
    assert wrong(lambda: put(cores1=2)) == {"cores1": UNDEFINED}
    text = wrong(lambda: put(net1="name=eth1,colour=blue"))["net1"]
    assert text == f"invalid format - format error\ncolour: {UNDEFINED}\n"
    text = wrong(lambda: put(net1="bridge=vmbr1"))["net1"]
    assert "name: property is missing and it is not optional" in text
    assert "tag: value must have a maximum value of 4094" in wrong(
        lambda: put(net1="name=eth1,tag=5000")
    )["net1"]  # fmt: skip


def test_a_card_of_a_virtual_machine_is_said_in_two_ways(root):
    root.made(101, "qemu")
    put, conf = root.node().qemu(101).config.put, root.node().qemu(101).config.get
    put(net0="virtio,bridge=vmbr0", net1="virtio=BC:24:11:00:00:01,bridge=vmbr1")
    assert conf()["net0"].startswith("virtio=BC:24:11:")
    assert conf()["net1"] == "virtio=BC:24:11:00:00:01,bridge=vmbr1"
    assert "macaddr" in wrong(lambda: put(net0="virtio=nonsense,bridge=vmbr0"))["net0"]


def test_an_endpoint_that_is_not_simulated_says_so(root):
    with pytest.raises(ResourceException) as error:
        root.api.cluster.ceph.status.get()
    assert error.value.status_code == 501
    assert error.value.content == "Method 'GET /cluster/ceph/status' not implemented"


def test_content_where_there_may_be_none(sim):
    headers = {"Authorization": f"PVEAPIToken={sim.token}={sim.secret}"}
    url = f"{sim.url}/api2/json/nodes/pve1/lxc/9000"
    answer = requests.delete(url, data={"x": 1}, headers=headers, verify=str(sim.ca), timeout=60)
    assert (answer.status_code, answer.reason) == (501, "Unexpected content for method 'DELETE'")
    assert answer.json()["data"] is None


def test_json_is_understood_as_well(sim):
    headers = {"Authorization": f"PVEAPIToken={sim.token}={sim.secret}"}
    answer = requests.post(
        f"{sim.url}/api2/json/nodes/pve1/lxc/9000/clone",
        json={"newid": 101, "full": True},
        headers=headers,
        verify=str(sim.ca),
        timeout=60,
    )
    assert answer.json()["data"].startswith("UPID:pve1:")


def test_the_schema_is_condensed_from_the_published_one():
    spec = {"type": "string", "pattern": "(?^i:[a-z]+)", "description": "…", "optional": 1}
    small = condense(
        {
            "GET /version": {
                "parameters": {"additionalProperties": 0},
                "permissions": {"user": "all"},
            },
            "GET /pools": {"parameters": {"properties": {"a": spec, "b": spec}}},
            "GET /not/wanted": {"parameters": {}},
        }
    )
    kept = {"type": "string", "optional": 1, "pattern": "(?i:[a-z]+)"}
    assert small["parameters"] == [kept]
    assert small["endpoints"]["GET /version"]["check"] == "all"
    assert small["endpoints"]["GET /pools"]["parameters"] == {"a": 0, "b": 0}
    assert set(small["endpoints"]) == {"GET /version", "GET /pools"}
    assert pattern("(?^x:(?[a]))") is None


def test_everything_that_is_in_the_schema_is_answered():
    from essaim_lab.simulators.proxmox.cluster import HANDLERS

    there = [name for name in wanted() if routes().find(*name.split())[0]]
    assert len(there) > 80
    assert [name for name in there if name not in HANDLERS] == []
    assert [name for name in HANDLERS if name not in there] == []


def test_values_are_taken_apart_and_put_together_again():
    text = "vol:8,mp=/srv,size=8G"
    assert split(text, "file") == {"file": "vol:8", "mp": "/srv", "size": "8G"}
    assert join(split(text, "file"), "file") == text
