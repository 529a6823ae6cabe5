"""The asynchronous face: the same verbs, awaited, and what cancelling one leaves behind."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, create_engine, select
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.pool import QueuePool

from leasestore import (
    BadAck,
    EnlistedRepository,
    Event,
    JobRepository,
    Permanent,
    Retryable,
    StaleTicket,
)
from leasestore.aio import (
    AsyncEnlistedRepository,
    AsyncJobRepository,
    immediate,
    run_once,
)
from tests.conformance.postgresql import ASYNCHRONOUS
from tests.embedding.application import Base, Delivery, DeliveryRedrive, Order
from tests.embedding.plain import locked, rows_at

EVENT: Event = {"id": "order-1", "qty": 2}


@pytest.fixture(params=["aiosqlite", *ASYNCHRONOUS.values()])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> URL:
    """The application's database, through each asynchronous driver."""
    if request.param == "aiosqlite":
        made = URL.create("sqlite", database=f"{tmp_path}/application.db")
        engine = create_engine(made)
        Base.metadata.create_all(engine)
        engine.dispose()
    else:
        made = request.getfixturevalue("application_url")
    return made.set(drivername=f"{made.get_backend_name()}+{request.param}")


@asynccontextmanager
async def opened(url: URL, **settings: Any) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(url, **settings)
    try:
        yield engine
    finally:
        await engine.dispose()


def deliveries(bind: AsyncEngine | AsyncConnection) -> AsyncJobRepository:
    return AsyncJobRepository(bind, job=Delivery, redrive=DeliveryRedrive)


def jobs_in(url: URL) -> list[dict[str, Any]]:
    return rows_at(url, "deliveries")


def has_one_lock(url: URL) -> bool:
    """Where rows have the locks, nothing is locked before it is touched."""
    return url.get_backend_name() == "sqlite"


def verbs(repository: type) -> dict[str, Any]:
    return {
        name: value
        for name, value in inspect.getmembers(repository, callable)
        if not name.startswith("_") and name != "within"
    }


@pytest.mark.parametrize(
    ("face", "of"),
    [(AsyncJobRepository, JobRepository), (AsyncEnlistedRepository, EnlistedRepository)],
)
def test_verbs_and_signatures_are_those_of_the_synchronous_ones(face: type, of: type) -> None:
    assert verbs(face).keys() == verbs(of).keys()
    for name, verb in verbs(face).items():
        assert inspect.iscoroutinefunction(verb), name
        assert inspect.signature(verb) == inspect.signature(verbs(of)[name]), name
        assert verb.__doc__, name


def test_the_settings_of_a_repository_are_the_same_too() -> None:
    ours, theirs = (
        inspect.signature(kind).parameters for kind in (AsyncJobRepository, JobRepository)
    )
    assert list(ours) == list(theirs)
    assert all(ours[name].default == theirs[name].default for name in ours)


async def _every_verb(jobs: AsyncJobRepository) -> None:
    assert await jobs.enqueue(EVENT, 0, 1000, values={"payload": {"to": "Ghent"}}) is True
    assert await jobs.enqueue(EVENT, 0, 1000) is False
    first = await jobs.claim("me", 0)
    assert first is not None
    assert await jobs.release(first) is True
    second = await jobs.claim("me", lambda: 1, job_id="order-1", lease_ms=10)
    assert second is not None
    renewed = await jobs.renew(second, 5, 20)
    assert renewed is not None
    assert await jobs.finish(second, "ok", 6) is False
    assert [row["id"] for row in await jobs.stuck(25)] == ["order-1"]
    assert await jobs.recover(25) == {"recovered": 1, "deadline": 0, "exhausted": 0}
    third = await jobs.claim("me", 30)
    assert third is not None
    assert await jobs.finish(third, "permanent", 31) == "dead"
    assert await jobs.redrive("order-1", 40, 1000, "once-more") is True
    row = await jobs.get("order-1")
    assert row is not None
    assert (row["status"], row["token"]) == ("pending", 3)
    (fourth,) = await jobs.claim_batch("me", 40, 10)
    assert await jobs.finish_and_claim(fourth, "retry", "me", 41, 9, 1) == ("pending", None)
    (fifth,) = await jobs.claim_batch("me", 42, 1)
    assert await jobs.renew_batch([fifth], 42, 10) == [fifth | {"lease_until": 52}]
    assert await jobs.renew_batch([fifth], 43) == [None]
    assert await jobs.finish_batch([({**fifth, "lease_until": 52}, "ok", 0)], 43) == ["done"]
    values: list[dict[str, Any]] = [{"payload": None}, {"payload": {"to": "Ghent"}}]
    other: Event = {"id": "order-2", "qty": 1}
    assert await jobs.enqueue_many([EVENT, other], 50, 1000, values=values) == [False, True]


@pytest.mark.parametrize("door", ["engine", "connection"])
@pytest.mark.parametrize(
    "settings", [{}, {"isolation_level": "AUTOCOMMIT"}], ids=["default", "auto"]
)
def test_every_verb(door: str, settings: dict[str, Any], url: URL) -> None:
    async def main() -> None:
        async with opened(url, **settings) as engine:
            if door == "engine":
                await _every_verb(deliveries(engine))
                assert isinstance(engine.pool, QueuePool)
                assert engine.pool.checkedout() == 0
            else:
                async with engine.connect() as connection:
                    await _every_verb(deliveries(connection))
                    assert not connection.closed
                    assert not connection.in_transaction()
        assert not locked(url)

    asyncio.run(main())


# Inside the application's transaction


def test_a_session_s_commit_and_rollback_decide(url: URL) -> None:
    async def main() -> None:
        async with opened(url) as engine:
            jobs = deliveries(engine)
            async with AsyncSession(engine) as session:
                session.add(Order(id=1))
                await jobs.within(session).enqueue(EVENT, 0, 1000)
                await session.rollback()
            assert jobs_in(url) == []
            async with AsyncSession(engine, expire_on_commit=False) as session:
                await jobs.within(session).enqueue(EVENT, 0, 1000)
                job = (await session.scalars(select(Delivery))).one()
                ticket = await jobs.within(session).claim("me", 0)
                assert ticket is not None
                assert job.status == "leased", "a loaded object did not follow"
                await session.commit()
            assert jobs_in(url)[0]["owner"] == "me"

    asyncio.run(main())


def test_a_stale_ticket_fails_the_transaction(url: URL) -> None:
    async def late(engine: AsyncEngine) -> None:
        jobs = deliveries(engine)
        await jobs.enqueue(EVENT, 0, 1000)
        stale = await jobs.claim("me", 0, 10)
        assert stale is not None
        assert await jobs.claim("other", 10) is not None
        async with AsyncSession(engine) as session, session.begin():
            session.add(Order(id=1))
            await jobs.within(session).finish(stale, "ok", 11)

    async def main() -> None:
        async with opened(url) as engine:
            with pytest.raises(StaleTicket, match="token 1 is stale"):
                await late(engine)
            async with AsyncSession(engine) as session:
                assert (await session.scalars(select(Order))).all() == []

    asyncio.run(main())


def test_every_kind_of_host(url: URL) -> None:
    async def main() -> None:
        async with opened(url) as engine:
            jobs = deliveries(engine)
            async with engine.begin() as connection:
                await jobs.within(connection).enqueue({"id": "a", "qty": 1}, 0, 1000)
            scoped = async_scoped_session(async_sessionmaker(engine), asyncio.current_task)
            async with immediate(scoped):
                assert locked(url) is has_one_lock(url)
                await jobs.within(scoped).enqueue({"id": "b", "qty": 1}, 0, 1000)
            await scoped.remove()
            async with AsyncSession(engine) as session, immediate(session):
                assert locked(url) is has_one_lock(url)
                await jobs.within(session).enqueue({"id": "c", "qty": 1}, 0, 1000)
            async with engine.connect() as connection, immediate(connection):
                assert locked(url) is has_one_lock(url)
                await jobs.within(connection).enqueue({"id": "d", "qty": 1}, 0, 1000)
        assert [job["id"] for job in jobs_in(url)] == ["a", "b", "c", "d"]

    asyncio.run(main())


def test_synchronous_ones_are_refused_by_name(url: URL) -> None:
    async def main() -> None:
        async with opened(url) as engine:
            with pytest.raises(ValueError, match="expected an AsyncEngine or AsyncConnection"):
                AsyncJobRepository(engine.sync_engine)  # type: ignore[arg-type]
            with pytest.raises(ValueError, match="expected an AsyncSession"):
                deliveries(engine).within(engine)  # type: ignore[arg-type]
            with pytest.raises(ValueError, match=r"for asyncio there is leasestore\.aio"):
                JobRepository(engine.sync_engine).within(AsyncSession(engine))  # type: ignore[arg-type]

    asyncio.run(main())


# run_once

SENT: dict[str, tuple[Callable[[], object], str]] = {
    "ok": (lambda: True, "done"),
    "retry": (lambda: _raise(Retryable()), "pending"),
    "permanent": (lambda: _raise(Permanent()), "dead"),
}


def _raise(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("case", SENT)
def test_run_once_awaits_the_sending(case: str, url: URL) -> None:
    answer, status = SENT[case]
    sent: list[Event] = []

    async def send(event: Event) -> object:
        assert not locked(url)
        sent.append({**event})
        event["qty"] = 999
        return answer()

    async def main() -> None:
        async with opened(url) as engine:
            jobs = deliveries(engine)
            assert await run_once(jobs, "me", lambda: 1, send, 1) is None
            await jobs.enqueue(EVENT, 0, 1000)
            assert await run_once(jobs, "me", lambda: 1, send, 1) == {
                "id": "order-1",
                "token": 1,
                "status": status,
            }
        assert sent == [EVENT]

    asyncio.run(main())


def test_run_once_lets_other_answers_and_errors_through(url: URL) -> None:
    async def no(event: Event) -> object:
        return 1

    async def broken(event: Event) -> object:
        raise KeyError("made up")

    why = Retryable("busy", delay_ms=60_001)

    async def too_long(event: Event) -> object:
        raise why

    async def main() -> None:
        async with opened(url) as engine:
            jobs = deliveries(engine)
            await jobs.enqueue(EVENT, 0, 1000)
            with pytest.raises(BadAck):
                await run_once(jobs, "me", lambda: 1, no, 1, 10)
            with pytest.raises(KeyError, match="made up"):
                await run_once(jobs, "me", lambda: 11, broken, 1, 10)
            assert jobs_in(url)[0]["status"] == "leased"
            with pytest.raises(ValueError, match="jitter"):
                await run_once(jobs, "me", lambda: 30, no, 2)
            assert jobs_in(url)[0]["token"] == 2
            with pytest.raises(ValueError, match="delay_ms") as refused:
                await run_once(jobs, "me", lambda: 30, too_long, 1)
            assert refused.value.__cause__ is why

    asyncio.run(main())


# Cancellation

CALLS: dict[str, Callable[[AsyncJobRepository], Coroutine[Any, Any, object]]] = {
    "claim": lambda jobs: jobs.claim("me", 1),
    "enqueue": lambda jobs: jobs.enqueue({"id": "new", "qty": 1}, 1, 1000),
    "get": lambda jobs: jobs.get("order-1"),
}


@pytest.mark.parametrize("verb", CALLS)
@pytest.mark.parametrize("times", [1, 2])
def test_cancelled_anywhere_nothing_stays_open(verb: str, times: int, url: URL) -> None:
    async def cancelled_after(turns: int, jobs: AsyncJobRepository) -> bool:
        task = asyncio.ensure_future(CALLS[verb](jobs))
        for _ in range(turns):
            await asyncio.sleep(0)
        finished = task.done()
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
        await asyncio.gather(task, return_exceptions=True)
        return finished

    async def main() -> None:
        async with opened(url) as engine:
            jobs = deliveries(engine)
            await jobs.enqueue(EVENT, 0, 1000)
            turns = 0
            while not await cancelled_after(turns, jobs):
                assert isinstance(engine.pool, QueuePool)
                assert engine.pool.checkedout() == 0, f"checked out after {turns} turns"
                # Whole or not at all, and the next call finds a usable connection.
                row = await jobs.get("order-1")
                assert row is not None
                assert (row["status"], row["token"]) in [("pending", 0), ("leased", 1)]
                # A COMMIT under way in the driver's thread may still have to come to its end.
                stays_locked = await asyncio.to_thread(locked, url, 5)
                assert not stays_locked, f"locked after {turns} turns"
                turns += 1
            assert turns > 3

    asyncio.run(main())


def test_cancelled_while_it_sends_the_claim_stays(url: URL) -> None:
    async def main() -> None:
        sending = asyncio.Event()

        async def send(event: Event) -> object:
            sending.set()
            await asyncio.Event().wait()
            raise AssertionError("never")

        async with opened(url) as engine:
            jobs = deliveries(engine)
            await jobs.enqueue(EVENT, 0, 1000)
            task = asyncio.ensure_future(run_once(jobs, "me", lambda: 1, send, 1))
            await sending.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert jobs_in(url)[0]["status"] == "leased"
            assert isinstance(engine.pool, QueuePool)
            assert engine.pool.checkedout() == 0

    asyncio.run(main())
