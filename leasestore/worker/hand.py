"""The jobs in hand: never more than there are places to work them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Literal

from leasestore.worker.results import End, Ended, Worked
from leasestore.worker.running import Running


class Hand:
    """Which jobs this run has claimed and not yet put down, and how many came to what end.

    Args:
        places: how many it may be.
        emptied: called when the last one is put down, once no more are to come.
    """

    def __init__(self, places: int, emptied: Callable[[], object]) -> None:
        self._places, self._emptied = places, emptied
        self._changed = threading.Condition()
        self._jobs: set[Running] = set()
        self._ends: Counter[str] = Counter()
        self._closed, self._stopped = False, False

    def has_place(self) -> bool:
        """Wait for a free place; False if a stop comes first."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or len(self._jobs) < self._places)
            return not self._stopped

    def wait_for_fewer(self, than: int) -> None:
        """Wait until fewer than so many are in hand, or a stop comes."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or len(self._jobs) < than)

    def take(self, job: Running) -> bool:
        """False if a stop came first."""
        with self._changed:
            if not self._stopped:
                self._jobs.add(job)
            return not self._stopped

    def count(self, end: End | Literal["swept"], number: int = 1) -> None:
        """What jobs came to that were never in hand."""
        with self._changed:
            self._ends[end] += number

    def put_down(self, job: Running, end: End) -> None:
        with self._changed:
            self._ends[end] += 1
            self._jobs.discard(job)
            self._changed.notify_all()
            told = self._closed and not self._jobs
        if told:
            self._emptied()

    def close(self) -> None:
        """No more are to come."""
        with self._changed:
            self._closed = True

    def stop(self) -> None:
        """No more are to come, and those that have not begun shall not begin."""
        with self._changed:
            self._closed = self._stopped = True
            self._changed.notify_all()
        for job in self.jobs():
            job.cancel()

    def jobs(self) -> list[Running]:
        with self._changed:
            return list(self._jobs)

    def sum_up(self, ended: Ended) -> tuple[list[Running], Worked]:
        """The jobs still in hand, and what all the others came to, at the same moment."""
        with self._changed:
            jobs = list(self._jobs)
            running = sum(job.begun for job in jobs)
            return jobs, Worked(**self._ends, running=running, ended=ended)
