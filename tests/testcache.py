"""Where tests keep images: the one thing worth keeping between runs of the suite."""

from __future__ import annotations

import os
from pathlib import Path

from essaim.config.images import find_image
from essaim.images.cache import Images
from essaim.model.stacks import Image

CACHE = Path(os.environ.get("ESSAIM_TEST_CACHE") or Path.home() / ".cache" / "essaim-tests")


def base_image() -> Image:
    """The smallest image that is shipped."""
    return find_image("base", str(Path(__file__).parents[1]))


def images() -> Images:
    """The images tests share, root's and a plain user's apart."""
    return Images(CACHE / "images")
