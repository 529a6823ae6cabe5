"""Stopping: nothing is claimed any more, what is in hand may end, and nothing is lost."""

from __future__ import annotations

import asyncio
import signal
import threading
from typing import Any

import pytest

from leasestore import Delivery, Worked, Worker
from tests.worker.scene import (
    LONGEST_WAIT_S,
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


class Standing:
    """A handler that stands until it may go on, as a plain function or as a coroutine."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.lost: list[bool] = []

    def plain(self, delivery: Delivery) -> bool:
        self.gate.stand(delivery.id)
        self.lost.append(delivery.lost.is_set())
        return True

    async def coroutine(self, delivery: Delivery) -> bool:
        return await asyncio.to_thread(self.plain, delivery)


@pytest.mark.parametrize("face", ["plain", "coroutine"])
def test_a_stop_waits_for_what_is_in_hand_and_claims_no_more(
    queue: Queue, told: Told, face: str
) -> None:
    queue.enqueue("a", "b")
    standing = Standing()
    worker = Worker(queue.jobs, getattr(standing, face), lease_ms=4 * SHORT_MS, poll_ms=5)
    with at_work(worker) as going:
        assert standing.gate.came() == "a"
        worker.stop()
        told.wait_for("stopping")
        # Its lease is renewed for as long as it takes.
        told.wait_for("renewed", told.events().count("renewed") + 6)
        standing.gate.open()
        assert going.ended() == Worked(done=1, ended="stopped")
    assert standing.lost == [False]
    assert queue.row("b")["attempts"] == 0


@pytest.mark.parametrize("face", ["plain", "coroutine"])
@pytest.mark.parametrize(("grace_ms", "stops"), [(0, 1), (SHORT_MS, 1), (60_000, 2)])
def test_what_does_not_end_in_time_is_left_to_its_lease(
    queue: Queue, told: Told, face: str, grace_ms: int, stops: int
) -> None:
    queue.enqueue("a", max_attempts=1)
    standing = Standing()
    worker = Worker(queue.jobs, getattr(standing, face), grace_ms=grace_ms, owner="w")
    with at_work(worker) as going:
        standing.gate.came()
        for _ in range(stops):
            worker.stop()
        worked = going.ended()
    assert worked == Worked(running=1, ended="late" if stops == 1 else "forced")
    assert told.events("abandoned") == ["abandoned"]
    row = queue.row("a")
    assert (row["status"], row["owner"], row["attempts"]) == ("leased", "w", 1)
    # A thread cannot be killed; what it comes to later is not written.
    standing.gate.open()
    told.wait_for("stale")
    assert queue.row("a") == row
    if face == "plain":
        assert standing.lost == [True]


def test_a_job_claimed_while_the_stop_comes_is_released(
    meddled: Meddled, queue: Queue, told: Told
) -> None:
    queue.enqueue("a", max_attempts=1)
    claimed = Gate()
    meddled.after["claim"] = lambda *_: claimed.stand()
    with at_work(Worker(meddled, ok)) as going:
        claimed.came()
        going.worker.stop()
        told.wait_for("stopping")
        claimed.open()
        assert going.ended() == Worked(released=1, ended="stopped")
    assert queue.end("a") == ("pending", "released", 0)


def test_a_claim_that_does_not_come_back_is_not_waited_for(
    meddled: Meddled, queue: Queue, told: Told
) -> None:
    queue.enqueue("a", max_attempts=1)
    claimed = Gate()
    meddled.after["claim"] = lambda *_: claimed.stand()
    with at_work(Worker(meddled, ok, grace_ms=0)) as going:
        claimed.came()
        assert going.stopped() == Worked(ended="stopped")
    claimed.open()
    told.wait_for("released")
    assert queue.end("a") == ("pending", "released", 0)


def test_and_what_it_brings_is_not_given_back_for_ever(
    meddled: Meddled, queue: Queue, told: Told
) -> None:
    queue.enqueue("a")
    claimed = Gate()
    meddled.after["claim"] = lambda *_: claimed.stand()
    meddled.before["release"] = Away()
    with at_work(Worker(meddled, ok, grace_ms=0, lease_ms=60_000, poll_ms=5)) as going:
        claimed.came()
        assert going.stopped() == Worked(ended="stopped")
    claimed.open()
    told.wait_for("given-up")


def test_a_job_that_has_not_begun_is_released(queue: Queue, told: Told) -> None:
    """One coroutine blocks the loop; the other one is claimed, and waits for it."""
    queue.enqueue("a", max_attempts=1)
    blocking, began = Gate(), []

    async def send(event: Any) -> bool:
        began.append(event["id"])
        blocking.stand()
        return True

    worker = Worker(queue.jobs, send, concurrency=2, poll_ms=5)
    with at_work(worker) as going:
        blocking.came()
        queue.enqueue("b", max_attempts=1)
        told.wait_for("claimed", 2)
        worker.stop()
        told.wait_for("released")
        assert queue.end("b") == ("pending", "released", 0)
        blocking.open()
        assert going.ended() == Worked(done=1, released=1, ended="stopped")
    assert began == ["a"]


def test_one_whose_row_is_being_read_is_released_too(
    meddled: Meddled, queue: Queue, told: Told
) -> None:
    queue.enqueue("a", max_attempts=1)
    reading = Gate()
    meddled.before["read"] = lambda job_id: reading.stand() if job_id == "a" else None

    def send(delivery: Delivery) -> bool:
        raise AssertionError("it must not begin")

    with at_work(Worker(meddled, send)) as going:
        reading.came()
        going.worker.stop()
        told.wait_for("stopping")
        reading.open()
        assert going.ended() == Worked(released=1, ended="stopped")
    assert queue.end("a") == ("pending", "released", 0)


def test_a_release_that_fails_is_tried_again(meddled: Meddled, queue: Queue, told: Told) -> None:
    queue.enqueue("a", max_attempts=1)
    claimed = Gate()
    meddled.after["claim"] = lambda *_: claimed.stand()
    meddled.before["release"] = Away(times=2)
    with at_work(Worker(meddled, ok, poll_ms=5)) as going:
        claimed.came()
        going.worker.stop()
        told.wait_for("stopping")
        claimed.open()
        assert going.ended() == Worked(released=1, ended="stopped")
    assert queue.end("a") == ("pending", "released", 0)


def test_a_release_that_cannot_be_written_in_time_is_given_up(
    meddled: Meddled, queue: Queue, told: Told
) -> None:
    queue.enqueue("a")
    claimed = Gate()
    meddled.after["claim"] = lambda *_: claimed.stand()
    meddled.before["release"] = Away()
    with at_work(Worker(meddled, ok, poll_ms=5, lease_ms=SHORT_MS)) as going:
        claimed.came()
        going.worker.stop()
        told.wait_for("stopping")
        claimed.open()
        assert going.ended() == Worked(left=1, ended="stopped")
    told.wait_for("given-up")


def test_a_release_after_a_renewal_that_landed_unseen(
    meddled: Meddled, queue: Queue, told: Told
) -> None:
    queue.enqueue("a")
    reading, renewed = Gate(), Gate()
    meddled.before["read"] = lambda job_id: reading.stand() if job_id == "a" else None
    meddled.after["renew"] = lambda *_: renewed.stand()

    def send(delivery: Delivery) -> bool:
        raise AssertionError("it must not begin")

    with at_work(Worker(meddled, send, lease_ms=3_000)) as going:
        reading.came()
        renewed.came()
        going.worker.stop()
        told.wait_for("stopping")
        reading.open()
        assert going.ended() == Worked(released=1, ended="stopped")
        renewed.open()
    assert queue.end("a") == ("pending", "released", 0)


def test_a_release_that_comes_too_late_is_no_release(
    meddled: Meddled, queue: Queue, told: Told
) -> None:
    queue.enqueue("a")
    claimed = Gate()
    meddled.after["claim"] = lambda *_: claimed.stand()

    with at_work(Worker(meddled, ok)) as going:
        claimed.came()
        going.worker.stop()
        told.wait_for("stopping")
        with queue.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE jobs SET token = token + 1")
        claimed.open()
        assert going.ended() == Worked(stale=1, ended="stopped")


@pytest.mark.parametrize("phase", ["before the finish", "after the finish"])
def test_a_stop_at_the_finish_changes_nothing(
    meddled: Meddled, queue: Queue, told: Told, phase: str
) -> None:
    queue.enqueue("a")
    standing = Gate()
    hooks = meddled.before if phase == "before the finish" else meddled.after
    hooks["finish"] = lambda *_: standing.stand()
    with at_work(Worker(meddled, ok)) as going:
        standing.came()
        going.worker.stop()
        told.wait_for("stopping")
        standing.open()
        assert going.ended() == Worked(done=1, ended="stopped")
    assert queue.end("a") == ("done", None, 1)


def test_a_stop_ends_the_pause_of_an_idle_worker(queue: Queue, told: Told) -> None:
    with at_work(Worker(queue.jobs, ok, poll_ms=3_600_000)) as going:
        told.wait_for("started")
        assert going.stopped() == Worked(ended="stopped")


def test_a_wakeup_that_does_not_wake_is_sat_out(queue: Queue, told: Told) -> None:
    class Broken:
        def __init__(self) -> None:
            self.waits = Gate()

        def wait(self, timeout_ms: int) -> bool:
            self.waits.stand()
            return False

        def wake(self) -> None:
            raise OSError("the wire is cut")

        def close(self) -> None:
            raise AssertionError("it is the caller's")

    wakeup = Broken()
    with at_work(Worker(queue.jobs, ok, wakeup=wakeup)) as going:
        wakeup.waits.came()
        going.worker.stop()
        told.wait_for("wakeup-failed")
        wakeup.waits.open()
        assert going.ended() == Worked(ended="stopped")
    assert told.events("wakeup-failed", "stopping") == ["wakeup-failed", "stopping"]


def test_a_stop_ends_the_pause_of_one_without_a_database(meddled: Meddled, told: Told) -> None:
    meddled.before["claim"] = Away()
    with at_work(Worker(meddled, ok, poll_ms=3_600_000)) as going:
        told.wait_for("outage")
        assert going.stopped() == Worked(ended="stopped")


def test_a_stop_ends_the_wait_for_a_place_and_for_the_last_job(queue: Queue, told: Told) -> None:
    queue.enqueue("a", "b")
    for settings, claims in (({}, 1), ({"until_empty": True}, 2)):
        standing = Standing()
        worker = Worker(queue.jobs, standing.plain, concurrency=claims + (claims == 2))
        with at_work(worker, **settings) as going:
            standing.gate.came()
            worker.stop()
            told.wait_for("stopping")
            standing.gate.open()
            assert going.ended().ended == "stopped"
        told.records.clear()


def test_a_handler_stops_its_worker(queue: Queue) -> None:
    queue.enqueue("a", "b")

    def send(_: Any) -> bool:
        worker.stop()
        return True

    worker = Worker(queue.jobs, send)
    assert worker.run() == Worked(done=1, ended="stopped")


@pytest.mark.parametrize("stops", [1, 3])
def test_a_stop_before_the_run_ends_that_run_and_not_the_next(
    meddled: Meddled, queue: Queue, stops: int
) -> None:
    queue.enqueue("a")
    worker = Worker(meddled, ok)
    for _ in range(stops):
        worker.stop()
    assert worker.run() == Worked(ended="stopped")
    assert meddled.called == []
    assert worker.run(until_empty=True).ended == "empty"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_stop_it_and_are_given_back(
    queue: Queue, told: Told, number: signal.Signals
) -> None:
    queue.enqueue("a", "b")
    before = signal.getsignal(number)
    main = threading.main_thread()
    assert main.ident

    def send(_: Any) -> bool:
        signal.pthread_kill(main.ident or 0, number)
        # Python hands a signal on when it comes to it.
        told.wait_for("stopping")
        return True

    worked = Worker(queue.jobs, send).run(signals=True)
    assert worked == Worked(done=1, ended="stopped")
    assert signal.getsignal(number) is before


def test_a_signal_that_is_ignored_stays_ignored(queue: Queue) -> None:
    queue.enqueue("a", "b")
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:

        def send(_: Any) -> bool:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            return True

        worked = Worker(queue.jobs, send).run(signals=True, until_empty=True)
    finally:
        signal.signal(signal.SIGINT, before)
    assert worked == Worked(done=2, ended="empty")


def test_signals_are_for_the_main_thread(queue: Queue) -> None:
    with (
        at_work(Worker(queue.jobs, ok), signals=True) as going,
        pytest.raises(ValueError, match="main thread"),
    ):
        going.ended()


def test_an_interrupt_without_signals_leaves_nothing_behind(queue: Queue, told: Told) -> None:
    queue.enqueue("a")
    standing = Standing()
    main = threading.main_thread()

    def send(delivery: Delivery) -> bool:
        signal.pthread_kill(main.ident or 0, signal.SIGINT)
        return standing.plain(delivery)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            Worker(queue.jobs, send).run()
    finally:
        signal.signal(signal.SIGINT, before)
    assert told.events("abandoned", "ended") == ["abandoned", "ended"]
    standing.gate.open()
    told.wait_for("stale")
    assert queue.row("a")["status"] == "leased"


def test_coroutines_are_cancelled_in_the_end(queue: Queue, told: Told) -> None:
    queue.enqueue("a")
    began, cancelled = threading.Event(), threading.Event()

    async def send(_: Any) -> bool:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return True

    with at_work(Worker(queue.jobs, send, grace_ms=0)) as going:
        assert began.wait(LONGEST_WAIT_S)
        assert going.stopped() == Worked(running=1, ended="late")
    assert cancelled.wait(LONGEST_WAIT_S)
    told.wait_for("stale")
    assert queue.row("a")["status"] == "leased"


def test_a_task_of_a_handlers_own_cannot_end_the_loop(queue: Queue, told: Told) -> None:
    queue.enqueue("a", "b")

    async def leave() -> None:
        raise SystemExit(7)

    async def send(event: Any) -> bool:
        if event["id"] == "a":
            task = asyncio.get_running_loop().create_task(leave())
            await asyncio.wait([task])
            assert task.exception()
        return True

    assert Worker(queue.jobs, send).run(until_empty=True) == Worked(done=2, ended="empty")
    assert told.events("loop-failed") == ["loop-failed"]
