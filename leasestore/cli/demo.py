"""`leasestore demo`."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from leasestore import Event, LeaseStoreError
from leasestore.cli import demo_report
from leasestore.cli.signals import Interrupted, interruptible
from leasestore.demo import conductor, inputs
from leasestore.demo.facts import Fact, Result
from leasestore.demo.processes import DemoFailed


class BadUse(click.ClickException):
    """Bad input: one line, exit status 2."""

    exit_code = 2


@click.command()
@click.option(
    "--orders",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help='Orders to deliver: JSON Lines, one {"id": ..., "qty": ...} each.',
)
@click.option(
    "--keep",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Leave the queue and the receiver's inbox in this directory.",
)
@click.pass_context
def demo(context: click.Context, orders: Path | None, keep: Path | None) -> None:
    """Kill a courier, and see its order recovered.

    Starts a receiver and two couriers on this machine, kills the first courier between delivery
    and finish, and lets the second one recover the order when the lease ends.

    Exit status: 0 if every order was counted exactly once, 1 if not, 2 for bad input.
    """
    try:
        events = inputs.read_orders(inputs.sample_orders() if orders is None else orders)
        directory = None if keep is None else inputs.keep_directory(keep)
    except inputs.BadInput as error:
        raise BadUse(str(error)) from error
    console = Console(highlight=False)
    console.print(demo_report.opening(events))
    result = _run(console, events, directory)
    for part in (demo_report.timeline(result), demo_report.orders(result)):
        console.print(part)
        console.print()
    console.print(demo_report.verdict(result))
    if directory is not None:
        click.echo(demo_report.kept(directory))
    if result.lost or result.doubled:
        context.exit(1)


def _run(console: Console, orders: list[Event], directory: Path | None) -> Result:
    """The demo, with a bar on a terminal; nothing of it is left if it fails."""
    columns = TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn()
    try:
        with (
            interruptible(),
            Progress(
                *columns, console=console, transient=True, disable=not console.is_terminal
            ) as bar,
        ):
            task = bar.add_task("starting a receiver and two couriers", total=len(orders))

            facts: list[Fact] = []

            def watch(fact: Fact) -> None:
                facts.append(fact)
                done = fact.what == "finished" and fact.detail == "done"
                bar.update(task, advance=int(done), description=demo_report.progress(facts))

            return conductor.run(orders, directory, watch)
    except (DemoFailed, LeaseStoreError, OSError) as error:
        raise click.ClickException(f"the demo failed: {error}") from error
    except Interrupted as error:
        click.echo(f"Interrupted by {error}; every process was stopped.", err=True)
        raise SystemExit(error.exit_code) from error
