"""Composed values as YAML for people to read."""

from __future__ import annotations

from typing import Any

import yaml

from essaim.config.secrets import SecretRef


class _Dumper(yaml.SafeDumper):
    """Writes references to secrets as they are written in files."""


_Dumper.add_representer(SecretRef, lambda dumper, ref: dumper.represent_scalar("!secret", ref.name))


def to_yaml(values: dict[str, Any]) -> str:
    """Write values as YAML that could be read again; secrets appear as `!secret NAME`."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
