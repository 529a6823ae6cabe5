"""A watcher's look: every stuck job freed or found dead, each told once and by whoever did it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event

from leasestore import JobRepository, StuckJob, Wakeup, Watcher
from tests.conformance.postgresql import PostgreSQLStore, beside
from tests.conformance.scene import HELD, NOW, insert_held, stage
from tests.conformance.stores import Store
from tests.conformance.test_recover import expired
from tests.postgresql import Server

NOTHING = {"recovered": 0, "deadline": 0, "exhausted": 0}


def watcher(store: Store, told: list[StuckJob], now: int = NOW) -> Watcher:
    return Watcher(store.repository, lambda: now, report=told.append)


def test_each_stuck_job_is_told_as_it_was_and_what_became_of_it(either_store: Store) -> None:
    store = either_store
    expired(store, "lost", lease_until=90, attempts=2, token=7, qty=5)
    expired(store, "spent", lease_until=80, attempts=3)
    expired(store, "late", lease_until=100, deadline=100, owner="slow")
    told: list[StuckJob] = []
    assert watcher(store, told).look() == {"recovered": 1, "deadline": 1, "exhausted": 1}
    usual: Any = {"qty": 1, "owner": "gone", "token": 4, "attempts": 1}
    assert told == [
        {
            **usual,
            "id": "spent",
            "attempts": 3,
            "lease_until": 80,
            "overdue_ms": 20,
            "status": "dead",
            "reason": "exhausted",
        },
        {
            **usual,
            "id": "lost",
            "qty": 5,
            "token": 7,
            "attempts": 2,
            "lease_until": 90,
            "overdue_ms": 10,
            "status": "pending",
            "reason": "expired",
        },
        {
            **usual,
            "id": "late",
            "owner": "slow",
            "lease_until": 100,
            "overdue_ms": 0,
            "status": "dead",
            "reason": "deadline",
        },
    ]


def test_it_changes_what_recover_changes(either_store: Store) -> None:
    store = either_store
    names = ("a", "no-time", "no-attempts", "neither")

    def put() -> None:
        store.wipe()
        stage(store)
        columns: list[dict[str, Any]] = [
            {"available_at": 20, "attempts": 2},
            {"deadline": 100},
            {"attempts": 3},
            {"attempts": 3, "deadline": 100},
        ]
        for name, more in zip(names, columns, strict=True):
            expired(store, name, **more)
        store.insert(id="spent", attempts=3)

    put()
    counts = store.repository.recover(NOW)
    recovered = store.dump()
    put()
    assert watcher(store, []).look() == counts
    assert store.dump() == recovered
    assert counts == {"recovered": 2, "deadline": 3, "exhausted": 2}


def test_pending_jobs_without_time_are_swept_and_not_told_as_stuck(
    either_store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    either_store.insert(id="late", deadline=50)
    told: list[StuckJob] = []
    assert watcher(either_store, told).look() == {**NOTHING, "deadline": 1}
    assert told == []
    assert either_store.row("late")["reason"] == "deadline"
    (record,) = caplog.records
    assert record.getMessage() == "pending jobs that died: 1 of their deadline, 0 of their attempts"
    assert vars(record).items() >= {"event": "swept", "deadline": 1, "exhausted": 0}.items()


def test_a_token_is_told_once(either_store: Store) -> None:
    store = either_store
    expired(store, "a", deadline=5000)
    told: list[StuckJob] = []
    for now in range(NOW, NOW + 10):
        watcher(store, told, now).look()
    assert [job["token"] for job in told] == [4]
    ticket = store.repository.claim("me", 200)
    assert ticket is not None
    for now in (1199, 1200, 1201, 4999):
        watcher(store, told, now).look()
    assert [(job["owner"], job["token"]) for job in told] == [("gone", 4), ("me", 5)]
    # Dead while nobody had it: the last run was told already.
    assert watcher(store, told, 5000).look() == {**NOTHING, "deadline": 1}
    assert len(told) == 2


def test_only_the_rows_own_lease_counts(either_store: Store) -> None:
    store = either_store
    for name, lease in (("short", 2_000), ("long", 60_000)):
        store.repository.enqueue({"id": name, "qty": 1}, 0, 60_000)
        assert store.repository.claim(name, 0, lease)
    told: list[StuckJob] = []
    for now in range(1000, 60_000, 1000):
        watcher(store, told, now).look()
    assert [(job["id"], job["overdue_ms"]) for job in told] == [("short", 0)]
    assert store.row("long")["status"] == "leased"


def test_a_job_that_was_renewed_finished_or_claimed_again_is_not_told(either_store: Store) -> None:
    store = either_store
    insert_held(store)
    expired(store, "taken")
    assert store.repository.renew(HELD, 400, 600)
    assert store.repository.claim("me", NOW, job_id="taken")
    before = store.dump()
    told: list[StuckJob] = []
    assert watcher(store, told, 500).look() == NOTHING
    assert (told, store.dump()) == ([], before)


def test_however_many_there_are_each_transaction_is_short(either_store: Store) -> None:
    store = either_store
    for number in range(200):
        expired(store, f"job-{number}", lease_until=90 - number % 7)
    told: list[StuckJob] = []
    commits: list[int] = []
    engine = store.other_engine()
    event.listen(engine, "commit", lambda _: commits.append(len(told)))
    one = Watcher(JobRepository(engine), lambda: NOW, report=told.append)
    assert one.look() == {**NOTHING, "recovered": 200}
    # Told after the commit of its own hundred; the third finds no more.
    assert commits == [0, 100, 200]
    assert len({job["id"] for job in told}) == 200
    engine.dispose()


def test_what_is_rolled_back_is_not_told(either_store: Store) -> None:
    expired(either_store, "a")
    engine = either_store.other_engine()

    @event.listens_for(engine, "commit")
    def fail(_: object) -> None:
        raise RuntimeError("made up")

    told: list[StuckJob] = []
    before = either_store.dump()
    with pytest.raises(RuntimeError, match="made up"):
        Watcher(JobRepository(engine), lambda: NOW, report=told.append).look()
    assert (told, either_store.dump()) == ([], before)
    engine.dispose()


def test_the_log_says_who_and_since_when(
    either_store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    expired(either_store, "a")
    expired(either_store, "b", attempts=3, lease_until=95)
    told: list[StuckJob] = []
    watcher(either_store, told).look()
    freed, dead = caplog.records
    assert freed.name == "leasestore.watcher"
    assert freed.getMessage() == (
        "job a (token 4, attempt 1): the lease of gone ended 10 ms ago, the job unfinished; "
        "free again"
    )
    assert dead.getMessage().endswith(
        "gone ended 5 ms ago, the job unfinished; dead now, exhausted"
    )
    assert [freed.levelno, dead.levelno] == [logging.WARNING, logging.ERROR]
    for record, job in zip((freed, dead), told, strict=True):
        names = {"id": "job_id", "attempts": "attempt"}
        keys = {names.get(name, name): value for name, value in job.items()}
        assert vars(record).items() >= {"event": "stuck", **keys}.items()


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit])
def test_an_error_of_the_callback_is_logged_and_the_others_are_told(
    either_store: Store, caplog: pytest.LogCaptureFixture, kind: type[BaseException]
) -> None:
    expired(either_store, "a")
    expired(either_store, "b")
    told: list[str] = []

    def report(job: StuckJob) -> None:
        told.append(job["id"])
        raise kind("made up")

    one = Watcher(either_store.repository, lambda: NOW, report=report)
    assert one.look() == {**NOTHING, "recovered": 2}
    assert told == ["a", "b"]
    failed = [record for record in caplog.records if vars(record)["event"] == "report-failed"]
    assert [vars(record)["job_id"] for record in failed] == ["a", "b"]
    assert all(record.exc_info and "made up" in str(record.exc_info[1]) for record in failed)


def test_an_interrupt_is_no_error_of_the_callback(either_store: Store) -> None:
    expired(either_store, "a")

    def report(_: StuckJob) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Watcher(either_store.repository, lambda: NOW, report=report).look()


def test_a_log_that_fails_keeps_nobody_from_being_told(
    either_store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(record: logging.LogRecord) -> bool:
        if vars(record).get("job_id") == "a":
            raise OSError("no room on the disk")
        return True

    expired(either_store, "a")
    expired(either_store, "b")
    told: list[StuckJob] = []
    logger = logging.getLogger("leasestore.watcher")
    logger.addFilter(fail)
    try:
        watcher(either_store, told).look()
    finally:
        logger.removeFilter(fail)
    assert [job["id"] for job in told] == ["a", "b"]
    assert [vars(record)["job_id"] for record in caplog.records] == ["b"]


@pytest.fixture
def two_engines(either_store: Store) -> Iterator[list[Engine]]:
    engines = [either_store.other_engine() for _ in range(2)]
    yield engines
    for engine in engines:
        engine.dispose()


def test_of_two_watchers_at_once_each_job_is_told_by_one(
    either_store: Store, two_engines: list[Engine]
) -> None:
    store, rounds, each = either_store, 20, 10
    start = Barrier(2, timeout=30)
    for number in range(rounds * each):
        expired(store, f"job-{number}", lease_until=number // each, deadline=5000)

    def watch(engine: Engine) -> list[StuckJob]:
        told: list[StuckJob] = []
        for now in range(rounds):
            start.wait()
            Watcher(JobRepository(engine), partial(int, now), report=told.append).look()
        return told

    with ThreadPoolExecutor(2) as threads:
        told = [job for share in threads.map(watch, two_engines) for job in share]
    assert sorted(job["id"] for job in told) == sorted(row["id"] for row in store.rows())
    assert {row["status"] for row in store.rows()} == {"pending"}


def test_who_listens_on_postgresql_is_told_of_a_job_that_is_free_again(postgresql: Server) -> None:
    engine = create_engine(postgresql.fresh())
    jobs = JobRepository(engine, notify=True)
    jobs.enqueue({"id": "a", "qty": 1}, 0, 60_000)
    jobs.enqueue({"id": "b", "qty": 1}, 0, 60_000, max_attempts=1)
    for lease_ms in (10, 20):
        assert jobs.claim("gone", 0, lease_ms)
    with Wakeup(jobs, listen=True) as wakeup:
        # Once it listens.
        assert wakeup.wait(30_000)
        Watcher(jobs, lambda: 10).look()
        assert wakeup.wait(30_000)
        Watcher(jobs, lambda: 20).look()
        assert not wakeup.wait(0), "told of a job that is dead"
    engine.dispose()


def test_a_lost_connection_to_postgresql_costs_one_look(
    postgresql: Server, caplog: pytest.LogCaptureFixture
) -> None:
    url = postgresql.fresh()
    engine = create_engine(url)
    rounds: list[float] = []

    class Scripted(Watcher):
        def _pause(self, ms: float) -> None:
            rounds.append(ms)
            if len(rounds) == 1:
                with beside(url) as other:
                    other.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                    )
            if len(rounds) == 4:
                self.stop()

    Scripted(JobRepository(engine), every_ms=5000, draw=lambda: 0).run()
    assert rounds == [5000, 1000, 5000, 5000]
    assert [vars(record)["event"] for record in caplog.records] == ["outage", "outage-over"]
    engine.dispose()


def test_a_job_that_somebody_works_on_is_passed_over_until_it_is_let_go(
    postgresql_store: PostgreSQLStore,
) -> None:
    store = postgresql_store
    engine = create_engine(store.url)
    expired(store, "lost")
    expired(store, "spent", attempts=3)
    expired(store, "free")
    store.insert(id="late", deadline=50)
    told: list[StuckJob] = []
    one = Watcher(JobRepository(engine), lambda: NOW, report=told.append)
    with beside(store.url) as other, other.transaction():
        other.execute("SELECT FROM jobs WHERE id IN ('lost', 'spent', 'late') FOR UPDATE")
        assert one.look() == {**NOTHING, "recovered": 1}
        assert [job["id"] for job in told] == ["free"]
    assert one.look() == {"recovered": 1, "deadline": 1, "exhausted": 1}
    assert [job["id"] for job in told] == ["free", "lost", "spent"]
    engine.dispose()
