"""The default tables in a schema that the connection's `schema_translate_map` names, two of them in
one database. On SQLite a schema is an attached database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, inspect
from sqlalchemy.orm import Session
from sqlalchemy.schema import CreateSchema

from leasestore import Job, JobRepository, SchemaError, schema
from leasestore.models import Base
from tests.postgresql import Server

ONE, OTHER = SCHEMAS = ('jobs "Q', "Order")
TABLES = {"jobs", "redrives", schema.VERSION_TABLE}


def _attached(directory: Path) -> Engine:
    engine = create_engine(f"sqlite:///{directory}/main.db")

    @event.listens_for(engine, "connect")
    def attach(driver: Any, _: object) -> None:
        for number, name in enumerate(SCHEMAS):
            quoted = engine.dialect.identifier_preparer.quote(name)
            driver.execute(f"ATTACH DATABASE '{directory}/{number}.db' AS {quoted}")

    return engine


def _with_schemas(server: Server) -> Engine:
    engine = create_engine(server.empty())
    with engine.begin() as connection:
        for name in SCHEMAS:
            connection.execute(CreateSchema(name))
    return engine


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    engine = (
        _attached(tmp_path)
        if request.param == "sqlite"
        else _with_schemas(request.getfixturevalue("postgresql"))
    )
    yield engine
    engine.dispose()


def translated(engine: Engine, name: str) -> Engine:
    return engine.execution_options(schema_translate_map={None: name})


@contextmanager
def as_engine(engine: Engine, name: str) -> Iterator[Engine | Connection]:
    yield translated(engine, name)


@contextmanager
def as_connection(engine: Engine, name: str) -> Iterator[Engine | Connection]:
    with engine.connect() as connection:
        yield connection.execution_options(schema_translate_map={None: name})


@contextmanager
def in_a_transaction(engine: Engine, name: str) -> Iterator[Engine | Connection]:
    with translated(engine, name).begin() as connection:
        yield connection


BINDS = {"engine": as_engine, "connection": as_connection, "in a transaction": in_a_transaction}
Bind = Callable[[Engine, str], AbstractContextManager[Engine | Connection]]


@pytest.fixture(params=BINDS)
def bind(request: pytest.FixtureRequest) -> Bind:
    return BINDS[request.param]


def tables_of(engine: Engine) -> list[set[str]]:
    """Of no schema of the map's, of the one, of the other."""
    inspector = inspect(engine)
    return [set(inspector.get_table_names(schema=name)) for name in (None, ONE, OTHER)]


def test_the_position_goes_up_and_down_apart_from_the_other(database: Engine, bind: Bind) -> None:
    with bind(database, ONE) as its:
        assert schema.position(its) == "absent"
        with pytest.raises(SchemaError, match="lacks jobs, redrives"):
            schema.check(its)
        schema.upgrade(its)
    with bind(database, ONE) as its:
        schema.upgrade(its)
        schema.check(its)
        assert schema.position(its) == "current"
    assert tables_of(database) == [set(), TABLES, set()]
    with bind(database, OTHER) as its:
        assert schema.position(its) == "absent"
        schema.upgrade(its)
        schema.downgrade(its)
        schema.downgrade(its)
    assert tables_of(database) == [set(), TABLES, {schema.VERSION_TABLE}]


def test_tables_that_something_else_made_are_stamped_or_taken_over(
    database: Engine, bind: Bind
) -> None:
    for name, adopt in (ONE, schema.stamp), (OTHER, schema.upgrade):
        with bind(database, name) as its, pytest.raises(SchemaError):
            schema.stamp(its)
        Base.metadata.create_all(translated(database, name))
        with bind(database, name) as its:
            assert schema.position(its) == "unversioned"
            adopt(its)
            adopt(its)
            assert schema.position(its) == "current"
    assert tables_of(database) == [set(), TABLES, TABLES]


@pytest.mark.parametrize("table", ["jobs", "redrives"])
def test_a_table_that_is_something_else_is_refused_there_only(database: Engine, table: str) -> None:
    quoted = database.dialect.identifier_preparer.quote(ONE)
    with database.begin() as connection:
        connection.exec_driver_sql(f"CREATE TABLE {quoted}.{table} (title TEXT)")
    with pytest.raises(SchemaError, match="something else"):
        schema.upgrade(translated(database, ONE))
    schema.upgrade(translated(database, OTHER))
    assert tables_of(database) == [set(), {table}, TABLES]


def test_a_table_that_was_dropped_since_is_made_again(database: Engine) -> None:
    engine = translated(database, ONE)
    schema.upgrade(engine)
    Base.metadata.tables["redrives"].drop(engine)
    schema.upgrade(engine)
    assert tables_of(database) == [set(), TABLES, set()]


def test_two_queues_do_not_meet(database: Engine) -> None:
    one, other = (translated(database, name) for name in SCHEMAS)
    for engine in (one, other):
        schema.upgrade(engine)
    jobs, others = JobRepository(one), JobRepository(other)
    assert jobs.enqueue({"id": "a", "qty": 1}, 0, 1000)
    assert others.claim("me", 0) is None
    assert others.enqueue({"id": "a", "qty": 2}, 0, 1000)
    ticket = jobs.claim("me", 0)
    assert ticket is not None
    renewed = jobs.renew(ticket, 1)
    assert renewed is not None
    assert jobs.release(renewed)
    ticket = jobs.claim("me", 2, job_id="a")
    assert ticket is not None
    assert [row["id"] for row in jobs.stuck(1002 - 2)] == ["a"]
    assert jobs.finish(ticket, "permanent", 3) == "dead"
    assert jobs.redrive("a", 4, 1000, "again")
    assert jobs.claim("me", 5, 10) is not None
    assert jobs.recover(15) == {"recovered": 1, "deadline": 0, "exhausted": 0}
    with Session(one) as session, session.begin():
        job = session.get_one(Job, 1)
        ticket = jobs.within(session).claim("me", 16)
        assert ticket is not None
        assert job.token == ticket["token"] == 4
        assert jobs.within(session).finish(ticket, "ok", 17) == "done"
    with other.begin() as connection:
        mine = others.within(connection).claim("me", 17)
        assert mine is not None
        assert (mine["qty"], mine["token"]) == (2, 1)
    state = jobs.get("a")
    assert state is not None
    assert state["status"] == "done"


def test_batches_of_two_queues_do_not_meet(database: Engine) -> None:
    one, other = (translated(database, name) for name in SCHEMAS)
    for engine in (one, other):
        schema.upgrade(engine)
    jobs, others = JobRepository(one), JobRepository(other)
    assert jobs.enqueue_many([{"id": "a", "qty": 1}, {"id": "b", "qty": 1}], 0, 1000) == [True] * 2
    assert (
        others.enqueue_many([{"id": "a", "qty": 2}, {"id": "c", "qty": 1}], 0, 1000) == [True] * 2
    )
    tickets, theirs = jobs.claim_batch("me", 1, 9, 500), others.claim_batch("me", 1, 9, 500)
    assert [len(jobs.claim_batch("me", 1, 9)), len(tickets), len(theirs)] == [0, 2, 2]
    assert others.renew_batch(tickets, 2) == [None, None]
    renewed = [ticket for ticket in jobs.renew_batch(tickets, 2) if ticket]
    assert others.finish_batch([(ticket, "ok", 0) for ticket in renewed], 3) == [False, False]
    assert jobs.finish_batch([(ticket, "ok", 0) for ticket in renewed], 3) == ["done", "done"]


def test_missing_tables_are_told(database: Engine) -> None:
    schema.upgrade(translated(database, OTHER))
    with pytest.raises(SchemaError) as caught:
        JobRepository(translated(database, ONE)).claim("me", 0)
    assert caught.value.missing == ("jobs", "redrives")
