"""Where now comes from: milliseconds on one time base, as an integer."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], int]


def system_clock() -> int:
    """Milliseconds since the epoch by this host's clock.

    Right for one host, or for hosts whose clocks are kept together: the contract compares
    times, and never reconciles the clocks they came from.
    """
    return time.time_ns() // 1_000_000
