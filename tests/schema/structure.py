"""What a table is, apart from the spelling and the names of its constraints."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, inspect

Structure = dict[str, Any]

_CHECK = re.compile(r"CHECK\s*\(((?:[^()]|\([^()]*\))*)\)")


def of_file(path: Path, tables: Iterable[str]) -> dict[str, Structure]:
    with closing(sqlite3.connect(path)) as plain:
        return {table: _table(plain, table) for table in tables}


def indexes_of_file(path: Path) -> dict[str, str]:
    with closing(sqlite3.connect(path)) as plain:
        made = plain.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql <> ''"
        )
        return dict(made.fetchall())


def of_engine(engine: Engine, tables: Iterable[str]) -> dict[str, Structure]:
    """The same by what SQLAlchemy reflects, which on PostgreSQL is all that matters here."""
    inspector = inspect(engine)
    return {
        table: {
            "columns": [
                (column["name"], str(column["type"]), column["nullable"], bool(column["default"]))
                for column in inspector.get_columns(table)
            ],
            "key": inspector.get_pk_constraint(table)["constrained_columns"],
            "unique": [rule["column_names"] for rule in inspector.get_unique_constraints(table)],
            "indexes": sorted(map(str, inspector.get_indexes(table))),
            "checks": [rule["sqltext"] for rule in inspector.get_check_constraints(table)],
        }
        for table in tables
    }


def _table(plain: sqlite3.Connection, table: str) -> Structure:
    (ddl,) = plain.execute(
        "SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)
    ).fetchone()
    indexes = plain.execute(f"PRAGMA index_list({table})").fetchall()
    return {
        # Name, type, NOT NULL, default and place in the primary key, in order.
        "columns": [tuple(row[1:]) for row in plain.execute(f"PRAGMA table_info({table})")],
        "autoincrement": "AUTOINCREMENT" in ddl,
        "unique": sorted(
            tuple(row[2] for row in plain.execute(f"PRAGMA index_info({index[1]})"))
            for index in indexes
            if index[2]
        ),
        "checks": [re.sub(r"\s", "", check) for check in _CHECK.findall(ddl)],
    }
