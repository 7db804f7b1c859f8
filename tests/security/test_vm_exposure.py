"""A tenant's virtual machine neither reaches the server it runs on nor is open to its neighbours.

That it holds with machines that boot is seen in tests/drivers/test_libvirt_contract.py.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from drivers.test_libvirt_definition import FACTS, HARDWARE
from essaim.config.images import find_image
from essaim.drivers.libvirt import definition
from essaim.images import debian_disk, disks, tiny
from essaim.model.errors import RejectedError
from essaim.model.stacks import Image

ROOT = Path(__file__).parents[2]


def test_its_access_network_lets_nothing_out_unless_the_stack_says_so():
    closed = definition.build(FACTS, HARDWARE)
    assert "restrict=on" in closed
    opened = definition.build(replace(FACTS, internet=1), HARDWARE)
    assert "restrict" not in opened
    assert definition.read_facts(opened) == replace(FACTS, internet=1)


def test_one_of_an_earlier_version_is_closed_at_its_next_start():
    earlier = definition.build(FACTS, HARDWARE).replace(",restrict=on", "")
    assert not definition.has_access(earlier, FACTS)
    assert definition.has_access(definition.with_access(earlier, FACTS), FACTS)


def test_kernels_of_images_keep_their_defences():
    grub = (debian_disk.FILES / "boot/grub/grub.cfg").read_text()
    assert "linux /boot" in grub
    for line in (grub, tiny.COMMAND_LINE):
        assert "mitigations" not in line
        assert "nokaslr" not in line
    assert tiny.recipe("tiny", find_image("tiny", str(ROOT)).settings).mitigations


def test_who_wants_speed_says_so_in_the_image():
    kernel = disks.UNPROTECTED.split()
    wanted = tiny.recipe("x", {"suite": "bookworm", "mitigations": False})
    assert set(kernel) <= set(tiny.kernel_options(wanted).split())
    assert not set(kernel) & set(tiny.kernel_options(replace(wanted, mitigations=True)).split())
    image = Image(name="x", builder="debian", digest="d", settings={"disk": {"fast": True}})
    with pytest.raises(RejectedError) as refused:
        debian_disk.layout(image)
    assert "mitigations: true" in refused.value.hint
