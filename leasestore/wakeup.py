"""How a worker waits when there is nothing to do: it looks again after a while, or when somebody
says that there may be work. No claim depends on it."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable
from contextlib import suppress
from selectors import EVENT_READ, DefaultSelector
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Self
from weakref import WeakSet

from leasestore import validation
from leasestore.clock import monotonic_ms
from leasestore.listening import Bell, Ear
from leasestore.repository import JobRepository

if TYPE_CHECKING:
    from leasestore.aio import AsyncJobRepository

_LONGEST_MS = 24 * 3_600_000


class Wakeup:
    """What a worker waits with between two claims that found nothing.

        with Wakeup(jobs, listen=True) as wakeup:
            while not stopped:
                ticket = jobs.claim("courier-1", clock, lease_ms=10_000)
                if ticket is None:
                    wakeup.wait(1000)

    It is for one loop: one thread waits at a time, any thread may `wake` it.

    With `listen`, on PostgreSQL through psycopg or psycopg2, a wait also ends when a repository
    with `notify=True` has left a job of the same table to be claimed. That takes one more
    connection, made as the engine makes them, beside its pool; while it cannot be had, `wait`
    polls and tries again from time to time. On SQLite and through other drivers `wait` polls.
    Nothing tells of what becomes due later, a delayed job or a lease that ends: keep the
    timeout to what such a job may wait, and take a notice for a hint and no more. In a process
    that was forked, the child listens on a connection of its own.

    Through a pooler in transaction mode there is nothing to hear: give a repository on an engine
    that connects directly, it is used for nothing else.

    Args:
        repository: whose jobs are waited for. For an asynchronous one `wait` polls; await it in
            a thread (`asyncio.to_thread(wakeup.wait, 1000)`).
        listen: whether to listen at all. Without, the database is left alone.
        draw: a callable that returns a float from 0 to 1, by which each wait is shortened.

    Raises:
        ValueError: an argument is of another type.
    """

    def __init__(
        self,
        repository: JobRepository | AsyncJobRepository,
        *,
        listen: bool = False,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._draw = validation.draw(draw)
        found = _synchronous(repository)
        self._ear = _ear_of(found, self._share) if validation.flag("listen", listen) else None
        self._closed = False
        self._bell, self._waiting = Bell(), Lock()
        _OPEN.add(self)

    def wait(self, timeout_ms: int) -> bool:
        """Wait until there may be work, but no longer than a share of `timeout_ms`.

        The share is drawn anew each time, from half to all of it, so that many workers do not
        look in step. The answer comes at once where somebody spoke since the last wait; and after
        each connecting to listen, since something may have been missed before. Whatever the
        database does, no error of it comes out of here and nothing of it holds a wait up.

        Args:
            timeout_ms: 0 to 86400000.

        Returns:
            True: somebody said that there may be work, or called `wake` or `close`. False: the
            time is over.

        Raises:
            ValueError: a bad argument, or this was closed before.
            RuntimeError: another thread waits with the same object.
        """
        validation.integer("timeout_ms", timeout_ms, 0, _LONGEST_MS)
        if not self._waiting.acquire(blocking=False):
            raise RuntimeError(
                "wait: another thread is waiting here; give each loop a Wakeup of its own"
            )
        try:
            if self._closed:
                raise ValueError("wait: this Wakeup is closed; make a new one")
            return self._wait(math.floor(timeout_ms * self._share()))
        finally:
            self._waiting.release()

    def wake(self) -> None:
        """End the wait in progress, or else the next one. From any thread, also from within a
        signal handler: it takes no lock. (Python may run the handler of a signal that comes in
        the very moment a wait begins only after that wait.) After `close` it does nothing."""
        self._bell.ring()

    def close(self) -> None:
        """Close what this has open; a wait in progress ends first. May be called more than once,
        but not from a signal handler."""
        self._closed = True
        self._bell.ring()
        with self._waiting:
            self._bell.close()
            if self._ear is not None:
                self._ear.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _wait(self, longest_ms: int) -> bool:
        until = monotonic_ms() + longest_ms
        while True:
            if self._bell.hush() or (self._ear is not None and self._ear.heard()):
                return True
            left = until - monotonic_ms()
            if left <= 0:
                return False
            self._pause(left)

    def _pause(self, longest_ms: int) -> None:
        """Until one of the two has something to say, or the ear something to do."""
        with DefaultSelector() as selector:
            selector.register(self._bell, EVENT_READ)
            if self._ear is not None:
                longest_ms = self._ear.join(selector, longest_ms)
            selector.select(longest_ms / 1000)

    def _share(self) -> float:
        return 1 - self._draw() / 2

    def _leave_the_parents(self) -> None:
        """In a child, where only the thread that forked goes on."""
        if not self._closed:
            self._bell.close()
            self._bell, self._waiting = Bell(), Lock()
            if self._ear is not None:
                self._ear.forget()


def _synchronous(repository: object) -> JobRepository:
    found = getattr(repository, "_sync", repository)
    if not isinstance(found, JobRepository):
        raise ValueError(
            "repository: expected a JobRepository, whose jobs are waited for, got "
            f"{type(repository).__name__}"
        )
    return found


def _ear_of(repository: JobRepository, share: Callable[[], float]) -> Ear | None:
    bind, queue = repository._bind, repository._queue
    hear = queue.dialect.hearing(bind, queue.tables[0])
    return None if hear is None else Ear(bind.engine, hear, share)


_OPEN: WeakSet[Wakeup] = WeakSet()


def _after_a_fork() -> None:
    for wakeup in list(_OPEN):
        wakeup._leave_the_parents()


# Where there is such a thing as a fork.
with suppress(AttributeError):
    os.register_at_fork(after_in_child=_after_a_fork)
