"""Group commit: who leads, who waits, and what becomes of each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from leasestore.worker.group import Group

LONG_MS = 10_000


class Writes:
    """Writes that stand until they are let go, one after the other."""

    def __init__(self) -> None:
        self.came = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.groups: list[list[int]] = []
        self.error: BaseException | None = None

    def __call__(self, items: list[int]) -> list[int | None]:
        self.groups.append(items)
        self.came.release()
        assert self.go.acquire(timeout=10)
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return [item * 10 for item in items]


@pytest.fixture
def writes() -> Writes:
    return Writes()


def until(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < give_up
        threading.Event().wait(0.001)


def joined(
    threads: ThreadPoolExecutor, group: Group[int, int], item: int, patience_ms: int = LONG_MS
) -> Future[int | None]:
    """Comes to the group in a thread of its own; returns once it is there."""
    there = len(group._waiting)
    future = threads.submit(group.through, item, patience_ms)
    until(lambda: len(group._waiting) > there)
    return future


def test_who_comes_alone_writes_at_once() -> None:
    group: Group[int, int] = Group(lambda items: [item + 1 for item in items])
    assert [group.through(1, 0), group.through(5, 0)] == [2, 6]


def test_who_comes_meanwhile_is_written_together(writes: Writes) -> None:
    group: Group[int, int] = Group(writes)
    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(group.through, 1, LONG_MS)
        assert writes.came.acquire(timeout=10)
        others = [joined(threads, group, item) for item in (2, 3, 4)]
        assert not first.done()
        writes.go.release(2)
        assert [each.result(10) for each in (first, *others)] == [10, 20, 30, 40]
    assert writes.groups == [[1], [2, 3, 4]]
    # Nothing is left of them: the next one leads.
    writes.go.release()
    assert group.through(5, 0) == 50


def test_who_has_waited_long_enough_goes_on_alone(writes: Writes) -> None:
    group: Group[int, int] = Group(writes)
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(group.through, 1, LONG_MS)
        assert writes.came.acquire(timeout=10)
        assert threads.submit(group.through, 2, 1).result(10) is None
        third = joined(threads, group, 3)
        writes.go.release(2)
        assert [first.result(10), third.result(10)] == [10, 30]
    assert writes.groups == [[1], [3]]


def test_of_a_leader_that_takes_too_long_a_follower_does_not_know(writes: Writes) -> None:
    group: Group[int, int] = Group(writes)
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(group.through, 1, LONG_MS)
        assert writes.came.acquire(timeout=10)
        second = joined(threads, group, 2)
        third = joined(threads, group, 3, 300)
        writes.go.release()
        assert writes.came.acquire(timeout=10)
        assert [first.result(10), third.result(10)] == [10, None]
        writes.go.release()
        assert second.result(10) == 20
    assert writes.groups == [[1], [2, 3]]


@pytest.mark.parametrize("error", [ValueError("made up"), SystemExit(1)])
def test_what_ends_a_leader_leaves_the_others_to_themselves(
    writes: Writes, error: BaseException
) -> None:
    group: Group[int, int] = Group(writes)
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(group.through, 1, LONG_MS)
        assert writes.came.acquire(timeout=10)
        second, third = (joined(threads, group, item) for item in (2, 3))
        writes.go.release()
        assert writes.came.acquire(timeout=10)
        writes.error = error
        writes.go.release()
        assert first.result(10) == 10
        with pytest.raises(type(error)):
            second.result(10)
        assert third.result(10) is None
        writes.go.release()
        assert threads.submit(group.through, 4, LONG_MS).result(10) == 40


def test_a_leader_waits_for_as_many_as_there_were(
    writes: Writes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who was written together comes back one after the other."""
    monkeypatch.setattr("leasestore.worker.group._COMPANY_MS", LONG_MS)
    group: Group[int, int] = Group(writes)
    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(group.through, 1, LONG_MS)
        assert writes.came.acquire(timeout=10)
        others = [joined(threads, group, item) for item in (2, 3)]
        writes.go.release(3)
        assert [each.result(10) for each in (first, *others)] == [10, 20, 30]
        again = [joined(threads, group, 4), threads.submit(group.through, 5, LONG_MS)]
        assert [each.result(10) for each in again] == [40, 50]
    assert writes.groups == [[1], [2, 3], [4, 5]]


def test_it_does_not_wait_for_who_does_not_come(writes: Writes) -> None:
    group: Group[int, int] = Group(writes)
    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(group.through, 1, LONG_MS)
        assert writes.came.acquire(timeout=10)
        others = [joined(threads, group, item) for item in (2, 3)]
        writes.go.release(4)
        assert [each.result(10) for each in (first, *others)] == [10, 20, 30]
        assert threads.submit(group.through, 4, LONG_MS).result(10) == 40
    assert writes.groups == [[1], [2, 3], [4]]
