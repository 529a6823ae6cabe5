"""Waiting without a database: how long, who ends it, and what becomes of a connection that breaks.

Where time matters it is the test's: a selector that lets the clock advance instead of waiting."""

from __future__ import annotations

import logging
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from selectors import DefaultSelector
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, MetaData, Table, create_engine, event
from sqlalchemy.ext.asyncio import create_async_engine

from leasestore import Job, JobRepository, Wakeup, listening, wakeup
from leasestore.aio import AsyncJobRepository
from leasestore.dialects import postgresql
from tests.support import make_file

LONG_MS = 60_000
LONGEST_WAIT_S = 30
ROOT = Path(__file__).parents[2]


@pytest.fixture
def jobs() -> JobRepository:
    return JobRepository(create_engine("sqlite://"))


class Time:
    """A clock that advances while somebody waits. `meanwhile` is done at the start of a wait."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.waits: list[float] = []
        self.meanwhile: Callable[[], object] = lambda: None

    def selector(self) -> DefaultSelector:
        class Advancing(DefaultSelector):
            def select(other, timeout: float | None = None) -> Any:  # noqa: N805
                assert timeout is not None
                assert len(self.waits) < 10_000, "it spins"
                self.meanwhile()
                found = super().select(0)
                if not found:
                    self.waits.append(timeout * 1000)
                    # A selector may come back a little late; as the real one, never early.
                    self.now_ms += max(0, round(timeout * 1000))
                return found

        return Advancing()


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    for module in (wakeup, listening):
        monkeypatch.setattr(module, "monotonic_ms", lambda: time.now_ms)
    monkeypatch.setattr(wakeup, "DefaultSelector", time.selector)
    return time


# How long


@pytest.mark.parametrize(
    ("drawn", "expected"), [(0.0, 1000), (0.5, 750), (0.999, 500), (1, 500), (0, 1000)]
)
def test_a_wait_takes_from_half_to_all_of_its_time(
    jobs: JobRepository, time: Time, drawn: float, expected: int
) -> None:
    with Wakeup(jobs, draw=lambda: drawn) as waiting:
        assert waiting.wait(1000) is False
    assert time.waits == [expected]


def test_each_wait_draws_anew_and_stays_in_its_bounds(jobs: JobRepository, time: Time) -> None:
    with Wakeup(jobs) as waiting:
        for _ in range(200):
            assert waiting.wait(1000) is False
    assert all(500 <= wait <= 1000 for wait in time.waits)
    assert len(set(time.waits)) > 50


def test_no_time_is_no_wait(jobs: JobRepository, time: Time) -> None:
    with Wakeup(jobs) as waiting:
        assert waiting.wait(0) is False
    assert time.waits == []


def test_a_wait_really_waits(jobs: JobRepository) -> None:
    with Wakeup(jobs) as waiting:
        assert waiting.wait(2) is False


# Woken


def test_a_wake_before_the_wait_ends_it_at_once_and_only_this_one(
    jobs: JobRepository, time: Time
) -> None:
    with Wakeup(jobs, draw=lambda: 0) as waiting:
        waiting.wake()
        waiting.wake()
        assert waiting.wait(1000) is True
        assert time.waits == []
        assert waiting.wait(1000) is False
        assert time.waits == [1000]


def test_a_wake_between_the_look_and_the_wait_is_not_lost(jobs: JobRepository, time: Time) -> None:
    with Wakeup(jobs) as waiting:
        time.meanwhile = waiting.wake
        assert waiting.wait(1000) is True
        assert time.waits == []


def test_however_many_wakes_nobody_waits_to_wake_and_all_are_one(
    jobs: JobRepository, time: Time
) -> None:
    with Wakeup(jobs) as waiting:
        for _ in range(20_000):
            waiting.wake()
        assert waiting.wait(1000) is True
        assert waiting.wait(1000) is False


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set as soon as somebody is about to wait for good."""
    about_to = threading.Event()

    class Telling(DefaultSelector):
        def select(self, timeout: float | None = None) -> Any:
            about_to.set()
            return super().select(timeout)

    monkeypatch.setattr(wakeup, "DefaultSelector", Telling)
    return about_to


@pytest.mark.parametrize("how", ["wake", "close"])
def test_another_thread_ends_a_wait(jobs: JobRepository, waits: threading.Event, how: str) -> None:
    with Wakeup(jobs) as waiting, ThreadPoolExecutor(1) as threads:
        answer = threads.submit(waiting.wait, LONG_MS)
        assert waits.wait(LONGEST_WAIT_S)
        getattr(waiting, how)()
        assert answer.result(LONGEST_WAIT_S) is True


def test_a_signal_handler_ends_the_wait_that_it_interrupts(
    jobs: JobRepository, waits: threading.Event
) -> None:
    main, ended = threading.main_thread().ident, threading.Event()
    assert main is not None

    def send() -> None:
        assert waits.wait(LONGEST_WAIT_S)
        # More than once: one that comes between Python's last look for signals and the system call
        # interrupts nothing.
        while not ended.wait(0.001):
            signal.pthread_kill(main, signal.SIGUSR1)

    with Wakeup(jobs) as waiting:
        before = signal.signal(signal.SIGUSR1, lambda *_: waiting.wake())
        try:
            with ThreadPoolExecutor(1) as threads:
                sent = threads.submit(send)
                answer = waiting.wait(LONG_MS)
                ended.set()
                sent.result()
        finally:
            signal.signal(signal.SIGUSR1, before)
    assert answer is True


def test_an_error_of_a_signal_handler_ends_the_wait_and_the_next_one_works(
    jobs: JobRepository, time: Time
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with Wakeup(jobs, draw=lambda: 0) as waiting:
        time.meanwhile = interrupt
        with pytest.raises(KeyboardInterrupt):
            waiting.wait(1000)
        time.meanwhile = lambda: None
        assert waiting.wait(1000) is False


def test_only_one_waits_at_a_time(jobs: JobRepository, waits: threading.Event) -> None:
    with Wakeup(jobs) as waiting, ThreadPoolExecutor(1) as threads:
        answer = threads.submit(waiting.wait, LONG_MS)
        assert waits.wait(LONGEST_WAIT_S)
        with pytest.raises(RuntimeError, match=r"another thread is waiting.*a Wakeup of its own"):
            waiting.wait(1)
        waiting.wake()
        assert answer.result(LONGEST_WAIT_S) is True


# Closed


def test_closed_it_waits_no_more_and_may_be_woken_and_closed_again(jobs: JobRepository) -> None:
    waiting = Wakeup(jobs)
    waiting.close()
    waiting.close()
    waiting.wake()
    with pytest.raises(ValueError, match="closed; make a new one"):
        waiting.wait(1)


# What is given


@pytest.mark.parametrize("timeout_ms", [-1, 86_400_001, True, 1.0, "1", None])
def test_a_bad_timeout_is_refused(jobs: JobRepository, timeout_ms: Any) -> None:
    with Wakeup(jobs) as waiting, pytest.raises(ValueError, match="timeout_ms: expected int from"):
        waiting.wait(timeout_ms)


@pytest.mark.parametrize("listen", [1, 0, None, "yes"])
def test_listen_is_yes_or_no(jobs: JobRepository, listen: Any) -> None:
    with pytest.raises(ValueError, match="listen: expected True or False"):
        Wakeup(jobs, listen=listen)


def test_what_draws_can_be_called(jobs: JobRepository) -> None:
    with pytest.raises(ValueError, match="draw: expected a callable"):
        Wakeup(jobs, draw=0.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("notify", [1, 0, None, "yes"])
def test_notify_is_yes_or_no(notify: Any) -> None:
    with pytest.raises(ValueError, match="notify: expected True or False"):
        JobRepository(create_engine("sqlite://"), notify=notify)


@pytest.mark.parametrize("repository", [None, create_engine("sqlite://"), Job, "jobs"])
def test_something_else_than_a_repository_is_refused(repository: Any) -> None:
    with pytest.raises(ValueError, match="repository: expected a JobRepository"):
        Wakeup(repository)


def test_the_verbs_of_a_transaction_are_no_queue_to_wait_for(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{make_file(tmp_path / 'queue.db')}")
    with engine.begin() as connection:
        enlisted: Any = JobRepository(engine).within(connection)
        with pytest.raises(ValueError, match="got EnlistedRepository"):
            Wakeup(enlisted)
    engine.dispose()


# Who cannot be heard is polled


def nowhere(driver: str) -> Engine:
    return create_engine(f"postgresql+{driver}://nobody@localhost:1/nowhere")


@pytest.mark.parametrize(
    ("engine", "listen"),
    [
        (create_engine("sqlite://"), True),
        (create_async_engine("postgresql+asyncpg://nobody@localhost:1/nowhere").sync_engine, True),
        (create_async_engine("postgresql+psycopg://nobody@localhost:1/nowhere").sync_engine, True),
        (nowhere("psycopg"), False),
        (nowhere("psycopg2"), False),
    ],
    ids=["sqlite", "asyncpg", "psycopg-async", "psycopg-unasked", "psycopg2-unasked"],
)
def test_where_nothing_can_be_heard_or_shall_be_it_polls_without_the_database(
    engine: Engine, listen: bool, time: Time
) -> None:
    asked: list[object] = []
    event.listen(engine, "do_connect", lambda *given: asked.append(given))
    with Wakeup(JobRepository(engine), listen=listen, draw=lambda: 0) as waiting:
        assert waiting.wait(1000) is False
        assert waiting.wait(1000) is False
    assert time.waits == [1000, 1000]
    assert asked == []


def test_an_asynchronous_repository_is_polled(time: Time) -> None:
    engine = create_async_engine("postgresql+asyncpg://nobody@localhost:1/nowhere")
    with Wakeup(AsyncJobRepository(engine), listen=True) as waiting:
        assert waiting.wait(1000) is False
        waiting.wake()
        assert waiting.wait(1000) is True


# A connection that breaks


class Server:
    """One that is there, or not, and says what the test makes it say."""

    def __init__(self) -> None:
        self.away: Exception | None = None
        self.connected_at: list[int] = []
        self.asked_at: list[int] = []
        self.open: list[Line] = []


class Line:
    def __init__(self, channel: str, server: Server) -> None:
        self.server = server
        self.ours, self._theirs = socket.socketpair()
        self.ours.setblocking(False)
        server.open.append(self)

    def fileno(self) -> int:
        return self.ours.fileno()

    def say(self) -> None:
        self._theirs.send(b"!")

    def hang_up(self) -> None:
        self._theirs.close()

    def came(self) -> bool:
        try:
            said = self.ours.recv(100)
        except BlockingIOError:
            return False
        if not said:
            raise ConnectionError("hung up")
        # Not all that is said is a notice.
        return said == b"!"

    def close(self) -> None:
        self.server.open.remove(self)
        self.ours.close()
        self._theirs.close()


@pytest.fixture
def log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> pytest.LogCaptureFixture:
    """What is logged, also where a stock env.py of some other test has silenced every logger."""
    monkeypatch.setattr(logging.getLogger("leasestore.listening"), "disabled", False)
    caplog.set_level(logging.INFO, "leasestore.listening")
    return caplog


class AtOnce:
    """A thread that has run when it is started."""

    def __init__(self, target: Callable[[], object], **_: object) -> None:
        self.start = target


@pytest.fixture
def server(time: Time, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    server = Server()

    def connect(_: Engine) -> Server:
        server.asked_at.append(time.now_ms)
        if server.away is not None:
            raise server.away
        server.connected_at.append(time.now_ms)
        return server

    monkeypatch.setattr(listening, "outside_the_pool", connect)
    monkeypatch.setattr(listening, "Thread", AtOnce)
    monkeypatch.setitem(postgresql._NOTICES, "psycopg", Line)
    yield server
    assert server.open == []


@pytest.fixture
def listener(server: Server) -> Iterator[Wakeup]:
    with Wakeup(JobRepository(nowhere("psycopg")), listen=True, draw=lambda: 0) as waiting:
        yield waiting


def test_it_listens_from_the_first_wait_on_which_answers_at_once(
    listener: Wakeup, server: Server, time: Time
) -> None:
    assert server.asked_at == []
    assert listener.wait(1000) is True
    assert listener.wait(1000) is False
    assert len(server.open) == 1
    server.open[0].say()
    assert listener.wait(1000) is True
    assert listener.wait(1000) is False
    assert time.waits == [1000, 1000]


def test_while_it_listens_it_can_be_woken(listener: Wakeup, time: Time) -> None:
    assert listener.wait(1000) is True
    time.meanwhile = listener.wake
    assert listener.wait(1000) is True
    assert time.waits == []


def test_what_is_said_that_is_no_notice_ends_no_wait(
    listener: Wakeup, server: Server, time: Time
) -> None:
    assert listener.wait(1000) is True
    said: list[object] = []

    def chatter() -> None:
        if len(said) < 3:
            said.append(server.open[0]._theirs.send(b"?"))

    time.meanwhile = chatter
    assert listener.wait(1000) is False
    assert len(said) == 3
    assert time.waits == [1000]


def test_a_connection_that_is_lost_within_a_wait_is_made_again(
    listener: Wakeup, server: Server, time: Time, log: pytest.LogCaptureFixture
) -> None:
    assert listener.wait(10_000) is True
    lost = server.open[0]
    lost.hang_up()
    assert listener.wait(10_000) is True
    assert server.open != [lost]
    assert time.waits == [100], "after a pause, so that not all come back in one instant"
    assert [record.levelname for record in log.records] == ["INFO", "WARNING", "INFO"]
    assert "polling until it is possible again: hung up" in log.text


def test_while_the_server_is_away_it_polls_and_asks_again_less_and_less_often(
    listener: Wakeup, server: Server, time: Time, log: pytest.LogCaptureFixture
) -> None:
    server.away = OSError("connection refused")
    began = time.now_ms
    for _ in range(300):
        assert listener.wait(1000) is False
    assert time.now_ms == began + 300_000, "each wait takes its time and no more"
    asked = [moment - began for moment in server.asked_at]
    assert asked[:9] == [0, 100, 300, 700, 1500, 3100, 6300, 12700, 25500]
    assert {later - earlier for earlier, later in pairwise(asked[9:])} == {30_000}
    assert len(log.records) == 1, "one outage is one warning"


def test_the_pauses_are_jittered_too(server: Server, time: Time) -> None:
    server.away = OSError("connection refused")
    began = time.now_ms
    with Wakeup(JobRepository(nowhere("psycopg")), listen=True, draw=lambda: 1) as waiting:
        assert waiting.wait(1000) is False
    assert [moment - began for moment in server.asked_at] == [0, 50, 150, 350]


def test_in_the_end_it_listens_again_and_starts_over_with_short_pauses(
    listener: Wakeup, server: Server, time: Time
) -> None:
    server.away = OSError("connection refused")
    assert listener.wait(20_000) is False
    server.away = None
    assert listener.wait(20_000) is True
    assert listener.wait(1000) is False
    server.open[0].hang_up()
    time.waits.clear()
    assert listener.wait(20_000) is True
    assert time.waits == [100]


def test_a_server_that_takes_connections_only_to_drop_them_is_asked_less_and_less_often(
    listener: Wakeup, server: Server, time: Time
) -> None:
    began = time.now_ms
    for _ in range(6):
        assert listener.wait(60_000) is True
        server.open[0].hang_up()
    assert [moment - began for moment in server.connected_at] == [0, 100, 300, 700, 1500, 3100]


def test_it_can_be_woken_while_the_server_is_away(
    listener: Wakeup, server: Server, time: Time
) -> None:
    server.away = OSError("connection refused")
    time.meanwhile = listener.wake
    assert listener.wait(1000) is True


def test_a_connection_that_does_not_even_close_is_left_alone(
    listener: Wakeup, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert listener.wait(1000) is True
    (broken,) = server.open

    def fail() -> None:
        raise OSError("no")

    with monkeypatch.context() as patched:
        patched.setattr(broken, "close", fail)
        broken.hang_up()
        assert listener.wait(1000) is True
    broken.close()


# A connection that does not come


class Tardy:
    """A server that lets those who connect wait until it is told to answer."""

    def __init__(self) -> None:
        self.asked, self.answer = threading.Event(), threading.Event()
        self.refusal: Exception | None = None
        self.closed = threading.Event()

    def connect(self, _: Engine) -> Tardy:
        self.asked.set()
        assert self.answer.wait(LONGEST_WAIT_S)
        if self.refusal is not None:
            raise self.refusal
        return self

    def came(self) -> bool:
        return False

    def fileno(self) -> int:
        raise AssertionError("nobody waits for this one")

    def close(self) -> None:
        self.closed.set()


@pytest.fixture
def tardy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Tardy]:
    server = Tardy()
    monkeypatch.setattr(listening, "outside_the_pool", server.connect)
    monkeypatch.setitem(postgresql._NOTICES, "psycopg", lambda _, driver: driver)
    yield server
    server.answer.set()
    for thread in threading.enumerate():
        if thread.name == "leasestore-listen":
            thread.join(LONGEST_WAIT_S)


def test_a_server_that_does_not_answer_holds_no_wait_up(
    tardy: Tardy, waits: threading.Event
) -> None:
    with Wakeup(JobRepository(nowhere("psycopg")), listen=True) as waiting:
        assert waiting.wait(2) is False
        assert tardy.asked.is_set()
        assert waiting.wait(0) is False
        waits.clear()
        with ThreadPoolExecutor(1) as threads:
            answer = threads.submit(waiting.wait, LONG_MS)
            assert waits.wait(LONGEST_WAIT_S)
            waiting.wake()
            assert answer.result(LONGEST_WAIT_S) is True
        tardy.answer.set()
        assert waiting.wait(LONG_MS) is True, "now it listens"
    assert tardy.closed.is_set()


@pytest.mark.parametrize("refusal", [None, OSError("no")])
def test_closed_before_the_answer_came_it_closes_the_connection_that_comes(
    tardy: Tardy, refusal: Exception | None
) -> None:
    with Wakeup(JobRepository(nowhere("psycopg")), listen=True) as waiting:
        assert waiting.wait(0) is False
        assert tardy.asked.wait(LONGEST_WAIT_S)
    tardy.refusal = refusal
    (connecting,) = (t for t in threading.enumerate() if t.name == "leasestore-listen")
    assert connecting.daemon
    tardy.answer.set()
    connecting.join(LONGEST_WAIT_S)
    assert tardy.closed.is_set() == (refusal is None)


def test_closed_after_the_answer_came_and_before_it_was_heard_it_closes_the_connection(
    tardy: Tardy,
) -> None:
    tardy.answer.set()
    with Wakeup(JobRepository(nowhere("psycopg")), listen=True) as waiting:
        waiting.wake()
        assert waiting.wait(0) is True
        assert not tardy.asked.is_set(), "woken, it has not even looked"
        assert waiting._ear is not None
        waiting._ear.heard()
        for thread in threading.enumerate():
            if thread.name == "leasestore-listen":
                thread.join(LONGEST_WAIT_S)
    assert tardy.closed.is_set()


def test_without_a_thread_to_connect_in_it_polls(
    time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(listening, "Thread", lambda **_: SimpleNamespace(start=refuse))
    with Wakeup(JobRepository(nowhere("psycopg")), listen=True) as waiting:
        assert waiting.wait(1000) is False


def test_no_listening_connection_is_left_by_a_listen_that_fails() -> None:
    closed: list[bool] = []
    driver = SimpleNamespace(autocommit=False, close=lambda: closed.append(True))
    with pytest.raises(AttributeError):
        postgresql._PsycopgNotices("leasestore_x", driver)
    assert driver.autocommit is True
    assert closed == [True]


# Channels


def channel(name: str, schema: str | None = None, bind: Engine | Connection | None = None) -> str:
    bind = bind or nowhere("psycopg")
    return postgresql._channel(bind, Table(name, MetaData(), schema=schema))


def test_each_table_has_a_channel_of_its_own_that_postgresql_takes() -> None:
    tables = [
        ("jobs", None),
        ("Jobs", None),
        ("deliveries", None),
        ("jobs", "public"),
        ("jobs", "a"),
        ("b.jobs", "a"),
        ("jobs", "a.b"),
        ("a.jobs", None),
        ('", "', "a"),
        ("x" * 63, "s" * 63),
        ("x" * 62, "s" * 63),
        ("ö" * 63, None),
    ]
    channels = [channel(*table) for table in tables]
    assert len(set(channels)) == len(tables)
    for name in channels:
        assert len(name.encode()) <= 63, name
        assert name.isascii(), name
        assert name.isidentifier(), name
        assert name == name.lower()


def test_a_channel_is_the_same_in_every_process() -> None:
    assert channel("jobs") == "leasestore_6265bbb3ea7e7caa4b225741c53f64ea21cfb649"


def test_a_schema_that_is_translated_is_the_one_that_counts() -> None:
    tenant = nowhere("psycopg").execution_options(schema_translate_map={None: "tenant"})
    assert channel("jobs", bind=tenant) == channel("jobs", "tenant")
    assert channel("jobs", "shop", bind=tenant) == channel("jobs", "shop")


# A fork

FORKS = """
import os, sys
from sqlalchemy import create_engine
from leasestore import JobRepository, Wakeup
parents = Wakeup(JobRepository(create_engine("sqlite://")), listen=True)
closed = Wakeup(JobRepository(create_engine("sqlite://")))
closed.close()
parents.wake()
child = os.fork()
if child == 0:
    assert parents.wait(1) is False, "the parent's wake"
    parents.wake()
    parents.wake()
    assert parents.wait(60_000) is True
    parents.wake()
    parents.close()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert parents.wait(60_000) is True
assert parents.wait(1) is False, "the child's wake"
parents.close()
"""


def test_a_forked_child_and_its_parent_wake_only_themselves() -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", FORKS], check=True, cwd=ROOT, timeout=60)
