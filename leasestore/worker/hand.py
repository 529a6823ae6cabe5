"""The jobs in hand: never more that are still to be ended than there are places to work them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection
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
        # Those whose places others have already.
        self._leaving: set[Running] = set()
        self._ends: Counter[str] = Counter()
        self._closed, self._stopped = False, False

    def free_places(self) -> int:
        """Wait until there are any; how many, or 0 if a stop comes first."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._free())
            return 0 if self._stopped else self._free()

    def goes_on(self) -> bool:
        """Whether every place is taken, and more may come."""
        with self._changed:
            return not self._closed and not self._free()

    def _free(self) -> int:
        return self._places - len(self._jobs) + len(self._leaving)

    def wait_for_one_of(self, jobs: Collection[Running]) -> None:
        """Wait until one of these is put down, or a stop comes."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or not self._jobs.issuperset(jobs))

    def take(self, job: Running, instead_of: Running | None = None) -> bool:
        """Take a job into hand, in the place of one whose end is written if one is given.

        Returns:
            False if a stop came first, or if that one was put down: its place is free, or taken.
        """
        with self._changed:
            if self._stopped or not (instead_of is None or instead_of in self._jobs):
                return False
            self._jobs.add(job)
            if instead_of is not None:
                self._leaving.add(instead_of)
            return True

    def count(self, end: End | Literal["swept"], number: int = 1) -> None:
        """What jobs came to that were never in hand."""
        with self._changed:
            self._ends[end] += number

    def put_down(self, job: Running, end: End) -> None:
        with self._changed:
            self._ends[end] += 1
            self._jobs.discard(job)
            self._leaving.discard(job)
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
