"""The asynchronous face: the same verbs on an `AsyncEngine`, by SQLAlchemy's `run_sync`.

Needs the extra `asyncio` and an asynchronous driver (`aiosqlite` for SQLite). Clocks and fault
points are plain callables, called where the synchronous verbs call them. A verb that is cancelled
runs to its end first: it was done wholly or not at all, and leaves no transaction open and no
connection checked out.

That holds for the verbs, not for the statements of an application's own between them: cancelled
within one of those, aiosqlite can keep the write lock until the garbage collector comes by. An
application that cancels units of work (most web servers do not) awaits them in `asyncio.shield`.
"""

from __future__ import annotations

import asyncio
import functools
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
)

from leasestore import validation
from leasestore.clock import Clock
from leasestore.delivery import Attempt, Forward
from leasestore.models import Job, JobMixin, Redrive, RedriveMixin
from leasestore.repository import EnlistedRepository, JobRepository
from leasestore.tickets import Delivered, Event
from leasestore.transactions import take_write_lock, unbegun
from leasestore.validation import Limits

_P = ParamSpec("_P")
_T = TypeVar("_T")
_R = TypeVar("_R")
_R_co = TypeVar("_R_co", covariant=True)

AsyncSend = Callable[[Event], Awaitable[object]]


class _Face(ABC, Generic[_R_co]):
    @abstractmethod
    async def _call(self, verb: Callable[[_R_co], _T]) -> _T:
        """Do this with the synchronous repository behind the face."""


def _mirrored(
    verb: Callable[Concatenate[_R, _P], _T],
) -> Callable[Concatenate[_Face[_R], _P], Coroutine[Any, Any, _T]]:
    """The verb as a coroutine of the same signature."""

    @functools.wraps(verb)
    async def call(self: _Face[_R], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return await self._call(lambda repository: verb(repository, *args, **kwargs))

    return call


class AsyncJobRepository(_Face[JobRepository]):
    """`JobRepository` on an `AsyncEngine`, or a borrowed `AsyncConnection` without an open
    transaction: the same arguments, verbs, answers and errors, awaited."""

    def __init__(
        self,
        bind: AsyncEngine | AsyncConnection,
        *,
        job: type[JobMixin] = Job,
        redrive: type[RedriveMixin] = Redrive,
        limits: Limits = Limits(),
        notify: bool = False,
    ) -> None:
        if not isinstance(bind, AsyncEngine | AsyncConnection):
            raise ValueError(
                f"bind: expected an AsyncEngine or AsyncConnection, got {type(bind).__name__}; for "
                "synchronous ones use JobRepository"
            )
        self._bind = bind
        self._sync = JobRepository(
            bind.sync_engine, job=job, redrive=redrive, limits=limits, notify=notify
        )

    enqueue = _mirrored(JobRepository.enqueue)
    claim = _mirrored(JobRepository.claim)
    finish = _mirrored(JobRepository.finish)
    renew = _mirrored(JobRepository.renew)
    release = _mirrored(JobRepository.release)
    redrive = _mirrored(JobRepository.redrive)
    get = _mirrored(JobRepository.get)
    stuck = _mirrored(JobRepository.stuck)
    recover = _mirrored(JobRepository.recover)
    finish_and_claim = _mirrored(JobRepository.finish_and_claim)
    claim_batch = _mirrored(JobRepository.claim_batch)
    finish_batch = _mirrored(JobRepository.finish_batch)
    enqueue_many = _mirrored(JobRepository.enqueue_many)
    renew_batch = _mirrored(JobRepository.renew_batch)

    def within(
        self,
        session_or_connection: AsyncSession | async_scoped_session[Any] | AsyncConnection,
    ) -> AsyncEnlistedRepository:
        """The same verbs inside the transaction of this session or connection, as
        `JobRepository.within`."""
        return AsyncEnlistedRepository(self._sync, session_or_connection)

    async def _call(self, verb: Callable[[JobRepository], _T]) -> _T:
        return await _to_its_end(self._done(verb))

    async def _done(self, verb: Callable[[JobRepository], _T]) -> _T:
        if isinstance(self._bind, AsyncConnection):
            return await self._on(self._bind, verb)
        async with self._bind.connect() as connection:
            return await self._on(connection, verb)

    async def _on(self, connection: AsyncConnection, verb: Callable[[JobRepository], _T]) -> _T:
        return await connection.run_sync(lambda sync: verb(self._sync._on(sync)))


class AsyncEnlistedRepository(_Face[EnlistedRepository]):
    """`EnlistedRepository` for an asynchronous session or connection, awaited."""

    enlisted = True

    def __init__(
        self,
        repository: JobRepository,
        host: AsyncSession | async_scoped_session[Any] | AsyncConnection,
    ) -> None:
        if not isinstance(host, AsyncSession | async_scoped_session | AsyncConnection):
            raise ValueError(
                "within: expected an AsyncSession, async_scoped_session or AsyncConnection, got "
                f"{type(host).__name__}; for synchronous ones use JobRepository"
            )
        self._repository, self._host = repository, host

    enqueue = _mirrored(EnlistedRepository.enqueue)
    claim = _mirrored(EnlistedRepository.claim)
    finish = _mirrored(EnlistedRepository.finish)
    renew = _mirrored(EnlistedRepository.renew)
    release = _mirrored(EnlistedRepository.release)
    redrive = _mirrored(EnlistedRepository.redrive)
    get = _mirrored(EnlistedRepository.get)
    stuck = _mirrored(EnlistedRepository.stuck)
    recover = _mirrored(EnlistedRepository.recover)
    finish_and_claim = _mirrored(EnlistedRepository.finish_and_claim)
    claim_batch = _mirrored(EnlistedRepository.claim_batch)
    finish_batch = _mirrored(EnlistedRepository.finish_batch)
    enqueue_many = _mirrored(EnlistedRepository.enqueue_many)
    renew_batch = _mirrored(EnlistedRepository.renew_batch)

    async def _call(self, verb: Callable[[EnlistedRepository], _T]) -> _T:
        host = _resolved(self._host)
        return await _to_its_end(
            host.run_sync(lambda sync: verb(self._repository.within(sync))),
        )


def _resolved(
    host: AsyncSession | async_scoped_session[Any] | AsyncConnection,
) -> AsyncSession | AsyncConnection:
    return host() if isinstance(host, async_scoped_session) else host


async def _to_its_end(work: Coroutine[Any, Any, _T]) -> _T:
    """Do work that no cancellation may break off, and let the cancellation go on after it.

    Broken off within a statement, aiosqlite would leave it unfinished, and with it a lock on the
    database until the garbage collector comes by.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled from task.exception()
    return task.result()


@asynccontextmanager
async def immediate(
    session_or_connection: AsyncSession | async_scoped_session[Any] | AsyncConnection,
    *,
    bind_arguments: Mapping[str, Any] | None = None,
) -> AsyncIterator[None]:
    """`leasestore.immediate` for an asynchronous session or connection:
    `async with immediate(session): ...`."""
    host = _resolved(session_or_connection)
    async with unbegun(host).begin():
        await _to_its_end(host.run_sync(lambda sync: take_write_lock(sync, bind_arguments)))
        yield


async def run_once(
    repository: AsyncJobRepository,
    owner: str,
    clock: Clock,
    send: AsyncSend,
    jitter: float,
    lease_ms: int = 1000,
) -> Delivered | None:
    """`leasestore.run_once`, awaited: `send` is a coroutine function, awaited outside any
    transaction. Cancelled while it sends, it leaves the claim as it is, and the lease ends by
    itself."""
    validation.jitter(jitter)
    validation.send(send, awaited=True)
    validation.queue(repository, awaited=True)
    forward = Forward(clock)
    ticket = await repository.claim(owner, forward, lease_ms)
    if ticket is None:
        return None
    with Attempt(ticket, jitter) as attempt:
        attempt.acknowledge(await send(attempt.event))
    with attempt.as_cause():
        status = await repository.finish(ticket, attempt.outcome, forward, attempt.delay_ms)
    return attempt.delivered(status)
