"""What a worker has done so far, and what it is at: one line that changes, at the bottom of a
terminal."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.text import Text

_ENDS = ("done", "retried", "dead", "stale", "left", "released")
_USUAL = ("done", "retried", "dead")
_OVER = {*_ENDS, "gone", "given-up", "abandoned"}
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
        elif event in _OVER:
            self._running.pop(job, None)
            self._counts[event] += event in _ENDS

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
    """A tally that is shown while it lasts; log lines go above it."""
    tally = Tally()
    with Live(tally, console=console, transient=True, refresh_per_second=4):
        yield tally
