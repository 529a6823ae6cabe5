"""The clock of the database: one time base for hosts whose own clocks differ."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from leasestore import Job, JobRepository, database_clock, run_once, system_clock
from leasestore.aio import AsyncJobRepository
from tests.postgresql import Server
from tests.support import make_file


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    if request.param == "sqlite":
        path = make_file(tmp_path_factory.mktemp("clock") / "queue.db")
        engine = create_engine(f"sqlite:///{path}")
    else:
        server: Server = request.getfixturevalue("postgresql")
        # A single connection: a verb has to read the clock through the one that it has.
        engine = create_engine(server.fresh(), pool_size=1, max_overflow=0, pool_timeout=1)
    yield engine
    engine.dispose()


def test_it_is_the_time_in_milliseconds(engine: Engine) -> None:
    before = time.time_ns() // 1_000_000
    now = database_clock(engine)()
    assert before - 1000 < now <= time.time_ns() // 1_000_000 + 1000
    assert type(now) is int


def test_every_verb_reads_it_through_the_connection_that_it_has(engine: Engine) -> None:
    jobs, clock = JobRepository(engine), database_clock(engine)
    assert jobs.enqueue({"id": "a", "qty": 1}, clock, 60_000)
    ticket = jobs.claim("me", clock, 60_000)
    assert ticket is not None
    assert jobs.renew(ticket, clock, 60_000) is not None
    assert jobs.stuck(clock) == []
    assert jobs.recover(clock)["recovered"] == 0
    jobs.enqueue({"id": "b", "qty": 1}, clock, 60_000)
    assert run_once(jobs, "me", clock, lambda _: True, 1, 60_000) == {
        "id": "b",
        "token": 1,
        "status": "done",
    }
    with Session(engine) as session, session.begin():
        assert jobs.within(session).enqueue({"id": "c", "qty": 1}, clock, 60_000)
        assert session.get(Job, 3) is not None


HOUR_NS = 3_600_000_000_000


@pytest.mark.parametrize("ahead_ns", [-HOUR_NS, 0, HOUR_NS])
def test_a_host_an_hour_off_gets_the_same_results(
    postgresql: Server, monkeypatch: pytest.MonkeyPatch, ahead_ns: int
) -> None:
    engine = create_engine(postgresql.fresh())
    jobs, clock = JobRepository(engine), database_clock(engine)
    right = time.time_ns
    before_ms = right() // 1_000_000
    monkeypatch.setattr(time, "time_ns", lambda: right() + ahead_ns)
    monkeypatch.setattr(time, "time", lambda: (right() + ahead_ns) / 1e9)
    assert abs(system_clock() - before_ms - ahead_ns // 1_000_000) < 60_000
    jobs.enqueue({"id": "a", "qty": 1}, clock, 60_000)
    jobs.enqueue({"id": "later", "qty": 1}, clock, 60_000, delay_ms=59_999)
    ticket = jobs.claim("me", clock, 50_000)
    assert ticket is not None
    assert before_ms + 50_000 <= ticket["lease_until"] <= right() // 1_000_000 + 50_001
    assert jobs.claim("other", clock) is None, "a live lease was taken, or a job before its time"
    assert jobs.stuck(clock) == []
    assert jobs.recover(clock) == {"recovered": 0, "deadline": 0, "exhausted": 0}
    renewed = jobs.renew(ticket, clock, 55_000)
    assert renewed is not None
    assert jobs.finish(renewed, "retry", clock, 40_000) == "pending"
    assert jobs.claim("me", clock, job_id="a") is None, "a retry came before its time"
    jobs.enqueue({"id": "b", "qty": 1}, clock, 60_000)
    assert run_once(jobs, "me", clock, lambda _: True, 1, 60_000) == {
        "id": "b",
        "token": 1,
        "status": "done",
    }
    engine.dispose()


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/St_Johns"])
def test_the_sessions_time_zone_has_no_part_in_it(postgresql: Server, zone: str) -> None:
    settings = {"options": f"-c timezone={zone}"}
    engine = create_engine(postgresql.fresh(), connect_args=settings)
    assert abs(database_clock(engine)() - system_clock()) < 60_000
    engine.dispose()


def test_it_moves_on_within_a_transaction(engine: Engine) -> None:
    jobs, clock = JobRepository(engine), database_clock(engine)
    with Session(engine) as session, session.begin():
        within = jobs.within(session)
        within.enqueue({"id": "a", "qty": 1}, clock, 60_000)
        first = clock.on(session.connection())
        while clock.on(session.connection()) == first:
            pass
        within.enqueue({"id": "b", "qty": 1}, clock, 60_000)
    early, late = jobs.get("a"), jobs.get("b")
    assert early is not None
    assert late is not None
    assert early["available_at"] <= first < late["available_at"]


def test_a_lease_counts_from_the_claim_and_not_from_the_transaction(postgresql: Server) -> None:
    engine = create_engine(postgresql.fresh())
    jobs, clock = JobRepository(engine), database_clock(engine)
    jobs.enqueue({"id": "a", "qty": 1}, clock, 60_000)
    with Session(engine) as session, session.begin():
        # The transaction is older than the lease is long.
        began = "SELECT CAST(extract(epoch FROM now()) * 1000 AS bigint) FROM pg_sleep(0.05)"
        began_ms: int = session.execute(text(began)).scalar_one()
        ticket = jobs.within(session).claim("me", clock, 40)
        assert ticket is not None
        assert ticket["lease_until"] >= began_ms + 50 + 40 - 1
    engine.dispose()


def test_an_asynchronous_verb_reads_it_too(postgresql: Server) -> None:
    async def main() -> None:
        engine = create_async_engine(postgresql.fresh().set(drivername="postgresql+asyncpg"))
        jobs, clock = AsyncJobRepository(engine), database_clock(engine.sync_engine)
        assert await jobs.enqueue({"id": "a", "qty": 1}, clock, 60_000)
        assert await jobs.claim("me", clock) is not None
        await engine.dispose()

    asyncio.run(main())


def test_what_is_no_engine_is_refused(engine: Engine) -> None:
    with engine.connect() as connection:
        for stranger in (None, connection):
            with pytest.raises(ValueError, match="expected"):
                database_clock(stranger)  # type: ignore[arg-type]
