"""run_file: one job of a queue file that must be there."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.pool import Pool

from leasestore import BadAck, Permanent, Retryable, SchemaError, StoreBusy, open_queue, run_file
from tests.conformance.stores import can_lock, write_locked
from tests.conformance.test_run_once import Sent, Ticks
from tests.support import insert_row, make_file, rows


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A queue file with one job in it."""
    file = make_file(tmp_path / "queue.db")
    insert_row(file, id="a", qty=7, deadline=60_000)
    return file


@pytest.fixture
def connections() -> Iterator[list[Any]]:
    """Whatever driver connections were opened, by whichever engine."""
    opened: list[Any] = []

    def note(driver: Any, _: object) -> None:
        opened.append(driver)

    event.listen(Pool, "connect", note)
    yield opened
    event.remove(Pool, "connect", note)


def assert_closed(connections: list[Any]) -> None:
    assert connections
    for connection in connections:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")


@pytest.mark.parametrize(
    ("answer", "status"), [(True, "done"), (Retryable(), "pending"), (Permanent(), "dead")]
)
def test_one_job_is_worked_and_the_connection_closed(
    path: Path, connections: list[Any], answer: object, status: str
) -> None:
    send = Sent(answer)
    delivered = run_file(path, "me", Ticks(100, 150), send, 0.5)
    assert delivered == {"id": "a", "token": 1, "status": status}
    assert send.events == [{"id": "a", "qty": 7}]
    assert [row["status"] for row in rows(path)] == [status]
    assert_closed(connections)


@pytest.mark.parametrize(("given", "lease_until"), [((), 1100), ((250,), 350)])
def test_a_lease_as_long_as_asked_or_of_one_second(
    path: Path, given: tuple[int, ...], lease_until: int
) -> None:
    seen: list[Any] = []

    def send(event: Any) -> bool:
        seen.extend(rows(path))
        return True

    run_file(str(path), "me", Ticks(100, 150), send, 0, *given)
    assert [row["lease_until"] for row in seen] == [lease_until]


def test_an_empty_queue_is_none_and_the_connection_closed(
    tmp_path: Path, connections: list[Any]
) -> None:
    path = make_file(tmp_path / "queue.db")
    send = Sent()
    assert run_file(path, "me", Ticks(100), send, 0.5) is None
    assert send.events == []
    assert_closed(connections)


@pytest.mark.parametrize(
    "error", [RuntimeError("made up"), KeyboardInterrupt(), SystemExit(1)], ids=repr
)
def test_an_error_of_sending_closes_the_connection_too(
    path: Path, connections: list[Any], error: BaseException
) -> None:
    with pytest.raises(type(error)) as caught:
        run_file(path, "me", Ticks(100), Sent(error), 0.5)
    assert caught.value is error
    assert [row["status"] for row in rows(path)] == ["leased"]
    assert_closed(connections)


def test_a_bad_answer_closes_the_connection_too(path: Path, connections: list[Any]) -> None:
    with pytest.raises(BadAck):
        run_file(path, "me", Ticks(100), Sent(None), 0.5)
    assert_closed(connections)


def test_a_bad_second_reading_closes_the_connection_too(path: Path, connections: list[Any]) -> None:
    with pytest.raises(ValueError, match="clock"):
        run_file(path, "me", Ticks(100, 99), Sent(), 0.5)
    assert [row["status"] for row in rows(path)] == ["leased"]
    assert_closed(connections)


def test_while_sending_no_transaction_is_open(path: Path) -> None:
    answer = run_file(path, "me", Ticks(100, 150), lambda event: can_lock(path), 0)
    assert answer is not None
    assert answer["status"] == "done"


def test_the_connection_is_set_up_as_that_of_open_queue(path: Path, connections: list[Any]) -> None:
    found: list[Any] = []

    def send(event: Any) -> bool:
        (driver,) = connections
        names = ("journal_mode", "synchronous", "busy_timeout")
        found.extend(driver.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
        return True

    run_file(path, "me", Ticks(100, 150), send, 0.5)
    assert found == ["delete", 2, 1000]


@pytest.mark.parametrize("name", ["what?mode=rwc", "100%", "a#b", "two words", "caf\u00e9"])
def test_odd_names_are_found(tmp_path: Path, name: str) -> None:
    insert_row(make_file(tmp_path / name), deadline=60_000)
    assert run_file(tmp_path / name, "me", Ticks(100, 150), Sent(), 0.5) is not None


def test_a_missing_file_is_not_made(tmp_path: Path) -> None:
    send = Sent()
    with pytest.raises(FileNotFoundError, match=r"queue\.db"):
        run_file(tmp_path / "queue.db", "me", Ticks(100), send, 0.5)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_regular_file_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    before = sorted(tmp_path.iterdir())
    for name in ("directory", "fifo", "dangling", "missing/queue.db"):
        with pytest.raises(FileNotFoundError, match=name):
            run_file(tmp_path / name, "me", Ticks(100), Sent(), 0.5)
    assert sorted(tmp_path.iterdir()) == before


def test_a_link_to_a_queue_file_serves(path: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(path)
    assert run_file(tmp_path / "link", "me", Ticks(100, 150), Sent(), 0.5) is not None


@pytest.mark.parametrize("path", [":memory:", "", "file:queue.db", "a\0b"], ids=repr)
def test_sqlites_special_names_are_files_that_do_not_exist(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no queue file"):
        run_file(path, "me", Ticks(100), Sent(), 0.5)
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_really_called_so_serves(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.rename(tmp_path / ":memory:")
    monkeypatch.chdir(tmp_path)
    assert run_file(":memory:", "me", Ticks(100, 150), Sent(), 0.5) is not None


@pytest.mark.parametrize("path", [None, b"queue.db", 1], ids=repr)
def test_what_is_no_path_of_a_file_is_refused(path: Any) -> None:
    with pytest.raises(ValueError, match="path"):
        run_file(path, "me", Ticks(100), Sent(), 0.5)


def test_a_database_without_our_tables_is_refused_and_none_made(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as plain:
        plain.execute("CREATE TABLE orders(id)")
    before = path.read_bytes()
    with pytest.raises(SchemaError, match=r"jobs, redrives") as caught:
        run_file(path, "me", Ticks(100), Sent(), 0.5)
    assert caught.value.missing == ("jobs", "redrives")
    assert path.read_bytes() == before


def test_an_empty_file_is_refused_and_stays_empty(tmp_path: Path) -> None:
    (tmp_path / "queue.db").touch()
    with pytest.raises(SchemaError):
        run_file(tmp_path / "queue.db", "me", Ticks(100), Sent(), 0.5)
    assert (tmp_path / "queue.db").read_bytes() == b""


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "queue.db").write_bytes(b"not a database at all " * 100)
    with pytest.raises(SchemaError, match="not a database"):
        run_file(tmp_path / "queue.db", "me", Ticks(100), Sent(), 0.5)


def test_somebody_elses_wal_database_is_refused_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as plain:
        plain.execute("PRAGMA journal_mode = WAL")
        plain.execute("CREATE TABLE orders(id)")
    before = path.read_bytes()
    with pytest.raises(SchemaError):
        run_file(path, "me", Ticks(100), Sent(), 0.5)
    assert path.read_bytes() == before


def test_a_failed_setting_up_closes_the_connection(tmp_path: Path, connections: list[Any]) -> None:
    (tmp_path / "queue.db").touch()
    with pytest.raises(SchemaError):
        run_file(tmp_path / "queue.db", "me", Ticks(100), Sent(), 0.5)
    assert_closed(connections)


def test_the_jitter_is_checked_before_everything_else(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="jitter"):
        run_file(tmp_path / "missing.db", "a b", Ticks(), Sent(), 2)


@pytest.mark.parametrize(
    ("name", "value"),
    [("owner", "a b"), ("clock", 100), ("send", None), ("lease_ms", 0), ("lease_ms", 60_001)],
)
def test_a_bad_argument_changes_nothing(
    path: Path, connections: list[Any], name: str, value: Any
) -> None:
    before = path.read_bytes()
    given: dict[str, Any] = {"owner": "me", "clock": Ticks(100), "send": Sent(), "jitter": 0.5}
    with pytest.raises(ValueError, match=name):
        run_file(path, **{**given, name: value})
    assert path.read_bytes() == before
    for connection in connections:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")


def test_a_locked_queue_is_busy_after_a_second(path: Path, connections: list[Any]) -> None:
    with write_locked(path), pytest.raises(StoreBusy):
        run_file(path, "me", Ticks(100), Sent(), 0.5)
    assert_closed(connections)


def test_it_works_beside_a_queue_open_in_wal_mode_and_leaves_it_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 60, 0))
    path = tmp_path / "queue.db"
    with open_queue(path, journal_mode="WAL") as queue:
        queue.enqueue({"id": "a", "qty": 7}, 0, 60_000)
        assert run_file(path, "me", Ticks(100, 150), Sent(), 0.5) is not None
        row = queue.get("a")
        assert row is not None
        assert row["status"] == "done"
    with closing(sqlite3.connect(path)) as plain:
        assert plain.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_it_works_beside_an_open_queue(path: Path) -> None:
    with open_queue(path) as queue:
        assert run_file(path, "me", Ticks(100, 150), Sent(), 0.5) is not None
        row = queue.get("a")
        assert row is not None
        assert row["status"] == "done"
