"""A site is found by its name, as the stacks of a lab would see it."""

from __future__ import annotations

import pytest

from essaim.config.sites import find_site
from essaim.model.errors import InvalidError, UnknownError


@pytest.fixture
def lab(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "rhodey.yaml").write_text(
        "driver: libvirt\nuri: qemu:///session\nslots: {start: 2}\n"
    )
    (tmp_path / "essaim.yaml").write_text('size: tiny\nvars: {base: {x: "${nodes}"}}\n')
    return tmp_path


def test_a_site_has_its_settings_and_slots(lab):
    site = find_site("rhodey", str(lab))
    assert (site.name, site.driver) == ("rhodey", "libvirt")
    assert site.settings == {"uri": "qemu:///session"}
    assert site.slots == {"start": 2}


def test_its_level_overrides_it_as_for_a_stack(lab):
    level = lab / "sites" / "rhodey" / "site.yaml"
    level.parent.mkdir(parents=True)
    level.write_text("site: {accelerator: tcg, uri: qemu:///system}\n")
    assert find_site("rhodey", str(lab)).settings == {
        "accelerator": "tcg",
        "uri": "qemu:///system",
    }


def test_it_is_found_from_below_and_the_librarys_from_everywhere(lab, tmp_path):
    below = lab / "stacks" / "one"
    below.mkdir(parents=True)
    assert find_site("rhodey", str(below)).driver == "libvirt"
    assert find_site("local", str(below)).driver == "sandbox"
    (lab / "other.yaml").write_text("name: other\n")
    assert find_site("rhodey", str(lab / "other.yaml")).driver == "libvirt"


def test_an_unknown_one_is_told_with_a_near_spelling(lab):
    with pytest.raises(UnknownError, match="no site called rhody") as caught:
        find_site("rhody", str(lab))
    assert "rhodey" in caught.value.hint
    for name in ("", "../rhodey", "*", "a=b"):
        with pytest.raises(UnknownError):
            find_site(name, str(lab))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("driver: libvrt\n", "libvirt"),
        ("uri: qemu:///session\n", "site.driver is missing"),
        ("driver: libvirt\nslots: {start: many}\n", "slots"),
    ],
)
def test_what_is_wrong_with_it_is_told_with_its_file(lab, text, said):
    (lab / "site" / "rhodey.yaml").write_text(text)
    with pytest.raises(InvalidError) as caught:
        find_site("rhodey", str(lab))
    assert said in caught.value.what
    assert "rhodey.yaml" in caught.value.what
