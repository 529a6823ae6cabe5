"""A pool that hands one driver connection to several, as SQLAlchemy's do for an in-memory database:
nobody's transaction is ended by somebody else in silence."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import SingletonThreadPool, StaticPool

from leasestore import Event, JobRepository, Ticket, UnsupportedEngine, immediate, schema

JOB: Event = {"id": "a", "qty": 1}


@pytest.fixture(params=[StaticPool, SingletonThreadPool])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = create_engine(
        "sqlite://", poolclass=request.param, connect_args={"check_same_thread": False}
    )
    schema.upgrade(engine)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id INTEGER)"))
    yield engine
    engine.dispose()


def at(point: str, do: Callable[[], Any]) -> Callable[[str], Any]:
    return lambda passed: do() if passed == point else None


def test_alone_it_works_as_in_a_file(engine: Engine) -> None:
    jobs = JobRepository(engine)
    jobs.enqueue(JOB, 0, 1000)
    ticket = jobs.claim("me", 0)
    assert ticket is not None
    assert jobs.finish(ticket, "ok", 1) == "done"
    with Session(engine) as session, immediate(session):
        jobs.within(session).enqueue({"id": "b", "qty": 1}, 0, 1000)
    assert jobs.get("b") is not None


@pytest.mark.parametrize("verb", ["get", "claim"])
def test_a_verb_within_a_verb_is_refused_and_hands_out_no_token_twice(
    verb: str, engine: Engine
) -> None:
    jobs = JobRepository(engine)
    jobs.enqueue(JOB, 0, 1000)
    calls: dict[str, Callable[[], object]] = {
        "get": lambda: jobs.get("a"),
        "claim": lambda: jobs.claim("other", 0),
    }
    with pytest.raises(UnsupportedEngine, match="somebody else is in a transaction"):
        jobs.claim("me", 0, fault=at("after-claim", calls[verb]))
    row = jobs.get("a")
    assert row is not None
    assert (row["status"], row["token"]) == ("pending", 0)


def test_another_thread_on_the_same_connection_is_refused() -> None:
    engine = create_engine(
        "sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False}
    )
    schema.upgrade(engine)
    jobs = JobRepository(engine)
    jobs.enqueue(JOB, 0, 1000)
    told: dict[str, Ticket | BaseException | None] = {}

    def claim_too() -> None:
        try:
            told["other"] = jobs.claim("other", 0)
        except UnsupportedEngine as error:
            told["other"] = error

    def in_a_thread() -> None:
        thread = threading.Thread(target=claim_too)
        thread.start()
        thread.join()

    # Its pool resets the connection as the other gives it back, which ends this transaction too.
    with pytest.raises(UnsupportedEngine, match="somebody else ended this transaction"):
        jobs.claim("me", 0, fault=at("after-claim", in_a_thread))
    assert isinstance(told["other"], UnsupportedEngine)
    row = jobs.get("a")
    assert row is not None
    assert (row["status"], row["token"]) == ("pending", 0)
    engine.dispose()


def test_an_application_that_has_written_is_not_undone_in_silence(engine: Engine) -> None:
    jobs = JobRepository(engine)
    with Session(engine) as session:
        session.execute(text("INSERT INTO orders VALUES (1)"))
        with pytest.raises(UnsupportedEngine, match=r"work inside that .*within\(session\)"):
            jobs.enqueue(JOB, 0, 1000)


def test_a_transaction_that_somebody_ended_is_not_taken_for_committed(engine: Engine) -> None:
    jobs = JobRepository(engine)
    jobs.enqueue(JOB, 0, 1000)

    def roll_back() -> None:
        with engine.connect() as connection:
            connection.connection.rollback()

    with pytest.raises(UnsupportedEngine, match="somebody else ended this transaction"):
        jobs.claim("me", 0, fault=at("after-claim", roll_back))
    row = jobs.get("a")
    assert row is not None
    assert row["status"] == "pending"
