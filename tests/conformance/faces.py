"""The other faces of a repository, made to answer like `JobRepository`, so that the same tests
hold for them: inside the application's transaction, and asynchronous."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextlib import suppress
from operator import itemgetter
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from leasestore import EnlistedRepository, JobRepository, StaleTicket, Ticket, immediate
from leasestore.aio import AsyncJobRepository

_STALE = {"finish": False, "renew": None, "release": False}
# Which argument has the items, where in an item the ticket is, and the answer for a stale one.
_BATCHES: dict[str, tuple[str, Callable[[Any], Ticket], object]] = {
    "finish_batch": ("items", itemgetter(0), False),
    "renew_batch": ("tickets", lambda ticket: ticket, None),
}
_READS = ("get", "stuck")


class Within:
    """Each verb in a transaction of the application's, committed right after it.

    A stale ticket raises there; and the point after a commit is the application's to pass.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine, self._jobs = engine, JobRepository(engine)

    def __getattr__(self, verb: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            with Session(self._engine) as session:
                if verb in _READS:
                    return getattr(self._jobs.within(session), verb)(*args, **kwargs)
                signature = inspect.signature(getattr(self._jobs, verb))
                given = signature.bind(*args, **kwargs).arguments
                with immediate(session):
                    within = self._jobs.within(session)
                    try:
                        answer = getattr(within, verb)(*args, **kwargs)
                    except StaleTicket as stale:
                        answer = _answered(within, verb, given, stale.ticket)
            fault = given.get("fault")
            if fault is not None and _changed(answer):
                fault("after-commit")
            return answer

        return call


def _answered(within: EnlistedRepository, verb: str, given: dict[str, Any], stale: Ticket) -> Any:
    """What the verb answers outside, where a ticket is stale: a batch does the others."""
    if verb in _BATCHES:
        name, ticket_of, answer = _BATCHES[verb]
        items = [*given[name]]
        # Of two for the same run the first may do.
        place = max(n for n, item in enumerate(items) if ticket_of(item) == stale)
        rest = {**given, name: items[:place] + items[place + 1 :]}
        try:
            answers = getattr(within, verb)(**rest)
        except StaleTicket as another:
            answers = _answered(within, verb, rest, another.ticket)
        return [*answers[:place], answer, *answers[place:]]
    if verb == "finish_and_claim":
        lease_ms = given.get("lease_ms", 1000)
        return False, within.claim(given["owner"], given["now_ms"], lease_ms, given.get("fault"))
    return _STALE[verb]


def _changed(answer: object) -> bool:
    if isinstance(answer, (list, tuple)):
        return any(map(_changed, answer))
    return answer is not None and answer is not False


class Awaited:
    """Each verb of `AsyncJobRepository`, run on a loop of its own."""

    def __init__(self, engine: AsyncEngine, loop: asyncio.AbstractEventLoop) -> None:
        self._jobs, self._loop = AsyncJobRepository(engine), loop

    def __getattr__(self, verb: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            task = self._loop.create_task(getattr(self._jobs, verb)(*args, **kwargs))
            try:
                return self._loop.run_until_complete(task)
            except (KeyboardInterrupt, SystemExit):
                # These two leave the loop at once, and the task at their way out.
                with suppress(KeyboardInterrupt, SystemExit):
                    self._loop.run_until_complete(task)
                raise

        return call
