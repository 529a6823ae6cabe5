"""The watcher's loop: when it looks, how it pauses, and that nothing but `stop` ends it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from leasestore import JobRepository, StoreBusy, Watcher, open_queue
from leasestore.aio import AsyncJobRepository
from leasestore.tickets import Recovered
from tests.support import rows

NOTHING: Recovered = {"recovered": 0, "deadline": 0, "exhausted": 0}
REFUSED = OperationalError("SELECT 1", {}, OSError("connection refused"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue.db"


@pytest.fixture
def queue(path: Path) -> Iterator[JobRepository]:
    with open_queue(path) as queue:
        yield queue


class Scripted(Watcher):
    """Looks end as the script says, and the pauses between them are noted instead of waited for."""

    def __init__(
        self, queue: JobRepository, script: Iterable[BaseException | None], **settings: Any
    ) -> None:
        super().__init__(queue, **{"draw": lambda: 0, **settings})
        self._script, self.pauses = iter(script), list[float]()

    def look(self) -> Recovered:
        ending = next(self._script)
        if ending is not None:
            raise ending
        return NOTHING

    def _pause(self, ms: float) -> None:
        self.pauses.append(ms)
        if self._script.__length_hint__() == 0:  # type: ignore[attr-defined]
            self.stop()


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [vars(record)["event"] for record in caplog.records]


def test_it_looks_at_once_and_then_again_after_each_pause(queue: JobRepository) -> None:
    watcher = Scripted(queue, [None] * 3)
    watcher.run()
    assert watcher.pauses == [30_000] * 3


def test_pauses_are_uneven_and_never_longer_than_asked(queue: JobRepository) -> None:
    drawn = iter([0, 0.5, 1])
    watcher = Scripted(queue, [None] * 3, every_ms=1000, draw=lambda: next(drawn))
    watcher.run()
    assert watcher.pauses == [1000, 750, 500]


@pytest.mark.parametrize("wrong", [-1, 7, float("nan"), None, 1 / 3j])
def test_a_draw_that_is_none_shortens_nothing(queue: JobRepository, wrong: Any) -> None:
    assert Watcher(queue, every_ms=1000, draw=lambda: wrong)._round() == 1000
    assert Watcher(queue, every_ms=1000, draw=lambda: 1 / 0)._round() == 1000


def test_unless_said_the_pauses_are_drawn_by_chance(queue: JobRepository) -> None:
    one, other = (Watcher(queue)._round() for _ in range(2))
    assert one != other
    assert 15_000 <= one <= 30_000


def test_an_outage_is_told_when_it_begins_and_when_it_is_over(
    queue: JobRepository, caplog: pytest.LogCaptureFixture
) -> None:
    script = [None, REFUSED, StoreBusy("busy"), REFUSED, None, None, REFUSED, None]
    watcher = Scripted(queue, script, every_ms=5000)
    watcher.run()
    assert watcher.pauses == [5000, 1000, 2000, 4000, 5000, 5000, 1000, 5000]
    assert events(caplog) == ["outage", "outage-over"] * 2
    began, over = caplog.records[:2]
    assert began.getMessage() == (
        "cannot look for stuck jobs, and goes on trying: OSError: connection refused"
    )
    assert (began.levelno, began.exc_info) == (logging.WARNING, None)
    assert over.getMessage() == "can look for stuck jobs again, after 3 failures in a row"
    assert (
        caplog.records[-1].getMessage() == "can look for stuck jobs again, after 1 failure in a row"
    )


def test_in_a_long_outage_it_tries_once_a_minute_and_does_not_spin(queue: JobRepository) -> None:
    watcher = Scripted(queue, [REFUSED] * 40, every_ms=1, draw=lambda: 1)
    watcher.run()
    assert watcher.pauses[:8] == [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]
    assert set(watcher.pauses[8:]) == {30_000}


def test_an_error_of_our_own_does_not_end_it_and_shows_where_it_was(
    queue: JobRepository, caplog: pytest.LogCaptureFixture
) -> None:
    Scripted(queue, [ZeroDivisionError("made up"), None]).run()
    assert events(caplog) == ["outage", "outage-over"]
    assert caplog.records[0].exc_info


def test_nor_does_a_log_that_fails(queue: JobRepository) -> None:
    def fail(_: logging.LogRecord) -> bool:
        raise OSError("no room on the disk")

    logger = logging.getLogger("leasestore.watcher")
    logger.addFilter(fail)
    try:
        watcher = Scripted(queue, [REFUSED, None, None], every_ms=5000)
        watcher.run()
    finally:
        logger.removeFilter(fail)
    assert watcher.pauses == [1000, 5000, 5000]


def test_what_ends_the_process_ends_it_too(queue: JobRepository) -> None:
    with pytest.raises(KeyboardInterrupt):
        Scripted(queue, [KeyboardInterrupt()]).run()


def test_stopped_before_it_runs_it_does_not_even_look(queue: JobRepository) -> None:
    watcher = Scripted(queue, [])
    watcher.stop()
    watcher.stop()
    watcher.run()
    assert watcher.pauses == []


def test_stop_ends_a_pause_from_another_thread(queue: JobRepository, path: Path) -> None:
    queue.enqueue({"id": "a", "qty": 1}, 0, 60_000)
    queue.claim("gone", 0)
    watcher = Watcher(queue, lambda: 1000, every_ms=86_400_000, report=lambda _: watcher.stop())
    # `report` is called on the watcher's thread, before the pause; the second stop comes from here.
    with ThreadPoolExecutor(1) as threads:
        threads.submit(watcher.run).result(timeout=30)
    assert rows(path)[0]["reason"] == "expired"
    other = Watcher(queue, every_ms=86_400_000)
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(other.run)
        other.stop()
        running.result(timeout=30)


WRONG: dict[str, tuple[Callable[[JobRepository], object], str]] = {
    "repository": (lambda _: Watcher("queue.db"), "repository: expected a JobRepository, got str"),  # type: ignore[arg-type]
    "clock": (lambda queue: Watcher(queue, 5), "clock: expected a callable"),  # type: ignore[arg-type]
    "every_ms": (lambda queue: Watcher(queue, every_ms=0), "every_ms: expected int from 1 to"),
    "a day": (lambda queue: Watcher(queue, every_ms=86_400_001), "every_ms: expected int from 1"),
    "draw": (lambda queue: Watcher(queue, draw=0.5), "draw: expected a callable"),  # type: ignore[arg-type]
    "report": (lambda queue: Watcher(queue, report="log"), "report: expected None or a callable"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("what", WRONG)
def test_bad_arguments_are_refused_at_the_door(what: str, queue: JobRepository) -> None:
    make, told = WRONG[what]
    with pytest.raises(ValueError, match=told):
        make(queue)


def test_an_asynchronous_repository_is_refused() -> None:
    with pytest.raises(ValueError, match="got AsyncJobRepository; a watcher is synchronous"):
        Watcher(AsyncJobRepository.__new__(AsyncJobRepository))  # type: ignore[arg-type]
