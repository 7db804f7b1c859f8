"""Images as described in `images/<name>.yaml`."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from essaim.config.problems import Problems
from essaim.config.secrets import references
from essaim.config.tree import Tree
from essaim.model.errors import InvalidError, UnknownError
from essaim.model.spelling import meant
from essaim.model.stacks import Image

#: Bytes from which on a file is not read to tell whether it has changed.
_LARGE = 1 << 20


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
    settings = _with_scripts(settings, file.parent.parent, problems)
    problems.check()
    parts: list[object] = [builder, settings]
    if isinstance(named := settings.get("path"), str) and named:
        # Beside the folder `images` the description lies in: the lab, the stack or the library.
        place = file.parent.parent / named
        settings = {**settings, "path": str(place)}
        if builder == "packer" and place.is_file():
            place = place.parent  # a template reads the scripts beside it
        if "sha256" not in settings:
            parts.append(_fingerprint(place))
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return Image(
        name=name,
        builder=builder,
        digest=hashlib.sha256(text.encode()).hexdigest(),
        settings=settings,
    )


def _with_scripts(settings: dict[str, Any], place: Path, problems: Problems) -> dict[str, Any]:
    """Replace `{file: hooks/start.sh}` of a hook by the text of that file.

    So the text, not the path, is what machines are made from: it counts for the digest, and a
    worker elsewhere needs no file.
    """
    extras = settings.get("extras")
    if not isinstance(extras, dict) or not isinstance(extras.get("hooks"), dict):
        return settings
    hooks = {
        name: _script(str(name), hook, place, problems) if isinstance(hook, dict) else hook
        for name, hook in extras["hooks"].items()
    }
    return {**settings, "extras": {**extras, "hooks": hooks}}


def _script(name: str, hook: dict[str, Any], place: Path, problems: Problems) -> str:
    """Read a script of the lab.  A path that leads out of the lab is refused."""
    where = ("extras", "hooks", name)
    path = hook.get("file")
    if set(hook) != {"file"} or not isinstance(path, str):
        problems.add(where, f"hook {name} must be a script, or name its file", "{file: hooks/a.sh}")
        return ""
    try:
        file = (place / path).resolve()
        if not file.is_relative_to(place.resolve()):
            problems.add(where, f"hook {name}: {path} is not inside {place}")
            return ""
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text in UTF-8"
        hint = f"the path is relative to {place}"
        problems.add(where, f"cannot read hook {name}: {path}: {reason}", hint)
        return ""


def _fingerprint(place: Path) -> list[list[object]]:
    """Tell when a file, or one in a folder, is another than it was: where it lies does not matter.

    Disks are too large to be read whenever a stack is; their size and time must do, unless the
    description says what their digest is.
    """
    files = sorted(filter(_counts, place.rglob("*"))) if place.is_dir() else [place]
    return [[str(file.relative_to(place)), *_state(file)] for file in files if file.is_file()]


def _counts(path: Path) -> bool:
    return ".git" not in path.parts and path.name != "result"  # nix leaves a link of that name


def _state(file: Path) -> list[object]:
    facts = file.stat()
    if facts.st_size > _LARGE:
        return [facts.st_size, facts.st_mtime_ns]
    return [hashlib.sha256(file.read_bytes()).hexdigest()]


def find_image(name: str, lab: str) -> Image:
    """Find an image as somebody in that directory sees it; UnknownError with a near spelling."""
    tree = Tree.of_lab(Path(lab))
    image = read_image(tree, name)
    if image is None:
        known = image_names(tree)
        raise UnknownError(f"no image called {name}", hint=meant(name, known, kind="there are"))
    return image
