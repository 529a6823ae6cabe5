"""`immediate`: the application's unit of work, begun with the write lock."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, insert, select
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from leasestore import StoreBusy, UnsupportedEngine, immediate
from tests.embedding.application import Base, Delivery, Order
from tests.embedding.conftest import deliveries
from tests.embedding.plain import locked, rows_at


def deliveries_in(engine: Engine) -> list[dict[str, Any]]:
    return rows_at(engine.url, "deliveries")


def has_one_lock(engine: Engine) -> bool:
    """Where rows have the locks, nothing is locked before it is touched."""
    return engine.dialect.name == "sqlite"


def test_the_lock_is_held_from_the_first_line_and_the_end_commits(any_engine: Engine) -> None:
    with Session(any_engine) as session:
        with immediate(session):
            assert locked(any_engine.url) is has_one_lock(any_engine)
            session.add(Order(id=1))
            deliveries(any_engine).within(session).enqueue({"id": "order-1", "qty": 1}, 0, 1000)
        assert not locked(any_engine.url)
        assert not session.in_transaction()
        assert session.scalars(select(Order.id)).all() == [1]
    assert len(deliveries_in(any_engine)) == 1


def test_an_error_rolls_everything_back(any_engine: Engine) -> None:
    def fail() -> None:
        with Session(any_engine) as session, immediate(session):
            session.add(Order(id=1))
            deliveries(any_engine).within(session).enqueue({"id": "order-1", "qty": 1}, 0, 1000)
            raise KeyError("made up")

    with pytest.raises(KeyError, match="made up"):
        fail()
    assert not locked(any_engine.url)
    assert deliveries_in(any_engine) == []


def test_what_was_read_is_still_true_at_the_write(recipe_engine: Engine) -> None:
    jobs = deliveries(recipe_engine)
    with Session(recipe_engine) as session, immediate(session):
        session.scalars(select(Order)).all()
        assert locked(recipe_engine.url)
        assert jobs.within(session).enqueue({"id": "order-1", "qty": 1}, 0, 1000) is True


def test_a_connection_and_a_scoped_session(any_engine: Engine) -> None:
    jobs = deliveries(any_engine)
    with any_engine.connect() as connection, immediate(connection):
        assert locked(any_engine.url) is has_one_lock(any_engine)
        jobs.within(connection).enqueue({"id": "order-1", "qty": 1}, 0, 1000)
    scoped = scoped_session(sessionmaker(any_engine))
    with immediate(scoped):
        assert locked(any_engine.url) is has_one_lock(any_engine)
        jobs.within(scoped).enqueue({"id": "order-2", "qty": 1}, 0, 1000)
    scoped.remove()
    assert len(deliveries_in(any_engine)) == 2


def test_busy_runs_nothing_of_the_block(path: Path) -> None:
    engine = create_engine(f"sqlite:///{path}", connect_args={"timeout": 0.01})
    Base.metadata.create_all(engine)
    entered = False
    with closing(sqlite3.connect(path, isolation_level=None)) as plain:
        plain.execute("BEGIN IMMEDIATE")
        with Session(engine) as session:
            with pytest.raises(StoreBusy), immediate(session):
                entered = True
            assert not session.in_transaction()
    assert not entered
    engine.dispose()


def test_a_session_that_has_read_already_is_told_to_end_that_first(
    either_engine: Engine,
) -> None:
    with Session(either_engine) as session:
        session.scalars(select(Order)).all()
        refused = pytest.raises(ValueError, match=r"commit\(\) or rollback\(\) it first")
        with refused, immediate(session):
            pytest.fail("the block ran")
        session.rollback()
        with immediate(session):
            assert session.scalars(select(Order)).all() == []


def test_several_engines_need_to_know_whose_lock(either_engine: Engine) -> None:
    session = Session(binds={Delivery: either_engine})
    with session, immediate(session, bind_arguments={"mapper": Delivery}):
        assert locked(either_engine.url) is has_one_lock(either_engine)


def test_anything_else_is_refused(default_engine: Engine) -> None:
    refused = pytest.raises(ValueError, match="expected a Session, scoped_session or Connection")
    with refused, immediate(default_engine):  # type: ignore[arg-type]
        pytest.fail("the block ran")


def test_an_engine_that_would_not_roll_back_is_refused(path: Path) -> None:
    engine = create_engine(
        f"sqlite:///{path}", isolation_level="AUTOCOMMIT", skip_autocommit_rollback=True
    )
    refused = pytest.raises(UnsupportedEngine, match="skip_autocommit_rollback")
    with Session(engine) as session, refused, immediate(session):
        pytest.fail("the block ran")
    assert not locked(engine.url)
    engine.dispose()


@pytest.mark.parametrize("mode", ["conditional_savepoint", "rollback_only", "control_fully"])
def test_a_session_in_a_transaction_of_the_test_suites_joins_that(
    mode: Any, suite_engine: Engine
) -> None:
    jobs = deliveries(suite_engine)
    with suite_engine.connect() as connection:
        outer = connection.begin()
        connection.execute(insert(Order).values(id=1))
        session = Session(bind=connection, join_transaction_mode=mode)
        with immediate(session):
            session.add(Order(id=2))
            jobs.within(session).enqueue({"id": "order-2", "qty": 1}, 0, 1000)
        assert set(session.scalars(select(Order.id))) == {1, 2}
        session.close()
        if outer.is_active:
            outer.rollback()
    assert (len(deliveries_in(suite_engine)) == 0) is (mode != "control_fully")


def test_an_error_of_the_block_goes_on_with_nothing_added(either_engine: Engine) -> None:
    @dataclass(frozen=True)
    class Frozen(Exception):
        code: int

    with pytest.raises(Frozen), Session(either_engine) as session, immediate(session):
        raise Frozen(3)


def test_a_listener_that_writes_as_the_transaction_begins_is_not_undone_in_silence(
    default_engine: Engine,
) -> None:
    session = Session(default_engine)
    event.listen(session, "after_begin", lambda s, t, c: c.execute(insert(Order).values(id=9)))
    refused = pytest.raises(UnsupportedEngine, match="a listener that wrote")
    with session, refused, immediate(session):
        pytest.fail("the block ran")
