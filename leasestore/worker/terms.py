"""What one run of a worker goes by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from leasestore.clock import Clock
from leasestore.repository import JobRepository
from leasestore.worker.pauses import Draw

Unclassified = Literal["leave", "retry"]
Until = Literal["stopped", "empty", "once"]


class Wakeable(Protocol):
    """What the worker asks of a `Wakeup`."""

    def wait(self, timeout_ms: int) -> bool:
        """Wait until there may be something to claim, or so long; whether it was woken."""
        ...

    def wake(self) -> None:
        """End the wait, from any thread."""
        ...

    def close(self) -> None: ...


class Hosted(Protocol):
    """What the worker asks of a `Watcher`: `run` until somebody calls `stop` in another thread."""

    def run(self) -> object: ...

    def stop(self) -> object: ...


@dataclass(frozen=True, slots=True)
class Terms:
    """The checked arguments of a `Worker`, with a name that is this run's own."""

    repository: JobRepository
    send: Callable[[Any], Any]
    wants_delivery: bool
    owner: str
    clock: Clock
    draw: Draw
    lease_ms: int
    concurrency: int
    poll_ms: int
    grace_ms: int
    max_run_ms: int | None
    unclassified: Unclassified
