"""The playbook of a project: where it lies, what it is given, and when it has changed."""

from __future__ import annotations

import datetime as dt
import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from essaim.config.secrets import SecretRef, read_secret, resolve_secret

if TYPE_CHECKING:
    from essaim.config.documents import Document
    from essaim.config.tree import Tree

#: Folders beside a playbook, or above it in its workspace, that Ansible reads by itself.
FOLDERS = (
    *("group_vars", "host_vars", "roles", "tasks", "handlers", "templates", "files", "vars"),
    *("library", "module_utils", "filter_plugins", "lookup_plugins", "callback_plugins"),
)
#: Where a workspace keeps its playbooks.
WORKSPACES = "workspaces"
#: Bytes from which on a file is not read to tell whether it has changed.
_LARGE = 1 << 20
_NAMED = re.compile(r"[\w./-]+\.(?:ya?ml|j2|json|ini|cfg|conf|sh|py)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """What is to be played on the machines of a project.  Secrets are references."""

    group: str
    playbook: Path
    tags: tuple[str, ...] = ()
    extravars: Mapping[str, Any] = field(default_factory=dict)
    executor: str = "runner"  #: ansible-runner here, or awx
    template: str = ""  #: AWX's job template, by name or id
    files: str = ""  #: a digest of the playbook and of what it reads

    @property
    def home(self) -> Path:
        """The folder whose group_vars, host_vars and roles count besides those beside it."""
        return home_of(self.playbook)


def home_of(playbook: Path) -> Path:
    """The folder above `playbooks`, in which or below which a playbook lies; else its own."""
    near = (playbook.parent, playbook.parent.parent)
    return next((each.parent for each in near if each.name == "playbooks"), playbook.parent)


def play_to_json(play: Play) -> dict[str, Any]:
    """Give plain values, but for references to secrets."""
    return {
        "group": play.group,
        "playbook": str(play.playbook),
        "tags": list(play.tags),
        "extravars": dict(play.extravars),
        "executor": play.executor,
        "template": play.template,
        "files": play.files,
    }


def play_from_json(data: Mapping[str, Any]) -> Play:
    """Return the play that `play_to_json` was given."""
    return Play(**{**data, "playbook": Path(data["playbook"]), "tags": tuple(data["tags"])})


def find_playbook(tree: Tree, workspace: str, name: str) -> tuple[Path | None, list[str]]:
    """Find a playbook beside the project's file or in its workspace; else name those there are."""
    folders = list(_folders(tree, workspace))
    found = next((path for folder in folders if (path := folder / name).is_file()), None)
    near = {
        str(path.relative_to(folder))
        for folder in folders
        for path in folder.glob("*.y*ml")
        if folder.name == "playbooks" or path != tree.stack
    }
    return found, sorted(near)


def _folders(tree: Tree, workspace: str) -> Iterator[Path]:
    """Where playbooks may be, nearest first."""
    for root in dict.fromkeys((tree.stack.parent, tree.lab)):
        ansible = root / WORKSPACES / "ansible" / "playbooks"
        if workspace:
            yield root / WORKSPACES / workspace / "ansible" / "playbooks"
            yield root / WORKSPACES / workspace / "playbooks"
            yield ansible / workspace
        yield ansible
        yield root / "playbooks"
        yield root


def read_extravars(document: Document) -> dict[str, Any]:
    """Read `ansible.extravars` once more, by the rules playbooks are read by.

    Elsewhere in our files `yes` is a word; a playbook's variable it makes true.  The document has
    been read without problems before.
    """
    import yaml  # noqa: PLC0415 - heavy

    class Loader(yaml.SafeLoader):
        """YAML as Ansible reads it, with references to secrets."""

    Loader.add_constructor("!secret", lambda _loader, node: SecretRef(str(node.value)))
    data = yaml.load(document.text, Loader=Loader)  # noqa: S506 - it is a SafeLoader
    found = (data.get("ansible") or {}).get("extravars") or {}
    plain: dict[str, Any] = _plain(found)
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(below) for key, below in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(below) for below in value]
    if isinstance(value, dt.date):
        return value.isoformat()
    return value


# -- secrets -----------------------------------------------------------------------------------


def reference(value: Any) -> Mapping[str, str] | None:
    """Give what `{secret: {env: NAME}}` or `{secret: {file: PATH}}` refers to; None if neither."""
    if not isinstance(value, Mapping) or value.keys() != {"secret"}:
        return None
    inner = value["secret"]
    fits = isinstance(inner, Mapping) and len(inner) == 1 and inner.keys() <= {"env", "file"}
    return inner if fits else None


def has_secrets(value: Any) -> bool:
    """Whether there is a reference to a secret at or below a value."""
    if isinstance(value, SecretRef) or reference(value) is not None:
        return True
    if isinstance(value, Mapping):
        return any(has_secrets(below) for below in value.values())
    return isinstance(value, list | tuple) and any(has_secrets(below) for below in value)


def resolve(value: Any, lab: Path, hidden: list[str]) -> Any:
    """Replace references by secrets, noting each as hidden; UnknownError when there is none."""
    if isinstance(value, SecretRef):
        return _hide(resolve_secret(value.name, lab), hidden)
    if (named := reference(value)) is not None:
        return _hide(read_secret(named, "a variable of the play", lab), hidden)
    if isinstance(value, Mapping):
        return {key: resolve(below, lab, hidden) for key, below in value.items()}
    if isinstance(value, list | tuple):
        return [resolve(below, lab, hidden) for below in value]
    return value


def _hide(secret: str, hidden: list[str]) -> str:
    hidden.append(secret)
    return secret


# -- what it is made of -------------------------------------------------------------------------


def files_digest(playbook: Path) -> str:
    """Digest the playbook, the files it names, and the folders Ansible reads with it."""
    folder, home = playbook.parent, home_of(playbook)
    seen: dict[Path, None] = {}
    _follow(playbook, folder, seen)
    for place in dict.fromkeys((folder, home)):
        for name in FOLDERS:
            for file in sorted((place / name).rglob("*")):
                if file.is_file() and ".git" not in file.parts:
                    seen.setdefault(file)
    digest = hashlib.blake2b(digest_size=8)
    for file in sorted(seen):
        digest.update(f"{os.path.relpath(file, home)}\0{_state(file)}\0".encode())
    return digest.hexdigest()


def _follow(file: Path, folder: Path, seen: dict[Path, None]) -> None:
    """Note a file and those it names, which lie beside it."""
    if file in seen or not file.is_file():
        return
    seen[file] = None
    if file.suffix not in (".yml", ".yaml") or file.stat().st_size > _LARGE:
        return
    for word in _NAMED.findall(file.read_text(encoding="utf-8", errors="replace")):
        for place in (file.parent, folder):
            if ".." not in Path(word).parts and not word.startswith("/"):
                _follow(place / word, folder, seen)


def _state(file: Path) -> str:
    facts = file.stat()
    if facts.st_size > _LARGE:
        return f"{facts.st_size} {facts.st_mtime_ns}"
    return hashlib.sha256(file.read_bytes()).hexdigest()


def group_of(words: Sequence[str]) -> str:
    """Make the name of an inventory's group of a project's name."""
    return "_".join(words).replace("-", "_")
