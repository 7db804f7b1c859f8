"""What `essaim students` says.  Key → (English, French)."""

from __future__ import annotations

from collections.abc import Mapping

CLASSROOM: Mapping[str, tuple[str, str]] = {}
