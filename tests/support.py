"""What the tests share: the contract's schema in plain SQL, engines in every driver mode, and the
tables as plain `sqlite3` sees them, past everything that is under test."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry

CONTRACT_DDL = """
CREATE TABLE jobs(seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, qty INTEGER NOT NULL,
     status TEXT NOT NULL CHECK(status IN ('pending','leased','done','dead')),
     attempts INTEGER NOT NULL, max_attempts INTEGER NOT NULL, token INTEGER NOT NULL,
     available_at INTEGER NOT NULL, deadline INTEGER NOT NULL,
     owner TEXT, lease_until INTEGER, reason TEXT);
CREATE TABLE redrives(seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL, token INTEGER NOT NULL,
     at_ms INTEGER NOT NULL, note TEXT NOT NULL);
"""  # fmt: skip  # noqa: E501


def make_file(path: Path) -> Path:
    """A queue file as plain `sqlite3` code of the contract makes it."""
    with closing(sqlite3.connect(path)) as plain:
        plain.executescript(CONTRACT_DDL)
    return path


def rows(path: Path, table: str = "jobs", key: str = "seq") -> list[dict[str, Any]]:
    """All rows in order, read on a connection of our own."""
    with closing(sqlite3.connect(path)) as plain:
        plain.row_factory = sqlite3.Row
        return [dict(row) for row in plain.execute(f"SELECT * FROM {table} ORDER BY {key}")]


def insert_row(path: Path, **columns: Any) -> None:
    """Put a row into jobs by hand: pending and ready at 0 with deadline 1000 unless said."""
    row = {
        "id": "job-1",
        "qty": 1,
        "status": "pending",
        "attempts": 0,
        "max_attempts": 3,
        "token": 0,
        "available_at": 0,
        "deadline": 1000,
        "owner": None,
        "lease_until": None,
        "reason": None,
        **columns,
    }
    names, marks = ", ".join(row), ", ".join("?" * len(row))
    with closing(sqlite3.connect(path)) as plain, plain:
        plain.execute(f"INSERT INTO jobs ({names}) VALUES ({marks})", list(row.values()))


def _with_begin_recipe(path: Path) -> Engine:
    """SQLAlchemy's documented recipe for real transactions on the legacy driver modes."""
    engine = create_engine(f"sqlite:///{path}")

    @event.listens_for(engine, "connect")
    def leave_transactions_alone(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    return engine


def _plain(**settings: Any) -> Callable[[Path], Engine]:
    return lambda path: create_engine(f"sqlite:///{path}", **settings)


ENGINES: dict[str, Callable[[Path], Engine]] = {
    "default": _plain(),
    "begin-recipe": _with_begin_recipe,
    "autocommit": _plain(isolation_level="AUTOCOMMIT"),
    "isolation-none": _plain(connect_args={"isolation_level": None}),
    "isolation-immediate": _plain(connect_args={"isolation_level": "IMMEDIATE"}),
}
"""Every driver mode in which the contract holds on this Python, by name."""

if sys.version_info >= (3, 12):
    ENGINES["autocommit-false"] = _plain(connect_args={"autocommit": False})
