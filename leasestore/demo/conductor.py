"""The story: one courier is killed between the receiver's commit and its own finish, and the
other one recovers the order when the lease ends by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from leasestore import Event, JobState, QueueFile, open_queue, system_clock
from leasestore.demo import inbox
from leasestore.demo.facts import Count, Fact, Result
from leasestore.demo.inputs import INBOX, QUEUE
from leasestore.demo.processes import Child, Crew

DEADLINE_S = 12.0
FIRST, SECOND = "courier-1", "courier-2"

_TTL_MS = 60_000

Watch = Callable[[Fact], object]


def doomed(orders: Sequence[Event]) -> str:
    """The order whose courier will be killed: the third, so that some are delivered before."""
    return orders[:3][-1]["id"]


def run(
    orders: Sequence[Event], keep: Path | None, watch: Watch, deadline_s: float = DEADLINE_S
) -> Result:
    """Run the demo. Whatever happens, its processes end with it, and so do its files.

    Args:
        orders: what to deliver.
        keep: a directory to leave the files in, instead of a temporary one.
        watch: told of each fact as it becomes known.
        deadline_s: when to give up.

    Raises:
        DemoFailed: it could not run to its end.
    """
    with ExitStack() as stack:
        temporary = Path(stack.enter_context(TemporaryDirectory(prefix="leasestore-demo-")))
        queue_file, inbox_file = (keep or temporary) / QUEUE, (keep or temporary) / INBOX
        crew = stack.enter_context(Crew(temporary / "errors.log", deadline_s))
        # Started before there is work, since starting takes them long: each waits to be told.
        receiver = crew.start("receiver", "leasestore.demo.receiver")
        first, second = (crew.start(name, "leasestore.demo.courier") for name in (FIRST, SECOND))
        queue = stack.enter_context(open_queue(queue_file))
        story = _Story(orders, queue, crew, watch)

        receiver.tell(inbox=str(inbox_file))
        errand = {"queue": str(queue_file), "port": story.port()}
        first.tell(owner=FIRST, doomed=story.doomed, **errand)
        story.follow_until_delivered()
        story.kill(first)
        # It is not told what became of the other: the queue is all that it goes by.
        second.tell(owner=SECOND, doomed=None, **errand)
        story.follow_until_over()
        with inbox.opened(inbox_file) as engine:
            return story.result(inbox.counts(engine))


class _Story:
    """What happens, from the moment that the orders are in the queue."""

    def __init__(self, orders: Sequence[Event], queue: QueueFile, crew: Crew, watch: Watch) -> None:
        self.doomed = doomed(orders)
        self._orders, self._queue, self._crew, self._watch = orders, queue, crew, watch
        self._facts: list[Fact] = []
        self._start = system_clock()
        for order in orders:
            queue.enqueue(order, system_clock, _TTL_MS)

    def port(self) -> int:
        """Where the receiver listens: nobody reports anything before this."""
        reports = (self._crew.hear() for _ in count())
        port: int = next(report["port"] for report in reports if report)
        return port

    def follow_until_delivered(self) -> None:
        """Until the doomed order's request was answered, which means committed."""
        delivered = "sent", self.doomed
        self._follow(lambda heard: any((fact.what, fact.job) == delivered for fact in heard))

    def kill(self, courier: Child) -> None:
        """Kill the courier of the doomed order; its lease stays behind."""
        signal = courier.kill()
        job, token = self.doomed, self._row(self.doomed)["token"]
        self._add(Fact(system_clock(), courier.name, "killed", job, token, signal))
        until = self._row(job)["lease_until"]
        assert until is not None, "nobody else is at work yet"
        self._add(Fact(until, courier.name, "lease over", job, token))

    def follow_until_over(self) -> None:
        """Until no job is left to do, and everybody has ended."""
        final = ("done", "dead")
        self._follow(lambda _: all(row["status"] in final for row in self._rows()))
        self._take(self._crew.stop())

    def result(self, counts: Mapping[str, Count]) -> Result:
        timeline = sorted(self._facts, key=lambda fact: fact.at_ms)
        return Result(self.doomed, timeline, list(self._rows()), counts)

    def _follow(self, over: Callable[[Sequence[Fact]], bool]) -> None:
        heard: Sequence[Fact] = []
        while not over(heard):
            heard = self._take(filter(None, [self._crew.hear()]))

    def _take(self, reports: Iterable[Mapping[str, Any]]) -> list[Fact]:
        return [self._add(Fact(**report)) for report in reports]

    def _add(self, fact: Fact) -> Fact:
        """Keep a fact, its time counted from the start, and pass it on."""
        fact = replace(fact, at_ms=fact.at_ms - self._start)
        self._facts.append(fact)
        self._watch(fact)
        return fact

    def _rows(self) -> Iterator[JobState]:
        return (self._row(order["id"]) for order in self._orders)

    def _row(self, job: str) -> JobState:
        row = self._queue.get(job)
        assert row is not None, "it was enqueued"
        return row
