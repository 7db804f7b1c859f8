"""What Hydra is given to read: our files, by our rules, through its plugin interfaces.

Hydra keeps its state in process-wide singletons.  `reading` therefore lets one thread in at a time
and leaves everything as it found it, also for somebody else's use of Hydra in the same process.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hydra import initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from typing_extensions import override

from essaim.config.levels import PRIMARY, Chain, check_defaults
from essaim.config.provenance import split
from essaim.config.secrets import SecretRef
from essaim.config.tree import LIBRARY, Tree
from essaim.model.errors import InvalidError, Place, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hydra.core.config_loader import ConfigLoader
    from hydra.core.object_type import ObjectType

    from essaim.config.documents import Document

SCHEME = "essaim"

_lock = threading.RLock()


class Files:
    """What one composition reads: a tree, its chain of levels, and which file each config was."""

    active: Files | None = None

    def __init__(self, tree: Tree, chain: Chain) -> None:
        self.tree = tree
        self.chain = chain
        self._read: dict[str, Document | None] = {}

    def document(self, config: str) -> Document | None:
        """Return the document behind a name; None for the primary config and unknown ones."""
        if config not in self._read:
            self._read[config] = self._find(config)
        return self._read[config]

    def _find(self, config: str) -> Document | None:
        if config in self.chain.levels:
            return self.chain.levels[config].document
        group, _, option = config.rpartition("/")
        file = self.tree.find(f"{config}.yaml")
        if group == "site":
            return self._site(option, self.tree.read(file) if file else None)
        if file is None or (group and not self.tree.is_group(group)):
            return None
        document = self.tree.read(file)
        if problems := check_defaults(document):
            raise InvalidError(problems)
        return document

    def _site(self, name: str, document: Document | None) -> Document | None:
        """Give a site's option its name; it may be empty when the site has a level."""
        if document is None:
            level = self.tree.site_level(name)
            document = replace(self.tree.read(level), data={}, lines={}) if level else None
        if document is None:
            return None
        lines = {("name",): 1, **document.lines}
        return replace(document, data={"name": name, **document.data}, lines=lines)

    def content(self, config: str) -> dict[str, Any]:
        """Return the values of a config as Hydra may see them, its `defaults` list included."""
        if config == PRIMARY:
            return {"defaults": self.chain.primary()}
        document = self.document(config)
        data = dict(document.data) if document else {}
        if "hydra" in data and document:
            raise InvalidError([Problem("unknown key hydra", document.place(("hydra",)))])
        if level := self.chain.levels.get(config):
            data["defaults"] = list(level.defaults)
        return {key: _plain(value) for key, value in data.items()}


def _plain(value: Any) -> Any:
    """Write references to secrets as interpolations, which OmegaConf knows how to carry."""
    if isinstance(value, SecretRef):
        return f"${{secret:{value.name}}}"
    if isinstance(value, dict):
        return {key: _plain(below) for key, below in value.items()}
    if isinstance(value, list):
        return [_plain(below) for below in value]
    return value


class EssaimSource(ConfigSource):
    """Hydra's view of the active files."""

    @staticmethod
    @override
    def scheme() -> str:
        return SCHEME

    @property
    def _files(self) -> Files:
        if Files.active is None:
            raise RuntimeError("no composition is under way")
        return Files.active

    @override
    def available(self) -> bool:
        return True

    @override
    def load_config(self, config_path: str) -> ConfigResult:
        config = config_path.removesuffix(".yaml")
        document = self._files.document(config)
        content = self._files.content(config)
        try:
            values = OmegaConf.create(content)
            header = self._get_header_dict(document.text if document else "")
        except (OmegaConfBaseException, ValueError) as exc:
            key = getattr(exc, "full_key", None) or ""
            why = f"{key or 'the first line'} cannot be read: {str(exc).splitlines()[0]}"
            name = document.name if document else config
            place = document.place(split(key)) if document and key else Place(name, 1)
            raise InvalidError([Problem(why, place)]) from exc
        return ConfigResult(self.provider, self.full_path(), values, header)

    @override
    def is_group(self, config_path: str) -> bool:
        return self._files.tree.is_group(config_path)

    @override
    def is_config(self, config_path: str) -> bool:
        config = config_path.removesuffix(".yaml")
        return config == PRIMARY or self._files.document(config) is not None

    @override
    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        return self._files.tree.options(config_path)


class EssaimSearchPath(SearchPathPlugin):
    """Puts the active files before everything else Hydra may look at."""

    @override
    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        if Files.active is not None:
            search_path.prepend(SCHEME, f"{SCHEME}://", SearchPathQuery(provider="main"))


@contextmanager
def reading(files: Files) -> Iterator[ConfigLoader]:
    """Let Hydra read these files; one thread at a time, and nothing is left behind."""
    with _lock:
        plugins = Plugins.instance()
        plugins.register(EssaimSource)
        plugins.register(EssaimSearchPath)
        before = GlobalHydra.instance().hydra
        GlobalHydra.instance().clear()
        Files.active = files
        try:
            with initialize_config_dir(str(LIBRARY), job_name=SCHEME, version_base="1.3"):
                yield GlobalHydra.instance().config_loader()
        finally:
            Files.active = None
            GlobalHydra.instance().hydra = before
