"""Where now comes from: milliseconds on one time base, as an integer."""

from __future__ import annotations

import time
from collections.abc import Callable

from sqlalchemy import Connection

Clock = Callable[[], int]


def read(clock: Clock, connection: Connection) -> int:
    """What a clock says; one that can be read `on` a connection, as the database's, through this
    one, which is in use already."""
    on: Callable[[Connection], int] | None = getattr(clock, "on", None)
    return clock() if on is None else on(connection)


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
