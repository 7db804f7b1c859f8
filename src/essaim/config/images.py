"""Images as described in `images/<name>.yaml`."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from essaim.config.problems import Problems
from essaim.config.secrets import references
from essaim.config.tree import Tree
from essaim.model.errors import InvalidError, UnknownError
from essaim.model.spelling import meant
from essaim.model.stacks import Image


def image_names(tree: Tree) -> list[str]:
    """Name the images a stack here may use."""
    return tree.names("images", "*.yaml")


def read_image(tree: Tree, name: str) -> Image | None:
    """Read an image's description; None when there is none, InvalidError when it is wrong."""
    file = tree.find(f"images/{name}.yaml")
    if file is None:
        return None
    document = tree.read(file)
    problems = Problems.of_file(document)
    builder = document.data.get("builder")
    if not isinstance(builder, str) or not builder:
        problems.add(("builder",), "builder must name what makes the image", "builder: debian")
        raise InvalidError(problems.found)
    for path, secret in references(document.data):
        hint = "an image is shared; give the secret to a role"
        problems.add(path, f"an image holds no secrets, but this asks for {secret.name}", hint)
    problems.check()
    settings = {key: value for key, value in document.data.items() if key != "builder"}
    text = json.dumps([builder, settings], sort_keys=True, separators=(",", ":"))
    return Image(
        name=name,
        builder=builder,
        digest=hashlib.sha256(text.encode()).hexdigest(),
        settings=settings,
    )


def find_image(name: str, lab: str) -> Image:
    """Find an image as somebody in that directory sees it; UnknownError with a near spelling."""
    tree = Tree.of_lab(Path(lab))
    image = read_image(tree, name)
    if image is None:
        known = image_names(tree)
        raise UnknownError(f"no image called {name}", hint=meant(name, known, kind="there are"))
    return image
