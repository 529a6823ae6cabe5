"""One time base for many hosts: the clock of the database that they share."""

from __future__ import annotations

from sqlalchemy import Connection, Engine

from leasestore import dialects, validation
from leasestore.transactions import connected, read_transaction


class DatabaseClock:
    """Milliseconds by the database's clock; see `database_clock`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._dialect = dialects.named(engine.dialect.name)

    def __call__(self) -> int:
        with (
            connected(self._engine, self._dialect) as connection,
            read_transaction(connection, self._dialect, single=True),
        ):
            return self.on(connection)

    def on(self, connection: Connection) -> int:
        return self._dialect.now_ms(connection)


def database_clock(engine: Engine) -> DatabaseClock:
    """A clock for hosts whose own clocks may differ: that of the database.

    Give it wherever `now_ms` or a clock is taken. A verb reads it through the connection that it
    has at hand, when the statement runs, once it holds what locks it needs; called on its own it
    takes a connection of the engine's for a moment.

    On PostgreSQL use it as soon as more than one host works on a queue: a host whose clock is
    ahead would take jobs whose leases have not ended. On SQLite it is the host's clock, since
    SQLite runs in the process.

    Args:
        engine: of the database; for an `AsyncEngine` its `sync_engine`, to be read by verbs only.
    """
    bind = validation.bind(engine)
    if not isinstance(bind, Engine):
        raise ValueError("engine: expected an Engine, got a Connection; use connection.engine")
    return DatabaseClock(bind)
