"""One short immediate transaction a write: the lock, the clock read under it, busy, and what is
left behind."""

from __future__ import annotations

import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.exc import DatabaseError, OperationalError

from leasestore import Clock, JobRepository, StoreBusy, UnsupportedEngine
from tests.conformance.scene import HELD, NOW, TIMED, WRITES, Points, insert_held, stage
from tests.conformance.stores import (
    DOORS,
    SQLiteStore,
    Store,
    can_lock,
    do_not_sync,
    released,
    write_locked,
)
from tests.support import ENGINES, make_file

# The clock


@pytest.mark.parametrize("verb", TIMED)
def test_a_clock_is_read_once(store: Store, verb: str) -> None:
    stage(store)
    ticks = iter([NOW])
    assert TIMED[verb](store.repository, lambda: next(ticks)) not in (None, False)
    assert list(ticks) == []


@pytest.mark.parametrize("verb", TIMED)
def test_a_clock_is_read_while_the_write_lock_is_held(sqlite_store: SQLiteStore, verb: str) -> None:
    stage(sqlite_store)
    lockable: list[bool] = []

    def clock() -> int:
        lockable.append(can_lock(sqlite_store.path, "IMMEDIATE"))
        return NOW

    TIMED[verb](sqlite_store.repository, clock)
    assert lockable == [False]


@pytest.mark.parametrize("verb", TIMED)
def test_a_clock_serves_as_the_number_it_gives(one_store: Store, verb: str) -> None:
    stage(one_store)
    by_number = TIMED[verb](one_store.repository, NOW)
    expected = one_store.dump()
    one_store.wipe()
    stage(one_store)
    assert TIMED[verb](one_store.repository, lambda: NOW) == by_number
    assert one_store.dump() == expected


EVERY_TIMED: dict[str, Callable[[JobRepository, int | Clock], object]] = {
    **TIMED,
    "stuck": lambda repository, now: repository.stuck(now),
}

RUBBISH: list[Any] = [None, True, 1.0, "100", -1, 10**15 - 59_999, (100,), 2**63]


def test_a_clock_that_gives_rubbish_changes_nothing(store: Store) -> None:
    stage(store)
    before = store.dump()
    for verb, call in TIMED.items():
        for value in RUBBISH:
            with pytest.raises(ValueError, match=r"now_ms.*clock"):
                call(store.repository, partial(next, repeat(value)))
            store.assert_clean()
        assert store.dump() == before, verb


@pytest.mark.parametrize("value", RUBBISH, ids=repr)
def test_stuck_refuses_what_is_no_time_too(one_store: Store, value: Any) -> None:
    with pytest.raises(ValueError, match=r"now_ms.*clock"):
        one_store.repository.stuck(lambda: value)


def busy_error() -> OperationalError:
    error = sqlite3.OperationalError("somebody else's database is locked")
    error.sqlite_errorcode = sqlite3.SQLITE_BUSY
    return OperationalError("somebody else's statement", None, error)


def test_a_clock_that_fails_changes_nothing_and_its_error_arrives(store: Store) -> None:
    stage(store)
    before = store.dump()
    for verb, call in EVERY_TIMED.items():
        for error in (RuntimeError("no clock"), KeyboardInterrupt()):

            def clock(error: BaseException = error) -> int:
                raise error

            with pytest.raises(type(error)) as caught:
                call(store.repository, clock)
            assert caught.value is error, verb
            store.assert_clean()
        assert store.dump() == before, verb


@pytest.mark.parametrize("verb", EVERY_TIMED)
def test_an_error_of_somebody_elses_database_is_not_taken_for_ours(
    one_store: Store, verb: str
) -> None:
    error = busy_error()

    def clock() -> int:
        raise error

    with pytest.raises(OperationalError) as caught:
        EVERY_TIMED[verb](one_store.repository, clock)
    assert caught.value is error


# Busy


def quick(engine: Engine, timeout_ms: int = 4) -> Engine:
    """The same engine with a short patience, in whatever driver mode."""
    event.listen(
        engine,
        "connect",
        lambda driver, _: driver.execute(f"PRAGMA busy_timeout = {timeout_ms}").close(),
    )
    return do_not_sync(engine)


@contextmanager
def impatient(name: str, door: str, path: Path, timeout_ms: int = 4) -> Iterator[SQLiteStore]:
    engine = quick(ENGINES[name](make_file(path)), timeout_ms)
    try:
        if door == "engine":
            yield SQLiteStore(JobRepository(engine), path, released(engine))
            return
        with engine.connect() as connection:
            yield SQLiteStore(JobRepository(connection), path, released(connection))
    finally:
        engine.dispose()


@pytest.fixture(params=[(name, door) for name in ENGINES for door in DOORS], ids="-".join)
def hurried(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SQLiteStore]:
    """A staged store in each driver mode that does not wait long."""
    name, door = request.param
    with impatient(name, door, tmp_path / "queue.db") as store:
        stage(store)
        yield store
        store.assert_clean()


READS: dict[str, Callable[[JobRepository], object]] = {
    "get": lambda repository: repository.get("held"),
    "stuck": lambda repository: repository.stuck(NOW),
}


def test_a_write_that_finds_the_lock_taken_says_busy_and_changes_nothing(
    hurried: SQLiteStore,
) -> None:
    before = hurried.dump()
    with write_locked(hurried.path):
        for verb, call in WRITES.items():
            with pytest.raises(StoreBusy, match="locked"):
                call(hurried.repository)
            hurried.assert_released()
            assert hurried.dump() == before, verb
    assert hurried.repository.claim("me", NOW) is not None


def test_reads_do_not_ask_for_the_write_lock(hurried: SQLiteStore) -> None:
    free = {name: read(hurried.repository) for name, read in READS.items()}
    with write_locked(hurried.path):
        assert {name: read(hurried.repository) for name, read in READS.items()} == free
        hurried.assert_released()


def test_a_file_locked_to_readers_too_is_busy_for_reads(hurried: SQLiteStore) -> None:
    with closing(sqlite3.connect(hurried.path, isolation_level=None)) as plain:
        plain.execute("BEGIN EXCLUSIVE")
        for read in READS.values():
            with pytest.raises(StoreBusy):
                read(hurried.repository)
            hurried.assert_released()


def test_a_commit_that_readers_hold_up_is_busy_and_hands_out_nothing(hurried: SQLiteStore) -> None:
    before = hurried.dump()
    with closing(sqlite3.connect(hurried.path, isolation_level=None)) as plain:
        plain.execute("BEGIN")
        plain.execute("SELECT * FROM jobs").fetchall()
        for verb, call in WRITES.items():
            with pytest.raises(StoreBusy):
                call(hurried.repository)
            hurried.assert_released()
            assert hurried.dump() == before, verb
    hurried.assert_clean()
    ticket = hurried.repository.claim("me", NOW)
    assert ticket is not None
    assert (ticket["id"], ticket["token"]) == ("ready", 1)


def test_no_fault_point_is_passed_at_or_after_a_busy_commit(hurried: SQLiteStore) -> None:
    with closing(sqlite3.connect(hurried.path, isolation_level=None)) as plain:
        plain.execute("BEGIN")
        plain.execute("SELECT * FROM jobs").fetchall()
        points = Points()
        with pytest.raises(StoreBusy):
            hurried.repository.renew(HELD, NOW, fault=points)
    assert points.passed == ["after-renew"]


@pytest.mark.parametrize("verb", WRITES)
def test_busy_again_and_again_uses_up_no_connection(tmp_path: Path, verb: str) -> None:
    path = make_file(tmp_path / "queue.db")
    engine = create_engine(
        f"sqlite:///{path}",
        connect_args={"timeout": 0.002},
        pool_size=2,
        max_overflow=0,
        pool_timeout=0.1,
    )
    store = SQLiteStore(JobRepository(engine), path, released(engine))
    stage(store)
    with write_locked(path):
        for _ in range(25):
            with pytest.raises(StoreBusy):
                WRITES[verb](store.repository)
            store.assert_released()
    assert WRITES[verb](store.repository) not in (None, False)
    store.assert_clean()
    engine.dispose()


def attempts_at_the_lock(engine: Engine, then: Callable[[int], None]) -> list[int]:
    """Calls `then` with the number of each BEGIN IMMEDIATE that reaches SQLite."""
    seen: list[int] = []

    def trace(statement: str) -> None:
        if statement == "BEGIN IMMEDIATE":
            seen.append(len(seen) + 1)
            then(seen[-1])

    event.listen(engine, "connect", lambda driver, _: driver.set_trace_callback(trace))
    return seen


@pytest.mark.parametrize("name", ENGINES)
def test_a_write_waits_for_the_lock_and_reads_its_clock_afterwards(
    tmp_path: Path, name: str
) -> None:
    path = make_file(tmp_path / "queue.db")
    engine = quick(ENGINES[name](path), 10_000)
    store = SQLiteStore(JobRepository(engine), path, released(engine))
    insert_held(store)
    now = [400]
    with write_locked(path) as other:

        def let_go(attempt: int) -> None:
            if attempt == 3:
                now[0] = 500
                other.rollback()

        seen = attempts_at_the_lock(engine, let_go)
        # Before the lock came, the lease had time left.
        assert store.repository.finish(HELD, "ok", lambda: now[0]) is False
    assert len(seen) >= 3
    assert store.repository.claim("you", lambda: now[0]) is not None
    store.assert_clean()
    engine.dispose()


# What is left behind


@pytest.mark.parametrize("verb", WRITES)
def test_everything_is_released_after_a_success(store: Store, verb: str) -> None:
    stage(store)
    assert WRITES[verb](store.repository) not in (None, False)
    store.assert_clean()


STATEMENTS: dict[str, Callable[[JobRepository], object]] = {
    **WRITES,
    "claim with nothing to take": lambda repository: repository.claim("me", 0, job_id="dead"),
    "duplicate": lambda repository: repository.enqueue({"id": "ready", "qty": 1}, NOW, 1000),
}


@pytest.mark.parametrize("moment", ["before_cursor_execute", "after_cursor_execute"])
def test_a_failure_at_any_statement_changes_nothing(hurried: SQLiteStore, moment: str) -> None:
    before = hurried.dump()
    left, error, caught = [0], RuntimeError("made up"), list[RuntimeError]()

    def count_down(*_: object) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise error

    def fails_at(number: int, call: Callable[[JobRepository], object]) -> bool:
        left[0] = number
        try:
            call(hurried.repository)
        except RuntimeError as reached:
            caught.append(reached)
            return True
        return False

    event.listen(hurried.repository._bind, moment, count_down)
    for verb, call in STATEMENTS.items():
        number = 1
        while fails_at(number, call):
            assert caught.pop() is error
            hurried.assert_clean()
            assert hurried.dump() == before, (verb, number)
            number += 1
        assert number > 1, verb
        hurried.wipe()
        stage(hurried)
        before = hurried.dump()


@pytest.fixture(params=[(name, door) for name in ENGINES for door in DOORS], ids="-".join)
def refusing(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[SQLiteStore, set[str]]]:
    """A staged store whose SQLite refuses the transaction commands in the set."""
    refused: set[str] = set()
    path = make_file(tmp_path / "queue.db")
    name, door = request.param
    engine = do_not_sync(ENGINES[name](path))

    def decide(action: int, command: str | None, *_: object) -> int:
        refuse = action == sqlite3.SQLITE_TRANSACTION and command in refused
        return sqlite3.SQLITE_DENY if refuse else sqlite3.SQLITE_OK

    event.listen(engine, "connect", lambda driver, _: driver.set_authorizer(decide))
    bind = engine if door == "engine" else engine.connect()
    store = SQLiteStore(JobRepository(bind), path, released(engine))
    stage(store)
    yield store, refused
    refused.clear()
    if isinstance(bind, Connection):
        bind.close()
    store.assert_clean()
    engine.dispose()


@pytest.mark.parametrize("command", ["BEGIN", "COMMIT"])
def test_a_failed_begin_or_commit_is_reported_and_changes_nothing(
    refusing: tuple[SQLiteStore, set[str]], command: str
) -> None:
    store, refused = refusing
    before = store.dump()
    for verb, call in WRITES.items():
        refused.add(command)
        with pytest.raises(DatabaseError, match="not authorized"):
            call(store.repository)
        refused.clear()
        assert store.dump() == before, verb
        assert can_lock(store.path), verb
    # A new connection where need be, and the same repository works.
    assert store.repository.claim("me", NOW) is not None


def test_a_failed_rollback_hides_no_error_and_its_connection_is_thrown_away(
    refusing: tuple[SQLiteStore, set[str]],
) -> None:
    store, refused = refusing
    before = store.dump()
    error = RuntimeError("made up")

    def fail(point: str) -> None:
        refused.add("ROLLBACK")
        raise error

    with pytest.raises(RuntimeError) as caught:
        store.repository.claim("me", NOW, fault=fail)
    refused.clear()
    assert caught.value is error
    assert can_lock(store.path)
    assert store.dump() == before
    assert store.repository.claim("me", NOW) is not None


@pytest.mark.parametrize("name", ENGINES)
def test_contenders_wait_for_each_other_and_no_job_is_done_twice(tmp_path: Path, name: str) -> None:
    path = make_file(tmp_path / "queue.db")
    engine = quick(ENGINES[name](path), 60_000)
    store = SQLiteStore(JobRepository(engine), path, released(engine))
    for number in range(40):
        store.insert(id=f"job-{number}", deadline=10**9)
    start = threading.Barrier(2)

    def work(owner: str) -> list[str]:
        done = []
        start.wait()
        while ticket := store.repository.claim(owner, NOW):
            assert store.repository.finish(ticket, "ok", NOW) == "done"
            done.append(ticket["id"])
        return done

    with ThreadPoolExecutor(2) as threads:
        mine, yours = threads.map(work, ["me", "you"])
    assert sorted(mine + yours) == sorted(f"job-{number}" for number in range(40))
    assert {row["token"] for row in store.rows()} == {1}
    store.assert_clean()
    engine.dispose()


@pytest.mark.parametrize("verb", READS)
def test_everything_is_released_after_reading(store: Store, verb: str) -> None:
    stage(store)
    READS[verb](store.repository)
    store.assert_clean()


def test_a_full_disk_is_reported_as_it_is_and_changes_nothing(hurried: SQLiteStore) -> None:
    repository = hurried.repository
    with bound_connection(repository) as connection:
        own = JobRepository(connection)
        pages = pragma(connection, "page_count")
        pragma(connection, "max_page_count", pages)
        with pytest.raises(OperationalError, match="full"):
            fill(own)
        assert not connection.in_transaction()
        last = hurried.rows()[-1]["id"]
        # Room again, and the same connection works.
        pragma(connection, "max_page_count", pages + 1000)
        assert own.enqueue({"id": "room-again", "qty": 1}, NOW, 1000) is True
    assert [row["id"] for row in hurried.rows()][-2:] == [last, "room-again"]


def fill(repository: JobRepository) -> None:
    for number in range(1000):
        repository.enqueue({"id": f"{number:0>64}", "qty": 1}, NOW, 1000)


@contextmanager
def bound_connection(repository: JobRepository) -> Iterator[Connection]:
    bind = repository._bind
    if isinstance(bind, Connection):
        yield bind
    else:
        with bind.connect() as connection:
            yield connection


def pragma(connection: Connection, name: str, value: int | None = None) -> int:
    cursor = connection.connection.cursor()
    (found,) = cursor.execute(
        f"PRAGMA {name}" + ("" if value is None else f" = {value}")
    ).fetchone()
    cursor.close()
    connection.rollback()
    return int(found)


# A borrowed connection


@pytest.mark.parametrize("name", ENGINES)
def test_a_borrowed_connection_is_the_callers_before_and_after(tmp_path: Path, name: str) -> None:
    path = make_file(tmp_path / "queue.db")
    engine = ENGINES[name](path)
    with engine.connect() as connection:
        with connection.begin():
            connection.execute(text("CREATE TABLE orders(id)"))
        repository = JobRepository(connection)
        assert repository.enqueue({"id": "a", "qty": 1}, 0, 1000)
        with connection.begin():
            connection.execute(text("INSERT INTO orders VALUES (1)"))
        assert repository.claim("me", 0) is not None
        assert connection.execute(text("SELECT count(*) FROM orders")).scalar() == 1
    engine.dispose()


@pytest.mark.parametrize("name", ["default", "begin-recipe"])
def test_a_borrowed_connection_in_a_transaction_is_refused_and_left_alone(
    tmp_path: Path, name: str
) -> None:
    path = make_file(tmp_path / "queue.db")
    engine = ENGINES[name](path)
    with engine.connect() as connection:
        store = SQLiteStore(JobRepository(connection), path, released(connection))
        connection.execute(
            text("INSERT INTO redrives(id, token, at_ms, note) VALUES ('x', 1, 1, 'mine')")
        )
        for call in (*WRITES.values(), *READS.values()):
            with pytest.raises(ValueError, match=r"connection.*transaction"):
                call(store.repository)
            assert connection.in_transaction()
        connection.commit()
        assert [row["note"] for row in store.rows("redrives")] == ["mine"]
        assert store.rows() == []
    engine.dispose()


def test_the_engine_is_left_as_it_was(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{make_file(tmp_path / 'queue.db')}")
    with engine.connect() as connection:
        before = pragma(connection, "busy_timeout"), driver_of(connection).isolation_level
    repository = JobRepository(engine)
    repository.enqueue({"id": "a", "qty": 1}, 0, 1000)
    repository.claim("me", 0)
    with engine.connect() as connection:
        after = pragma(connection, "busy_timeout"), driver_of(connection).isolation_level
    assert before == after
    engine.dispose()


def driver_of(connection: Connection) -> Any:
    return connection.connection.driver_connection


# Others see what was committed, and only that


def test_what_a_call_answered_is_there_for_everybody(store: Store) -> None:
    stage(store)
    with store.somebody_else() as other:
        for call in WRITES.values():
            call(store.repository)
            rows = store.rows()
            assert [other.get(row["id"]) for row in rows] == rows


def test_changes_that_are_not_committed_are_seen_by_nobody(store: Store) -> None:
    stage(store)
    seen: list[Any] = []
    store.repository.claim("me", NOW, fault=lambda _: seen.append(store.row("ready")))
    assert [row["status"] for row in seen] == ["pending", "leased"]


# Engines that cannot hold it

if sys.version_info >= (3, 12):

    @pytest.mark.parametrize("verb", WRITES)
    @pytest.mark.parametrize("door", DOORS)
    def test_a_driver_that_ignores_commit_is_refused_before_anything_is_written(
        tmp_path: Path, verb: str, door: str
    ) -> None:
        path = make_file(tmp_path / "queue.db")
        engine = create_engine(f"sqlite:///{path}", connect_args={"autocommit": True})
        bind = engine if door == "engine" else engine.connect()
        store = SQLiteStore(JobRepository(bind), path, released(bind))
        stage(store)
        before = store.dump()
        with pytest.raises(UnsupportedEngine, match="autocommit"):
            WRITES[verb](store.repository)
        assert store.dump() == before
        assert can_lock(path)
        if isinstance(bind, Connection):
            bind.close()
        engine.dispose()
