"""Listening for notices that there may be work: a connection of its own, mended when it breaks,
and the bell by which other threads are heard in the same wait."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from selectors import EVENT_READ, BaseSelector
from threading import Lock, Thread

from sqlalchemy import Engine
from sqlalchemy.engine.interfaces import DBAPIConnection

from leasestore.backoff import retry_delay
from leasestore.clock import monotonic_ms
from leasestore.dialects import Notices
from leasestore.transactions import outside_the_pool

_BASE_MS, _CAP_MS, _LAST_DOUBLING = 100, 30_000, 16
_ALL_RINGS = 65_536

_log = logging.getLogger(__name__)


class Bell:
    """Rung anywhere, it ends a select. No lock: a signal handler may interrupt whoever holds it."""

    def __init__(self) -> None:
        self._here, self._there = socket.socketpair()
        self._here.setblocking(False)
        self._there.setblocking(False)

    def fileno(self) -> int:
        return self._here.fileno()

    def ring(self) -> None:
        # Full: it has been rung often enough. Closed: nobody waits any more.
        with suppress(OSError):
            self._there.send(b"\0")

    def hush(self) -> bool:
        """Whether it was rung since the last time."""
        try:
            return bool(self._here.recv(_ALL_RINGS))
        except BlockingIOError:
            return False

    def close(self) -> None:
        self._here.close()
        self._there.close()


class Ear:
    """The connection that listens: made when it is first asked, made again when it was lost."""

    def __init__(
        self,
        engine: Engine,
        hear: Callable[[DBAPIConnection], Notices],
        share: Callable[[], float],
    ) -> None:
        self._engine, self._hear, self._share = engine, hear, share
        self._notices: Notices | None = None
        self._connecting: _Connecting | None = None
        self._failures, self._not_before_ms = 0, 0

    def heard(self) -> bool:
        """Whether somebody spoke, or may have before this could listen. It does not wait."""
        try:
            if self._notices is None:
                return self._has_connected()
            came = self._notices.came()
        except Exception as error:  # noqa: BLE001 - a wait has to go on, whatever it is
            self._give_up(error)
            return False
        self._failures = 0
        return came

    def join(self, selector: BaseSelector, longest_ms: int) -> int:
        """Register what there is to wait for, and say for how long at most."""
        awaited = self._notices or self._connecting
        if awaited is None:
            return min(longest_ms, self._not_before_ms - monotonic_ms())
        selector.register(awaited, EVENT_READ)
        return longest_ms

    def close(self) -> None:
        if self._notices is not None:
            _close(self._notices)
        if self._connecting is not None:
            self._connecting.abandon()
        self._notices = self._connecting = None

    def forget(self) -> None:
        """Leave the connection as it is, unclosed: it is the parent's, as is who is making one."""
        if self._connecting is not None:
            self._connecting.bell.close()
        self._notices = self._connecting = None
        self._failures, self._not_before_ms = 0, 0

    def _has_connected(self) -> bool:
        if self._connecting is None:
            if monotonic_ms() < self._not_before_ms:
                return False
            self._connecting = _Connecting(lambda: self._hear(outside_the_pool(self._engine)))
        if not self._connecting.bell.hush():
            return False
        self._notices = self._connecting.outcome()
        self._connecting = None
        _log.info("listening for jobs")
        return True

    def _give_up(self, error: Exception) -> None:
        self.close()
        self._failures += 1
        if self._failures == 1:
            _log.warning("cannot listen for jobs, polling until it is possible again: %s", error)
        attempt = min(self._failures, _LAST_DOUBLING)
        pause_ms = retry_delay(attempt, _BASE_MS, _CAP_MS, self._share())
        self._not_before_ms = monotonic_ms() + pause_ms


class _Connecting:
    """A connection on its way. In a thread, since it can take as long as the network likes, and
    nobody who waits can be held up by it; one that nobody wants any more is closed when it comes.
    """

    def __init__(self, connect: Callable[[], Notices]) -> None:
        self._connect = connect
        self._came: Notices | Exception | None = None
        self._unwanted, self._lock = False, Lock()
        thread = Thread(target=self._run, name="leasestore-listen", daemon=True)
        self.bell = Bell()
        try:
            thread.start()
        except BaseException:
            self.bell.close()
            raise

    def fileno(self) -> int:
        return self.bell.fileno()

    def outcome(self) -> Notices:
        """Once the bell has rung: the connection, or the error raised that came instead."""
        came = self._came
        assert came is not None
        if isinstance(came, Exception):
            raise came
        self.bell.close()
        return came

    def abandon(self) -> None:
        with self._lock:
            self._unwanted = True
            self._discard()

    def _run(self) -> None:
        try:
            came: Notices | Exception = self._connect()
        except Exception as error:  # noqa: BLE001 - for the thread that waits
            came = error
        with self._lock:
            self._came = came
            self.bell.ring()
            if self._unwanted:
                self._discard()

    def _discard(self) -> None:
        self.bell.close()
        if self._came is not None and not isinstance(self._came, Exception):
            _close(self._came)


def _close(notices: Notices) -> None:
    # It may be broken.
    with suppress(Exception):
        notices.close()
