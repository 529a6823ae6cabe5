"""`leasestore watch`."""

from __future__ import annotations

import logging

import click
from rich.console import Console
from sqlalchemy import URL

from leasestore import Watcher, database_clock, system_clock
from leasestore.cli.lines import lines, told_by
from leasestore.cli.queue import of_a_queue, repository_of
from leasestore.cli.signals import Interrupted, interruptible

_log = logging.getLogger(__name__)


@click.command()
@of_a_queue
@click.option(
    "--every-ms",
    type=int,
    default=30_000,
    show_default=True,
    help="The longest pause between two looks.",
)
@click.option("--once", is_flag=True, help="Look once, and end.")
@click.option("--database-clock", "by_database", is_flag=True, help="Time by the database's clock.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object a line, on standard output.")
def watch(
    url: URL | None,
    queue: str | None,
    every_ms: int,
    once: bool,
    by_database: bool,
    as_json: bool,
) -> None:
    """Find stuck jobs, free them, and say whose they were.

    Looks until SIGTERM or SIGINT, through outages of the database. May run anywhere, and more
    than once.

    Exit status: 0 when it was stopped, or has looked once; 1 if it failed; 2 for bad use; at a
    second signal 128 and its number.
    """
    console = Console(stderr=True, highlight=False)
    with (
        repository_of(url, queue) as repository,
        told_by([lines(as_json=as_json, console=console)]),
    ):
        clock = database_clock(repository._bind.engine) if by_database else system_clock
        watcher = Watcher(repository, clock, every_ms=every_ms)
        try:
            with interruptible(watcher.stop):
                _look_once(watcher) if once else _look_on(watcher, every_ms)
        except Interrupted as error:
            raise SystemExit(error.exit_code) from error


def _look_once(watcher: Watcher) -> None:
    found = watcher.look()
    told = ", ".join(f"{name} {count}" for name, count in found.items())
    _log.info("looked for stuck jobs: %s", told, extra={"event": "looked", **found})


def _look_on(watcher: Watcher, every_ms: int) -> None:
    _log.info("the watcher starts", extra={"event": "started", "every_ms": every_ms})
    watcher.run()
    _log.info("the watcher ends", extra={"event": "ended"})
