"""`--db` and `--queue`: whose jobs a command is about, and its repository."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click
from click.core import ParameterSource
from sqlalchemy import URL

from leasestore import JobRepository, SchemaError, system_clock
from leasestore.cli import application
from leasestore.cli.database import (
    DatabaseUrl,
    engine_of,
    refuse_missing_file,
    told_in_one_line,
)

_Command = TypeVar("_Command", bound=Callable[..., Any])


def of_a_queue(command: _Command) -> _Command:
    """The two options, of which exactly one is to be given."""
    for option in (
        click.option(
            "--queue",
            type=application.Name(),
            help="An application's own JobRepository, or a function that returns it.",
        ),
        click.option(
            "--db",
            "url",
            type=DatabaseUrl(),
            envvar="LEASESTORE_DB",
            show_envvar=True,
            help="The default tables in this database: a SQLAlchemy URL, or a SQLite file's path.",
        ),
    ):
        command = option(command)
    return command


@contextmanager
def repository_of(
    url: URL | None, queue: str | None, connections: int = 5
) -> Iterator[JobRepository]:
    """The repository that the options name, once it has shown that it can be worked with; what
    goes wrong is told in one line.

    Args:
        connections: that an engine made here keeps; an application's own is as it is.
    """
    if queue is not None and _given_as("url") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--db or --queue: give one of them, not both")
    if queue is not None:
        repository = application.repository(queue)
        engine = repository._bind.engine
        try:
            with told_in_one_line(engine.url):
                yield _proven(repository, default_tables=False)
        finally:
            # The process ends; what its server sees is a goodbye.
            engine.dispose()
    elif url is not None:
        with engine_of(url, pool_size=connections) as engine:
            yield _proven(JobRepository(engine), default_tables=True)
    else:
        raise click.UsageError("give --db URL, or --queue MODULE:ATTRIBUTE")


def _given_as(parameter: str) -> ParameterSource | None:
    return click.get_current_context().get_parameter_source(parameter)


def _proven(repository: JobRepository, *, default_tables: bool) -> JobRepository:
    """Asked for one row, which takes no lock: a database that is away, or without the tables, is
    an error at the start and not an outage."""
    refuse_missing_file(repository._bind.engine.url, default_tables=default_tables)
    try:
        repository.stuck(system_clock, 1)
    except SchemaError as error:
        if not (default_tables and error.missing):
            raise
        also = "for models of your own give --queue MODULE:ATTRIBUTE"
        raise click.ClickException(f"{error}; {also}") from error
    return repository
