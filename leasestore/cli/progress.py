"""What a worker has done so far, and what it is at: one line that changes, at the bottom of a
terminal."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.text import Text

_ENDS = ("done", "retried", "dead", "stale", "left", "released")
_USUAL = ("done", "retried", "dead")
# What ends a job in hand, and how that is counted.
_COUNTED = {**{end: end for end in _ENDS}, "gone": "left", "given-up": "left"}
_NAMED = 5


class Tally(logging.Handler):
    """Counts what the worker's log records tell."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.addFilter(logging.Filter("leasestore.worker"))
        self._counts: Counter[str] = Counter()
        self._running: dict[tuple[object, object], str] = {}

    def emit(self, record: logging.LogRecord) -> None:
        told = vars(record)
        event, job = told.get("event"), (told.get("job_id"), told.get("token"))
        if event == "claimed":
            self._running[job] = str(job[0])
        elif event in _COUNTED:
            self._running.pop(job, None)
            self._counts[_COUNTED[event]] += 1

    def __rich__(self) -> Text:
        self.acquire()
        try:
            running = list(self._running.values())
        finally:
            self.release()
        names = ", ".join(running[:_NAMED]) + (", ..." if len(running) > _NAMED else "")
        counts = [f"{end} {self._counts[end]}" for end in _ENDS if self._is_shown(end)]
        told = f"{', '.join(counts)}; running {len(running)}{': ' if names else ''}{names}"
        return Text(told, style="bold", no_wrap=True, overflow="ellipsis")

    def _is_shown(self, end: str) -> bool:
        return end in _USUAL or self._counts[end] > 0


@contextmanager
def progress(console: Console) -> Iterator[Tally]:
    """A tally that is shown while it lasts; log lines go above it, and what handlers print, if that
    goes to a terminal at all."""
    tally = Tally()
    printed = sys.stdout.isatty()
    with Live(
        tally, console=console, transient=True, refresh_per_second=4, redirect_stdout=printed
    ):
        yield tally
