"""Statements by the driver's own cursor: whoever could tell the difference has SQLAlchemy's."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import (
    JSON,
    URL,
    Connection,
    Dialect,
    Engine,
    Integer,
    LargeBinary,
    Select,
    Text,
    TypeDecorator,
    bindparam,
    create_engine,
    event,
    select,
    text,
    type_coerce,
)
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.exc import DBAPIError, IntegrityError, PendingRollbackError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from leasestore import JobMixin, JobRepository, RedriveMixin, execution, immediate, schema
from leasestore.models import Job
from tests.postgresql import Server

Made = Callable[..., Engine]


@pytest.fixture(params=["sqlite", "postgresql+psycopg", "postgresql+psycopg2"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> URL | str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    server: Server = request.getfixturevalue("postgresql")
    return server.fresh().set(drivername=request.param)


@pytest.fixture
def made(url: URL | str) -> Iterator[Made]:
    """Engines for the same database, with leasestore's tables."""
    engines: list[Engine] = []

    def made(**settings: Any) -> Engine:
        engines.append(create_engine(url, **settings))
        return engines[-1]

    schema.upgrade(made())
    yield made
    for engine in engines:
        engine.dispose()


@pytest.fixture
def by_sqlalchemy(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What SQLAlchemy was asked to execute."""
    executed: list[str] = []
    execute = Connection.execute

    def noted(self: Connection, statement: Any, *arguments: Any, **options: Any) -> Any:
        executed.append(str(statement).partition(" ")[0])
        return execute(self, statement, *arguments, **options)

    monkeypatch.setattr(Connection, "execute", noted)
    return executed


VERBS = ["INSERT", "UPDATE", "UPDATE"]


def cycle(jobs: Any, job_id: str = "job-1") -> None:
    """Three verbs, a statement each."""
    assert jobs.enqueue({"id": job_id, "qty": 1}, 0, 1000)
    ticket = jobs.claim("me", 1)
    assert ticket == {
        "id": job_id,
        "qty": 1,
        "owner": "me",
        "token": 1,
        "attempt": 1,
        "lease_until": 1000,
    }
    assert jobs.finish(ticket, "ok", 2) == "done"


def begins(statements: list[str]) -> list[str]:
    """The first words, of what begins with one of SQL."""
    words = (statement.split(maxsplit=1)[0] for statement in statements)
    return [{"WITH": "UPDATE"}.get(word, word) for word in words]


def test_nobody_hears_it(made: Made, by_sqlalchemy: list[str]) -> None:
    cycle(JobRepository(made()))
    assert by_sqlalchemy == []


def test_nor_inside_a_transaction(made: Made, by_sqlalchemy: list[str]) -> None:
    jobs = JobRepository(made())
    with Session(made()) as session, session.begin():
        cycle(jobs.within(session))
    assert "INSERT" not in by_sqlalchemy
    state = jobs.get("job-1")
    assert state is not None
    assert state["status"] == "done"


@pytest.mark.parametrize("target", ["engine", "every engine", "connection"])
@pytest.mark.parametrize(
    "name", ["before_execute", "after_execute", "before_cursor_execute", "after_cursor_execute"]
)
def test_who_listens_hears_each_statement(made: Made, name: str, target: str) -> None:
    heard: list[str] = []

    def listen(connection: Connection, *arguments: Any) -> None:
        clause = arguments[0] if name.endswith("e_execute") or name == "after_execute" else None
        told = str(arguments[1] if clause is None or "cursor" in name else clause)
        heard.append(told)

    engine = made()
    with engine.connect() as connection:
        jobs = JobRepository(connection if target == "connection" else engine)
        cycle(jobs, "job-0")
        at: Any = {"engine": engine, "every engine": Engine, "connection": connection}[target]
        event.listen(at, name, listen)
        try:
            cycle(jobs)
        finally:
            if target == "every engine":
                event.remove(at, name, listen)
    assert begins(heard) == VERBS


@pytest.mark.parametrize("target", ["engine", "every engine"])
def test_who_listens_to_the_dialect_executes_each_statement(made: Made, target: str) -> None:
    heard: list[str] = []

    def listen(cursor: Any, statement: str, parameters: Any, context: Any) -> None:
        heard.append(statement)

    engine = made()
    cycle(JobRepository(engine), "job-0")
    at: Any = engine if target == "engine" else Engine
    event.listen(at, "do_execute", listen)
    try:
        cycle(JobRepository(engine))
    finally:
        event.remove(at, "do_execute", listen)
    assert begins(heard) == VERBS


def test_who_listens_to_errors_hears_them(made: Made) -> None:
    heard: list[str] = []
    engine = made()
    event.listen(engine, "handle_error", lambda context: heard.append(context.statement))
    forbid(engine)
    with pytest.raises(DBAPIError):
        JobRepository(engine).enqueue({"id": "job-1", "qty": 1}, 0, 1000)
    assert begins(heard) == ["INSERT"]


def test_who_logs_statements_has_them_in_the_log(
    made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = JobRepository(made())
    cycle(jobs, "job-0")
    with caplog.at_level(logging.INFO, "sqlalchemy.engine"):
        cycle(jobs)
    logged = [record.getMessage() for record in caplog.records]
    assert (
        begins([line for line in logged if line.startswith(("INSERT", "UPDATE", "WITH"))]) == VERBS
    )


def test_an_engine_that_echoes_does(
    made: Made, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With a handler there, SQLAlchemy adds none that writes to the terminal.
    monkeypatch.setattr(logging.getLogger("sqlalchemy"), "handlers", [logging.NullHandler()])
    cycle(JobRepository(made(echo=True)))
    assert "INSERT INTO jobs" in caplog.text


def forbid(engine: Engine) -> None:
    """No job can be written any more: a trigger raises."""
    with engine.begin() as connection:
        if engine.dialect.name == "sqlite":
            connection.execute(
                text(
                    "CREATE TRIGGER forbid BEFORE INSERT ON jobs "
                    "BEGIN SELECT raise(ABORT, 'not today'); END"
                )
            )
            return
        connection.execute(
            text(
                "CREATE FUNCTION forbid() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN RAISE integrity_constraint_violation USING MESSAGE = 'not today'; END $$"
            )
        )
        connection.execute(
            text("CREATE TRIGGER forbid BEFORE INSERT ON jobs EXECUTE FUNCTION forbid()")
        )


@pytest.mark.parametrize("hide", [False, True])
def test_an_error_is_the_one_that_sqlalchemy_raises(
    made: Made, hide: bool, by_sqlalchemy: list[str]
) -> None:
    engine, raised = made(hide_parameters=hide), list[DBAPIError]()
    forbid(engine)
    event.listen(by_core := made(hide_parameters=hide), "before_execute", lambda *_: None)
    for each in engine, by_core:
        with pytest.raises(IntegrityError) as caught:
            JobRepository(each).enqueue({"id": "job-1", "qty": 1}, 0, 1000)
        raised.append(caught.value)
    ours, core = raised
    assert by_sqlalchemy.count("INSERT") == 1
    assert str(ours) == str(core)
    assert "not today" in str(ours)
    assert ("job-1" in str(ours)) is not hide
    assert (type(ours.orig), ours.__cause__, ours.statement) == (
        type(core.orig),
        ours.orig,
        core.statement,
    )
    assert ours.params == core.params
    assert not ours.connection_invalidated


def test_what_is_no_error_of_the_drivers_goes_on_as_it_is(made: Made) -> None:
    """An integer that no column holds, past all checks."""
    with made().begin() as connection:
        jobs = JobRepository(made())
        statement = jobs._queue.statements.get
        with pytest.raises(Exception) as caught:
            execution.rows(connection, statement, {"_ls_id": object()})
    ours = type(caught.value)
    with made().begin() as connection:
        event.listen(connection, "before_execute", lambda *_: None)
        with pytest.raises(ours):
            execution.rows(connection, statement, {"_ls_id": object()})


def test_a_value_that_is_missing_is_not_null(made: Made) -> None:
    jobs = JobRepository(made())
    with made().connect() as connection:
        connection.begin()
        # psycopg names the placeholder itself.
        with pytest.raises((KeyError, DBAPIError), match="_ls_id"):
            execution.rows(connection, jobs._queue.statements.get, {})


class _Noted:
    """A cursor of a driver's, of which one hears whether it was closed."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor
        self.closed = False

    def close(self) -> None:
        self.closed = True
        self._cursor.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)


class _Interrupted(_Noted):
    """One during which somebody presses the key."""

    def execute(self, *arguments: Any) -> None:
        raise KeyboardInterrupt


def test_no_cursor_stays_open(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    statement = JobRepository(made())._queue.statements.get
    with made().connect() as connection:
        connection.begin()
        cursor = _Noted(connection.connection.cursor())
        monkeypatch.setattr(connection.connection, "cursor", lambda: cursor)
        assert execution.rows(connection, statement, {"_ls_id": "job-1"}) == []
        assert cursor.closed


def test_an_interrupted_statement_costs_the_connection(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = JobRepository(made())
    with made().connect() as connection:
        connection.begin()
        cursor = connection.connection.cursor
        with monkeypatch.context() as patched:
            patched.setattr(connection.connection, "cursor", lambda: _Interrupted(cursor()))
            with pytest.raises(KeyboardInterrupt):
                execution.rows(connection, jobs._queue.statements.get, {"_ls_id": "job-1"})
        assert connection.invalidated


class Base(DeclarativeBase):
    pass


class Parcel(JobMixin, Base):
    __tablename__ = "parcels"
    content: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    picture: Mapped[bytes | None] = mapped_column(LargeBinary)


class ParcelRedrive(RedriveMixin, Base):
    __tablename__ = "parcel_redrives"


def test_values_that_need_more_than_the_driver_have_it(
    made: Made, by_sqlalchemy: list[str]
) -> None:
    engine = made()
    Base.metadata.create_all(engine)
    jobs = JobRepository(engine, job=Parcel, redrive=ParcelRedrive)
    by_sqlalchemy.clear()
    content, picture = {"a": [1, None]}, b"\x00\xff"
    values = {"content": content, "picture": picture}
    assert jobs.enqueue({"id": "job-1", "qty": 1}, 0, 1000, values=values)
    assert by_sqlalchemy == ["INSERT"]
    ticket = jobs.claim("me", 1)
    assert ticket is not None
    assert by_sqlalchemy == ["INSERT"]
    assert jobs.finish(ticket, "ok", 2, values={"content": {}}) == "done"
    with Session(engine) as session:
        parcel = session.scalars(select(Parcel)).one()
        assert (parcel.content, parcel.picture) == ({}, picture)


class Doubled(TypeDecorator[int]):
    """What is read is not what is stored."""

    impl = Integer
    cache_ok = True

    def process_result_value(self, value: int | None, dialect: Dialect) -> int:
        return 2 * (value or 0)


ID = bindparam("value", type_=Text())
SPECIAL: dict[str, tuple[Select[Any], object, object]] = {
    "a list": (
        select(Job.id).where(Job.id.in_(bindparam("value", expanding=True))),
        ["job-1", "job-2"],
        "job-1",
    ),
    "a literal": (
        select(Job.id).where(Job.qty == bindparam("value", literal_execute=True, type_=Integer())),
        1,
        "job-1",
    ),
    "a value that is read": (select(type_coerce(Job.qty, Doubled)).where(Job.id == ID), "job-1", 2),
}


@pytest.mark.parametrize("kind", SPECIAL)
def test_what_is_known_at_the_execution_only_is_sqlalchemys(
    made: Made, kind: str, by_sqlalchemy: list[str]
) -> None:
    question, value, answer = SPECIAL[kind]
    engine = made()
    cycle(JobRepository(engine))
    with engine.begin() as connection:
        assert execution.rows(connection, question, {"value": value}) == [(answer,)]
    assert by_sqlalchemy == ["SELECT"]


@pytest.mark.parametrize(
    "url", ["sqlite+aiosqlite://", "postgresql+asyncpg://", "postgresql+psycopg://"]
)
def test_a_driver_that_has_its_own_way_of_waiting_keeps_it(url: str) -> None:
    dialect = create_async_engine(url).dialect
    prepared = execution._prepare(dialect, select(Job.id))
    assert not prepared.sufficient


def test_a_driver_that_nobody_has_tried_is_left_to_sqlalchemy() -> None:
    class Other(SQLiteDialect_pysqlite):
        driver = "other"

    assert execution._prepare(SQLiteDialect_pysqlite(), select(Job.id)).sufficient
    assert not execution._prepare(Other(), select(Job.id)).sufficient


def test_a_translated_schema_is_sqlalchemys_to_translate(
    made: Made, by_sqlalchemy: list[str]
) -> None:
    engine = made()
    schema_name = {"sqlite": "main", "postgresql": "public"}[engine.dialect.name]
    cycle(JobRepository(engine.execution_options(schema_translate_map={None: schema_name})))
    assert begins(by_sqlalchemy) == VERBS


def test_a_savepoint_is_sqlalchemys_to_look_after(made: Made, by_sqlalchemy: list[str]) -> None:
    jobs, engine = JobRepository(made()), made()
    with engine.connect() as connection, immediate(connection), connection.begin_nested():
        by_sqlalchemy.clear()
        cycle(jobs.within(connection))
        assert begins(by_sqlalchemy) == VERBS


def test_a_transaction_that_has_not_begun_is_sqlalchemys_to_begin(made: Made) -> None:
    jobs = JobRepository(made())
    with made().connect() as connection:
        assert execution.rows(connection, jobs._queue.statements.get, {"_ls_id": "job-1"}) == []
        assert connection.in_transaction()


def test_a_transaction_that_has_failed_is_sqlalchemys_to_refuse(made: Made) -> None:
    statement = JobRepository(made())._queue.statements.get
    with made().connect() as connection:
        connection.begin()
        connection.invalidate()
        with pytest.raises(PendingRollbackError):
            execution.rows(connection, statement, {"_ls_id": "job-1"})


def test_named_placeholders_get_their_values(made: Made, by_sqlalchemy: list[str]) -> None:
    engine = made()
    named = made(paramstyle="named" if engine.dialect.name == "sqlite" else "pyformat")
    cycle(JobRepository(named))
    assert by_sqlalchemy == []


def test_statements_are_prepared_once_and_go_with_their_tables(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = made()
    cycle(JobRepository(engine))
    ours = execution._PREPARED[engine.dialect]
    prepared = len(ours)
    with monkeypatch.context() as patched:
        patched.setattr(execution, "_prepare", lambda *_: pytest.fail("prepared once more"))
        cycle(JobRepository(engine), "job-2")
    statement: Any = select(Job.id).where(Job.id == bindparam("_ls_id"))
    with engine.begin() as connection:
        assert len(execution.rows(connection, statement, {"_ls_id": "job-2"})) == 1
    assert len(ours) == prepared + 1
    del statement
    gc.collect()
    assert len(ours) == prepared


@pytest.mark.parametrize("url", ["postgresql+psycopg", "postgresql+psycopg2"], indirect=True)
def test_a_lost_connection_is_thrown_away_and_what_the_pool_has_with_it(made: Made) -> None:
    engine = made()
    jobs = JobRepository(engine)
    with engine.connect(), engine.connect():
        cycle(jobs)
    with made().begin() as other:
        other.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        )
    with pytest.raises(DBAPIError) as caught:
        jobs.get("job-1")
    assert caught.value.connection_invalidated
    state = jobs.get("job-1")
    assert state is not None
    assert state["status"] == "done"
