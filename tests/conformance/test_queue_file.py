"""open_queue: a queue in a SQLite file of its own, which plain `sqlite3` code can use too."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import Pool

from leasestore import SchemaError, StoreBusy, open_queue
from tests.conformance.stores import can_lock, write_locked
from tests.support import CONTRACT_DDL, make_file, rows

NAMES = [
    "queue.db",
    "two words.db",
    "what?mode=ro",
    "a#b",
    "100%",
    "%41",
    "a&b=c;d",
    "caf\u00e9-\u0636-\U0001f600",
    "it's",
    'say "x"',
    "back\\slash",
    "-",
    "~",
    "a:b",
    " ",
    "no-suffix",
    ".hidden",
    "new\nline",
]


def columns(path: Path, table: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as plain:
        return plain.execute(f"PRAGMA table_info({table})").fetchall()


def open_files(path: Path) -> int:
    """How many file descriptors of this process are open on the file."""
    count = 0
    for number in [int(entry.name) for entry in Path("/dev/fd").iterdir()]:
        # One of them was the listing's own.
        with suppress(OSError):
            count += os.path.samestat(os.fstat(number), path.stat())
    return count


# What it makes


def test_both_tables_are_the_contracts_column_for_column(tmp_path: Path) -> None:
    plain = make_file(tmp_path / "plain.db")
    with open_queue(tmp_path / "queue.db"):
        pass
    for table in ("jobs", "redrives"):
        assert columns(tmp_path / "queue.db", table) == columns(plain, table)


def test_the_constraints_are_the_contracts(tmp_path: Path) -> None:
    with open_queue(tmp_path / "queue.db") as queue:
        queue.enqueue({"id": "a", "qty": 1}, 0, 1000)
    with closing(sqlite3.connect(tmp_path / "queue.db")) as plain:
        with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
            plain.execute(
                "INSERT INTO jobs SELECT 9, id, qty, status, attempts, max_attempts, token, "
                "available_at, deadline, owner, lease_until, reason FROM jobs"
            )
        with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
            plain.execute("UPDATE jobs SET status = 'lost'")
        # A seq that was used is not used again.
        plain.execute("DELETE FROM jobs")
        plain.commit()
    with open_queue(tmp_path / "queue.db") as queue:
        queue.enqueue({"id": "b", "qty": 1}, 0, 1000)
    assert [row["seq"] for row in rows(tmp_path / "queue.db")] == [2]


@pytest.mark.parametrize("name", NAMES)
def test_the_file_is_made_where_its_name_says(tmp_path: Path, name: str) -> None:
    with open_queue(tmp_path / name) as queue:
        queue.enqueue({"id": "a", "qty": 1}, 0, 1000)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert [row["id"] for row in rows(tmp_path / name)] == ["a"]


@pytest.mark.parametrize("kind", [str, Path])
def test_a_path_may_be_relative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Callable[[str], str | Path]
) -> None:
    monkeypatch.chdir(tmp_path)
    with open_queue(kind("queue.db")) as queue:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        queue.enqueue({"id": "a", "qty": 1}, 0, 1000)
    assert [row["id"] for row in rows(tmp_path / "queue.db")] == ["a"]


def test_an_empty_file_becomes_a_queue(tmp_path: Path) -> None:
    (tmp_path / "queue.db").touch()
    with open_queue(tmp_path / "queue.db") as queue:
        assert queue.enqueue({"id": "a", "qty": 1}, 0, 1000) is True


# What it leaves


def test_rows_outlive_a_restart(tmp_path: Path) -> None:
    with open_queue(tmp_path / "queue.db") as queue:
        queue.enqueue({"id": "a", "qty": 1}, 0, 1000)
        ticket = queue.claim("me", 0)
    assert ticket is not None
    before = rows(tmp_path / "queue.db")
    with open_queue(tmp_path / "queue.db") as queue:
        assert rows(tmp_path / "queue.db") == before
        assert queue.finish(ticket, "ok", 1) == "done"


@pytest.mark.parametrize("made_by", ["plain", "open_queue"])
@pytest.mark.parametrize("absent", ["jobs", "redrives"])
def test_one_absent_table_is_made_and_the_other_stays(
    tmp_path: Path, absent: str, made_by: str
) -> None:
    path = tmp_path / "queue.db"
    if made_by == "plain":
        make_file(path)
    else:
        open_queue(path).close()
    with closing(sqlite3.connect(path)) as plain, plain:
        plain.execute("INSERT INTO jobs VALUES (5,'a',1,'dead',1,3,1,0,1000,NULL,NULL,'permanent')")
        plain.execute("INSERT INTO redrives VALUES (5,'a',1,1,'kept')")
        plain.execute(f"DROP TABLE {absent}")
    kept = "redrives" if absent == "jobs" else "jobs"
    before = rows(path, kept)
    with open_queue(path) as queue:
        assert rows(path, kept) == before
        assert rows(path, absent) == []
        assert queue.enqueue({"id": "b", "qty": 1}, 0, 1000) is True


def test_other_tables_in_the_file_stay(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    with closing(sqlite3.connect(path)) as plain, plain:
        plain.execute("CREATE TABLE orders(id)")
        plain.execute("INSERT INTO orders VALUES (1)")
    with open_queue(path) as queue:
        queue.enqueue({"id": "a", "qty": 1}, 0, 1000)
    with closing(sqlite3.connect(path)) as plain:
        assert plain.execute("SELECT id FROM orders").fetchall() == [(1,)]


def test_a_file_made_by_plain_sqlite3_opens_and_works(tmp_path: Path) -> None:
    path = make_file(tmp_path / "queue.db")
    with closing(sqlite3.connect(path)) as plain, plain:
        plain.execute("INSERT INTO jobs VALUES (1,'a',7,'pending',0,3,0,0,1000,NULL,NULL,NULL)")
    before = columns(path, "jobs")
    with open_queue(path) as queue:
        ticket = queue.claim("me", 0)
        assert ticket is not None
        assert (ticket["id"], ticket["qty"]) == ("a", 7)
        assert queue.finish(ticket, "permanent", 1) == "dead"
        assert queue.redrive("a", 2, 1000, "by-hand") is True
    assert columns(path, "jobs") == before


def test_plain_sqlite3_code_goes_on_with_a_file_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    with open_queue(path) as queue, closing(sqlite3.connect(path)) as plain:
        queue.enqueue({"id": "a", "qty": 7}, 0, 1000)
        # As other code of the same contract does it, column by column and by position.
        with plain:
            plain.execute(
                "INSERT INTO jobs(id,qty,status,attempts,max_attempts,token,available_at,deadline)"
                " VALUES ('b',1,'pending',0,3,0,0,1000)"
            )
            plain.execute("INSERT INTO redrives VALUES (NULL,'a',0,1,'theirs')")
            plain.execute(
                "UPDATE jobs SET status='leased', attempts=1, token=1, owner='them', "
                "lease_until=500 WHERE id='a'"
            )
        assert queue.claim("me", 499, job_id="a") is None
        ticket = queue.claim("me", 500, job_id="a")
        assert ticket is not None
        assert ticket["token"] == 2
        assert queue.claim("me", 500, job_id="b") is not None


# How it is set up


def settings(path: Path, **options: Any) -> dict[str, Any]:
    with open_queue(path, **options) as queue, queue._bind.connect() as connection:
        driver: Any = connection.connection.driver_connection
        names = ("journal_mode", "synchronous", "busy_timeout")
        found = {name: driver.execute(f"PRAGMA {name}").fetchone()[0] for name in names}
        return {**found, "isolation_level": driver.isolation_level}


def test_settings_unless_said(tmp_path: Path) -> None:
    assert settings(tmp_path / "queue.db") == {
        "journal_mode": "delete",
        "synchronous": 2,
        "busy_timeout": 1000,
        "isolation_level": None,
    }


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"synchronous": "EXTRA"}, {"synchronous": 3}),
        ({"timeout_ms": 250}, {"busy_timeout": 250}),
        ({"timeout_ms": 0}, {"busy_timeout": 0}),
        ({"timeout_ms": 600_000}, {"busy_timeout": 600_000}),
        ({"journal_mode": "DELETE"}, {"journal_mode": "delete"}),
    ],
)
def test_settings_as_said(
    tmp_path: Path, options: dict[str, Any], expected: dict[str, Any]
) -> None:
    found = settings(tmp_path / "queue.db", **options)
    assert found == {**found, **expected}


MENDED = [(3, 44, 6), (3, 44, 9), (3, 50, 7), (3, 51, 3), (3, 60, 0)]
FAULTY = [(3, 40, 1), (3, 44, 5), (3, 45, 0), (3, 46, 1), (3, 50, 6), (3, 51, 0), (3, 51, 2)]


@pytest.mark.parametrize("version", MENDED)
def test_wal_where_it_is_sound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: tuple[int, int, int]
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", version)
    assert settings(tmp_path / "queue.db", journal_mode="WAL")["journal_mode"] == "wal"


@pytest.mark.parametrize("version", FAULTY)
def test_wal_warns_where_sqlite_has_the_reset_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: tuple[int, int, int]
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", version)
    with pytest.warns(UserWarning, match=r"WAL.*3\.51\.3") as caught:
        open_queue(tmp_path / "queue.db", journal_mode="WAL").close()
    (warning,) = caught
    assert warning.filename == __file__


@pytest.mark.parametrize("version", FAULTY)
def test_delete_mode_warns_of_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: tuple[int, int, int]
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", version)
    open_queue(tmp_path / "queue.db").close()


def test_a_warning_made_an_error_makes_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", FAULTY[0])
    with pytest.raises(UserWarning, match="WAL"):
        open_queue(tmp_path / "queue.db", journal_mode="WAL")
    assert list(tmp_path.iterdir()) == []


def test_reads_do_not_wait_for_a_writer_in_wal_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", MENDED[-1])
    path = tmp_path / "queue.db"
    with open_queue(path, journal_mode="WAL", timeout_ms=0) as queue:
        queue.enqueue({"id": "a", "qty": 1}, 0, 1000)
        with write_locked(path) as other:
            other.execute("UPDATE jobs SET qty = 9")
            row = queue.get("a")
            assert row is not None
            assert row["qty"] == 1
            with pytest.raises(StoreBusy):
                queue.claim("me", 0)


BAD_OPTIONS: list[tuple[str, Any]] = [
    *(("journal_mode", value) for value in (None, "", "delete", "wal", "OFF", "DELETE;", 1)),
    *(("synchronous", value) for value in (None, "", "full", "OFF", "NORMAL", 2)),
    *(("timeout_ms", value) for value in (None, True, -1, 600_001, 1.0, "1000", float("nan"))),
]


@pytest.mark.parametrize(("name", "value"), BAD_OPTIONS)
def test_a_bad_option_is_refused_and_no_file_made(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name}: expected"):
        open_queue(tmp_path / "queue.db", **{name: value})
    assert list(tmp_path.iterdir()) == []


# Where the tables are there


def test_opening_an_existing_queue_takes_no_write_lock(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    open_queue(path).close()
    with write_locked(path), open_queue(path, timeout_ms=0) as queue:
        assert queue.get("a") is None
        with pytest.raises(StoreBusy):
            queue.claim("me", 0)


def test_opening_an_existing_queue_changes_no_byte(tmp_path: Path) -> None:
    path = make_file(tmp_path / "queue.db")
    before = path.read_bytes()
    open_queue(path).close()
    assert path.read_bytes() == before


def test_opening_an_existing_queue_does_not_import_alembic(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    open_queue(path).close()
    code = (
        "import sys, leasestore\n"
        "with leasestore.open_queue(sys.argv[1]) as queue:\n"
        "    queue.enqueue({'id': 'a', 'qty': 1}, 0, 1000)\n"
        "assert not [name for name in sys.modules if name.startswith('alembic')]\n"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    assert [row["id"] for row in rows(path)] == ["a"]


def test_many_may_open_a_missing_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    start = threading.Barrier(4)

    def work(number: int) -> bool:
        start.wait()
        with open_queue(path, timeout_ms=30_000) as queue:
            return queue.enqueue({"id": f"job-{number}", "qty": 1}, 0, 1000)

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(work, range(4))) == [True] * 4
    assert sorted(row["id"] for row in rows(path)) == [f"job-{number}" for number in range(4)]


# What it refuses


@pytest.mark.parametrize(
    "path",
    [
        *(":memory:", "", "file:", "file:queue.db", "file::memory:?cache=shared", "a\0b"),
        *(None, 1, True, b"queue.db", Path(":memory:"), Path("file:queue.db"), ["queue.db"]),
    ],
    ids=repr,
)
def test_what_is_no_path_of_a_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="path: expected"):
        open_queue(path)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_directory_is_named_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing"):
        open_queue(tmp_path / "missing" / "queue.db")
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"text")
    with pytest.raises(FileNotFoundError, match="file"):
        open_queue(tmp_path / "file" / "queue.db")


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match="directory"):
        open_queue(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_fifo_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "queue.db")
    with pytest.raises(ValueError, match="regular file"):
        open_queue(tmp_path / "queue.db")


def random_bytes(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 64)


def test_a_file_that_is_no_database_is_named_and_left(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    random_bytes(path)
    before = path.read_bytes()
    with pytest.raises(SchemaError, match=r"queue\.db.*not a database"):
        open_queue(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["queue.db"]


def test_a_database_cut_short_is_refused_and_left(tmp_path: Path) -> None:
    path = make_file(tmp_path / "queue.db")
    before = path.read_bytes()[:50]
    path.write_bytes(before)
    with pytest.raises((SchemaError, DBAPIError)):
        open_queue(path)
    assert path.read_bytes() == before


FOREIGN = {
    "jobs": "CREATE TABLE jobs(id INTEGER PRIMARY KEY, name TEXT)",
    "redrives": "CREATE TABLE redrives(id TEXT)",
    "jobs-lacking-one": CONTRACT_DDL.replace("reason TEXT", "cause TEXT"),
}


@pytest.mark.parametrize("journal_mode", ["delete", "wal"])
@pytest.mark.parametrize("case", FOREIGN)
def test_another_table_of_the_same_name_is_refused_and_the_file_left(
    tmp_path: Path, case: str, journal_mode: str
) -> None:
    path = tmp_path / "queue.db"
    with closing(sqlite3.connect(path)) as plain:
        plain.execute(f"PRAGMA journal_mode = {journal_mode}")
        plain.executescript(FOREIGN[case])
    before = path.read_bytes()
    with pytest.raises(SchemaError, match=case.partition("-")[0]) as caught:
        open_queue(path)
    assert all(name.startswith(case.partition("-")[0]) for name in caught.value.missing)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["queue.db"]


def test_a_foreign_table_is_not_put_into_wal_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", MENDED[-1])
    path = tmp_path / "queue.db"
    with closing(sqlite3.connect(path)) as plain:
        plain.execute(FOREIGN["jobs"])
    before = path.read_bytes()
    with pytest.raises(SchemaError):
        open_queue(path, journal_mode="WAL")
    assert path.read_bytes() == before


def test_a_locked_file_is_busy_after_the_timeout(tmp_path: Path) -> None:
    path = make_file(tmp_path / "queue.db")
    with closing(sqlite3.connect(path, isolation_level=None)) as plain:
        plain.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreBusy):
            open_queue(path, timeout_ms=5)


def test_tables_cannot_be_made_while_somebody_writes(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    path.touch()
    with write_locked(path), pytest.raises(StoreBusy):
        open_queue(path, timeout_ms=5)
    assert path.read_bytes() == b""
    open_queue(path).close()


@pytest.mark.parametrize("failure", ["no-database", "foreign", "busy"])
def test_the_connection_is_closed_if_setting_up_fails(tmp_path: Path, failure: str) -> None:
    path = tmp_path / "queue.db"
    if failure == "no-database":
        random_bytes(path)
    elif failure == "foreign":
        with closing(sqlite3.connect(path)) as plain:
            plain.execute(FOREIGN["jobs"])
    else:
        make_file(path)
    opened: list[sqlite3.Connection] = []

    def note(driver: Any, _: object) -> None:
        opened.append(driver)

    with closing(sqlite3.connect(path, isolation_level=None)) as plain:
        if failure == "busy":
            plain.execute("BEGIN EXCLUSIVE")
        # Whatever is opened from here on, by whichever engine.
        event.listen(Pool, "connect", note)
        try:
            with pytest.raises((SchemaError, StoreBusy, DBAPIError)) as caught:
                open_queue(path, timeout_ms=5)
        finally:
            event.remove(Pool, "connect", note)
    # While the error, with all its frames, is still in hand.
    assert caught.value is not None
    assert open_files(path) == 0
    assert opened
    for connection in opened:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")


def test_closing_gives_up_the_file(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    queue = open_queue(path)
    queue.enqueue({"id": "a", "qty": 1}, 0, 1000)
    assert open_files(path) == 1
    queue.close()
    assert open_files(path) == 0
    queue.close()


def test_a_with_block_closes_after_an_error_too(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    with pytest.raises(ValueError, match="qty"), open_queue(path) as queue:
        queue.enqueue({"id": "a", "qty": queue.enqueue({"id": "b", "qty": 1}, 0, 1000)}, 0, 1000)
    assert open_files(path) == 0
    assert can_lock(path)
