"""How long to wait: formulas without clock, sleep or chance; the caller draws the jitter."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from leasestore import validation

_LONGEST_STEP_MS = 8


def retry_delay(attempt: int, base_ms: int, cap_ms: int, jitter: float) -> int:
    """Milliseconds to wait after a failed attempt (CONTRACT.md, "retry_delay").

    `floor(min(cap_ms, base_ms * 2**(attempt-1)) * jitter)`: doubled at each attempt, capped,
    then scaled by the caller's jitter.

    Args:
        attempt: the attempt that failed, 1 to 16.
        base_ms: the delay after the first, 1 to 60000.
        cap_ms: the longest delay, `base_ms` to 60000.
        jitter: 0 to 1; draw it from a random source to spread retries.

    Raises:
        ValueError: an argument is of another type or out of its bounds.
    """
    validation.integer("attempt", attempt, 1, 16)
    validation.integer("base_ms", base_ms, 1, 60_000)
    validation.integer("cap_ms", cap_ms, base_ms, 60_000)
    validation.jitter(jitter)
    return math.floor(min(cap_ms, base_ms << (attempt - 1)) * jitter)


def lock_steps(timeout_ms: int, draw: Callable[[int, int], int]) -> Iterator[int]:
    """Short waits that add up to `timeout_ms`, each drawn from 1 to 8 ms by `draw(low, high)`.

    Waiters that come back after short, uneven steps share a lock fairly; one long wait with
    growing pauses, as SQLite's own, starves whoever came first.
    """
    left = timeout_ms
    while left > 0:
        step = min(left, draw(1, _LONGEST_STEP_MS))
        yield step
        left -= step
