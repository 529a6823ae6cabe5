"""What the processes of the tests on PostgreSQL do, one work after the other, until they are
killed: a start takes longer than most of these works. As in `tests.crash.workers`, nobody sleeps.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import partial
from multiprocessing.connection import Connection as Pipe
from typing import Any

from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError

from leasestore import EnlistedRepository, JobRepository, LeaseStoreError, StoreBusy
from tests.crash.workers import Test

LEASE_MS = 1000
PAUSE_EVERY = 20
"""After so many jobs a labourer says that there is progress."""
_CLOCK_DIGITS = 15


def serve(test: Test) -> None:
    """Do one work after the other, as the test calls for them."""
    while True:
        work, arguments = test.hear()
        globals()[work](test, *arguments)


def labour(
    test: Test, url: str, settings: Mapping[str, Any], owner: str, clock: str, record: str
) -> None:
    """Do jobs until the test says that there are none; write down what was claimed and finished.

    The time is what the file `clock` says. Whatever goes wrong with the database, it goes on.
    """
    engine = create_engine(url, pool_size=1, **settings)
    jobs = JobRepository(engine)
    time, book = os.open(clock, os.O_RDONLY), os.open(record, os.O_WRONLY | os.O_APPEND)
    finished = 0

    def now() -> int:
        return int(os.pread(time, _CLOCK_DIGITS, 0))

    def note(*words: object) -> None:
        os.write(book, " ".join([owner, *map(str, words), "\n"]).encode())

    while True:
        try:
            ticket = jobs.claim(owner, now, LEASE_MS)
        except (DBAPIError, StoreBusy) as error:
            note("failed", "claim", repr(error).replace("\n", " "))
            continue
        if ticket is None:
            if test.ask("idle"):
                continue
            break
        run = ticket["id"], ticket["token"]
        note("claimed", *run)
        try:
            answer = jobs.finish(ticket, "ok", now)
        except (DBAPIError, StoreBusy) as error:
            note("failed", "finish", repr(error).replace("\n", " "))
            continue
        note("finished", *run, answer)
        finished += 1
        if finished % PAUSE_EVERY == 0:
            test.tell("progress")
    engine.dispose()
    os.close(time)
    os.close(book)


def set_clock(clock: str, now_ms: int) -> None:
    """Let every labourer have this time from now on."""
    file = os.open(clock, os.O_WRONLY | os.O_CREAT)
    os.pwrite(file, f"{now_ms:0{_CLOCK_DIGITS}}".encode(), 0)
    os.close(file)


def obey(test: Test, url: str, settings: Mapping[str, Any]) -> None:
    """Call the verbs that the test names, each in a transaction of its own, tell the answers."""
    engine = create_engine(url, **settings)
    jobs = JobRepository(engine)
    test.tell("open")
    while _obeyed(test, jobs):
        pass
    engine.dispose()


def enlist(test: Test, url: str, settings: Mapping[str, Any]) -> None:
    """The same inside one transaction after the other, each ended by `commit` or `rollback`."""
    engine = create_engine(url, **settings)
    jobs = JobRepository(engine)
    test.tell("open")
    ended = False
    while not ended:
        with engine.connect() as connection:
            transaction = connection.begin()
            while order := _obeyed(test, jobs.within(connection)):
                if order in {"commit", "rollback"}:
                    getattr(transaction, order)()
                    test.tell("answer", order)
                    break
            ended = order is None
    engine.dispose()


def _obeyed(test: Test, jobs: JobRepository | EnlistedRepository) -> str | None:
    """Obey one order: the verb, its arguments, and the point at which to wait if there is one."""
    order = test.hear()
    if order is None:
        return None
    verb, arguments, point = order
    if verb in {"commit", "rollback"}:
        return str(verb)
    if point is not None:
        arguments["fault"] = partial(_wait_at, test, point)
    try:
        answer = getattr(jobs, verb)(**arguments)
    except (LeaseStoreError, DBAPIError) as error:
        test.tell("error", (type(error).__name__, str(error)))
    else:
        test.tell("answer", answer)
    return str(verb)


def _wait_at(test: Test, point: str, passed: str) -> None:
    if passed == point:
        test.ask(point)


if __name__ == "__main__":
    _, descriptor, work = sys.argv
    started_by = Test(Pipe(int(descriptor)))
    globals()[work](started_by, *started_by.hear())
