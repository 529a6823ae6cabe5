"""What a handler gets that asks for a `Delivery`, and how it finishes the job by itself."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import JSON, URL, create_engine, select
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from leasestore import (
    Delivery,
    JobMixin,
    RedriveMixin,
    Retryable,
    SchemaError,
    StaleTicket,
    Worked,
    Worker,
    aio,
    immediate,
    system_clock,
)
from tests.worker.scene import (
    LONGEST_WAIT_S,
    SHORT_MS,
    Away,
    Gate,
    Meddled,
    Queue,
    Told,
    join_workers,
)


class Base(DeclarativeBase):
    pass


class Parcel(JobMixin, Base):
    __tablename__ = "parcels"
    payload: Mapped[dict[str, Any]] = mapped_column(JSON)
    recipient: Mapped[str] = mapped_column("to_whom")
    lost: Mapped[str | None]
    result: Mapped[str | None]


class ParcelRedrive(RedriveMixin, Base):
    __tablename__ = "parcel_redrives"


class Effect(Base):
    __tablename__ = "effects"
    id: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[str]


class Parcels(Queue):
    def effects(self) -> list[str]:
        with Session(self.engine) as session:
            return list(session.scalars(select(Effect.job_id).order_by(Effect.id)))

    def result(self, job_id: str) -> str | None:
        with Session(self.engine) as session:
            return session.scalars(select(Parcel.result).where(Parcel.id == job_id)).one()


def _parcels(url: Any) -> Iterator[Parcels]:
    engine = create_engine(url)
    Base.metadata.create_all(engine)
    jobs = Meddled(engine, job=Parcel, redrive=ParcelRedrive)
    for job_id in ("a", "b"):
        values = {"payload": {"to": "Ghent"}, "recipient": "M.", "lost": "a glove"}
        jobs.enqueue({"id": job_id, "qty": 2}, system_clock, 60_000, values=values)
    yield Parcels(engine, jobs)
    join_workers()
    engine.dispose()


@pytest.fixture(params=["sqlite", "psycopg"])
def parcels(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Parcels]:
    """Two parcels, a and b, on each database."""
    if request.param == "sqlite":
        yield from _parcels(URL.create("sqlite", database=str(tmp_path / "app.db")))
    else:
        yield from _parcels(request.getfixturevalue("postgresql").empty())


@pytest.fixture
def parcel_file(tmp_path: Path) -> Iterator[Parcels]:
    yield from _parcels(URL.create("sqlite", database=str(tmp_path / "app.db")))


def test_it_has_the_job_and_the_columns_of_the_application(parcels: Parcels, told: Told) -> None:
    def send(delivery: Delivery) -> bool:
        row = parcels.row("a")
        assert (delivery.id, delivery.qty, delivery.token, delivery.attempt) == ("a", 2, 1, 1)
        assert delivery.deadline == row["deadline"]
        assert delivery.ticket == {
            "id": "a", "qty": 2, "owner": row["owner"], "token": 1, "attempt": 1,
            "lease_until": row["lease_until"],
        }  # fmt: skip
        assert delivery.payload == {"to": "Ghent"}
        assert delivery.recipient == "M."
        assert dict(delivery) == {
            "id": "a", "qty": 2, "payload": {"to": "Ghent"}, "recipient": "M.",
            "lost": "a glove", "result": None,
        }  # fmt: skip
        assert len(delivery) == 6
        assert delivery["lost"] == "a glove"
        assert delivery.lost.is_set() is False
        assert delivery.lost.wait(0.001) is False
        assert repr(delivery) == "<Delivery a token 1 attempt 1>"
        assert not hasattr(delivery, "to_whom")
        delivery.progress("half way")
        return True

    assert Worker(parcels.jobs, send).run(once=True).done == 1
    record = told.wait_for("progress")
    assert record.levelno == logging.INFO
    assert record.getMessage() == "job a (token 1, attempt 1): half way"


def test_only_who_asks_for_the_row_has_it_read(parcel_file: Parcels) -> None:
    jobs: Any = parcel_file.jobs
    Worker(jobs, lambda _: True).run(until_empty=True)
    assert "read" not in jobs.called


def test_the_ticket_is_always_the_current_one(parcel_file: Parcels, told: Told) -> None:
    seen: list[Any] = []

    def send(delivery: Delivery) -> bool:
        for times in range(1, 4):
            told.wait_for("renewed", times)
            seen.append(delivery.ticket)
            with immediate(session := Session(parcel_file.engine)):
                parcel_file.jobs.within(session).renew(delivery.ticket, system_clock, 60_000)
                session.rollback()
        return True

    assert Worker(parcel_file.jobs, send, lease_ms=3 * SHORT_MS).run(once=True).done == 1
    assert len({ticket["lease_until"] for ticket in seen}) == 3


def finishing(parcels: Parcels, outcome: Any = "ok", then: Any = True, **settings: Any) -> Any:
    def send(delivery: Delivery) -> Any:
        with Session(parcels.engine) as session, immediate(session):
            session.add(Effect(job_id=delivery.id))
            delivery.finish_within(session, outcome, **settings)
        if isinstance(then, Exception):
            raise then
        return then

    return send


def test_a_handler_finishes_in_its_own_transaction(parcels: Parcels, told: Told) -> None:
    send = finishing(parcels, values={"result": "signed"})
    worked = Worker(parcels.jobs, send).run(until_empty=True)
    assert worked == Worked(done=2, ended="empty")
    assert parcels.effects() == ["a", "b"]
    assert parcels.result("a") == "signed"
    assert "finish" not in vars(parcels.jobs)["called"]
    assert told.wait_for("done").getMessage().endswith("done by its handler's transaction")


def test_what_it_answers_then_does_not_matter(parcels: Parcels, told: Told) -> None:
    send = finishing(parcels, then=None)
    assert Worker(parcels.jobs, send).run(once=True) == Worked(done=1, ended="once")
    record = told.wait_for("done")
    assert (record.levelno, record.exc_info) == (logging.INFO, None)


@pytest.mark.parametrize(
    ("outcome", "end", "worked"),
    [
        ("retry", ("pending", "retry", 1), Worked(retried=1, ended="once")),
        ("permanent", ("dead", "permanent", 1), Worked(dead=1, ended="once")),
    ],
)
@pytest.mark.parametrize("then", [True, RuntimeError("after all that"), Retryable()])
def test_what_it_wrote_counts_whatever_it_answers(
    parcel_file: Parcels, told: Told, outcome: Any, end: Any, worked: Worked, then: Any
) -> None:
    send = finishing(parcel_file, outcome, then, delay_ms=7_000)
    assert Worker(parcel_file.jobs, send).run(once=True) == worked
    assert parcel_file.end("a") == end
    assert vars(told.records[-2]).get("reason") == ("permanent" if end[0] == "dead" else None)
    has_traceback = bool(told.records[-2].exc_info)
    assert has_traceback is isinstance(then, RuntimeError)


@pytest.mark.parametrize("max_attempts", [2, 1])
def test_it_counts_if_the_attempt_was_the_last_one(queue: Queue, max_attempts: int) -> None:
    """By a clock that stands still, too."""
    queue.enqueue("a", max_attempts=max_attempts)
    now = system_clock()

    def send(delivery: Delivery) -> bool:
        with Session(queue.engine) as session, immediate(session):
            delivery.finish_within(session, "retry", delay_ms=1_000)
        return True

    worked = Worker(queue.jobs, send, clock=lambda: now).run(once=True)
    assert (worked.retried, worked.dead) == (max_attempts - 1, 2 - max_attempts)


@pytest.mark.parametrize(("then", "errors"), [(True, 0), (RuntimeError("after all that"), 1)])
def test_it_counts_if_the_job_was_claimed_again_meanwhile(
    parcels: Parcels, told: Told, then: Any, errors: int
) -> None:
    finish, tickets = finishing(parcels, "retry", then), list[Any]()

    def send(delivery: Delivery) -> Any:
        try:
            return finish(delivery)
        finally:
            tickets.append(parcels.jobs.claim("other", system_clock, job_id="a"))

    assert Worker(parcels.jobs, send).run(once=True) == Worked(retried=1, ended="once")
    assert tickets[0]["token"] == 2
    assert sum(record.levelno == logging.ERROR for record in told.records) == errors


def test_it_counts_if_the_job_was_purged_meanwhile(parcel_file: Parcels) -> None:
    finish = finishing(parcel_file)

    def send(delivery: Delivery) -> Any:
        finish(delivery)
        with Session(parcel_file.engine) as session, session.begin():
            session.delete(session.scalars(select(Parcel).where(Parcel.id == "a")).one())
        return True

    assert Worker(parcel_file.jobs, send).run(once=True) == Worked(done=1, ended="once")


def test_it_does_not_count_if_it_was_lost_by_then(parcel_file: Parcels) -> None:
    """Whether it was committed, nobody can tell any more."""
    vars(parcel_file.jobs)["before"]["renew"] = Away()
    finish = finishing(parcel_file, "retry")

    def send(delivery: Delivery) -> Any:
        finish(delivery)
        parcel_file.jobs.claim("other", system_clock, job_id="a")
        return not delivery.lost.wait(LONGEST_WAIT_S)

    worker = Worker(parcel_file.jobs, send, lease_ms=SHORT_MS)
    assert worker.run(once=True) == Worked(stale=1, ended="once")


def test_a_plain_finish_within_counts_too(parcels: Parcels) -> None:
    def send(delivery: Delivery) -> bool:
        with Session(parcels.engine) as session, immediate(session):
            parcels.jobs.within(session).finish(delivery.ticket, "ok", system_clock)
        return True

    assert Worker(parcels.jobs, send).run(until_empty=True) == Worked(done=2, ended="empty")


@pytest.mark.parametrize("then", [True, ValueError("boom")])
def test_a_transaction_that_was_rolled_back_leaves_the_job(
    parcels: Parcels, told: Told, then: Any
) -> None:
    def send(delivery: Delivery) -> bool:
        with Session(parcels.engine) as session:
            session.add(Effect(job_id=delivery.id))
            delivery.finish_within(session)
            session.rollback()
        if isinstance(then, Exception):
            raise then
        return True

    worker = Worker(parcels.jobs, send)
    assert worker.run(once=True) == Worked(left=1, ended="once")
    assert parcels.row("a")["status"] == "leased"
    assert parcels.effects() == []
    error = told.wait_for("left").exc_info
    assert error
    assert ("not committed yet" in str(error[1])) is (then is True)


def test_or_is_tried_again_if_the_handler_says_so(parcels: Parcels) -> None:
    def send(delivery: Delivery) -> bool:
        with Session(parcels.engine) as session:
            delivery.finish_within(session)
            session.rollback()
        raise Retryable

    assert Worker(parcels.jobs, send).run(once=True) == Worked(retried=1, ended="once")
    assert parcels.end("a") == ("pending", "retry", 1)


def test_the_unit_of_work_can_be_run_again(parcel_file: Parcels) -> None:
    """After a first try that failed before its COMMIT."""

    def send(delivery: Delivery) -> bool:
        for answer in (False, True):
            with Session(parcel_file.engine) as session:
                session.add(Effect(job_id=delivery.id))
                delivery.finish_within(session)
                session.commit() if answer else session.rollback()
        return True

    assert Worker(parcel_file.jobs, send).run(once=True) == Worked(done=1, ended="once")
    assert parcel_file.effects() == ["a"]


def test_no_renewal_gets_in_the_way_of_its_transaction(parcels: Parcels) -> None:
    jobs: Any = parcels.jobs
    renewing = Gate()
    jobs.before["renew"] = lambda *_: renewing.stand()

    def send(delivery: Delivery) -> bool:
        renewing.came()
        with Session(parcels.engine) as session, immediate(session):
            session.add(Effect(job_id=delivery.id))
            # The renewal stands before its statement, and is not waited for without end.
            delivery.finish_within(session)
        renewing.open()
        return True

    worker = Worker(jobs, send, lease_ms=3_000)
    assert worker.run(once=True) == Worked(done=1, ended="once")
    assert parcels.effects() == ["a"]


def test_a_renewal_that_landed_unseen_makes_no_ticket_stale(parcels: Parcels) -> None:
    jobs: Any = parcels.jobs
    landed = Gate()
    jobs.after["renew"] = lambda *_: landed.stand()

    def send(delivery: Delivery) -> bool:
        landed.came()
        with Session(parcels.engine) as session, immediate(session):
            session.add(Effect(job_id=delivery.id))
            delivery.finish_within(session)
        landed.open()
        return True

    assert Worker(jobs, send, lease_ms=3_000).run(once=True) == Worked(done=1, ended="once")
    assert parcels.effects() == ["a"]


def test_a_lost_lease_fails_the_whole_transaction(parcels: Parcels, told: Told) -> None:
    jobs: Any = parcels.jobs
    jobs.before["renew"] = Away()

    def send(delivery: Delivery) -> bool:
        assert delivery.lost.wait(LONGEST_WAIT_S)
        with Session(parcels.engine) as session, immediate(session):
            session.add(Effect(job_id=delivery.id))
            delivery.finish_within(session)
        return True

    # The database's clock stands still: only the worker's own knows.
    now = system_clock()
    worker = Worker(jobs, send, clock=lambda: now, lease_ms=SHORT_MS)
    assert worker.run(once=True) == Worked(stale=1, ended="once")
    assert parcels.effects() == []
    error = told.wait_for("stale").exc_info
    assert error
    assert error[0] is StaleTicket


def test_a_handler_that_gives_up_a_lost_job_is_no_bug(parcel_file: Parcels, told: Told) -> None:
    jobs: Any = parcel_file.jobs
    jobs.before["renew"] = Away()

    def send(delivery: Delivery) -> bool:
        return not delivery.lost.wait(LONGEST_WAIT_S)

    worker = Worker(jobs, send, lease_ms=SHORT_MS)
    assert worker.run(once=True) == Worked(stale=1, ended="once")
    record = told.wait_for("stale")
    assert (record.levelno, record.exc_info) == (logging.WARNING, None)


def test_one_that_somebody_else_has_taken_does_so_too(parcels: Parcels) -> None:
    def send(delivery: Delivery) -> bool:
        parcels.jobs.recover(system_clock() + 60_000 - 1_000)
        with Session(parcels.engine) as session, immediate(session):
            session.add(Effect(job_id=delivery.id))
            with pytest.raises(StaleTicket):
                delivery.finish_within(session)
            session.rollback()
        assert delivery.lost.wait(LONGEST_WAIT_S)
        return True

    worker = Worker(parcels.jobs, send, lease_ms=900)
    assert worker.run(once=True) == Worked(stale=1, ended="once")
    assert parcels.effects() == []
    assert parcels.end("a") == ("pending", "expired", 1)


def test_it_goes_on_being_renewed_where_the_finish_failed(parcel_file: Parcels, told: Told) -> None:
    def send(delivery: Delivery) -> bool:
        with Session(parcel_file.engine) as session:
            with pytest.raises(ValueError, match="delay_ms"):
                delivery.finish_within(session, "retry", delay_ms=-1)
            session.rollback()
        told.wait_for("renewed", 4)
        return True

    assert Worker(parcel_file.jobs, send, lease_ms=SHORT_MS).run(once=True).done == 1


def test_but_not_where_the_lease_was_lost_meanwhile(parcel_file: Parcels, told: Told) -> None:
    jobs: Any = parcel_file.jobs
    jobs.before["renew"] = Away()
    finishing, renewable = threading.Event(), list[bool]()

    def clock() -> int:
        if finishing.is_set():
            # Read under the lock, which was waited for until the lease was lost.
            told.wait_for("lost")
            raise ValueError("no clock")
        return system_clock()

    def send(delivery: Delivery) -> bool:
        finishing.set()
        with Session(parcel_file.engine) as session, pytest.raises(ValueError, match="no clock"):
            delivery.finish_within(session)
        renewable.append(delivery._job.renewable)
        return True

    worker = Worker(jobs, send, clock=clock, lease_ms=SHORT_MS)
    assert worker.run(once=True) == Worked(stale=1, ended="once")
    assert renewable == [False]


def test_a_second_finish_of_one_that_is_finished_loses_nothing(parcels: Parcels) -> None:
    finish, renewable = finishing(parcels), list[bool]()

    def send(delivery: Delivery) -> bool:
        finish(delivery)
        with pytest.raises(StaleTicket):
            finish(delivery)
        renewable.append(delivery._job.renewable)
        return True

    assert Worker(parcels.jobs, send).run(once=True) == Worked(done=1, ended="once")
    assert renewable == [False]
    assert parcels.effects() == ["a"]


def test_a_coroutine_finishes_in_an_asynchronous_session(
    parcel_file: Parcels, tmp_path: Path
) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'app.db'}")

    async def send(delivery: Delivery) -> bool:
        async with AsyncSession(engine) as session, aio.immediate(session):
            session.add(Effect(job_id=delivery.id))
            await session.run_sync(delivery.finish_within, values={"result": "signed"})
        if delivery.id == "b":
            await engine.dispose()
        return True

    worker = Worker(parcel_file.jobs, send)
    assert worker.run(until_empty=True) == Worked(done=2, ended="empty")
    assert parcel_file.effects() == ["a", "b"]
    assert parcel_file.result("b") == "signed"


def test_a_row_that_cannot_be_read_at_first_is_read_again(parcel_file: Parcels, told: Told) -> None:
    jobs: Any = parcel_file.jobs
    away = Away(times=3)

    def reading(job_id: str) -> None:
        if job_id in ("a", "b"):
            away()

    jobs.before["read"] = reading

    def send(delivery: Delivery) -> bool:
        return bool(delivery.payload)

    assert Worker(jobs, send, poll_ms=10).run(until_empty=True).done == 2
    assert told.events("unsettled", "settled") == ["unsettled", "settled"]


def test_a_row_that_is_gone_is_not_sent(parcel_file: Parcels, told: Told) -> None:
    jobs: Any = parcel_file.jobs
    sent: list[str] = []

    def reading(job_id: str) -> None:
        if job_id in ("a", "b"):
            with Session(parcel_file.engine) as session, session.begin():
                session.delete(session.scalars(select(Parcel).where(Parcel.id == job_id)).one())

    jobs.before["read"] = reading

    def send(delivery: Delivery) -> bool:
        sent.append(delivery.id)
        return True

    assert Worker(jobs, send).run(until_empty=True) == Worked(left=2, ended="empty")
    assert sent == []
    assert told.events().count("gone") == 2


def test_columns_that_the_database_lacks_are_told_before_anything_is_claimed(
    parcel_file: Parcels,
) -> None:
    with parcel_file.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE parcels DROP COLUMN result")

    def send(delivery: Delivery) -> bool:
        return True

    with pytest.raises(SchemaError, match=r"parcels\.result"):
        Worker(parcel_file.jobs, send).run()
    assert parcel_file.row("a")["status"] == "pending"


def test_a_session_of_another_kind_is_refused(parcel_file: Parcels) -> None:
    def send(delivery: Delivery) -> bool:
        with pytest.raises(ValueError, match="expected a Session"):
            delivery.finish_within(parcel_file.engine)  # type: ignore[arg-type]
        return True

    assert Worker(parcel_file.jobs, send).run(once=True).done == 1
