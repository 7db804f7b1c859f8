"""What all tables are made of, once, for SQLite, MariaDB and PostgreSQL."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Integer, MetaData, String, Text
from sqlalchemy.dialects.mysql import MEDIUMTEXT

NAME = String(190).with_variant(String(190, collation="C"), "postgresql")
WORD = String(16)
BODY = Text().with_variant(MEDIUMTEXT(), "mysql", "mariadb")
SERIAL = BigInteger().with_variant(Integer(), "sqlite")  # SQLite numbers only INTEGER keys itself

#: Said for both spellings of the URL.
MARIADB: dict[str, Any] = {
    f"{name}_{option}": value
    for name in ("mysql", "mariadb")
    for option, value in (
        ("engine", "InnoDB"),
        ("charset", "utf8mb4"),
        ("collate", "utf8mb4_bin"),
    )
}

metadata = MetaData()
