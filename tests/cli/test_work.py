"""`leasestore work` and `leasestore watch`, in this process: what they take, tell, and end with."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from leasestore import Watcher, Worked, Worker, open_queue, system_clock
from leasestore.cli.signals import interruptible
from tests.cli.conftest import Run, Written
from tests.postgresql import Server
from tests.support import rows

APPLICATION = """
import os, signal
from sqlalchemy import create_engine
from leasestore import JobRepository, Limits, Permanent, Retryable

def send(event):
    return True

def fail(event):
    raise {"job-0": Retryable("busy"), "job-1": Permanent("no such"), "job-2": KeyError("bug")}[
        event["id"]
    ]

def stop(event):
    os.kill(os.getpid(), signal.SIGTERM)
    return True

jobs = JobRepository(create_engine("sqlite:///queue.db"), limits=Limits(lease_ms=90_000))
def pair(event, more):
    return True

empty = JobRepository(create_engine("sqlite:///empty.db"))
missing = JobRepository(create_engine("sqlite:///missing.db"))
away = JobRepository(create_engine("postgresql+psycopg://shop:SECRET@localhost:1/shop"))
"""


@pytest.fixture(autouse=True)
def application(write: Written) -> None:
    write(APPLICATION)


def told(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


def states(file: Path) -> list[tuple[str, str | None]]:
    return [(row["status"], row["reason"]) for row in rows(file)]


def expire(file: Path, job_id: str = "job-0") -> None:
    with open_queue(file) as queue:
        assert queue.claim("gone", lambda: system_clock() - 10_000, 1000, job_id=job_id)


def test_it_works_until_there_is_nothing_left(run: Run, file: Path) -> None:
    ran = run("work", "shop:send", "--db", file, "--until-empty", "--owner", "ann", "--json")
    assert (ran.exit_code, ran.stderr) == (0, "")
    assert states(file) == [("done", None)] * 3
    lines = told(ran.stdout)
    assert [line["event"] for line in lines] == ["started", "done", "done", "done", "ended"]
    assert [line["job_id"] for line in lines[1:4]] == ["job-0", "job-1", "job-2"]
    assert {line["owner"] for line in lines} == {"ann"}
    assert {line["token"] for line in lines[1:4]} == {1}
    assert lines[-1].items() >= {"done": 3, "retried": 0, "running": 0, "ended": "empty"}.items()


def test_it_works_one_job(run: Run, file: Path) -> None:
    ran = run("work", "shop:send", "--db", f"sqlite:///{file}", "--once")
    assert (ran.exit_code, ran.stdout) == (0, "")
    assert [status for status, _ in states(file)] == ["done", "pending", "pending"]
    assert "INFO    job job-0 (token 1, attempt 1): done" in ran.stderr


def test_colours_in_a_file_bring_no_line_that_changes(
    run: Run, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    ran = run("work", "shop:fail", "--db", file, "--until-empty")
    assert "\x1b[33m" in ran.stderr
    assert "\x1b[?25l" not in ran.stderr
    assert "; running" not in ran.stderr


def test_what_a_function_raises_is_told(run: Run, file: Path) -> None:
    ran = run(
        "work", "shop:fail", "--db", file, "--until-empty", "--unclassified", "leave", "--json"
    )
    lines = {line.get("job_id"): line for line in reversed(told(ran.stdout))}
    assert ran.exit_code == 0
    assert lines["job-0"]["event"] == "retried"
    assert (lines["job-1"]["event"], states(file)[1]) == ("dead", ("dead", "permanent"))
    assert (lines["job-2"]["event"], states(file)[2][0]) == ("left", "leased")
    assert "in fail" in lines["job-2"]["error"]
    assert "KeyError: 'bug'" in lines["job-2"]["error"]


def test_a_signal_stops_it_gracefully(run: Run, file: Path) -> None:
    ran = run("work", "shop:stop", "--db", file, "--json")
    assert ran.exit_code == 0
    assert told(ran.stdout)[-1]["ended"] == "stopped"
    assert [status for status, _ in states(file)] == ["done", "pending", "pending"]


def test_a_repository_of_the_applications(run: Run, file: Path) -> None:
    ran = run(
        *("work", "shop:send", "--queue", "shop:jobs", "--until-empty"),
        *("--lease-ms", "90000", "--concurrency", "2", "--poll-ms", "10", "--grace-ms", "5"),
        *("--max-run-ms", "1000", "--database-clock", "--watch"),
    )
    assert ran.exit_code == 0, ran.output
    assert states(file) == [("done", None)] * 3


def test_who_listens_where_nobody_tells_learns_that_it_only_polls(run: Run, file: Path) -> None:
    ran = run("work", "shop:send", "--db", file, "--once", "--listen", "--json")
    assert ran.exit_code == 0
    only, started, *_ = told(ran.stdout)
    assert (only["event"], only["level"], started["event"]) == ("only-polls", "warning", "started")
    assert only["message"].startswith("--listen: sqlite through pysqlite tells nobody who waits")
    assert "only-polls" not in run("work", "shop:send", "--db", file, "--once", "--json").stdout


def test_a_queue_that_is_named_goes_before_the_environments(
    run: Run, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEASESTORE_DB", "nowhere.db")
    assert run("work", "shop:send", "--queue", "shop:jobs", "--once").exit_code == 0
    assert "there is no file nowhere.db" in run("work", "shop:send", "--once").stderr


def test_the_environment_names_the_database(
    run: Run, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEASESTORE_DB", str(file))
    assert run("work", "shop:send", "--once").exit_code == 0
    assert run("watch", "--once").exit_code == 0


def test_it_hosts_a_watcher(run: Run, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosted: list[object] = []
    original = Worker.__init__

    def note(self: Worker, *arguments: Any, **settings: Any) -> None:
        hosted.append(settings["watcher"])
        original(self, *arguments, **settings)

    monkeypatch.setattr(Worker, "__init__", note)
    for option in ([], ["--watch"]):
        assert run("work", "shop:send", "--db", file, "--once", *option).exit_code == 0
    assert [type(watcher) for watcher in hosted] == [type(None), Watcher]


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The statuses that the process would have ended with, at once."""
    statuses: list[int] = []

    def end(status: int) -> None:
        statuses.append(status)
        raise SystemExit(status)

    monkeypatch.setattr(os, "_exit", end)
    return statuses


@pytest.mark.parametrize(("how", "status"), [("late", 3), ("forced", 4)])
def test_with_jobs_left_running_it_ends_at_once_with_a_status_of_its_own(
    run: Run, file: Path, ended: list[int], monkeypatch: pytest.MonkeyPatch, how: Any, status: int
) -> None:
    monkeypatch.setattr(Worker, "run", lambda *_, **__: Worked(running=1, ended=how))
    assert run("work", "shop:send", "--db", file).exit_code == status
    assert ended == [status]


def test_a_third_signal_does_not_wait_for_the_worker_either(
    run: Run, file: Path, ended: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    stops: list[object] = []

    def never_end(*_: object, **__: object) -> None:
        for _number in range(3):
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Worker, "run", never_end)
    monkeypatch.setattr(Worker, "stop", lambda self: stops.append(self))
    assert run("work", "shop:send", "--db", file).exit_code == 143
    assert len(stops) == 2
    assert ended == [143]


def test_each_signal_first_does_what_is_to_be_done() -> None:
    done: list[str] = []
    with interruptible(lambda: done.append("stop")):
        os.kill(os.getpid(), signal.SIGTERM)
        assert done == ["stop"]


# Watch


def test_a_look_frees_what_is_stuck_and_tells_whose_it_was(run: Run, file: Path) -> None:
    expire(file)
    ran = run("watch", "--db", file, "--once", "--json", "--database-clock")
    assert (ran.exit_code, ran.stderr) == (0, "")
    stuck, looked = told(ran.stdout)
    assert (
        stuck.items()
        >= {
            "level": "warning",
            "logger": "leasestore.watcher",
            "event": "stuck",
            "job_id": "job-0",
            "owner": "gone",
            "token": 1,
            "attempt": 1,
            "qty": 1,
            "status": "pending",
            "reason": "expired",
        }.items()
    )
    assert stuck["overdue_ms"] >= 8000
    assert looked.items() >= {"event": "looked", "recovered": 1, "exhausted": 0}.items()
    assert states(file)[0] == ("pending", "expired")
    again = run("watch", "--queue", "shop:jobs", "--once")
    assert again.stderr.endswith("looked for stuck jobs: recovered 0, deadline 0, exhausted 0\n")


def watching(monkeypatch: pytest.MonkeyPatch, *signals: signal.Signals) -> None:
    """Have the watcher get these instead of a pause."""

    def get_them(self: Watcher, ms: float) -> None:
        assert ms <= 7000
        for number in signals:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(Watcher, "_pause", get_them)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_watches_until_a_signal(
    run: Run, file: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    expire(file)
    watching(monkeypatch, number)
    ran = run("watch", "--db", file, "--every-ms", "7000", "--json")
    assert ran.exit_code == 0, ran.output
    assert [line["event"] for line in told(ran.stdout)] == ["started", "stuck", "ended"]


def test_a_second_signal_ends_it_at_once(
    run: Run, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watching(monkeypatch, signal.SIGTERM, signal.SIGTERM)
    ran = run("watch", "--db", file, "--every-ms", "7000", "--json")
    assert ran.exit_code == 143
    assert [line["event"] for line in told(ran.stdout)] == ["started"]


# What is wrong is told in a line


MAKES = "`leasestore upgrade --db {}`"
OR_QUEUE = "for models of your own give --queue MODULE:ATTRIBUTE"
BAD: dict[str, tuple[str, int, str]] = {
    "no queue": ("work shop:send", 2, "give --db URL, or --queue MODULE:ATTRIBUTE"),
    "two queues": ("work shop:send --db queue.db --queue shop:jobs", 2, "give one of them"),
    "two ends": ("work shop:send --db queue.db --once --until-empty", 2, "give one of them"),
    "no file": ("work shop:send --db missing.db", 1, f"missing.db; {MAKES.format('missing.db')}"),
    "no file of theirs": ("work shop:send --queue shop:missing", 1, "is no file missing.db\n"),
    "nor to watch": ("watch --db missing.db --once", 1, MAKES.format("missing.db")),
    "no tables": ("work shop:send --db empty.db", 1, f"`, makes them; {OR_QUEUE}"),
    "no tables to watch": ("watch --db empty.db", 1, f"`, makes them; {OR_QUEUE}"),
    "no tables of theirs": ("work shop:send --queue shop:empty", 1, "`, makes them\n"),
    "not our tables": ("work shop:send --db other.db", 1, f"under other table names; {OR_QUEUE}"),
    "no database": ("work shop:send --db noise.db", 1, "give the path of a queue file\n"),
    "in memory": ("work shop:send --db sqlite://", 2, "one in memory is gone when the command"),
    "parameters": ("work shop:pair --db queue.db", 2, "can be called with one argument"),
    "bound": ("work shop:send --db queue.db --lease-ms 60001", 2, "lease_ms: expected int from 1"),
    "owner": ("work shop:send --db queue.db --owner a/b", 2, "owner: expected str of 1 to 64"),
    "places": ("work shop:send --db queue.db --concurrency 0", 2, "concurrency: expected int"),
    "pause": ("watch --db queue.db --every-ms 0", 2, "every_ms: expected int from 1 to"),
    "not theirs": ("watch --queue shop:send", 1, "shop:send() failed: TypeError"),
    "host": ("work shop:send --db postgresql+psycopg://u:SECRET@localhost:1/d", 1, "u:***@"),
    "their host": ("work shop:send --queue shop:away", 1, "shop:***@localhost:1/shop: connection"),
    "watched host": ("watch --db postgresql+psycopg://u:SECRET@localhost:1/d", 1, "u:***@"),
    "mysql": ("watch --db mysql://u:SECRET@h/d", 2, "on SQLite and PostgreSQL, not on mysql"),
    "postgres": ("watch --db postgres://u:SECRET@h/d", 2, "write postgresql:// for postgres://"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_told_and_nothing_is_made(case: str, run: Run, file: Path) -> None:
    line, status, expected = BAD[case]
    Path("empty.db").touch()
    Path("noise.db").write_bytes(b"noise" * 1000)
    with closing(sqlite3.connect("other.db")) as other:
        other.execute("CREATE TABLE jobs (title)")
    ran = run(*line.split())
    assert ran.exit_code == status, ran.output
    assert expected in ran.stderr
    assert "SECRET" not in ran.output
    assert not Path("missing.db").exists()
    assert states(file) == [("pending", None)] * 3


def test_a_wrong_password_for_postgresql_is_not_shown(postgresql: Server, run: Run) -> None:
    url = postgresql.fresh().set(username="nobody_of_that_name", password="SECRET")
    for command in (["work", "shop:send"], ["watch"]):
        ran = run(*command, "--db", url.render_as_string(hide_password=False))
        assert ran.exit_code == 1
        assert 'role "nobody_of_that_name" does not exist' in ran.stderr
        assert "SECRET" not in ran.output


def test_a_queue_on_postgresql(postgresql: Server, run: Run) -> None:
    url = postgresql.fresh().render_as_string(hide_password=False)
    ran = run("work", "shop:send", "--db", url, "--until-empty", "--database-clock", "--watch")
    assert ran.exit_code == 0, ran.output
    assert run("watch", "--db", url, "--once").exit_code == 0
