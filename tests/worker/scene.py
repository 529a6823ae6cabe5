"""A queue, a worker at work in a thread, and handlers that wait for leave to go on."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.exc import OperationalError

from leasestore import JobRepository, JobState, Worked, Worker, system_clock

LONGEST_WAIT_S = 30
SHORT_MS = 150
"""A lease that a test waits out."""


class Queue:
    """A repository over an engine, and a plain look at what it holds."""

    def __init__(self, engine: Engine, jobs: JobRepository) -> None:
        self.engine, self.jobs = engine, jobs

    def enqueue(self, *ids: str, **settings: Any) -> None:
        for job_id in ids:
            self.jobs.enqueue({"id": job_id, "qty": 1}, system_clock, 60_000, **settings)

    def row(self, job_id: str) -> JobState:
        row = self.jobs.get(job_id)
        assert row is not None
        return row

    def end(self, job_id: str) -> tuple[str, str | None, int]:
        """How a job ended: status, reason, attempts."""
        row = self.row(job_id)
        return row["status"], row["reason"], row["attempts"]


class AtWork:
    """A worker whose `run` goes on in a thread."""

    def __init__(self, worker: Worker, **settings: Any) -> None:
        self.worker = worker
        self._settings = settings
        self._ended: SimpleQueue[Worked | BaseException] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._ended.put(self.worker.run(**self._settings))
        except BaseException as error:  # noqa: BLE001
            self._ended.put(error)

    def ended(self) -> Worked:
        """What `run` returned."""
        came = self._ended.get(timeout=LONGEST_WAIT_S)
        # Its thread is about to end; found alive, it would be told to stop, and so the next run.
        self._thread.join(LONGEST_WAIT_S)
        if isinstance(came, BaseException):
            raise came
        return came

    def stopped(self) -> Worked:
        self.worker.stop()
        return self.ended()


@contextmanager
def at_work(worker: Worker, **settings: Any) -> Iterator[AtWork]:
    """The worker at work; if the block fails, it is stopped at once."""
    going = AtWork(worker, **settings)
    try:
        yield going
    finally:
        if going._thread.is_alive():
            worker.stop()
            worker.stop()
            going._thread.join(LONGEST_WAIT_S)


class Gate:
    """Where a handler stands until the test lets it go on."""

    def __init__(self) -> None:
        self._came: SimpleQueue[Any] = SimpleQueue()
        self._open = threading.Event()

    def stand(self, what: Any = None) -> None:
        self._came.put(what)
        assert self._open.wait(LONGEST_WAIT_S)

    def came(self) -> Any:
        """Waits until somebody stands there; what they brought."""
        return self._came.get(timeout=LONGEST_WAIT_S)

    def open(self) -> None:
        self._open.set()


class Told(logging.Handler):
    """What the worker logs, to be waited for."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[logging.LogRecord] = []
        self._changed = threading.Condition()

    def emit(self, record: logging.LogRecord) -> None:
        with self._changed:
            self.records.append(record)
            self._changed.notify_all()

    def wait_for(self, name: str, times: int = 1) -> logging.LogRecord:
        """The event of this name, once it was told so often."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.events().count(name) >= times, 30), (
                self.events()
            )
            return [record for record in self.records if vars(record)["event"] == name][-1]

    def events(self, *names: str) -> list[str]:
        """Their events in order; of these names, if any are given."""
        all_of_them = [vars(record)["event"] for record in list(self.records)]
        return [name for name in all_of_them if not names or name in names]

    def texts(self) -> list[str]:
        return [record.getMessage() for record in self.records]


def statements(engine: Engine) -> list[str]:
    """What is sent through this engine from now on, as it is sent."""
    sent: list[str] = []

    @event.listens_for(engine, "before_cursor_execute")
    def note(_connection: Any, _cursor: Any, text: str, *_: Any) -> None:
        sent.append(" ".join(text.split()))

    return sent


def is_claim(text: str) -> bool:
    return "THEN 'dead' ELSE 'leased'" in text


class Meddled(JobRepository):
    """A repository that notes its verbs, and does something before or after one of them.

    Attributes:
        before, after: by verb, what to call with the arguments, in the thread of the verb.
        called: the verbs, in order of their beginning.
    """

    def __init__(self, engine: Engine, **settings: Any) -> None:
        super().__init__(engine, **settings)
        self.before: dict[str, Callable[..., object]] = {}
        self.after: dict[str, Callable[..., object]] = {}
        self.called: list[str] = []

    def _meddle(self, name: str, verb: Callable[..., Any], *args: Any, **settings: Any) -> Any:
        self.called.append(name)
        self.before.get(name, _nothing)(*args)
        answer = verb(*args, **settings)
        self.after.get(name, _nothing)(*args)
        return answer

    def _claim_and_sweep(self, *args: Any) -> Any:
        return self._meddle("claim", super()._claim_and_sweep, *args)

    def renew(self, *args: Any, **settings: Any) -> Any:
        return self._meddle("renew", super().renew, *args, **settings)

    def finish(self, *args: Any, **settings: Any) -> Any:
        return self._meddle("finish", super().finish, *args, **settings)

    def _finish_and_claim(self, *args: Any, **settings: Any) -> Any:
        return self._meddle("finish", super()._finish_and_claim, *args, **settings)

    def release(self, *args: Any, **settings: Any) -> Any:
        return self._meddle("release", super().release, *args, **settings)

    def get(self, *args: Any, **settings: Any) -> Any:
        return self._meddle("get", super().get, *args, **settings)

    def _own_of(self, *args: Any) -> Any:
        return self._meddle("read", super()._own_of, *args)


def _nothing(*_: object) -> None:
    pass


class Away:
    """A database that fails so many times, or until it is back."""

    def __init__(self, times: int | None = None) -> None:
        self.times, self.failed = times, 0
        self._failed = threading.Condition()

    def __call__(self, *_: object) -> None:
        with self._failed:
            if self.times is not None and self.failed >= self.times:
                return
            self.failed += 1
            self._failed.notify_all()
        raise OperationalError("SELECT 1", None, Exception("the server closed the connection"))

    def wait_for(self, times: int) -> None:
        with self._failed:
            assert self._failed.wait_for(lambda: self.failed >= times, LONGEST_WAIT_S)

    def is_back(self) -> None:
        with self._failed:
            self.times = self.failed


def join_workers() -> None:
    """Waits for what a worker that has ended may have left to itself, say a renewal that was stuck:
    it has a connection of the engine, which is to be closed."""
    for thread in threading.enumerate():
        if re.search(r" (renewer|guard|claims|event loop|place \d+|watcher)$", thread.name):
            thread.join(LONGEST_WAIT_S)
            assert not thread.is_alive(), thread.name
