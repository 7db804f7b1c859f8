"""`up` on a Proxmox site reached through the API alone: host keys are read, or the plan refuses."""

from __future__ import annotations

import pytest

from endtoend.proxmox_api_only import api_only, write_stack

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def operator(tmp_path_factory):
    with api_only(tmp_path_factory.mktemp("host-keys")) as (person, _cluster):
        write_stack(person, "vms", "vm", "10.219.1.0/24")
        write_stack(person, "boxes", "box", "10.219.2.0/24")
        yield person


def test_a_virtual_machine_is_known_by_the_key_its_guest_agent_reads(operator):
    operator.types("up", "vms", "--yes")
    assert operator.types("run", "vms", "--", "echo", "in").endswith("in\n")
    pinned = operator.state / "keys" / "hosts" / "vms" / "one-1.pub"
    inside = operator.types("run", "vms", "--", "cat", "/etc/ssh/ssh_host_ed25519_key.pub")
    assert " ".join(inside.split()[-3:-1]) == pinned.read_text().strip()
    assert "nothing to change" in operator.types("up", "vms", "--yes")
    pinned.unlink()  # as after a death between the start and the first answer
    operator.types("up", "vms", "--again", "--yes")
    assert pinned.exists()
    operator.types("down", "vms", "--yes")
    assert not pinned.exists()


def test_a_container_nobody_could_know_is_refused_in_the_plan_and_trusted_where_the_site_says(
    operator,
):
    for verb in ("plan", "up"):
        said = operator.types(verb, "boxes", code=2)
        said = " ".join(said.split())
        assert "no way to know the host keys of image box: containers make their own" in said
        assert "host_keys: first" in said
        assert "add ssh: to site/pve.yaml" in said
    assert "one-1" not in operator.types("inventory", "--site", "pve")

    file = operator.checkout / "site" / "pve.yaml"
    before = file.read_text()
    file.write_text(f"{before}host_keys: first\n")
    operator.types("up", "boxes", "--yes")
    assert operator.types("run", "boxes", "--", "echo", "in").endswith("in\n")
    operator.types("down", "boxes", "--yes")
    file.write_text(before)
