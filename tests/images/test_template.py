"""The builder `template` builds nothing, and refuses what names nothing to make machines from."""

from __future__ import annotations

import pytest

from essaim.images.cache import Images
from essaim.images.template import check
from essaim.model.errors import RejectedError
from essaim.model.machines import Form
from essaim.model.stacks import Image


def image(**settings) -> Image:
    return Image(name="gui", builder="template", digest="d", settings=settings)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "names nothing"),
        ({"template": "a", "iso": "b"}, "names template and iso"),
        ({"template": "a", "clon": "full"}, "knows no setting clon"),
        ({"template": "a", "clone": "half"}, "clone 'half' is not known"),
        ({"ostemplate": "a", "kind": "qemu"}, "ostemplate makes no qemu"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, said):
    with pytest.raises(RejectedError, match=said):
        check(image(**settings))


def test_it_is_ready_at_once_and_made_in_no_other_form(tmp_path):
    images, gui = Images(tmp_path), image(template="debian-gui")
    path = images.build(gui, lambda _line: None, Form.TEMPLATE)
    assert images.ready(gui, Form.TEMPLATE) == path
    assert [built.manifest["sha256"] for built in images.list()] != []
    with pytest.raises(RejectedError, match="makes no disk, only template"):
        images.build(gui, lambda _line: None, Form.DISK)
