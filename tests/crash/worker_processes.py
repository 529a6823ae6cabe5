"""What the processes of the tests of the worker do. As in `tests.crash.workers`, nobody sleeps: a
process asks the test that started it for leave to go on."""

from __future__ import annotations

import logging
import os
import sys
import threading
from dataclasses import asdict
from multiprocessing.connection import Connection as Pipe
from typing import Any

from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from leasestore import Delivery, StaleTicket, Worker, immediate
from tests.crash.workers import Test
from tests.worker.scene import Meddled


class Telling(logging.Handler):
    """Tells the test of some events."""

    def __init__(self, test: Test, *events: str) -> None:
        super().__init__()
        self._test, self._events = test, events
        logger = logging.getLogger("leasestore.worker")
        logger.addHandler(self)
        logger.setLevel(logging.DEBUG)

    def emit(self, record: logging.LogRecord) -> None:
        if vars(record)["event"] in self._events:
            self._test.tell(vars(record)["event"])


def work_and_fence(test: Test, url: str, face: str, settings: dict[str, Any]) -> None:
    """One job: when it has leave, say whether the lease is lost, and try to write all the same."""
    engine = create_engine(url)
    jobs = Meddled(engine)

    def plain(delivery: Delivery) -> bool:
        test.ask("send", delivery.id)
        lost = delivery.lost.is_set()
        try:
            with Session(engine) as session, immediate(session):
                delivery.finish_within(session)
        except StaleTicket:
            test.tell("refused", lost)
        else:
            test.tell("written", lost)
        return True

    async def coroutine(delivery: Delivery) -> bool:
        return plain(delivery)

    send = plain if face == "plain" else coroutine
    test.tell("ended", asdict(Worker(jobs, send, **settings).run(once=True)))


def stand_at(test: Test, url: str, phase: str, settings: dict[str, Any]) -> None:
    """Work, and stand at one point of it until there is leave to go on."""
    Telling(test, "stopping", "started")
    jobs = Meddled(create_engine(url))

    def stand(*_: object) -> None:
        test.ask("stands")

    for name, verb in (("before", "claim"), ("after", "claim"), ("before", "finish")):
        if phase == f"{name} the {verb}":
            getattr(jobs, name)[verb] = stand
    if phase == "after the finish":
        jobs.after["finish"] = stand

    def send(_: Any) -> bool:
        if phase == "sending":
            stand()
        if phase == "wedged":
            test.tell("stands")
            threading.Event().wait()
        return True

    worked = Worker(jobs, send, **settings).run(signals=True)
    test.tell("ended", asdict(worked))


def nurse(test: Test, url: str, told: str) -> None:
    """Fork workers, and wait for them, as the test says: a start from nothing takes longer than a
    job. What they send is written to the pipe of this name."""
    descriptor = os.open(told, os.O_WRONLY)
    while True:
        what, about = test.hear()
        if what == "wait":
            test.tell("ended", os.waitstatus_to_exitcode(os.waitpid(about, 0)[1]))
            continue
        child = os.fork()
        if not child:
            _labour(url, descriptor, about)
            os._exit(0)
        test.tell("forked", child)


def _labour(url: str, told: int, settings: dict[str, Any]) -> None:
    def send(event: Any) -> bool:
        os.write(told, f"{event['id']}\n".encode())
        if event["id"] == "poison":
            os._exit(9)
        return True

    how = {"until_empty": settings.pop("until_empty", False)}
    Worker(Meddled(create_engine(url)), send, **settings).run(signals=True, **how)


if __name__ == "__main__":
    _, descriptor, work = sys.argv
    started_by = Test(Pipe(int(descriptor)))
    globals()[work](started_by, *started_by.hear())
