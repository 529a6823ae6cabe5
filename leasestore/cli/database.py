"""`--db`: which database a command is for, and its errors in one line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import click
from sqlalchemy import URL, Engine, create_engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from leasestore import LeaseStoreError
from leasestore.cli.secrets import masked

# Where it is not SQLAlchemy's own choice: the driver that comes with the extra.
_SYNCHRONOUS = {"postgresql": "postgresql+psycopg"}
_BACKENDS = ("sqlite", "postgresql")
_HAS_PASSWORD = re.compile(r":[^/\\]*@")


class DatabaseUrl(click.ParamType):  # type: ignore[type-arg]  # generic only in new releases
    """A SQLAlchemy URL, or the path of a SQLite file."""

    name = "URL"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> URL:
        try:
            url = _url(value)
            if _is_in_memory(url):
                raise ArgumentError("one in memory is gone when the command ends")
            return url
        except (ArgumentError, NoSuchModuleError, ImportError) as error:
            self.fail(f"expected a database URL or the path of a SQLite file: {error}", param, ctx)
        except ValueError:
            # Where the password stands is not known: nothing of the value may be shown.
            self.fail(
                "expected a database URL or the path of a SQLite file, got what has neither form; "
                "in user names and passwords @ : / are written %40 %3A %2F",
                param,
                ctx,
            )


def _url(value: str) -> URL:
    if "://" not in value:
        if _HAS_PASSWORD.search(value):
            raise ValueError
        return URL.create("sqlite", database=value)
    url = make_url(value)
    if "@" in (url.host or ""):
        raise ValueError
    # Before a driver is looked for, which may not be there.
    backend = url.get_backend_name()
    if backend == "postgres":
        raise ArgumentError("write postgresql:// for postgres://, a name that SQLAlchemy lacks")
    if backend not in _BACKENDS:
        raise ArgumentError(f"leasestore works on SQLite and PostgreSQL, not on {backend}")
    if not url.get_dialect().is_async:
        return url
    # The commands are synchronous; an application's URL may name an asynchronous driver.
    return url.set(drivername=_SYNCHRONOUS.get(backend, backend))


database = click.option(
    "--db",
    "url",
    type=DatabaseUrl(),
    required=True,
    envvar="LEASESTORE_DB",
    show_envvar=True,
    help="A SQLAlchemy URL, or the path of a SQLite file.",
)


def _is_in_memory(url: URL) -> bool:
    name = url.database or ":memory:"
    in_memory = ":memory:" in name or url.query.get("mode") == "memory"
    return url.get_backend_name() == "sqlite" and in_memory


def refuse_missing_file(url: URL, *, default_tables: bool = True) -> None:
    """SQLite would make an empty file of a path, and whoever only works with a database makes
    none. Of `default_tables` it is told how to make them."""
    if url.get_backend_name() != "sqlite" or _is_in_memory(url):
        return
    path = url.database or ""
    if path.startswith("file:"):
        path = unquote(urlsplit(path).path)
    if not Path(path).is_file():
        remedy = f"; `leasestore upgrade --db {path}` makes it" if default_tables else ""
        raise click.ClickException(f"there is no file {path}{remedy}")


@contextmanager
def engine_of(url: URL, **settings: Any) -> Iterator[Engine]:
    """The engine of one command; what goes wrong is told in one line, with no password in it."""
    with told_in_one_line(url):
        engine = create_engine(url, **settings)
        try:
            yield engine
        finally:
            engine.dispose()


@contextmanager
def told_in_one_line(url: URL | None = None) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    except LeaseStoreError as error:
        raise click.ClickException(str(error)) from error
    except (SQLAlchemyError, ImportError) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        told = masked(" ".join(str(cause).split()))
        raise click.ClickException(f"{url.render_as_string() if url else ''}: {told}") from error
