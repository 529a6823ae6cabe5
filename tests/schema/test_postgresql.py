"""The schema on PostgreSQL: upgraded, made by the models and made by the script are the same."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, Engine, create_engine, event, inspect, text

from leasestore import JobRepository, SchemaError, schema
from leasestore.models import Base
from tests.postgresql import Server
from tests.schema.structure import of_engine

TABLES = ("jobs", "redrives")


@pytest.fixture
def engine(each_postgresql: Server) -> Iterator[Engine]:
    engine = create_engine(each_postgresql.empty())
    yield engine
    engine.dispose()


def by_script(engine: Engine) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(schema.sql("postgresql"))


MADE: dict[str, Callable[[Engine], None]] = {
    "models": Base.metadata.create_all,
    "script": by_script,
}


@pytest.mark.parametrize("made", MADE)
def test_upgraded_is_what_the_models_and_the_script_make(
    made: str, engine: Engine, each_postgresql: Server
) -> None:
    schema.upgrade(engine)
    other = create_engine(each_postgresql.empty())
    MADE[made](other)
    assert of_engine(other, TABLES) == of_engine(engine, TABLES)
    assert schema.position(other) == ("current" if made == "script" else "unversioned")
    schema.upgrade(other)
    assert schema.position(other) == "current"
    other.dispose()


def test_times_and_tokens_have_64_bits(engine: Engine) -> None:
    schema.upgrade(engine)
    kinds = {name: kind for name, kind, *_ in of_engine(engine, TABLES)["jobs"]["columns"]}
    for name in ("seq", "token", "available_at", "deadline", "lease_until"):
        assert kinds[name] == "BIGINT", name


def test_the_position_goes_up_and_down(engine: Engine) -> None:
    assert schema.position(engine) == "absent"
    with pytest.raises(SchemaError, match="lacks jobs, redrives"):
        schema.check(engine)
    schema.upgrade(engine)
    schema.upgrade(engine)
    schema.check(engine)
    assert schema.position(engine) == "current"
    schema.downgrade(engine)
    assert schema.position(engine) == "absent"


def test_a_newer_release_is_ahead_and_still_works(engine: Engine) -> None:
    schema.upgrade(engine)
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE {schema.VERSION_TABLE} SET version_num = 'ls9999'"))
    schema.upgrade(engine)
    assert schema.position(engine) == "ahead"
    schema.check(engine)
    with pytest.raises(SchemaError, match="newer"):
        schema.downgrade(engine)
    assert JobRepository(engine).enqueue({"id": "a", "qty": 1}, 0, 1000)


def test_the_callers_rollback_undoes_it(engine: Engine) -> None:
    with engine.connect() as connection:
        connection.execute(text("SELECT 1"))
        schema.upgrade(connection)
        connection.rollback()
    assert schema.position(engine) == "absent"
    with engine.begin() as connection:
        schema.upgrade(connection)
    assert schema.position(engine) == "current"


def test_a_table_that_is_something_else_is_refused_untouched(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE jobs (title text)"))
    with pytest.raises(SchemaError, match="something else"):
        schema.upgrade(engine)
    assert inspect(engine).get_table_names() == ["jobs"]


def test_eight_at_once_make_it_once(engine: Engine) -> None:
    start, failed = threading.Barrier(8), []

    def upgrade() -> None:
        start.wait()
        try:
            schema.upgrade(engine)
        except Exception as error:  # noqa: BLE001
            failed.append(error)

    threads = [threading.Thread(target=upgrade) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert schema.position(engine) == "current"


def test_a_schema_of_its_own_by_the_search_path(each_postgresql: Server) -> None:
    url = each_postgresql.empty()
    engine = create_engine(url, connect_args={"options": "-csearch_path=work"})
    with engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA work"))
    schema.upgrade(engine)
    assert JobRepository(engine).enqueue({"id": "a", "qty": 1}, 0, 1000)
    plain = create_engine(url)
    assert set(inspect(plain).get_table_names("work")) == {*TABLES, schema.VERSION_TABLE}
    assert inspect(plain).get_table_names("public") == []
    for one in (engine, plain):
        one.dispose()


def test_autogenerate_finds_no_difference_but_the_keys_nullability(engine: Engine) -> None:
    schema.upgrade(engine)
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"version_table": schema.VERSION_TABLE}
        )
        found = compare_metadata(context, Base.metadata)
    assert [difference for difference in found if not _is_the_keys_nullability(difference)] == []


def _is_the_keys_nullability(difference: Any) -> bool:
    """The contract's `seq INTEGER PRIMARY KEY` has no NOT NULL, PostgreSQL's keys always have."""
    return isinstance(difference, list) and difference[0][0] == "modify_nullable"


def test_the_lock_is_the_transactions_and_not_the_sessions(engine: Engine) -> None:
    sent: list[str] = []

    @event.listens_for(engine, "before_cursor_execute")
    def note(connection: Connection, cursor: Any, statement: str, *_: Any) -> None:
        sent.append(statement)

    schema.upgrade(engine)
    assert "pg_advisory_xact_lock" in sent[0]
    with engine.connect() as connection:
        held = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
        assert connection.execute(held).scalar_one() == 0
