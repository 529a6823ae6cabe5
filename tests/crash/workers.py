"""What the processes of these tests do: each function here is the whole life of one process.

A process asks the test that started it for everything that comes from outside: the time, the
answer of a receiver, leave to go on past a point. So the test decides what happens when, and may
kill or stop the process while it waits for an answer. Nobody sleeps.
"""

from __future__ import annotations

import importlib
import sys
from functools import partial, partialmethod
from multiprocessing.connection import Connection
from typing import Any

from sqlalchemy import create_engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry

from leasestore import Event, JobRepository, Ticket, open_queue, run_file, run_once


class Test:
    """The test that started this process."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def hear(self) -> Any:
        return self._pipe.recv()

    def tell(self, *what: object) -> None:
        self._pipe.send(what)

    def ask(self, *what: object) -> Any:
        self.tell(*what)
        return self.hear()


def obey(test: Test) -> None:
    """Open the file that the test names, call the verbs that it names, tell the answers."""
    with open_queue(test.hear()) as queue:
        test.tell("open")
        while True:
            verb, arguments = test.hear()
            test.tell("answer", getattr(queue, verb)(**arguments))


def pause_at(test: Test, path: str, point: str, verb: str, arguments: dict[str, Any]) -> None:
    """Call one verb, and wait inside it when it comes to the point."""

    def fault(passed: str) -> None:
        if passed == point:
            test.ask(point)

    with open_queue(path) as queue:
        getattr(queue, verb)(**arguments, fault=fault)


def enqueue_and_pause(test: Test, path: str, content: Event) -> None:
    """Enqueue at a time that the test gives once the transaction is open."""
    with open_queue(path) as queue:
        queue.enqueue(content, lambda: test.ask("clock"), 60_000)


def spill_and_pause(test: Test, path: str) -> None:
    """Sweep more rows than the page cache holds, so that changed pages are in the file already
    when the process waits before COMMIT."""
    engine = create_engine(f"sqlite:///{path}")

    @event.listens_for(engine, "connect")
    def keep_one_page(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
        connection.cursor().execute("PRAGMA cache_size = 1")

    JobRepository(engine).claim("owner", 1000, fault=test.ask)


def deliver(test: Test, path: str, owner: str, lease_ms: int) -> None:
    """A worker: `run_file` again and again. The test is its clock and its receiver."""
    test.tell("ready")
    test.hear()
    while True:
        delivered = run_file(
            path,
            owner,
            lambda: test.ask("clock"),
            lambda content: test.ask("send", content),
            jitter=0,
            lease_ms=lease_ms,
        )
        test.ask("end", delivered)


def deliver_in_small_steps(test: Test, path: str, owner: str, lease_ms: int) -> None:
    """The same worker, asking for leave at every fault point of its claims and finishes too."""
    finish = JobRepository.finish

    def watched_finish(queue: JobRepository, ticket: Ticket, *rest: Any) -> object:
        watched = partial(finish, fault=lambda point: test.ask(point, "finish", ticket["id"]))
        return watched(queue, ticket, *rest)

    # `run_file` takes no fault: the points are watched underneath it.
    claim = partialmethod(JobRepository.claim, fault=lambda point: test.ask(point, "claim"))
    setattr(JobRepository, "claim", claim)  # noqa: B010
    setattr(JobRepository, "finish", watched_finish)  # noqa: B010
    deliver(test, path, owner, lease_ms)


def drain(test: Test, path: str, owner: str) -> None:
    """Do jobs until there is none left; tell which ones they were."""
    sent: list[str] = []

    def send(content: Event) -> bool:
        sent.append(content["id"])
        return True

    with open_queue(path) as queue:
        test.ask("ready")
        while run_once(queue, owner, lambda: 0, send, jitter=0):
            pass
    test.tell("answer", sent)


def drain_in_batches(test: Test, url: str, owner: str, limit: int) -> None:
    """Claim and finish batches until there is nothing left; tell what they were."""
    engine = create_engine(url)
    jobs = JobRepository(engine)
    batches: list[list[Ticket]] = []
    test.ask("ready")
    while tickets := jobs.claim_batch(owner, 0, limit, 60_000):
        assert jobs.finish_batch([(ticket, "ok", 0) for ticket in tickets], 1) == [
            "done" for _ in tickets
        ]
        batches.append(tickets)
    engine.dispose()
    test.tell("answer", batches)


def enqueue_in_batches(test: Test, url: str, owner: str, size: int) -> None:
    """Enqueue what the others enqueue too; tell which jobs were new."""
    engine = create_engine(url)
    jobs = JobRepository(engine)
    new: list[str] = []
    test.ask("ready")
    for start in range(0, 40 * size, size):
        events: list[Event] = [{"id": f"job-{start + n}", "qty": 1} for n in range(size)]
        answers = jobs.enqueue_many(events, 0, 60_000)
        assert all(type(answer) is bool for answer in answers)
        new += [event["id"] for event, answer in zip(events, answers, strict=True) if answer]
    engine.dispose()
    test.tell("answer", new)


def open_files(test: Test) -> None:
    """Open the queue files that the test names."""
    # Ahead of time, so that the first of them does not wait for Alembic to be imported.
    importlib.import_module("leasestore.schema")
    test.tell("ready")
    while True:
        with open_queue(test.hear()):
            test.tell("open")


if __name__ == "__main__":
    _, descriptor, work = sys.argv
    started_by = Test(Connection(int(descriptor)))
    globals()[work](started_by, *started_by.hear())
