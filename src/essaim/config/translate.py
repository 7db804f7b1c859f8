"""Hydra's and OmegaConf's messages in our words, with the file, the line and a near spelling."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hydra.errors import MissingConfigException

from essaim.config.overrides import on_command_line
from essaim.model.errors import InvalidError, Place, Problem
from essaim.model.spelling import meant

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hydra.core.override_parser.types import Override

    from essaim.config.source import Files

_PARENT = re.compile(r"In '([^']+)': ")
_UNUSED = re.compile(r"Could not (?:override|delete) '([^'=]+)[^']*'")
_LEVEL = re.compile(r"essaim-level-[a-z]+(?:-[a-z]+)?")
_ASKED = re.compile(r"You must specify '([^']+)'")


def translate(exc: BaseException, files: Files, overrides: Sequence[Override]) -> InvalidError:
    """Make our error of one of Hydra's."""
    text = str(exc) or str(exc.__cause__ or type(exc).__name__)
    if isinstance(exc, MissingConfigException):
        return InvalidError([_missing(exc, text, files, overrides)])
    parent = match[1] if (match := _PARENT.search(text)) else ""
    place = _place(files, parent, "")
    if match := _ASKED.search(text):
        group = match[1]
        options = ", ".join(files.tree.options(group.partition("@")[0]))
        what = f"an option of {group} must be chosen"
        return InvalidError([Problem(what, place, f"{group}=…: {options}")])
    match = _UNUSED.search(text)
    if match and "To append to your config" not in text:
        return InvalidError([_unused(match[1], parent, files, overrides)])
    what = _PARENT.sub("", text).splitlines()[0]
    if match := _LEVEL.search(what):
        document = files.chain.levels[match[0]].document
        what, place = what.replace(match[0], document.name), document.place(("defaults",))
    return InvalidError([Problem(what, place)])


def _missing(
    exc: MissingConfigException, text: str, files: Files, overrides: Sequence[Override]
) -> Problem:
    config = exc.missing_cfg_file or ""
    group, _, option = config.rpartition("/")
    parent = match[1] if (match := _PARENT.search(text)) else ""
    if not group:
        what, hint = f"there is no file {config}.yaml", ""
    elif not files.tree.is_group(group):
        what = f"there is no group {group}"
        hint = meant(group, files.tree.groups(), kind="groups")
    else:
        what = f"the group {group} has no option {option}"
        hint = meant(option, files.tree.options(group), kind="options")
    for override in overrides:
        if override.key_or_group == group and option in str(override.value()):
            return on_command_line(str(override.input_line), what, hint)
    return Problem(what, _place(files, parent, group or config), hint)


def _unused(key: str, parent: str, files: Files, overrides: Sequence[Override]) -> Problem:
    group = key.partition("@")[0]
    what = f"the stack does not choose from a group {key}"
    for override in overrides:
        if override.key_or_group == group:
            line = str(override.input_line)
            hint = "" if override.is_delete() else f"to choose from it, write +{line}"
            return on_command_line(line, what, hint)
    return Problem(what, _place(files, parent, f"override {group}"))


def _place(files: Files, parent: str, word: str) -> Place | None:
    """Point at the line of a config's defaults list that has that word, or at the config."""
    documents = [level.document for level in files.chain.levels.values()]
    if found := files.document(parent) if parent else None:
        documents = [found]
    for document in reversed(documents):
        for index, item in enumerate(document.data.get("defaults", ())):
            keys = [str(key).lstrip("/") for key in item] if isinstance(item, dict) else [item]
            if word and any(key.split("@")[0].endswith(word) for key in keys):
                return document.place(("defaults", str(index)))
    return found.place() if found else None
