"""Which images of a lab are made from what a site has, so that they can be looked for there."""

from __future__ import annotations

from pathlib import Path

from essaim.config.documents import read
from essaim.config.images import image_names, read_image
from essaim.config.rosters import compose_roster
from essaim.config.tree import Tree
from essaim.model.errors import EssaimError
from essaim.model.stacks import Image

#: The builder of images that a site has already.
_STOCKED = "template"


def site_images(site: str, lab: str) -> list[Image]:
    """The images of a lab that are templates, and those its rosters of that site name.

    What is wrong with a file is left to whoever uses it.
    """
    place = Path(lab).resolve()
    folder = place.parent if place.is_file() else place
    tree = Tree(lab, folder / "nobody.yaml")
    found = [image for name in image_names(tree) if (image := _image(tree, name))]
    files = sorted(folder.glob("*.yaml"))
    found += [image for file in files if (image := _roster_image(file, site)) is not None]
    return [image for image in found if image.builder == _STOCKED]


def _image(tree: Tree, name: str) -> Image | None:
    try:
        return read_image(tree, name)
    except EssaimError:
        return None


def _roster_image(file: Path, site: str) -> Image | None:
    """The image of a roster's settings; None when that is no roster of the site."""
    people = file.with_suffix(".csv")
    try:
        data = read(file).data
        if data.get("site") != site or not (people.is_file() or data.get("group")):
            return None
        return compose_roster(str(people)).image
    except EssaimError:
        return None
