"""A database that is away for a while: nothing is lost, nobody spins, and it is told once."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from leasestore import JobRepository, Permanent, Retryable, Worked, Worker, system_clock
from leasestore.worker.pauses import idle_ms, outage_ms
from tests.worker.scene import (
    SHORT_MS,
    Away,
    Gate,
    Meddled,
    Queue,
    Told,
    at_work,
)


def ok(_: Any) -> bool:
    return True


@pytest.mark.parametrize("failures", [1, 2, 10, 47, 1_100, 10**6])
@pytest.mark.parametrize("poll_ms", [1, 20, 1000, 3_600_000])
@pytest.mark.parametrize("drawn", [0, 0.5, 1.0])
def test_every_pause_has_a_smallest_and_a_longest_length(
    failures: int, poll_ms: int, drawn: float
) -> None:
    assert 1 <= idle_ms(failures, poll_ms) <= poll_ms
    assert 1 <= outage_ms(failures, poll_ms, drawn) <= 5_000


def test_pauses_grow_and_are_spread() -> None:
    assert [idle_ms(n, 1_000) for n in range(1, 8)] == [50, 100, 200, 400, 800, 1000, 1000]
    assert [outage_ms(n, 1_000, 0) for n in range(1, 8)] == [
        100, 200, 400, 800, 1600, 3200, 5000,
    ]  # fmt: skip
    assert {outage_ms(9, 100, drawn / 10) for drawn in range(11)} == {*range(500, 1001, 50)}


def test_claims_go_on_when_the_database_is_back(meddled: Meddled, queue: Queue, told: Told) -> None:
    queue.enqueue("a")
    away = Away()
    with at_work(Worker(meddled, ok, poll_ms=5)) as going:
        told.wait_for("done")
        meddled.before["claim"] = away
        away.wait_for(5)
        queue.enqueue("b")
        away.is_back()
        told.wait_for("done", 2)
        assert going.stopped() == Worked(done=2, ended="stopped")
    assert told.events("outage", "outage-over") == ["outage", "outage-over"]
    assert vars(told.wait_for("outage-over"))["failures"] == away.failed
    assert told.wait_for("outage").levelno == logging.WARNING


def test_a_database_that_is_away_at_the_start_is_waited_for(
    meddled: Meddled, queue: Queue, told: Told
) -> None:
    queue.enqueue("a")
    meddled.before["claim"] = Away(times=4)
    assert Worker(meddled, ok, poll_ms=5).run(until_empty=True).done == 1
    assert told.events("outage", "outage-over") == ["outage", "outage-over"]
    assert told.wait_for("outage-over").getMessage() == "can claim again, after 4 failures in a row"
    assert vars(told.wait_for("outage"))["error_type"] == "Exception"


def test_one_failure_is_one(meddled: Meddled, queue: Queue, told: Told) -> None:
    queue.enqueue("a")
    meddled.before["claim"], meddled.before["finish"] = Away(times=1), Away(times=1)
    assert Worker(meddled, ok, poll_ms=5).run(until_empty=True).done == 1
    assert told.wait_for("outage-over").getMessage() == "can claim again, after 1 failure in a row"
    assert told.wait_for("settled").getMessage().endswith(": could finish it after 1 failure")


def test_tables_that_vanish_later_are_waited_for(queue: Queue, told: Told) -> None:
    with at_work(Worker(queue.jobs, ok, poll_ms=5)) as going:
        queue.enqueue("a")
        told.wait_for("done")
        with queue.engine.begin() as connection:
            connection.execute(text("ALTER TABLE jobs RENAME TO elsewhere"))
        assert "SchemaError: the database lacks jobs" in told.wait_for("outage").getMessage()
        with queue.engine.begin() as connection:
            connection.execute(text("ALTER TABLE elsewhere RENAME TO jobs"))
        told.wait_for("outage-over")
        assert going.stopped().done == 1


@pytest.mark.parametrize("broken", [OSError("no clock"), "soon"])
def test_a_clock_that_fails_is_an_outage_too(queue: Queue, told: Told, broken: Any) -> None:
    queue.enqueue("a")
    failures = iter([broken] * 3)

    def clock() -> int:
        answer = next(failures, None)
        if isinstance(answer, Exception):
            raise answer
        return answer or system_clock()

    assert Worker(queue.jobs, ok, clock=clock, poll_ms=5).run(until_empty=True).done == 1
    assert told.events("outage", "outage-over") == ["outage", "outage-over"]


ENDS: dict[str, tuple[Any, Any, Worked]] = {
    "ok": (True, ("done", None, 1), Worked(done=1, ended="once")),
    "retry": (Retryable("no"), ("pending", "retry", 1), Worked(retried=1, ended="once")),
    "permanent": (Permanent("no"), ("dead", "permanent", 1), Worked(dead=1, ended="once")),
}


def answer(answered: Any) -> Any:
    def send(_: Any) -> Any:
        if isinstance(answered, Exception):
            raise answered
        return answered

    return send


@pytest.mark.parametrize("outcome", ENDS)
def test_a_finish_that_fails_is_tried_again(
    meddled: Meddled, queue: Queue, told: Told, outcome: str
) -> None:
    answered, end, worked = ENDS[outcome]
    queue.enqueue("a")
    meddled.before["finish"] = Away(times=3)
    assert Worker(meddled, answer(answered), poll_ms=5).run(once=True) == worked
    assert queue.end("a") == end
    assert told.events("unsettled", "settled") == ["unsettled", "settled"]
    assert meddled.called.count("finish") == 4


@pytest.mark.parametrize("outcome", ENDS)
def test_a_finish_whose_answer_was_cut_off_is_recognised(
    meddled: Meddled, queue: Queue, outcome: str
) -> None:
    """The error came at COMMIT, and the transaction was committed."""
    answered, end, worked = ENDS[outcome]
    queue.enqueue("a")
    meddled.after["finish"] = Away(times=1)
    assert Worker(meddled, answer(answered), poll_ms=5).run(once=True) == worked
    assert queue.end("a") == end


def test_a_finish_that_fails_for_as_long_as_the_lease_lasts_is_given_up(
    meddled: Meddled, queue: Queue, told: Told
) -> None:
    queue.enqueue("a")
    away = meddled.before["finish"] = Away()
    worker = Worker(meddled, ok, lease_ms=SHORT_MS, poll_ms=5)
    assert worker.run(once=True) == Worked(left=1, ended="once")
    assert away.failed > 1
    assert told.events("unsettled", "given-up") == ["unsettled", "given-up"]
    assert queue.row("a")["status"] == "leased"


def test_an_outage_within_the_lease_costs_no_second_run(
    meddled: Meddled, queue: Queue, told: Told
) -> None:
    """Everything fails at once, while the handler works and when it has finished."""
    queue.enqueue("a")
    away = Away()
    sent: list[str] = []

    def send(event: Any) -> bool:
        sent.append(event["id"])
        for verb in ("claim", "renew", "finish", "get"):
            meddled.before[verb] = away
        away.wait_for(3)
        return True

    worker = Worker(meddled, send, lease_ms=30_000, poll_ms=5, concurrency=2)
    with at_work(worker) as going:
        told.wait_for("unsettled")
        away.is_back()
        told.wait_for("done")
        assert going.stopped() == Worked(done=1, ended="stopped")
    assert sent == ["a"]
    assert queue.end("a") == ("done", None, 1)


def test_one_that_outlasts_the_leases_costs_the_runs_and_no_job(
    meddled: Meddled, queue: Queue, told: Told
) -> None:
    queue.enqueue("a", "b")
    away = Away()
    sent: list[str] = []

    def send(event: Any) -> bool:
        sent.append(event["id"])
        if len(sent) <= 2:
            for verb in ("claim", "renew", "finish", "get"):
                meddled.before[verb] = away
            told.wait_for("lost", 2)
        return True

    worker = Worker(meddled, send, lease_ms=2 * SHORT_MS, poll_ms=5, concurrency=2)
    with at_work(worker) as going:
        told.wait_for("given-up", 2)
        # Cut off, it claims nothing.
        assert sorted(sent) == ["a", "b"]
        away.is_back()
        told.wait_for("done", 2)
        assert going.stopped() == Worked(done=2, left=2, ended="stopped")
    assert sorted(sent) == ["a", "a", "b", "b"]
    assert [queue.end(job_id) for job_id in "ab"] == [("done", None, 2)] * 2


def test_a_locked_file_is_waited_for(path: Path, told: Told) -> None:
    """The write lock is held by somebody else for many polls and busy timeouts."""
    engine = create_engine(f"sqlite:///{path}", connect_args={"timeout": 0.05})
    queue = Queue(engine, JobRepository(engine))
    queue.enqueue("a", "b")
    working = Gate()
    sent: list[str] = []

    def send(event: Any) -> bool:
        sent.append(event["id"])
        working.stand()
        return True

    with (
        closing(sqlite3.connect(path, isolation_level=None, timeout=5)) as plain,
        at_work(Worker(queue.jobs, send, lease_ms=60_000, poll_ms=5)) as going,
    ):
        working.came()
        plain.execute("BEGIN IMMEDIATE")
        working.open()
        told.wait_for("unsettled")
        assert "StoreBusy" in told.wait_for("unsettled").getMessage()
        plain.execute("ROLLBACK")
        told.wait_for("done", 2)
        plain.execute("BEGIN IMMEDIATE")
        told.wait_for("outage")
        plain.execute("ROLLBACK")
        told.wait_for("outage-over")
        assert going.stopped() == Worked(done=2, ended="stopped")
    assert sent == ["a", "b"]
    assert [queue.end(job_id) for job_id in "ab"] == [("done", None, 1)] * 2
    engine.dispose()


def test_connections_that_the_server_ends_are_made_anew(
    postgresql_queue: Queue, told: Told
) -> None:
    queue = postgresql_queue
    queue.enqueue("a")
    end_others = text(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )

    def send(_: Any) -> bool:
        told.wait_for("renewed", 2)
        with queue.engine.connect() as connection:
            connection.execute(end_others)
        told.wait_for("renewed", told.events().count("renewed") + 2)
        return True

    worker = Worker(queue.jobs, send, lease_ms=1_000, poll_ms=20)
    with at_work(worker) as going:
        told.wait_for("done")
        queue.enqueue("b", max_attempts=1)
        told.wait_for("done", 2)
        assert going.stopped().done == 2
    assert queue.end("a") == ("done", None, 1)


def test_what_is_told_of_an_error_is_what_the_driver_said(
    meddled: Meddled, queue: Queue, told: Told
) -> None:
    queue.enqueue("a")
    failing = iter([OperationalError("UPDATE secrets SET x = 1", {"x": 1}, Exception("gone"))])

    def fail(*_: Any) -> None:
        for error in failing:
            raise error

    meddled.before["claim"] = fail
    Worker(meddled, ok, poll_ms=5).run(until_empty=True)
    assert told.wait_for("outage").getMessage() == (
        "cannot claim, and goes on trying: Exception: gone"
    )


def test_nothing_that_is_raised_costs_a_place(meddled: Meddled, queue: Queue, told: Told) -> None:
    """Not even what only ends a process, from the heart of the worker."""
    queue.enqueue("a", "b")
    raised = iter([SystemExit(1)])

    def end(*_: Any) -> None:
        for error in raised:
            raise error

    meddled.before["finish"] = end
    assert Worker(meddled, ok).run(until_empty=True) == Worked(done=1, left=1, ended="empty")
    assert "the worker failed" in told.wait_for("left").getMessage()


def test_nor_does_a_logger_that_fails(queue: Queue, told: Told) -> None:
    def fail(_: logging.LogRecord) -> bool:
        raise ValueError("no more room")

    queue.enqueue("a", "b")
    logger = logging.getLogger("leasestore.worker")
    logger.addFilter(fail)
    try:
        assert Worker(queue.jobs, ok).run(until_empty=True).done == 2
    finally:
        logger.removeFilter(fail)


def test_nor_a_renewal(meddled: Meddled, queue: Queue, told: Told) -> None:
    queue.enqueue("a")
    raised = iter([SystemExit(1)])

    def end(*_: Any) -> None:
        for error in raised:
            raise error

    meddled.before["renew"] = end

    def send(_: Any) -> bool:
        told.wait_for("renewed")
        return True

    assert Worker(meddled, send, lease_ms=1_000).run(once=True).done == 1
