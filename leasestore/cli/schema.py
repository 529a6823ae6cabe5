"""`leasestore upgrade`, `check`, `stamp` and `sql`: the default tables, from the command line."""

from __future__ import annotations

import click
from sqlalchemy import URL

from leasestore import schema
from leasestore.cli.database import database, engine_of, refuse_missing_file, told_in_one_line

_TOLD: dict[schema.Position, str] = {
    "absent": "not all tables are there: leasestore upgrade makes them",
    "behind": "older than this leasestore: leasestore upgrade brings it up to date",
    "current": "up to date",
    "ahead": "made by a newer leasestore, which this one works with",
    "unversioned": "complete, with no position of leasestore's own: kept by your own migrations, "
    "or made by something else, in which case leasestore upgrade takes the tables over",
}


@click.command()
@database
@click.option("--to", default="head", show_default=True, metavar="REVISION")
def upgrade(url: URL, to: str) -> None:
    """Make the default tables, or bring them up to date."""
    with engine_of(url) as engine:
        schema.upgrade(engine, to)
        click.echo(f"{url.render_as_string()}: {_TOLD[schema.position(engine)]}")


@click.command()
@database
@click.pass_context
def check(context: click.Context, url: URL) -> None:
    """Say whether the default tables are there and up to date; change nothing.

    Exit status: 0 if leasestore can work with them, 1 if an upgrade is due.
    """
    refuse_missing_file(url)
    with engine_of(url) as engine:
        position = schema.position(engine)
        if position == "absent":
            schema.refuse_strangers(engine)
        elif position != "behind":
            schema.check(engine)
        click.echo(f"{url.render_as_string()}: {_TOLD[position]}")
    if position in ("absent", "behind"):
        context.exit(1)


@click.command()
@database
@click.option("--to", default="head", show_default=True, metavar="REVISION")
def stamp(url: URL, to: str) -> None:
    """Note that tables which something else has made are at a revision, after a look at them."""
    refuse_missing_file(url)
    with engine_of(url) as engine:
        schema.stamp(engine, to)
        click.echo(f"{url.render_as_string()}: {_TOLD[schema.position(engine)]}")


@click.command()
@click.option("--database", default="sqlite", show_default=True, help="SQLAlchemy's name of it.")
@click.option("--since", default="base", show_default=True, metavar="REVISION")
@click.option("--to", default="head", show_default=True, metavar="REVISION")
def sql(database: str, since: str, to: str) -> None:
    """Print the upgrade as a script, for those who apply SQL by hand."""
    with told_in_one_line():
        click.echo(schema.sql(database, since=since, to=to), nl=False)
