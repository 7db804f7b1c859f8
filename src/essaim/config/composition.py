"""Hydra's part: files and arguments become one configuration, with a record of who set what."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hydra import compose as hydra_compose
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from essaim.config import overrides as arguments
from essaim.config.levels import PRIMARY, chain, choices
from essaim.config.provenance import (
    COMMAND_LINE,
    Blame,
    Origin,
    Provenance,
    Setting,
    blame_all,
    split,
)
from essaim.config.secrets import SecretRef
from essaim.config.source import Files, reading
from essaim.config.translate import translate
from essaim.model.errors import InvalidError, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hydra.core.default_element import ResultDefault
    from hydra.core.override_parser.types import Override

    from essaim.config.documents import Document, Keys
    from essaim.config.tree import Tree

_SECRET = re.compile(r"\$\{secret:([^${}:]+)\}")


@dataclass(frozen=True, slots=True)
class Composition:
    """What Hydra made: the configuration as written, not yet interpolated nor checked."""

    tree: Tree
    raw: DictConfig
    provenance: Provenance
    groups: frozenset[str]  #: top-level keys that belong to a chosen group


def hydrate(tree: Tree, overrides: Sequence[str]) -> Composition:
    """Compose a stack; InvalidError says what Hydra could not make sense of."""
    parsed = arguments.parse(overrides)
    arguments.single(parsed)
    arguments.check_options(parsed, tree)
    site = next((str(o.value()) for o in parsed if o.key_or_group == "site" and o.value()), "")
    while True:
        files = Files(tree, chain(tree, site))
        site = files.chain.site
        found = _compose(files, parsed)
        if isinstance(found, Composition):
            return found
        site = found  # a config deeper down chose another site: its level counts instead


def _compose(files: Files, parsed: list[Override]) -> Composition | str:
    lines = [str(o.input_line) for o in parsed]
    with reading(files) as loader:
        try:
            plan = loader.compute_defaults_list(PRIMARY, lines, RunMode.RUN)
            chosen = dict(plan.overrides.known_choices)
            if (site := chosen.get("site")) and site != files.chain.site:
                return str(site)
            defaults = [d for d in plan.defaults if not str(d.config_path).startswith("hydra/")]
            provenance = _record(files, defaults)
            _choices(provenance, files, chosen, parsed)
            _check_clashes(provenance)
            arguments.check(plan.config_overrides, provenance, files.tree.groups())
            raw = hydra_compose(PRIMARY, overrides=lines)
        except (HydraException, OmegaConfBaseException, ValueError, AssertionError) as exc:
            raise translate(exc, files, parsed) from exc
    for override in plan.config_overrides:
        _replay(provenance, override)
    container = OmegaConf.to_container(raw, resolve=False)
    provenance.settle(dict(_leaves(with_references(container))))
    groups = frozenset(str(d.package).partition(".")[0] for d in defaults if d.package)
    return Composition(files.tree, raw, provenance, groups)


def with_references(value: Any) -> Any:
    """Turn the interpolations that stand for secrets into references."""
    if isinstance(value, str) and (match := _SECRET.fullmatch(value)):
        return SecretRef(match[1].strip())
    if isinstance(value, dict):
        return {key: with_references(below) for key, below in value.items()}
    if isinstance(value, list):
        return [with_references(below) for below in value]
    return value


def _record(files: Files, defaults: list[ResultDefault]) -> Provenance:
    provenance = Provenance()
    above = {d.config_path: d.parent for d in defaults}
    for default in defaults:
        config = str(default.config_path)
        document = files.document(config)
        if document is not None:
            package = split(default.package or "")
            level = _level(files, config, above)
            data = {k: v for k, v in document.data.items() if k != "defaults"}
            provenance.merge(package, with_references(data), _blame(document, level, len(package)))
    return provenance


def _check_clashes(provenance: Provenance) -> None:
    problems = [
        Problem(f"{'.'.join(path)} is a list here and a mapping there: {before.place}", new.place)
        for path, new, before in provenance.clashes
    ]
    if problems:
        raise InvalidError(problems)


def _blame(document: Document, level: str, depth: int) -> Blame:
    return lambda path: Origin(level, document.place(path[depth:]))


def _level(files: Files, config: str | None, above: dict[str | None, str | None]) -> str:
    """Name the level whose defaults list brought a config in; the site's option is the site's."""
    seen: set[str] = set()
    while config and config not in seen:
        if config in files.chain.levels:
            return files.chain.levels[config].name
        if config.startswith("site/") and above.get(config) == PRIMARY:
            return "site"
        seen.add(config)
        config = above.get(config)
    return "feature"


def _choices(
    provenance: Provenance, files: Files, chosen: dict[str, Any], parsed: list[Override]
) -> None:
    """Record who chose each group's option, and what that overrode."""
    asked = {o.key_or_group: o for o in parsed if not o.is_delete()}
    for group, option in chosen.items():
        if option is None or "@" in group or group.startswith("hydra/"):
            continue
        given = list(_mentions(files, group))
        if group in asked:
            given.append((asked[group].value(), Origin(COMMAND_LINE)))
        elif not given or given[-1][0] != option:
            given.append((option, Origin("feature")))
        provenance.choose(
            group.replace("/", "."),
            [
                Setting(group.replace("/", "."), value, origin.level, origin.place, age == 0)
                for age, (value, origin) in enumerate(reversed(given))
            ],
        )


def _mentions(files: Files, group: str) -> Iterator[tuple[Any, Origin]]:
    for level in files.chain.levels.values():
        for index, (name, option) in choices(level.document):
            if name == group:
                place = level.document.place(("defaults", str(index)))
                yield option, Origin(level.name, place)


def _replay(provenance: Provenance, override: Override) -> None:
    path = split(override.key_or_group)
    if override.is_delete():
        provenance.delete(path)
        return
    origin = Origin(COMMAND_LINE, argument=str(override.input_line))
    provenance.merge(path, with_references(override.value()), blame_all(origin))


def _leaves(value: Any, path: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    if isinstance(value, dict) and (value or not path):
        for key, below in value.items():
            yield from _leaves(below, (*path, str(key)))
    else:
        yield path, value
