"""How long the loop waits: when there is nothing to do, and when the database is away. Every
pause has a smallest length, so that no loop spins."""

from __future__ import annotations

from collections.abc import Callable

from leasestore import validation

_FIRST_IDLE_MS = 50
_FIRST_OUTAGE_MS = 100
_LONGEST_OUTAGE_MS = 5_000
_OUTAGE_POLLS = 10
_MOST_DOUBLINGS = 16

Jitter = float | Callable[[], float]
Draw = Callable[[], float]


def drawn_from(jitter: Jitter) -> Draw:
    """Numbers from 0 to 1, whatever the caller's callable does later on."""
    if not callable(jitter):
        fixed = validation.jitter(jitter)
        return lambda: fixed
    validation.jitter(jitter())

    def draw() -> float:
        try:
            return validation.jitter(jitter())
        except Exception:  # noqa: BLE001 - a pause is no place to fail
            return 1.0

    return draw


def idle_ms(rounds: int, poll_ms: int) -> int:
    """After so many claims in a row that found nothing: from 50 ms on, doubled up to `poll_ms`. The
    wakeup that waits so long takes its jitter off it."""
    return min(poll_ms, _FIRST_IDLE_MS << min(rounds - 1, _MOST_DOUBLINGS))


def outage_ms(failures: int, poll_ms: int, drawn: float) -> int:
    """After so many failures in a row: from 100 ms on, doubled up to ten polls or 5 s."""
    cap = min(_LONGEST_OUTAGE_MS, _OUTAGE_POLLS * poll_ms)
    pause = min(cap, _FIRST_OUTAGE_MS << min(failures - 1, _MOST_DOUBLINGS))
    return max(1, round(pause * (1 - drawn / 2)))
