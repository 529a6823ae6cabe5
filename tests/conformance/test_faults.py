"""Fault points: an error before COMMIT undoes everything, one after it undoes nothing."""

from __future__ import annotations

import sqlite3

import pytest
from sqlalchemy.exc import DatabaseError, OperationalError

from leasestore import StoreBusy
from tests.conformance.scene import FAULTED, IDLE, Points, stage
from tests.conformance.stores import SQLiteStore, Store, can_lock

BEFORE_COMMIT = [(verb, point) for verb, (points, _) in FAULTED.items() for point in points[:-1]]


def driver_error(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("made up")
    error.sqlite_errorcode = code
    return error


ERRORS: list[BaseException] = [
    RuntimeError("made up"),
    ValueError("made up"),
    StoreBusy("made up"),
    KeyboardInterrupt(),
    SystemExit(3),
    GeneratorExit(),
    StopIteration(),
    driver_error(sqlite3.SQLITE_BUSY),
    OperationalError("made up", None, driver_error(sqlite3.SQLITE_BUSY)),
    OperationalError("made up", None, driver_error(sqlite3.SQLITE_ERROR)),
    DatabaseError("made up", None, driver_error(sqlite3.SQLITE_NOTADB)),
]


def test_an_error_before_commit_undoes_everything_and_reaches_the_caller(store: Store) -> None:
    stage(store)
    before = store.dump()
    for verb, point in BEFORE_COMMIT:
        for error in (RuntimeError("made up"), KeyboardInterrupt()):
            fault = Points(point, error)
            with pytest.raises(type(error)) as caught:
                FAULTED[verb][1](store.repository, fault)
            assert caught.value is error, (verb, point)
            assert store.dump() == before, (verb, point)
            points = FAULTED[verb][0]
            assert fault.passed == list(points[: points.index(point) + 1])
            store.assert_clean()
    # What was undone is still to be had.
    assert store.repository.claim("me", 100) is not None


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: repr(error)[:50])
@pytest.mark.parametrize("point", ["after-claim", "after-commit"])
def test_whatever_a_fault_raises_is_what_the_caller_gets(
    one_store: Store, point: str, error: BaseException
) -> None:
    stage(one_store)
    before = one_store.dump()
    with pytest.raises(type(error)) as caught:
        one_store.repository.claim("me", 100, fault=Points(point, error))
    assert caught.value is error
    assert error.__cause__ is None
    assert (one_store.dump() == before) is (point == "after-claim")


@pytest.mark.parametrize("verb", FAULTED)
def test_an_error_after_commit_reaches_the_caller_and_the_change_stays(
    store: Store, verb: str
) -> None:
    points, call = FAULTED[verb]
    stage(store)
    before = store.dump()
    fault = Points("after-commit", error := KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt) as caught:
        call(store.repository, fault)
    assert caught.value is error
    assert fault.passed == list(points)
    assert store.dump() != before
    store.assert_clean()


@pytest.mark.parametrize("verb", FAULTED)
def test_every_point_is_passed_once_and_in_order(one_store: Store, verb: str) -> None:
    stage(one_store)
    points, call = FAULTED[verb]
    call(one_store.repository, fault := Points())
    assert fault.passed == list(points)


@pytest.mark.parametrize("verb", FAULTED)
def test_points_show_the_transaction_open_before_commit_and_closed_after(
    one_store: SQLiteStore, verb: str
) -> None:
    stage(one_store)
    writable: dict[str, bool] = {}

    def fault(point: str) -> None:
        writable[point] = can_lock(one_store.path)

    points, call = FAULTED[verb]
    call(one_store.repository, fault)
    assert writable == {point: point == "after-commit" for point in points}


def test_no_point_is_passed_where_nothing_changes(store: Store) -> None:
    stage(store)
    before = store.dump()
    for name, (answer, call) in IDLE.items():
        assert call(store.repository, points := Points()) is answer, name
        assert points.passed == [], name
        assert store.dump() == before, name
        store.assert_clean()


def test_a_claim_that_only_sweeps_passes_no_point(store: Store) -> None:
    store.insert(id="late", deadline=50)
    points = Points()
    assert store.repository.claim("me", 100, fault=points) is None
    assert points.passed == []
    assert store.row("late")["status"] == "dead"


def test_a_refused_redrive_passes_no_point(store: Store) -> None:
    store.insert(id="ready")
    points = Points()
    with pytest.raises(ValueError, match="pending"):
        store.repository.redrive("ready", 100, 1000, "by-hand", points)
    assert points.passed == []


def test_what_a_fault_returns_does_not_matter(store: Store) -> None:
    stage(store)
    assert store.repository.claim("me", 100, fault=lambda point: False) is not None
