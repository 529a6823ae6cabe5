"""The worker."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from queue import Empty, SimpleQueue
from typing import Any

from leasestore import validation
from leasestore.clock import Clock, monotonic_ms, system_clock
from leasestore.repository import JobRepository
from leasestore.wakeup import Wakeup
from leasestore.worker import arguments, handlers
from leasestore.worker.log import tell
from leasestore.worker.names import owner_of_this_run
from leasestore.worker.pauses import Jitter, drawn_from
from leasestore.worker.results import Ended, Worked, in_words
from leasestore.worker.shift import Shift
from leasestore.worker.signals import stopping
from leasestore.worker.terms import Hosted, Terms, Unclassified, Until, Wakeable

_JOIN_S = 1.0


@dataclass(frozen=True, slots=True)
class _ClaimsEnded:
    how: Ended | BaseException


_STOP, _EMPTIED = "stop", "emptied"


class _Mail(SimpleQueue[str | _ClaimsEnded]):
    """What the thread that waits is to know. A SimpleQueue, since a signal handler may put
    something into it at any moment."""

    stop_asked = False


class Worker:
    """Claims jobs, runs `send` for each, and finishes them, until it is stopped.

        worker = Worker(jobs, send, concurrency=4)
        worker.run(signals=True)

    **One job.** `send` is called outside any transaction, with a new dict of `id` and `qty`; or with
    a `Delivery`, if its first parameter is annotated so (or `Delivery | None`). It returns the literal `True` once the
    effect is done: the job is finished. It raises `Retryable`, with a `delay_ms` if it likes, or
    `Permanent`. Whatever else it answers or raises has no class (`BadAck`, a bug, also `SystemExit`
    and `asyncio.CancelledError`): it is logged with its traceback, and ends this run of the job, never
    a thread or the worker. A handler that wants the worker to end calls its `stop`. `send` must
    tolerate to be called again for the same id (at-least-once delivery).

    **Where it runs.** A plain function runs in one of `concurrency` threads, side by side with itself.
    A coroutine function runs on one event loop in a thread of its own. Both may block, or hold the
    interpreter, without losing the lease. The engine's pool should have `concurrency` + 2
    connections for the worker, beside those that `send` takes.

    **The lease.** It is renewed, by threads and through a connection of their own, each time a third
    of it is over, until `send` returns; at most until the job's deadline, or for `max_run_ms`. A
    renewal that fails is tried again. When the lease is over, by the monotonic clock of this
    process, or was found to be somebody else's, the job is lost: `Delivery.lost` is set, and what
    the run comes to is not written. Nothing stops `send` itself.

    **The finish.** It is written with those that come while another one is being written, and claims
    for the places that they free, in one transaction; where that fails, each goes on by itself. It is
    tried again while the database fails and the lease lasts; then it is given up, and the lease ends by
    itself. An error of the database never ends the worker: it claims again
    after a pause, which grows up to 5 s (or ten times `poll_ms`, if that is less). A statement that
    never answers holds its thread for as long as the driver lets it: give the driver a limit, as with
    `connect_args={"connect_timeout": 10, "tcp_user_timeout": 10_000}` on PostgreSQL.

    **The log.** The logger is `leasestore.worker`. Each record has an `event`, those about a job also
    `job_id`, `token`, `attempt` and `owner`.

    Args:
        repository: over an `Engine` with a database that several threads can share.
        send: the handler.
        owner: 1 to 64 characters out of `A-Z a-z 0-9 _ -`; one worker's alone. Unless given, each run
            has a new one of host, process and a random part.
        clock: gives milliseconds. Of several hosts give `database_clock(engine)`.
        jitter: 0 to 1, or a callable that gives such a number; scales the delay before a retry, and
            the pauses of the loop.
        lease_ms: 1 to 60000, or what the repository's `Limits` allow. How long a dead worker's job
            waits, at most; a live one renews.
        concurrency: 1 to 1000, the jobs in hand at the same time.
        poll_ms: 1 to 3600000, the longest pause between two claims that find nothing.
        grace_ms: 0 to 86400000, how long a stop waits for the jobs in hand.
        max_run_ms: 1 to 10**12, after which a job is renewed no more; None for no such bound.
        unclassified: what becomes of a job whose `send` failed without a class: `leave` it to its
            lease, as `run_once` does, or finish it as `retry`.
        wakeup: waits between claims, say `Wakeup(repository, listen=True)`; unless given, the worker
            makes one that polls, and closes it.
        watcher: runs in a thread beside this worker, and is stopped with it.

    Raises:
        ValueError: an argument is not what it should be.
        UnsupportedEngine: the threads of a worker cannot share this engine.
    """  # noqa: E501

    def __init__(
        self,
        repository: JobRepository,
        send: Callable[[Any], object],
        *,
        owner: str | None = None,
        clock: Clock = system_clock,
        jitter: Jitter = random.random,
        lease_ms: int = 30_000,
        concurrency: int = 1,
        poll_ms: int = 1_000,
        grace_ms: int = 20_000,
        max_run_ms: int | None = None,
        unclassified: Unclassified = "leave",
        wakeup: Wakeable | None = None,
        watcher: Hosted | None = None,
    ) -> None:
        arguments.repository(repository)
        self._named = None if owner is None else validation.identifier("owner", owner)
        self._terms = Terms(
            repository=repository,
            send=handlers.checked(send),
            wants_delivery=handlers.wants_delivery(send),
            owner=self._named or "",
            clock=validation.clock(clock),
            draw=drawn_from(jitter),
            lease_ms=validation.lease_ms(lease_ms, repository._queue.limits),
            concurrency=validation.integer("concurrency", concurrency, 1, 1000),
            poll_ms=validation.integer("poll_ms", poll_ms, 1, 3_600_000),
            grace_ms=validation.integer("grace_ms", grace_ms, 0, 86_400_000),
            max_run_ms=arguments.max_run_ms(max_run_ms),
            unclassified=arguments.unclassified(unclassified),
        )
        self._wakeup = arguments.has("wakeup", wakeup, "wait", "wake", "close")
        self._watcher = arguments.has("watcher", watcher, "run", "stop")
        self._mail = _Mail()
        self._running = threading.Lock()

    @property
    def owner(self) -> str | None:
        """The name that it claims under; None before the first run of a worker without a name."""
        return self._terms.owner or None

    def run(
        self, *, until_empty: bool = False, once: bool = False, signals: bool = False
    ) -> Worked:
        """Work, in the calling thread's time, until stopped; what was done, and how it ended.

        Args:
            until_empty: end when there is nothing to claim and nothing in hand. A job that waits
                for its next attempt is not waited for.
            once: claim one job, or find none to claim, and end when it has.
            signals: take SIGTERM and SIGINT for calls of `stop` meanwhile; in the main thread only.

        Raises:
            SchemaError: the tables are missing; nothing was claimed.
            UnsupportedEngine: the engine cannot hold the transactions; nothing was claimed.
            ValueError: `signals` in another thread than the main one.
            RuntimeError: this worker is running already.
        """
        until: Until = "once" if once else "empty" if until_empty else "stopped"
        if not self._running.acquire(blocking=False):
            raise RuntimeError(
                "this worker is running already; another thread needs a Worker of its own"
            )
        try:
            with stopping(self.stop) if signals else ExitStack():
                return self._run(until)
        finally:
            self._running.release()

    def stop(self) -> None:
        """End the run: the first call gracefully, the second at once.

        After the first nothing is claimed, jobs in hand whose `send` has not begun are released,
        and the others, still renewed, have `grace_ms` to end. Then, or at the second call, `run`
        returns without waiting for them: their `lost` is set, coroutines are cancelled, and their
        leases end by themselves. Threads cannot be killed: one that never returns goes on while the
        process lives, but does not keep it alive.

        May be called from any thread, from `send`, and from a signal handler. Before `run` it makes
        the next run end at once.
        """
        mail = self._mail
        mail.stop_asked = True
        mail.put(_STOP)

    def _run(self, until: Until) -> Worked:
        terms = self._terms = replace(self._terms, owner=self._named or owner_of_this_run())
        mail = self._mail
        with ExitStack() as closing:
            wakeup = self._wakeup
            if wakeup is None:
                wakeup = Wakeup(terms.repository, draw=terms.draw)
                closing.callback(wakeup.close)
            if self._watcher is not None:
                closing.callback(_watch(self._watcher, terms.owner))
            shift = Shift(
                terms,
                wakeup,
                until,
                stopping=lambda: mail.stop_asked,
                claims_ended=lambda how: mail.put(_ClaimsEnded(how)),
                emptied=lambda: mail.put(_EMPTIED),
            )
            _tell_start(terms)
            ended: Ended = "forced"
            try:
                if not mail.empty():
                    # A stop from before this run: nothing is to be claimed at all.
                    shift.stop()
                shift.open()
                ended = self._wait(mail, shift)
            finally:
                # What is still to be said about this run is not for the next one.
                self._mail = _Mail()
                worked = shift.close(ended)
                text = f"worker {terms.owner} ends ({worked.ended}): {in_words(worked)}"
                tell(logging.INFO, "ended", text, owner=terms.owner, **asdict(worked))
            return worked

    def _wait(self, mail: _Mail, shift: Shift) -> Ended:
        """Read the mail until the run is over."""
        ended: Ended | None = None
        grace_ends_ms: int | None = None
        while ended is None or not shift.idle:
            left_ms = None if grace_ends_ms is None else max(0, grace_ends_ms - monotonic_ms())
            try:
                message = mail.get(timeout=None if left_ms is None else left_ms / 1000)
            except Empty:
                return "late" if not shift.idle else "stopped"
            if isinstance(message, _ClaimsEnded):
                if isinstance(message.how, BaseException):
                    raise message.how
                ended = message.how
            elif message == _STOP:
                if grace_ends_ms is not None:
                    return "forced" if not shift.idle else "stopped"
                grace_ends_ms = monotonic_ms() + self._terms.grace_ms
                shift.stop()
                text = f"worker {self._terms.owner} stops"
                tell(logging.INFO, "stopping", text, owner=self._terms.owner)
        return ended if grace_ends_ms is None else "stopped"


def _tell_start(terms: Terms) -> None:
    # A query may hold secrets of which SQLAlchemy does not know.
    url = terms.repository._bind.engine.url.set(query={}).render_as_string()
    function, many = handlers.name_of(terms.send), terms.concurrency
    tell(
        logging.INFO,
        "started",
        f"worker {terms.owner} starts: {function} for the jobs in {url}, {many} at a time, with "
        f"leases of {terms.lease_ms} ms",
        owner=terms.owner,
        function=function,
        database=url,
        concurrency=many,
        lease_ms=terms.lease_ms,
    )


def _watch(watcher: Hosted, owner: str) -> Callable[[], None]:
    """Run the watcher in a thread of its own; what ends it again."""

    def run() -> None:
        try:
            watcher.run()
        except BaseException as error:  # noqa: BLE001 - a watcher is no reason to stop working
            tell(logging.ERROR, "watcher-failed", "the watcher has ended", error, owner=owner)

    def end() -> None:
        watcher.stop()
        thread.join(_JOIN_S)

    thread = threading.Thread(target=run, name=f"{owner} watcher", daemon=True)
    thread.start()
    return end
