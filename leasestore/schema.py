"""The tables in somebody else's house: make them through the migrations, alone or as part of the
application's own history, and say what is missing."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import Script, ScriptDirectory
from sqlalchemy import Connection, Engine

from leasestore import dialects, operations, validation
from leasestore.errors import SchemaError
from leasestore.models import Base, Job, JobMixin, Redrive, RedriveMixin, table_of
from leasestore.transactions import connected, join, read_transaction, write_transaction

VERSION_TABLE = "leasestore_alembic_version"
"""Where the position in leasestore's own migrations is kept, apart from the application's."""

Position = Literal["absent", "unversioned", "behind", "current", "ahead"]

_Plan = Callable[[Any, MigrationContext], Iterable[Any]]


def migrations() -> Path:
    """The directory of the migrations: inside the package, or beside it in a checkout."""
    package = Path(__file__).parent
    inside = package / "migrations"
    return inside if inside.is_dir() else package.parent / "migrations"


def upgrade(bind: Engine | Connection, to: str = "head") -> None:
    """Bring the default tables up to a revision, in one immediate transaction.

    What is absent is made, rows stay. Two tables that are exactly the contract's, but have no
    position, as plain `sqlite3` code makes them, are taken over. Safe to call from several
    threads and processes at once, and after a failure: it is done wholly or not at all. Tables
    that a newer leasestore has made are left as they are; this one works with them.

    Args:
        bind: an `Engine`, or a `Connection`; if that is in a transaction, the upgrade becomes
            part of it, and its rollback undoes it.
        to: a revision of leasestore's (`ls0002`, ...) or `head`.

    Raises:
        SchemaError: a table of the same name is something else. Nothing was changed.
        StoreBusy: the write lock was not free in time. Nothing was changed.
        ValueError: there is no such revision.
    """
    scripts = _scripts()
    _known(scripts, to=to)
    with _transaction(bind) as connection:
        revision = _context(connection).get_current_revision()
        if revision not in (None, *_revisions(scripts)):
            return
        missing = operations.missing(connection, _tables())
        if revision is None or missing:
            _refuse_strangers(connection)
        if missing:
            # A table was dropped behind the position's back; every revision can be run again.
            _context(connection).stamp(scripts, "base")
        _run(connection, scripts, lambda heads, _: scripts._upgrade_revs(to, heads))


def downgrade(bind: Engine | Connection, to: str = "base") -> None:
    """Go back to a revision, in one immediate transaction; to `base` drops the tables with all
    their rows. Arguments and errors as for `upgrade`."""
    scripts = _scripts()
    _known(scripts, to=to)
    with _transaction(bind) as connection:
        revision = _context(connection).get_current_revision()
        if revision not in (None, *_revisions(scripts)):
            problem = f"the tables are at {revision}, made by a newer leasestore"
            raise SchemaError(problem, (), "go back with that release")
        _run(connection, scripts, lambda heads, _: scripts._downgrade_revs(to, heads))


def stamp(bind: Engine | Connection, to: str = "head") -> None:
    """Note a position without running anything, after a look at the tables.

    For tables that something else has made, `metadata.create_all` say. Arguments as `upgrade`.

    Raises:
        SchemaError: a table is absent, or is not the contract's. Nothing was changed.
    """
    scripts = _scripts()
    _known(scripts, to=to)
    with _transaction(bind) as connection:
        _refuse_strangers(connection)
        absent = operations.missing(connection, _tables())
        if absent:
            raise operations.schema_error(absent)
        _context(connection).stamp(scripts, to)


def upgrade_inline(op: Any, to: str = "head", *, since: str = "base") -> None:
    """Make the default tables in a revision of the application's own.

        def upgrade() -> None:
            leasestore.schema.upgrade_inline(op, "ls0002")

    One history and one head remain; there is no version table of leasestore's. Nothing is read
    from the database, so that the application's offline mode works. A later revision goes on:
    `upgrade_inline(op, "ls0003", since="ls0002")`. Name the revisions, not `head`: what a
    revision does has to stay the same.

    Args:
        op: `alembic.op`, or the `Operations` to use.
        to: the last of leasestore's revisions to apply.
        since: the last that an earlier revision of the application applied.
    """
    scripts = _scripts()
    _known(scripts, to=to, since=since)
    ours = _without_conventions(op)
    for script in reversed(list(scripts.iterate_revisions(to, since))):
        _with_op(script, ours).upgrade()


def downgrade_inline(op: Any, to: str = "base", *, since: str = "head") -> None:
    """Undo `upgrade_inline` in the application's own `downgrade()`: from `since` back to `to`."""
    scripts = _scripts()
    _known(scripts, to=to, since=since)
    ours = _without_conventions(op)
    for script in scripts.iterate_revisions(since, to):
        _with_op(script, ours).downgrade()


def sql(database: str = "sqlite", *, since: str = "base", to: str = "head") -> str:
    """The upgrade as a script, for those who apply SQL by hand.

    Args:
        database: SQLAlchemy's name of it, as `sqlite`.
        since: the position that the database has; `base`: none.
        to: the position that it shall have.
    """
    dialects.named(database)
    written = io.StringIO()
    scripts = _scripts()
    _known(scripts, to=to, since=since)
    context = MigrationContext.configure(
        dialect_name=database,
        opts={
            "as_sql": True,
            "output_buffer": written,
            "script": scripts,
            "starting_rev": since,
            "transactional_ddl": True,
            "version_table": VERSION_TABLE,
            "fn": lambda heads, _: scripts._upgrade_revs(to, heads),
        },
    )
    _bind_op(scripts, context)
    with context.begin_transaction():
        context.run_migrations()
    return written.getvalue()


def check(
    bind: Engine | Connection,
    *,
    job: type[JobMixin] = Job,
    redrive: type[RedriveMixin] = Redrive,
) -> None:
    """See that the tables of these models are there, with all columns; it changes nothing.

    Raises:
        SchemaError: says which tables and columns are missing, and what mends it.
    """
    tables = table_of(job, JobMixin), table_of(redrive, RedriveMixin)
    with _reading(bind) as connection:
        missing = operations.missing(connection, tables)
    if missing:
        raise operations.schema_error(missing)


def refuse_strangers(bind: Engine | Connection) -> None:
    """See that no table of a default table's name is something else, for which `upgrade` would
    fail; it changes nothing, and absent tables are no matter.

    Raises:
        SchemaError: says what such a table has, and what was expected.
    """
    with _reading(bind) as connection:
        _refuse_strangers(connection)


def position(bind: Engine | Connection) -> Position:
    """Where the default tables stand: `absent`; `unversioned`, made by something else; `behind`
    or `current`, against this version of leasestore; `ahead`, made by a newer one, which works
    too. Only leasestore's own version table counts; it changes nothing."""
    scripts = _scripts()
    with _reading(bind) as connection:
        revision = _context(connection).get_current_revision()
        missing = operations.missing(connection, _tables())
    if revision is None:
        return "absent" if missing else "unversioned"
    if revision == scripts.get_current_head():
        return "current"
    return "behind" if revision in _revisions(scripts) else "ahead"


def include_name(name: str | None, type_: str, parent_names: Mapping[str, str | None]) -> bool:
    """For `context.configure(include_name=...)` in the application's env.py: keeps autogenerate
    and `alembic check` from proposing to drop leasestore's default tables."""
    ours = {*(table.name for table in _tables()), VERSION_TABLE}
    return not (type_ == "table" and name in ours and parent_names.get("schema_name") is None)


def _tables() -> Sequence[Any]:
    return Base.metadata.sorted_tables


def _scripts() -> ScriptDirectory:
    # Loaded anew each time: its modules get an `op` of their own, not the one that Alembic keeps
    # in a global, so that threads and nested migrations do not get into each other's way.
    return ScriptDirectory(str(migrations()))


def _revisions(scripts: ScriptDirectory) -> list[str]:
    return [script.revision for script in scripts.walk_revisions()][::-1]


def _known(scripts: ScriptDirectory, **arguments: str) -> None:
    known = ["base", *_revisions(scripts), "head"]
    for name, revision in arguments.items():
        if revision not in known:
            raise ValueError(f"{name}: expected one of {', '.join(known)}, got {revision!r}")


def _context(connection: Connection, **settings: Any) -> MigrationContext:
    options = {
        "version_table": VERSION_TABLE,
        # Beside the tables, where the connection has a schema_translate_map.
        "version_table_schema": connection.schema_for_object(table_of(Job, JobMixin)),
        "transactional_ddl": True,
        **settings,
    }
    return MigrationContext.configure(connection, opts=options)


def _run(connection: Connection, scripts: ScriptDirectory, plan: _Plan) -> None:
    context = _context(connection, fn=plan)
    _bind_op(scripts, context)
    context.run_migrations()


def _bind_op(scripts: ScriptDirectory, context: MigrationContext) -> None:
    for script in scripts.walk_revisions():
        _with_op(script, Operations(context))


def _without_conventions(op: Any) -> Operations:
    """The application's operations, without the naming convention of its MetaData: the contract's
    tables are the same in every house."""
    context = copy.copy(op.get_context())
    context.opts = {**context.opts, "target_metadata": None}
    return Operations(context)


def _with_op(script: Script, op: Any) -> Any:
    script.module.__dict__["op"] = op
    return script.module


def _refuse_strangers(connection: Connection) -> None:
    """A table of ours that is somebody else's, or not quite ours, is left alone."""
    dialect = dialects.named(connection.dialect.name)
    found = [
        difference
        for table in _tables()
        for difference in operations.differences(connection, dialect, table)
    ]
    if found:
        raise SchemaError(
            f"a table of leasestore's name is something else: {'; '.join(found)}",
            found,
            "declare models of your own on JobMixin and RedriveMixin, under other table names",
        )


@contextmanager
def _transaction(bind: Engine | Connection) -> Iterator[Connection]:
    """The caller's transaction where there is one, else one immediate transaction."""
    dialect = dialects.named(validation.bind(bind).dialect.name)
    with connected(bind, dialect) as connection:
        if connection.in_transaction():
            with join(connection, dialect, None):
                dialect.lock_schema(connection)
                yield connection
        else:
            with write_transaction(connection, dialect):
                dialect.lock_schema(connection)
                yield connection


@contextmanager
def _reading(bind: Engine | Connection) -> Iterator[Connection]:
    dialect = dialects.named(validation.bind(bind).dialect.name)
    with connected(bind, dialect) as connection:
        if connection.in_transaction():
            yield connection
        else:
            with read_transaction(connection, dialect):
                yield connection
