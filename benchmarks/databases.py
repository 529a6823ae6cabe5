"""Databases with leasestore's tables, made once by its migrations and copied for each contender."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path

import psycopg
from sqlalchemy import create_engine, make_url

from benchmarks.contenders import Postgresql, Sqlite
from leasestore import schema
from tests.postgresql import Server, libpq, started

_SETTINGS = """
fsync = on
full_page_writes = on
synchronous_commit = on
max_connections = 100
"""
_TOLD = ("server_version", "fsync", "full_page_writes", "synchronous_commit", "autovacuum")


class Files:
    """Queue files in one directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names = count()
        self._empty = folder / "empty.db"
        engine = create_engine(f"sqlite:///{self._empty}")
        schema.upgrade(engine)
        engine.dispose()

    def path(self) -> Path:
        """Of a file that does not exist yet."""
        return self._folder / f"{next(self._names)}.db"

    def copy(
        self, original: Path | None = None, journal: str = "WAL", synchronous: str = "FULL"
    ) -> Sqlite:
        """A file like that one, or one without a job."""
        path = self.path()
        shutil.copyfile(original or self._empty, path)
        with closing(sqlite3.connect(path)) as plain:
            ((mode,),) = plain.execute(f"PRAGMA journal_mode = {journal}").fetchall()
        assert mode.upper() == journal
        return Sqlite(path, journal, synchronous)


class Databases:
    """Databases on one server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.settings = self._told()

    def _told(self) -> dict[str, str]:
        with psycopg.connect(libpq(self._server.empty())) as connection:
            shown = ((name, connection.execute(f"SHOW {name}".encode())) for name in _TOLD)
            return {name: str(cursor.fetchall()[0][0]) for name, cursor in shown}

    def durability(self, synchronous_commit: str = "on") -> str:
        return f"fsync={self.settings['fsync']}, synchronous_commit={synchronous_commit}"

    def bare(self) -> Postgresql:
        """One without any table."""
        return Postgresql(libpq(self._server.empty()))

    def copy(
        self, original: Postgresql | None = None, synchronous_commit: str = "on"
    ) -> Postgresql:
        """A database like that one, which nobody is connected to, or one without a job."""
        if original is None:
            url = self._server.fresh()
        else:
            url = self._server.like(make_url(original.url))
        return Postgresql(libpq(url), synchronous_commit)

    def drop(self, target: Postgresql) -> None:
        self._server.drop(make_url(target.url))


@contextmanager
def server(url: str | None) -> Iterator[Databases]:
    """Databases on this server; without one, on a server of our own, which syncs every COMMIT to
    the disk unless a session says otherwise."""
    if url is not None:
        found = Server(make_url(url))
        try:
            yield Databases(found)
        finally:
            found.drop_all()
        return
    with started(_SETTINGS) as ours:
        yield Databases(Server(ours))
