"""`--db`: which database a command is for, and its errors in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from sqlalchemy import URL, Engine, create_engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from leasestore import LeaseStoreError


class DatabaseUrl(click.ParamType):  # type: ignore[type-arg]  # generic only in new releases
    """A SQLAlchemy URL, or the path of a SQLite file."""

    name = "URL"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> URL:
        try:
            url = make_url(value) if "://" in value else URL.create("sqlite", database=value)
            # The commands are synchronous; an application's URL may name an asynchronous driver.
            if url.get_dialect().is_async:
                url = url.set(drivername=url.get_backend_name())
        except (ArgumentError, NoSuchModuleError, ImportError, ValueError) as error:
            self.fail(f"expected a database URL or the path of a SQLite file: {error}", param, ctx)
        return url


database = click.option(
    "--db",
    "url",
    type=DatabaseUrl(),
    required=True,
    envvar="LEASESTORE_DB",
    show_envvar=True,
    help="A SQLAlchemy URL, or the path of a SQLite file.",
)


@contextmanager
def engine_of(url: URL) -> Iterator[Engine]:
    """The engine of one command; what goes wrong is told in one line, with no password in it."""
    with told_in_one_line(url):
        engine = create_engine(url)
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
        raise click.ClickException(f"{url.render_as_string() if url else ''}: {cause}") from error
