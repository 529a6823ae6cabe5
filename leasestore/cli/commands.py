"""The group of all commands."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import click

from leasestore.cli.demo import demo
from leasestore.cli.schema import check, sql, stamp, upgrade
from leasestore.cli.watch import watch
from leasestore.cli.work import work


def _version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    try:
        click.echo(f"leasestore {version('leasestore')}")
    except PackageNotFoundError:
        click.echo("leasestore, from a source tree that is not installed")
    context.exit()


@click.group()
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Show the version and exit.",
)
def leasestore() -> None:
    """Jobs with leases, in the database you already have."""


for command in (check, demo, sql, stamp, upgrade, watch, work):
    leasestore.add_command(command)
