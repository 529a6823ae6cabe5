"""The other faces of a repository, made to answer like `JobRepository`, so that the same tests
hold for them: inside the application's transaction, and asynchronous."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import suppress
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from leasestore import JobRepository, StaleTicket, immediate
from leasestore.aio import AsyncJobRepository

_STALE = {"finish": False, "renew": None, "release": False}
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
                with immediate(session):
                    try:
                        answer = getattr(self._jobs.within(session), verb)(*args, **kwargs)
                    except StaleTicket:
                        answer = _STALE[verb]
            signature = inspect.signature(getattr(self._jobs, verb))
            fault = signature.bind(*args, **kwargs).arguments.get("fault")
            if fault is not None and answer is not None and answer is not False:
                fault("after-commit")
            return answer

        return call


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
