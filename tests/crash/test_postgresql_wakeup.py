"""Those who listen on a PostgreSQL server, and other processes: one that enqueues, one that was
forked, one that is told to stop; a server that is restarted, away, or stands still; a pooler."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from selectors import DefaultSelector
from typing import Any

import psycopg
import pytest
from sqlalchemy import URL, Engine, create_engine

import leasestore.wakeup
from leasestore import JobRepository, Wakeup
from tests.crash.children import LONGEST_WAIT_S
from tests.crash.postgresql_server import (
    OwnServer,
    own_server,
    pooler_version,
    transaction_pooler,
)
from tests.postgresql import libpq

pytestmark = pytest.mark.crash

ROOT = Path(__file__).parents[2]
LONG_MS = 60_000
NOW = 100
LISTENING = (
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN %'"
)


@pytest.fixture(scope="module")
def server() -> Iterator[OwnServer]:
    with own_server() as server:
        yield server


@pytest.fixture
def url(server: OwnServer) -> URL:
    return server.fresh()


@pytest.fixture(params=["psycopg", "psycopg2"])
def engine(request: pytest.FixtureRequest, url: URL) -> Iterator[Engine]:
    engine = create_engine(url.set(drivername=f"postgresql+{request.param}"))
    yield engine
    engine.dispose()


@pytest.fixture
def log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> pytest.LogCaptureFixture:
    """What is logged, also where a stock env.py of some other test has silenced every logger."""
    monkeypatch.setattr(logging.getLogger("leasestore.listening"), "disabled", False)
    caplog.set_level(logging.INFO, "leasestore.listening")
    return caplog


@contextmanager
def listening(engine: Engine) -> Iterator[Wakeup]:
    """After the first wait, which has made the connection."""
    with Wakeup(JobRepository(engine), listen=True) as wakeup:
        assert wakeup.wait(LONG_MS) is True
        assert wakeup.wait(0) is False
        yield wakeup


def enqueue(engine: Engine, job_id: str) -> None:
    """By a connection that has not met what happened to the server."""
    engine.dispose()
    JobRepository(engine, notify=True).enqueue({"id": job_id, "qty": 1}, NOW, 1000)


def listeners(url: URL) -> list[int]:
    with psycopg.connect(libpq(url)) as plain:
        return [pid for (pid,) in plain.execute(LISTENING).fetchall()]


def run(script: str, url: URL) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, url.render_as_string(hide_password=False)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


ENQUEUES = """
import sys
from sqlalchemy import create_engine
from leasestore import JobRepository
jobs = JobRepository(create_engine(sys.argv[1]), notify=True)
with jobs._bind.connect() as connection:
    with connection.begin() as transaction:
        jobs.within(connection).enqueue({"id": "undone", "qty": 1}, 100, 1000)
        transaction.rollback()
jobs.enqueue({"id": "from-afar", "qty": 1}, 100, 1000)
"""


def test_a_process_hears_what_another_one_commits_and_finds_the_job(engine: Engine) -> None:
    with listening(engine) as wakeup, ThreadPoolExecutor(1) as threads:
        answer = threads.submit(wakeup.wait, LONG_MS)
        with run(ENQUEUES, engine.url) as other:
            assert other.wait(LONGEST_WAIT_S) == 0
        assert answer.result(LONGEST_WAIT_S) is True
        ticket = JobRepository(engine).claim("me", NOW)
        assert ticket is not None
        assert ticket["id"] == "from-afar"
        assert wakeup.wait(0) is False


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_restart_within_a_wait_ends_it_once_the_server_is_back(
    server: OwnServer, engine: Engine, mode: str
) -> None:
    with listening(engine) as wakeup, ThreadPoolExecutor(1) as threads:
        answer = threads.submit(wakeup.wait, LONG_MS)
        server.restart(mode)
        assert answer.result(LONGEST_WAIT_S) is True
        assert wakeup.wait(0) is False
        enqueue(engine, "after-it")
        assert wakeup.wait(LONG_MS) is True


def test_while_the_server_is_away_a_wait_polls_and_can_be_woken(
    server: OwnServer, engine: Engine, log: pytest.LogCaptureFixture
) -> None:
    with listening(engine) as wakeup:
        server.stop()
        try:
            for _ in range(5):
                assert wakeup.wait(200) is False
            wakeup.wake()
            assert wakeup.wait(LONG_MS) is True
        finally:
            server.restart("immediate")
        assert wakeup.wait(LONG_MS) is True
        enqueue(engine, "after-it")
        assert wakeup.wait(LONG_MS) is True
    said = [record.levelname for record in log.records]
    assert said == ["INFO", "WARNING", "INFO"], log.text


def test_a_server_process_that_stands_still_holds_no_wait_up(engine: Engine, url: URL) -> None:
    with listening(engine) as wakeup:
        (pid,) = listeners(url)
        os.kill(pid, signal.SIGSTOP)
        try:
            enqueue(engine, "unheard")
            assert wakeup.wait(50) is False
        finally:
            os.kill(pid, signal.SIGCONT)
        assert wakeup.wait(LONG_MS) is True


FORKS = """
import os, sys
from sqlalchemy import create_engine
from leasestore import JobRepository, Wakeup
engine = create_engine(sys.argv[1])
jobs = JobRepository(engine, notify=True)
wakeup = Wakeup(jobs, listen=True)
assert wakeup.wait(60_000) is True
assert wakeup.wait(0) is False
child = os.fork()
if child == 0:
    assert wakeup.wait(60_000) is True, "connected anew"
    assert wakeup.wait(0) is False
    jobs.enqueue({"id": "of-the-child", "qty": 1}, 100, 1000)
    assert wakeup.wait(60_000) is True
    wakeup.close()
    engine.dispose()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert wakeup.wait(60_000) is True
assert wakeup.wait(0) is False, "it was not connected anew"
jobs.enqueue({"id": "of-the-parent", "qty": 1}, 100, 1000)
assert wakeup.wait(60_000) is True
wakeup.close()
engine.dispose()
"""


def test_a_forked_child_leaves_its_parents_connection_alone(engine: Engine) -> None:
    with run(FORKS, engine.url) as parent:
        assert parent.wait(LONGEST_WAIT_S) == 0


FORKS_AMID = """
import os, socket, sys
from sqlalchemy import create_engine
from leasestore import JobRepository, Wakeup
mute = socket.create_server(("127.0.0.1", 0))
mute.settimeout(30)
address = f"postgresql+psycopg://nobody@127.0.0.1:{mute.getsockname()[1]}/nothing"
wakeup = Wakeup(JobRepository(create_engine(address)), listen=True)
assert wakeup.wait(0) is False
parents, _ = mute.accept()
child = os.fork()
if child == 0:
    wakeup.wake()
    assert wakeup.wait(60_000) is True
    assert wakeup.wait(0) is False
    childs, _ = mute.accept()
    wakeup.close()
    childs.close()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert wakeup.wait(0) is False
wakeup.close()
parents.close()
mute.close()
"""


def test_a_child_forked_while_its_parent_connects_connects_for_itself() -> None:
    # Newer Pythons warn of every fork beside a thread.
    quiet = ("-W", "error", "-W", "ignore::DeprecationWarning")
    subprocess.run([sys.executable, *quiet, "-c", FORKS_AMID], check=True, cwd=ROOT, timeout=60)


STOPS = """
import signal, sys
from sqlalchemy import create_engine
from leasestore import JobRepository, Wakeup
with Wakeup(JobRepository(create_engine(sys.argv[1])), listen=True) as wakeup:
    stopped = []
    def stop(*_):
        stopped.append(True)
        wakeup.wake()
    signal.signal(signal.SIGTERM, stop)
    assert wakeup.wait(60_000) is True
    print("waits", flush=True)
    while not stopped:
        wakeup.wait(5_000)
print("stopped", flush=True)
"""


def test_a_process_that_waits_stops_when_it_is_told_to(engine: Engine) -> None:
    with run(STOPS, engine.url) as waiting:
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == "waits\n"
        waiting.send_signal(signal.SIGTERM)
        assert waiting.stdout.readline() == "stopped\n"
        assert waiting.wait(LONGEST_WAIT_S) == 0


@pytest.mark.skipif(pooler_version() is None, reason="pgbouncer is not installed")
def test_behind_a_transaction_pooler_it_polls_and_another_engine_hears(
    server: OwnServer, url: URL
) -> None:
    direct = create_engine(url)
    with transaction_pooler(server, url) as pooled_url:
        pooled = create_engine(pooled_url)
        jobs = JobRepository(pooled, notify=True)
        with listening(pooled) as deaf, listening(direct) as wakeup:
            for number in range(5):
                jobs.enqueue({"id": f"job-{number}", "qty": 1}, NOW, 1000)
                assert wakeup.wait(LONG_MS) is True
                assert deaf.wait(10) is False
                ticket = jobs.claim("me", NOW)
                assert ticket is not None
                assert jobs.finish(ticket, "ok", NOW) == "done"
        pooled.dispose()
    direct.dispose()


def test_an_idle_wait_asks_nothing_of_the_server_and_does_not_spin(
    engine: Engine, url: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    selected: list[float | None] = []

    class Counting(DefaultSelector):
        def select(self, timeout: float | None = None) -> Any:
            selected.append(timeout)
            return super().select(timeout)

    monkeypatch.setattr(leasestore.wakeup, "DefaultSelector", Counting)
    with listening(engine) as wakeup, psycopg.connect(libpq(url), autocommit=True) as plain:
        asked = "SELECT state_change FROM pg_stat_activity WHERE query LIKE 'LISTEN %'"
        before = plain.execute(asked).fetchall()
        selected.clear()
        assert wakeup.wait(300) is False
        assert plain.execute(asked).fetchall() == before
    assert len(selected) <= 3, selected


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_a_host_that_takes_connections_and_says_nothing_holds_nobody_up(driver: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        engine = create_engine(f"postgresql+{driver}://nobody@127.0.0.1:{port}/nothing")
        with Wakeup(JobRepository(engine), listen=True) as wakeup:
            assert wakeup.wait(20) is False
            taken, _ = mute.accept()
            assert wakeup.wait(20) is False
            wakeup.wake()
            assert wakeup.wait(LONG_MS) is True
        (connecting,) = (t for t in threading.enumerate() if t.name == "leasestore-listen")
        taken.close()
    connecting.join(LONGEST_WAIT_S)
    assert not connecting.is_alive()
