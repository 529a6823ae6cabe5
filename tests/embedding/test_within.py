"""`within`: the verbs as guests in the application's transaction."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, Delete, Engine, Insert, Update, create_engine, event, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError, InvalidRequestError
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from leasestore import (
    Conflict,
    EnlistedRepository,
    Event,
    JobRepository,
    LeaseStoreError,
    SchemaError,
    StaleTicket,
    StoreBusy,
    Ticket,
    UnsupportedEngine,
    immediate,
)
from leasestore.dialects import sqlite
from tests.embedding.application import Delivery, Order
from tests.embedding.conftest import deliveries
from tests.embedding.plain import rows_at

EVENT: Event = {"id": "order-1", "qty": 2}


def orders(engine: Engine) -> list[tuple[Any, ...]]:
    return [(order["id"], order["status"]) for order in rows_at(engine.url, "orders")]


def jobs_in(engine: Engine) -> list[dict[str, Any]]:
    return rows_at(engine.url, "deliveries")


def claimed(jobs: JobRepository) -> Ticket:
    jobs.enqueue({"id": "order-1", "qty": 2}, 0, 1000)
    ticket = jobs.claim("me", 0)
    assert ticket is not None
    return ticket


class Noted:
    """What a session and its engine did, by the names of their events."""

    def __init__(self, session: Session, engine: Engine) -> None:
        self.seen: list[str] = []
        for name in ("after_begin", "after_commit", "after_rollback", "after_soft_rollback"):
            event.listen(session, name, self._note(name))
        for name in ("begin", "commit", "rollback", "savepoint", "checkout"):
            target = engine.pool if name == "checkout" else engine
            event.listen(target, name, self._note(name))

    def _note(self, name: str) -> Callable[..., None]:
        return lambda *_: self.seen.append(name)


# One transaction


def test_what_is_committed_together_is_there_together(engine: Engine) -> None:
    with Session(engine) as session:
        session.add(Order(id=1))
        assert deliveries(engine).within(session).enqueue(EVENT, 0, 1000) is True
        session.commit()
    assert orders(engine) == [(1, "placed")]
    assert [job["id"] for job in jobs_in(engine)] == ["order-1"]


def test_a_rollback_takes_the_job_with_it(engine: Engine) -> None:
    with Session(engine) as session:
        session.add(Order(id=1))
        deliveries(engine).within(session).enqueue(EVENT, 0, 1000)
        session.rollback()
    assert orders(engine) == []
    assert jobs_in(engine) == []


def test_nobody_sees_the_job_before_the_commit(engine: Engine) -> None:
    with Session(engine) as session:
        deliveries(engine).within(session).enqueue(EVENT, 0, 1000)
        assert jobs_in(engine) == []
        session.commit()
    assert jobs_in(engine) != []


def test_a_rollback_undoes_a_finish(engine: Engine) -> None:
    jobs = deliveries(engine)
    ticket = claimed(jobs)
    before = jobs_in(engine)
    with Session(engine) as session:
        session.add(Order(id=1))
        assert jobs.within(session).finish(ticket, "ok", 1) == "done"
        session.rollback()
    assert (jobs_in(engine), orders(engine)) == (before, [])
    assert jobs.finish(ticket, "ok", 1) == "done"


def test_a_stale_finish_fails_the_whole_transaction(engine: Engine) -> None:
    jobs = deliveries(engine)
    stale = claimed(jobs)
    mine = jobs.claim("other", 1000 - 1, job_id="order-1") or jobs.release(stale)
    assert mine is True
    live = jobs.claim("other", 1)
    before = jobs_in(engine)

    def deliver_late() -> None:
        with Session(engine) as session, session.begin():
            session.add(Order(id=1, status="delivered"))
            jobs.within(session).finish(stale, "ok", 2)

    with pytest.raises(StaleTicket) as caught:
        deliver_late()
    assert caught.value.ticket == stale
    assert caught.value.row is not None
    assert (caught.value.row["token"], caught.value.row["owner"]) == (2, "other")
    assert (jobs_in(engine), orders(engine)) == (before, [])
    assert live is not None
    assert jobs.finish(live, "ok", 2) == "done"


STALE: dict[str, Callable[[EnlistedRepository, Ticket], object]] = {
    "finish": lambda within, ticket: within.finish(ticket, "retry", 2),
    "renew": lambda within, ticket: within.renew(ticket, 2),
    "release": lambda within, ticket: within.release(ticket),
}


@pytest.mark.parametrize("verb", STALE)
def test_every_verb_of_a_stale_ticket_raises(verb: str, either_engine: Engine) -> None:
    jobs = deliveries(either_engine)
    stale: Ticket = {**claimed(jobs), "token": 9}
    with Session(either_engine) as session:
        with pytest.raises(StaleTicket, match="token 9 is stale"):
            STALE[verb](jobs.within(session), stale)
        gone: Ticket = {**stale, "id": "nobody"}
        with pytest.raises(StaleTicket, match="no such job") as caught:
            STALE[verb](jobs.within(session), gone)
        assert caught.value.row is None


def test_all_verbs_work_in_one_transaction(engine: Engine) -> None:
    jobs = deliveries(engine)
    with Session(engine) as session, session.begin():
        within = jobs.within(session)
        within.enqueue(EVENT, 0, 1000)
        first = within.claim("me", 0)
        assert first is not None
        assert within.release(first) is True
        second = within.claim("me", 0, lease_ms=10)
        assert second is not None
        renewed = within.renew(second, 5, lease_ms=20)
        assert renewed["lease_until"] == 25
        assert [row["id"] for row in within.stuck(25)] == ["order-1"]
        assert within.recover(25) == {"recovered": 1, "deadline": 0, "exhausted": 0}
        third = within.claim("me", 30)
        assert third is not None
        assert within.finish(third, "permanent", 31, values={"result": "refused"}) == "dead"
        assert within.redrive("order-1", 40, 1000, "once-more") is True
        row = within.get("order-1")
        assert row is not None
        assert (row["status"], row["token"]) == ("pending", 3)
    assert jobs_in(engine)[0]["result"] == "refused"
    assert [row["token"] for row in rows_at(engine.url, "delivery_redrives")] == [3]


def test_there_is_no_point_after_a_commit_that_is_not_ours(either_engine: Engine) -> None:
    jobs = deliveries(either_engine)
    jobs.enqueue(EVENT, 0, 1000)
    passed: list[str] = []
    with Session(either_engine) as session, session.begin():
        ticket = jobs.within(session).claim("me", 0, fault=passed.append)
        assert ticket is not None
        jobs.within(session).finish(ticket, "ok", 1, fault=passed.append)
    assert passed == ["after-claim", "after-finish"]


def test_a_clock_is_read_with_the_write_lock_held(sqlite_engine: Engine, path: Path) -> None:
    refused: list[bool] = []

    def clock() -> int:
        with closing(sqlite3.connect(path, timeout=0)) as plain:
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                plain.execute("BEGIN IMMEDIATE")
            refused.append(True)
        return 5

    with Session(sqlite_engine) as session, session.begin():
        session.scalars(select(Order)).all()
        deliveries(sqlite_engine).within(session).enqueue(EVENT, clock, 1000)
    assert refused == [True]
    assert jobs_in(sqlite_engine)[0]["available_at"] == 5


# The host stays as it was


def test_nothing_is_begun_committed_rolled_back_or_closed(engine: Engine) -> None:
    jobs = deliveries(engine)
    ticket = claimed(jobs)
    with Session(engine) as session:
        order = Order(id=1)
        session.add(order)
        session.flush()
        noted = Noted(session, engine)
        transaction = session.get_transaction()
        within = jobs.within(session)
        within.enqueue({"id": "order-2", "qty": 1}, 0, 1000)
        within.finish(ticket, "ok", 1)
        with pytest.raises(Conflict):
            within.enqueue({"id": "order-2", "qty": 2}, 0, 1000)
        with pytest.raises(StaleTicket):
            within.finish(ticket, "ok", 1)
        with pytest.raises(ValueError, match="owner"):
            within.claim("", 1)
        assert noted.seen == []
        assert session.get_transaction() is transaction
        assert "status" in vars(order), "the application's object was expired"
        assert session.is_active
        session.rollback()


def test_a_duplicate_keeps_the_other_work(engine: Engine) -> None:
    jobs = deliveries(engine)
    jobs.enqueue(EVENT, 0, 1000)
    with Session(engine) as session, session.begin():
        session.add(Order(id=1))
        assert jobs.within(session).enqueue(EVENT, 5, 500) is False
        session.add(Order(id=2))
    assert orders(engine) == [(1, "placed"), (2, "placed")]
    assert [job["available_at"] for job in jobs_in(engine)] == [0]


def test_jobs_of_one_transaction_are_claimed_in_its_order(either_engine: Engine) -> None:
    jobs = deliveries(either_engine)
    names = [f"order-{number * 37 % 100}" for number in range(100)]
    with Session(either_engine) as session, session.begin():
        for name in names:
            jobs.within(session).enqueue({"id": name, "qty": 1}, 0, 1000)
    claimed = [jobs.claim("me", 0) for _ in names]
    assert [ticket and ticket["id"] for ticket in claimed] == names


def test_a_transaction_that_may_only_read_is_told_by_the_database(
    application_url: URL,
) -> None:
    engine = create_engine(application_url)
    reader = engine.execution_options(postgresql_readonly=True)
    jobs = deliveries(engine)
    jobs.enqueue(EVENT, 0, 1000)
    with Session(reader) as session:
        assert jobs.within(session).get("order-1") is not None
        with pytest.raises(DBAPIError, match="read-only transaction"):
            jobs.within(session).claim("me", 0)
    with pytest.raises(DBAPIError, match="read-only transaction"):
        deliveries(reader).claim("me", 0)
    assert jobs.claim("me", 0) is not None
    engine.dispose()


def test_the_hosts_pending_rows_are_flushed_and_their_errors_are_its_own(engine: Engine) -> None:
    jobs = deliveries(engine)
    with Session(engine) as session:
        session.add_all([Order(id=1, code="same"), Order(id=2, code="same")])
        with pytest.raises(IntegrityError, match=r"orders[._]code"):
            jobs.within(session).enqueue(EVENT, 0, 1000)
    assert jobs.get("order-1") is None


def test_a_pending_job_object_of_the_hosts_is_seen(either_engine: Engine) -> None:
    jobs = deliveries(either_engine)
    with Session(either_engine) as session:
        by_hand = Delivery(
            id="by-hand", qty=1, status="pending", attempts=0, max_attempts=1, token=0,
            available_at=0, deadline=10,
        )  # fmt: skip
        session.add(by_hand)
        found = jobs.within(session).get("by-hand")
        assert found is not None
        assert found["seq"] == by_hand.seq


def test_loaded_objects_show_the_new_values(engine: Engine) -> None:
    jobs = deliveries(engine)
    with Session(engine) as session, session.begin():
        within = jobs.within(session)
        order = Order(id=7)
        session.add(order)
        session.flush()
        within.enqueue(EVENT, 0, 1000, values={"payload": {"to": "Ghent"}, "order_id": 7})
        job = session.scalars(select(Delivery)).one()
        assert job.order is order
        ticket = within.claim("me", 0)
        assert ticket is not None
        assert (job.status, job.token, job.owner, job.lease_until) == ("leased", 1, "me", 1000)
        job.result = "by the host"
        within.finish(ticket, "ok", 1)
        assert (job.status, job.owner, job.available_at) == ("done", None, 1)
        assert job.result == "by the host"
        assert "order" in vars(job), "a loaded relationship was thrown away"
        assert job not in session.dirty


def test_an_expired_object_is_left_to_load_by_itself(either_engine: Engine) -> None:
    jobs = deliveries(either_engine)
    jobs.enqueue(EVENT, 0, 1000)
    with Session(either_engine) as session, session.begin():
        job = session.scalars(select(Delivery)).one()
        session.expire(job)
        jobs.within(session).claim("me", 0)
        assert "status" not in vars(job)
        assert job.status == "leased"


def test_more_loaded_objects_than_one_question_may_name(either_engine: Engine) -> None:
    jobs = deliveries(either_engine)
    with Session(either_engine) as session, session.begin():
        within = jobs.within(session)
        for number in range(501):
            within.enqueue({"id": f"order-{number}", "qty": 1}, 0, 10)
        loaded = session.scalars(select(Delivery)).all()
        within.recover(10)
        assert {job.status for job in loaded} == {"dead"}


# Sessions of all kinds


def test_a_scoped_session_is_the_calling_threads(either_engine: Engine) -> None:
    factory = scoped_session(sessionmaker(either_engine))
    within = deliveries(either_engine).within(factory)

    def place(number: int) -> None:
        factory().add(Order(id=number))
        within.enqueue({"id": f"order-{number}", "qty": 1}, 0, 1000)
        factory.commit()
        factory.remove()

    threads = [threading.Thread(target=place, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(orders(either_engine)) == len(jobs_in(either_engine)) == 4


def test_a_session_without_autobegin_is_not_begun(either_engine: Engine) -> None:
    with Session(either_engine, autobegin=False) as session:
        with pytest.raises(InvalidRequestError, match="begin"):
            deliveries(either_engine).within(session).enqueue(EVENT, 0, 1000)
        assert not session.in_transaction()
        with session.begin():
            assert deliveries(either_engine).within(session).enqueue(EVENT, 0, 1000)


def test_a_session_with_two_engines_uses_that_of_the_jobs(
    either_engine: Engine, tmp_path: Path
) -> None:
    elsewhere = create_engine(f"sqlite:///{tmp_path}/elsewhere.db")
    Order.metadata.create_all(elsewhere)
    with Session(binds={Order: elsewhere, Delivery: either_engine}) as session:
        session.add(Order(id=1))
        deliveries(either_engine).within(session).enqueue(EVENT, 0, 1000)
        session.commit()
    assert orders(elsewhere) == [(1, "placed")]
    assert jobs_in(elsewhere) == []
    assert jobs_in(either_engine) != []
    elsewhere.dispose()


def test_a_connection_in_a_transaction(engine: Engine) -> None:
    jobs = deliveries(engine)
    with engine.connect() as connection:
        with connection.begin() as transaction:
            jobs.within(connection).enqueue(EVENT, 0, 1000)
            transaction.rollback()
        assert jobs_in(engine) == []
        with connection.begin():
            jobs.within(connection).enqueue(EVENT, 0, 1000)
        assert jobs_in(engine) != []
        with pytest.raises(ValueError, match="in a transaction, got one that is not"):
            jobs.within(connection).enqueue(EVENT, 0, 1000)


def test_anything_else_is_refused(default_engine: Engine) -> None:
    jobs = deliveries(default_engine)
    for stranger in (default_engine, None, "session"):
        with pytest.raises(ValueError, match="expected a Session, scoped_session or Connection"):
            jobs.within(stranger)  # type: ignore[arg-type]


def test_a_session_of_another_kind_of_database_is_refused(either_engine: Engine) -> None:
    class Elsewhere(Session):
        def connection(self, *args: Any, **kwargs: Any) -> Any:
            connection = super().connection(*args, **kwargs)
            connection.dialect = type("Dialect", (), {"name": "oracle"})()
            return connection

    with Elsewhere(either_engine) as session, pytest.raises(ValueError, match="got one to oracle"):
        deliveries(either_engine).within(session).get("order-1")


# Savepoints


def test_a_savepoint_first_is_refused_where_its_release_would_be_a_commit(
    any_engine: Engine,
) -> None:
    jobs = deliveries(any_engine)
    with Session(any_engine) as session:
        # Where it is known to be harmless it works, and elsewhere it is refused.
        with suppress(UnsupportedEngine), session.begin_nested():
            jobs.within(session).enqueue(EVENT, 0, 1000)
        session.rollback()
    assert jobs_in(any_engine) == []


@pytest.mark.parametrize("inner", ["kept", "undone"])
def test_a_savepoint_within_an_immediate_unit_of_work(inner: str, any_engine: Engine) -> None:
    jobs = deliveries(any_engine)
    with Session(any_engine) as session, immediate(session):
        session.add(Order(id=1))
        nested = session.begin_nested()
        jobs.within(session).enqueue(EVENT, 0, 1000)
        if inner == "kept":
            nested.commit()
        else:
            nested.rollback()
    assert orders(any_engine) == [(1, "placed")]
    assert len(jobs_in(any_engine)) == (1 if inner == "kept" else 0)


def test_a_savepoint_after_a_verb_is_one_inside_the_transaction(engine: Engine) -> None:
    jobs = deliveries(engine)
    with Session(engine) as session:
        jobs.within(session).enqueue(EVENT, 0, 1000)
        with session.begin_nested():
            jobs.within(session).enqueue({"id": "order-2", "qty": 1}, 0, 1000)
        session.rollback()
    assert jobs_in(engine) == []


# Where the lock cannot be had


def test_autocommit_has_no_transaction_to_join(autocommit_engine: Engine) -> None:
    within = deliveries(autocommit_engine).within
    with Session(autocommit_engine) as session, pytest.raises(UnsupportedEngine, match="to join"):
        within(session).enqueue(EVENT, 0, 1000)
    assert jobs_in(autocommit_engine) == []


def test_a_transaction_that_read_before_another_wrote_has_to_run_again(
    recipe_engine: Engine, path: Path
) -> None:
    with closing(sqlite3.connect(path)) as plain:
        plain.execute("PRAGMA journal_mode = WAL")
    jobs = deliveries(recipe_engine)
    with Session(recipe_engine) as session:
        session.scalars(select(Order)).all()
        jobs.enqueue({"id": "other", "qty": 1}, 0, 1000)
        with pytest.raises(StoreBusy, match="run the unit of work again"):
            jobs.within(session).enqueue(EVENT, 0, 1000)
        session.rollback()
        assert jobs.within(session).enqueue(EVENT, 0, 1000) is True
        session.commit()
    assert [job["id"] for job in jobs_in(recipe_engine)] == ["other", "order-1"]


def test_missing_tables_are_named(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/empty.db")
    with Session(engine) as session, pytest.raises(SchemaError) as caught:
        deliveries(engine).within(session).enqueue(EVENT, 0, 1000)
    assert caught.value.missing == ("deliveries", "delivery_redrives")
    with Session(engine) as session, pytest.raises(SchemaError):
        deliveries(engine).within(session).get("order-1")
    engine.dispose()


def at_every_delivery(engine: Engine, **body: str) -> None:
    """Create a trigger of the application's with this body."""
    database = engine.dialect.name
    trigger = "CREATE TRIGGER its_own BEFORE INSERT ON deliveries"
    with engine.begin() as connection:
        if database == "sqlite":
            connection.exec_driver_sql(f"{trigger} BEGIN {body[database]}; END")
        else:
            function = f"LANGUAGE plpgsql AS $$ BEGIN {body[database]}; END $$"
            connection.exec_driver_sql(f"CREATE FUNCTION its_own() RETURNS trigger {function}")
            connection.exec_driver_sql(f"{trigger} FOR EACH ROW EXECUTE FUNCTION its_own()")


def test_a_trigger_of_the_hosts_fails_as_the_hosts(altered_engine: Engine) -> None:
    at_every_delivery(
        altered_engine,
        sqlite="SELECT RAISE(ABORT, 'the shop is closed')",
        postgresql="RAISE integrity_constraint_violation USING MESSAGE = 'the shop is closed'",
    )
    with Session(altered_engine) as session, pytest.raises(IntegrityError, match="closed"):
        deliveries(altered_engine).within(session).enqueue(EVENT, 0, 1000)


def test_a_unique_index_of_the_hosts_is_no_duplicate_of_ours(altered_engine: Engine) -> None:
    with altered_engine.begin() as connection:
        connection.execute(text("CREATE UNIQUE INDEX one_each ON deliveries (order_id)"))
    jobs = deliveries(altered_engine)
    with Session(altered_engine) as session:
        session.add(Order(id=1))
        assert jobs.within(session).enqueue(EVENT, 0, 1000, values={"order_id": 1}) is True
        session.commit()
        other: Event = {"id": "order-1-again", "qty": 2}
        with pytest.raises(IntegrityError, match=r"one_each|deliveries\.order_id"):
            jobs.within(session).enqueue(other, 0, 1000, values={"order_id": 1})
        session.rollback()
        assert jobs.within(session).enqueue(EVENT, 0, 1000, values={"order_id": 1}) is False
    assert [job["id"] for job in jobs_in(altered_engine)] == ["order-1"]


# What a host may have besides


def test_a_begin_listener_that_begins_nothing_makes_no_savepoint_safe(path: Path) -> None:
    engine = create_engine(f"sqlite:///{path}", isolation_level="AUTOCOMMIT")
    Delivery.metadata.create_all(engine)
    event.listen(engine, "begin", lambda _: None)
    with Session(engine) as session:
        with suppress(UnsupportedEngine), session.begin_nested():
            deliveries(engine).within(session).enqueue(EVENT, 0, 1000)
        session.rollback()
    engine.dispose()
    assert jobs_in(engine) == []


def test_a_driver_that_always_has_a_transaction_may_begin_with_a_savepoint(
    default_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As Python 3.12's autocommit=False, on every Python: the driver has begun, whatever came first.
    monkeypatch.setattr(sqlite, "_autocommit", lambda _: False)
    with Session(default_engine) as session:
        session.add(Order(id=1))
        session.flush()
        with session.begin_nested():
            for number in (1, 2):
                event: Event = {"id": f"order-{number}", "qty": 1}
                deliveries(default_engine).within(session).enqueue(event, 0, 1000)
        session.rollback()
    assert jobs_in(default_engine) == []


def test_a_session_that_routes_its_writes_puts_the_job_where_they_go(
    either_engine: Engine, tmp_path: Path
) -> None:
    replica = create_engine(f"sqlite:///{tmp_path}/replica.db")
    Delivery.metadata.create_all(replica)

    class Routing(Session):
        def get_bind(self, *args: Any, clause: Any = None, **kwargs: Any) -> Any:
            writes = self._flushing or isinstance(clause, Insert | Update | Delete)
            return either_engine if writes else replica

    with Routing() as session:
        session.add(Order(id=1))
        deliveries(either_engine).within(session).enqueue(EVENT, 0, 1000)
        session.commit()
    assert orders(either_engine) == [(1, "placed")]
    assert len(jobs_in(either_engine)) == 1
    assert jobs_in(replica) == []
    replica.dispose()


def test_a_loaded_mutable_column_still_follows_its_changes(either_engine: Engine) -> None:
    jobs = deliveries(either_engine)
    jobs.enqueue(EVENT, 0, 1000, values={"payload": {"to": "Ghent"}})
    with Session(either_engine) as session:
        job = session.scalars(select(Delivery)).one()
        payload = job.payload
        ticket = jobs.within(session).claim("me", 0)
        assert ticket is not None
        assert job.payload is payload, "a column of the application's own was loaded again"
        jobs.within(session).finish(ticket, "ok", 1, values={"result": "signed"})
        assert (job.status, job.result) == ("done", "signed")
        session.commit()


def test_a_trigger_that_discards_the_job_is_no_success(altered_engine: Engine) -> None:
    at_every_delivery(altered_engine, sqlite="SELECT RAISE(IGNORE)", postgresql="RETURN NULL")
    with pytest.raises(LeaseStoreError, match="neither stored nor found"):
        deliveries(altered_engine).enqueue(EVENT, 0, 1000)
    with pytest.raises(LeaseStoreError, match="neither stored nor found"):
        deliveries(altered_engine).enqueue_many([EVENT], 0, 1000)
