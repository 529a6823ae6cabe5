"""The application's tables as plain drivers see them, past everything that is under test."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from psycopg import sql
from psycopg.rows import dict_row
from sqlalchemy import URL

from tests.conformance.postgresql import beside
from tests.support import rows

TABLES = ("orders", "deliveries", "delivery_redrives")


def rows_at(url: URL, table: str) -> list[dict[str, Any]]:
    """All rows in order of their keys, as somebody else sees them."""
    key = "id" if table == "orders" else "seq"
    if url.get_backend_name() == "sqlite":
        return rows(Path(str(url.database)), table, key)
    query = sql.SQL("SELECT * FROM {} ORDER BY {}").format(*map(sql.Identifier, (table, key)))
    with beside(url) as plain, plain.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query).fetchall()


def wipe(url: URL) -> None:
    """Make the tables on PostgreSQL as new."""
    with beside(url) as plain:
        plain.execute(f"TRUNCATE {', '.join(TABLES)} RESTART IDENTITY".encode())


def locked(url: URL, patience_s: float = 0) -> bool:
    """Whether somebody has the write lock; where there is none, whether he has a transaction open
    that has begun."""
    if url.get_backend_name() == "sqlite":
        return _write_locked(Path(str(url.database)), patience_s)
    give_up = time.monotonic() + patience_s
    with beside(url) as plain:
        open_transactions = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND xact_start IS NOT NULL"
        )
        while plain.execute(open_transactions).fetchone() != (0,):
            if time.monotonic() >= give_up:
                return True
    return False


def _write_locked(path: Path, patience_s: float) -> bool:
    with closing(sqlite3.connect(path, timeout=patience_s, isolation_level=None)) as plain:
        try:
            plain.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        return False
