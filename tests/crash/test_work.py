"""`leasestore work` and `leasestore watch` as processes of their own: signals, and how they end.

The handler tells the test where it is, and waits until the test lets it go on.
"""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

import leasestore
from leasestore import JobRepository, open_queue, system_clock
from tests.postgresql import Server
from tests.support import rows

pytestmark = pytest.mark.crash

LONGEST_S = 30
APPLICATION = """
import os, socket, threading

def ask(what):
    with socket.create_connection(("127.0.0.1", int(os.environ["TEST_PORT"]))) as test:
        test.sendall(what.encode())
        return test.recv(100)

def send(event):
    return ask(event["id"]) == b"ok"

def send_and_leave_a_thread(event):
    threading.Thread(target=ask, args=("thread",), daemon=False).start()
    return send(event)
"""


class Handlers:
    """The handlers of all the workers, from the test's side."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.settimeout(LONGEST_S)
        self.port = self._listening.getsockname()[1]
        self._asking: list[socket.socket] = []

    def hear(self) -> str:
        """What the next handler says, which waits from then on."""
        asking, _ = self._listening.accept()
        self._asking.append(asking)
        return asking.recv(100).decode()

    def answer(self) -> None:
        asking = self._asking.pop()
        asking.sendall(b"ok")
        asking.close()

    def close(self) -> None:
        for asking in self._asking:
            asking.close()
        self._listening.close()


class Command:
    """`leasestore ...` with its lines of JSON."""

    def __init__(self, port: int, *arguments: str) -> None:
        source = str(Path(leasestore.__file__).parents[1])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "leasestore.cli", *arguments, "--json"],
            env=os.environ | {"PYTHONPATH": source, "TEST_PORT": str(port)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def hear(self, event: str) -> dict[str, Any]:
        """Read on until this event is told."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            told: dict[str, Any] = json.loads(line)
            if told.get("event") == event:
                return told
        raise AssertionError(f"waited in vain for {event!r}: {self.process.communicate()}")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        _, errors = self.process.communicate(timeout=LONGEST_S)
        assert errors == ""
        return self.process.returncode

    def discard(self) -> None:
        self.process.kill()
        self.process.communicate()


Start = Callable[..., Command]


@pytest.fixture
def test() -> Iterator[Handlers]:
    test = Handlers()
    yield test
    test.close()


@pytest.fixture
def start(test: Handlers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts commands in a directory with the application and a queue of three jobs."""
    monkeypatch.chdir(tmp_path)
    Path("shop.py").write_text(APPLICATION)
    with open_queue("queue.db") as queue:
        for number in range(3):
            queue.enqueue({"id": f"job-{number}", "qty": 1}, system_clock, 60_000)
    started: list[Command] = []

    def start_one(*arguments: str, db: str = "queue.db") -> Command:
        started.append(Command(test.port, *arguments, "--db", db))
        return started[-1]

    yield start_one
    for command in started:
        command.discard()


def statuses() -> list[str]:
    return [row["status"] for row in rows(Path("queue.db"))]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_during_a_job_waits_for_it(start: Start, test: Handlers, number: int) -> None:
    worker = start("work", "shop:send")
    assert test.hear() == "job-0"
    worker.signal(number)
    worker.hear("stopping")
    test.answer()
    assert worker.hear("done")["job_id"] == "job-0"
    assert worker.hear("ended").items() >= {"ended": "stopped", "done": 1}.items()
    assert worker.end() == 0
    assert statuses() == ["done", "pending", "pending"]


def test_a_signal_while_idle_ends_it(start: Start, test: Handlers) -> None:
    worker = start("work", "shop:send", "--poll-ms", "3600000")
    for _ in range(3):
        test.hear()
        test.answer()
        worker.hear("done")
    worker.signal(signal.SIGTERM)
    assert worker.hear("ended")["ended"] == "stopped"
    assert worker.end() == 0


def test_a_second_signal_does_not_wait(start: Start, test: Handlers) -> None:
    worker = start("work", "shop:send")
    test.hear()
    worker.signal(signal.SIGINT)
    worker.hear("stopping")
    worker.signal(signal.SIGTERM)
    assert worker.hear("abandoned")["job_id"] == "job-0"
    assert worker.hear("ended").items() >= {"ended": "forced", "running": 1}.items()
    assert worker.end() == 4
    assert statuses() == ["leased", "pending", "pending"]


def test_when_the_grace_is_over_it_ends_whatever_a_handler_has_left(
    start: Start, test: Handlers
) -> None:
    worker = start("work", "shop:send_and_leave_a_thread", "--grace-ms", "1")
    assert {test.hear(), test.hear()} == {"job-0", "thread"}
    worker.signal(signal.SIGTERM)
    assert worker.hear("ended")["ended"] == "late"
    assert worker.end() == 3


def test_a_killed_workers_job_is_found_by_a_watcher_and_done_by_the_next(
    start: Start, test: Handlers
) -> None:
    worker = start("work", "shop:send", "--owner", "ann", "--lease-ms", "300")
    test.hear()
    worker.signal(signal.SIGKILL)
    assert worker.end() == -signal.SIGKILL
    watcher = start("watch", "--every-ms", "50")
    stuck = watcher.hear("stuck")
    assert stuck.items() >= {"job_id": "job-0", "owner": "ann", "token": 1}.items()
    watcher.signal(signal.SIGTERM)
    watcher.hear("ended")
    assert watcher.end() == 0
    worker = start("work", "shop:send", "--once")
    assert test.hear() == "job-0"
    test.answer()
    assert worker.hear("done")["token"] == 2
    assert worker.end() == 0


def test_of_two_watchers_at_once_each_job_is_told_by_one(start: Start) -> None:
    jobs = [f"lost-{number}" for number in range(250)]
    gone = [(job, "leased", 1, 1, 0, 9 * 10**14, "gone", 1) for job in jobs]
    with closing(sqlite3.connect("queue.db")) as plain, plain:
        plain.executemany(
            "INSERT INTO jobs (id, qty, status, attempts, max_attempts, token, available_at, "
            "deadline, owner, lease_until) VALUES (?, 1, ?, ?, 3, ?, ?, ?, ?, ?)",
            gone,
        )
    told: list[str] = []
    for watcher in [start("watch", "--once") for _ in range(2)]:
        output, errors = watcher.process.communicate(timeout=LONGEST_S)
        assert (watcher.process.returncode, errors) == (0, "")
        lines = [json.loads(line) for line in output.splitlines()]
        told += [line["job_id"] for line in lines if line["event"] == "stuck"]
    assert sorted(told) == sorted(jobs)


def test_nobody_reads_what_it_tells(start: Start, test: Handlers) -> None:
    worker = start("work", "shop:send", "--until-empty")
    test.hear()
    assert worker.process.stdout is not None
    worker.process.stdout.close()
    for _ in range(2):
        test.answer()
        test.hear()
    test.answer()
    assert worker.process.wait(LONGEST_S) == 0
    assert worker.process.stderr is not None
    assert worker.process.stderr.read() == ""
    assert statuses() == ["done"] * 3


def test_on_a_terminal_it_shows_where_it_is(start: Start, test: Handlers) -> None:
    ours, theirs = pty.openpty()
    with closing(os.fdopen(ours, "rb", buffering=0)) as terminal:
        source = str(Path(leasestore.__file__).parents[1])
        process = subprocess.Popen(
            [sys.executable, "-m", "leasestore.cli", "work", "shop:send", "--db", "queue.db"],
            env=os.environ
            | {"PYTHONPATH": source, "TEST_PORT": str(test.port), "TERM": "xterm", "COLUMNS": "80"},
            stderr=theirs,
        )
        os.close(theirs)
        shown = b""
        assert test.hear() == "job-0"
        while b"running 1: job-0" not in shown:
            shown += terminal.read(1000)
        test.answer()
        assert test.hear() == "job-1"
        process.send_signal(signal.SIGTERM)
        test.answer()
        # On Linux, the end of a terminal is an error.
        with suppress(OSError):
            while more := terminal.read(1000):
                shown += more
        assert process.wait(LONGEST_S) == 0
    assert b"job job-0 (token 1, attempt 1): done\r\n" in shown
    assert b"done 1, retried 0, dead 0; running 1: job-1" in shown


def test_on_postgresql_a_worker_that_listens_begins_at_once(
    postgresql: Server, start: Start, test: Handlers
) -> None:
    url = postgresql.fresh()
    engine = create_engine(url)
    jobs = JobRepository(engine, notify=True)
    address = url.render_as_string(hide_password=False)
    worker = start("work", "shop:send", "--listen", "--poll-ms", "3600000", db=address)
    worker.hear("started")
    for number in range(3):
        # It may be on its way to sleep; and once asleep, only a notice wakes it.
        jobs.enqueue({"id": f"job-{number}", "qty": 1}, system_clock, 60_000)
        assert test.hear() == f"job-{number}"
        test.answer()
        worker.hear("done")
    worker.signal(signal.SIGTERM)
    assert worker.hear("ended")["done"] == 3
    assert worker.end() == 0
    engine.dispose()
