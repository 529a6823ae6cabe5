"""Where now comes from: milliseconds on one time base, as an integer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from sqlalchemy import Connection

Clock = Callable[[], int]


@runtime_checkable
class ConnectionClock(Protocol):
    """A clock that can be read through a connection which is in use already."""

    def __call__(self) -> int:
        """Milliseconds, read through a connection of its own."""
        ...

    def on(self, connection: Connection, /) -> int:
        """Milliseconds, read through this connection."""
        ...


def read(clock: Clock, connection: Connection) -> int:
    """What a clock says, with no second connection where it can do without."""
    return clock.on(connection) if isinstance(clock, ConnectionClock) else clock()


def system_clock() -> int:
    """Milliseconds since the epoch by this host's clock.

    Right for one host, or for hosts whose clocks are kept together: the contract compares
    times, and never reconciles the clocks they came from.
    """
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Milliseconds since some moment in the past, by a clock that nobody sets: for how long
    something lasts in this process, never for what is stored."""
    return time.monotonic_ns() // 1_000_000
