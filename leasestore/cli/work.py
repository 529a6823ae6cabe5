"""`leasestore work`."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn

import click
from rich.console import Console
from sqlalchemy import URL

from leasestore import JobRepository, Wakeup, Watcher, Worker, database_clock, system_clock
from leasestore.cli import application
from leasestore.cli.lines import lines, told_by
from leasestore.cli.progress import progress
from leasestore.cli.queue import of_a_queue, repository_of
from leasestore.cli.signals import Interrupted, interruptible

# For the worker itself, beside those of the handlers.
_CONNECTIONS = 3
_log = logging.getLogger(__name__)
_STATUS = {"late": 3, "forced": 4}


_UNTIL_EMPTY = (
    "End when there is nothing to claim; a job that waits for its next attempt is not waited for."
)


def _ms(option: str, default: int | None, help: str) -> Callable[..., Any]:
    return click.option(
        option, type=int, default=default, show_default=default is not None, help=help
    )


@click.command()
@click.argument("function", metavar="MODULE:FUNCTION", type=application.Name())
@of_a_queue
@click.option("--concurrency", type=int, default=1, show_default=True, help="Jobs at a time.")
@click.option("--owner", help="This worker's name.  [default: one of host, process and chance]")
@_ms("--lease-ms", 30_000, "How long a dead worker's job waits; a live one renews.")
@_ms("--poll-ms", 1_000, "The longest pause between two looks for work.")
@_ms("--grace-ms", 20_000, "How long a stop waits for the jobs in hand.")
@_ms("--max-run-ms", None, "After this long a job is renewed no more.  [default: no bound]")
@click.option(
    "--unclassified",
    type=click.Choice(["leave", "retry"]),
    default="leave",
    show_default=True,
    help="A job whose function fails with any other error than Retryable or Permanent: leave it "
    "to its lease, or retry it after a delay.",
)
@click.option("--once", is_flag=True, help="Claim one job, work it, and end.")
@click.option("--until-empty", is_flag=True, help=_UNTIL_EMPTY)
@click.option("--watch", is_flag=True, help="Look for stuck jobs too, as leasestore watch does.")
@click.option("--listen", is_flag=True, help="Wake up when PostgreSQL says that there is work.")
@click.option("--database-clock", "by_database", is_flag=True, help="Time by the database's clock.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object a line, on standard output.")
def work(
    function: str,
    url: URL | None,
    queue: str | None,
    once: bool,
    until_empty: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Claim jobs and call a function of an application's for each of them.

    MODULE:FUNCTION is imported as python -m would, from the current directory too. It is called
    with a dict of id and qty, or with a leasestore Delivery if its parameter is annotated so;
    it returns True when the job is done, and raises Retryable or Permanent if it is not.

    The first SIGTERM or SIGINT claims no more and waits for the jobs in hand; the second does
    not wait.

    Exit status: 0 when it was stopped, or there is nothing more to claim; 1 if it failed; 2 for bad
    use; 3 when --grace-ms was over, and 4 at a second signal, with jobs still running, whose
    leases end by themselves.
    """
    if once and until_empty:
        raise click.UsageError("--once or --until-empty: give one of them, not both")
    send = application.function(function)
    connections = max(1, options["concurrency"]) + _CONNECTIONS
    try:
        with (
            repository_of(url, queue, connections) as repository,
            _told(as_json=as_json),
            _worker(repository, send, **options) as worker,
            interruptible(worker.stop, worker.stop),
        ):
            worked = worker.run(once=once, until_empty=until_empty)
    except Interrupted as error:
        _end_now(error.exit_code)
    if worked.ended in _STATUS:
        _end_now(_STATUS[worked.ended])


@contextmanager
def _worker(
    repository: JobRepository,
    send: Any,
    *,
    by_database: bool,
    listen: bool,
    watch: bool,
    **settings: Any,
) -> Iterator[Worker]:
    clock = database_clock(repository._bind.engine) if by_database else system_clock
    watcher = Watcher(repository, clock) if watch else None
    with Wakeup(repository, listen=listen) as wakeup:
        if listen and wakeup._ear is None:
            database = repository._bind.dialect
            text = "--listen: %s through %s tells nobody who waits; this worker only polls"
            _log.warning(text, database.name, database.driver, extra={"event": "only-polls"})
        yield Worker(repository, send, clock=clock, wakeup=wakeup, watcher=watcher, **settings)


@contextmanager
def _told(*, as_json: bool) -> Iterator[None]:
    """Log lines, and on a terminal the line that shows where the worker is."""
    console = Console(stderr=True, highlight=False)
    with ExitStack() as stack:
        handlers = [lines(as_json=as_json, console=console)]
        # In colours where they are asked for; a line that changes only where there is a terminal.
        if console.is_terminal and sys.stderr.isatty() and not as_json:
            handlers.append(stack.enter_context(progress(console)))
        stack.enter_context(told_by(handlers))
        yield


def _end_now(status: int) -> NoReturn:
    """Without waiting for what a handler may have left running: threads, child processes."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
