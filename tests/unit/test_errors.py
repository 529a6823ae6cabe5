"""What can go wrong: which error is above which, what it carries, what it says."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import leasestore
from leasestore import (
    BadAck,
    Conflict,
    JobState,
    LeaseStoreError,
    NotDead,
    Permanent,
    Retryable,
    SchemaError,
    StaleTicket,
    Status,
    StoreBusy,
    Ticket,
    UnsupportedEngine,
)

TICKET: Ticket = {
    "id": "a",
    "qty": 1,
    "owner": "me",
    "token": 3,
    "attempt": 2,
    "lease_until": 500,
}
ROW: JobState = {
    "seq": 1,
    "id": "a",
    "qty": 1,
    "status": "leased",
    "attempts": 3,
    "max_attempts": 3,
    "token": 4,
    "available_at": 0,
    "deadline": 1000,
    "owner": "you",
    "lease_until": 900,
    "reason": None,
}

ERRORS: dict[str, LeaseStoreError] = {
    "Conflict": Conflict("a", 2, 3),
    "Retryable": Retryable("slow down"),
    "Retryable that says when": Retryable("slow down", delay_ms=5_000),
    "Permanent": Permanent("never"),
    "BadAck": BadAck(1),
    "StaleTicket": StaleTicket(TICKET, ROW),
    "StaleTicket of no job": StaleTicket(TICKET, None),
    "NotDead": NotDead("a", "done"),
    "NotDead of no job": NotDead("a", None),
    "StoreBusy": StoreBusy("the database was locked"),
    "SchemaError": SchemaError("the database lacks jobs", ["jobs"], "run upgrade"),
    "UnsupportedEngine": UnsupportedEngine("too old"),
}


def test_each_error_of_the_package_is_an_exception_of_ours() -> None:
    kinds = [
        thing
        for thing in vars(leasestore).values()
        if isinstance(thing, type) and issubclass(thing, BaseException)
    ]
    assert {type(error) for error in ERRORS.values()} | {LeaseStoreError} == set(kinds)
    assert all(issubclass(kind, LeaseStoreError) for kind in kinds)
    assert LeaseStoreError.__bases__ == (Exception,)


def test_only_the_refusal_of_a_redrive_is_of_another_kind_too() -> None:
    others: tuple[type[Exception], ...] = (
        ValueError,
        OSError,
        RuntimeError,
        LookupError,
        TypeError,
    )
    found = {type(error).__name__ for error in ERRORS.values() if isinstance(error, others)}
    assert found == {"NotDead"}
    # The contract's word for it.
    assert issubclass(NotDead, ValueError)


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))]
)
@pytest.mark.parametrize("name", ERRORS)
def test_an_error_survives_copying_and_pickling(name: str, again: Callable[[Any], Any]) -> None:
    error = ERRORS[name]
    twin = again(error)
    assert type(twin) is type(error)
    assert str(twin) == str(error)
    assert vars(twin) == vars(error)


def test_a_conflict_says_both_quantities() -> None:
    error = Conflict("a", 2, 3)
    assert (error.job_id, error.stored_qty, error.qty) == ("a", 2, 3)
    assert str(error) == (
        "job 'a' exists with qty 2, enqueued now with qty 3: give other work another id"
    )


@pytest.mark.parametrize(
    ("answer", "shown"), [(None, "NoneType"), (1, "int"), ("True", "str"), (b"x" * 10**6, "bytes")]
)
def test_a_bad_answer_is_kept_and_only_its_type_is_told(answer: object, shown: str) -> None:
    error = BadAck(answer)
    assert error.answer is answer
    assert str(error) == (
        f"send must return True once the effect is done, got {shown}; "
        "raise Retryable or Permanent to report a failure"
    )


def test_a_stale_ticket_says_what_the_row_says_now() -> None:
    error = StaleTicket(TICKET, ROW)
    assert error.ticket == TICKET
    assert error.row == ROW
    assert str(error) == (
        "ticket of job 'a' with token 3 is stale; the table says: leased, token 4. "
        "Roll back what this run did: another run may own the job"
    )


def test_a_stale_ticket_of_no_job_says_so() -> None:
    error = StaleTicket(TICKET, None)
    assert error.row is None
    assert "the table says: no such job" in str(error)


@pytest.mark.parametrize(
    ("status", "found"),
    [("pending", "it is pending"), ("leased", "it is leased"), (None, "there is no such job")],
)
def test_a_refused_redrive_says_what_the_job_is(status: Status | None, found: str) -> None:
    error = NotDead("a", status)
    assert (error.job_id, error.status) == ("a", status)
    assert str(error) == f"job_id: expected the id of a dead job, got 'a': {found}"


def test_a_schema_error_says_what_is_missing_and_what_mends_it() -> None:
    error = SchemaError("the database lacks jobs, redrives.note", ["jobs", "redrives.note"], "mend")
    assert error.missing == ("jobs", "redrives.note")
    assert error.remedy == "mend"
    assert str(error) == "the database lacks jobs, redrives.note; mend"


@pytest.mark.parametrize("kind", [Retryable, Permanent, StoreBusy, UnsupportedEngine])
def test_a_message_is_kept_as_given(kind: type[LeaseStoreError]) -> None:
    assert str(kind("as given")) == "as given"
    assert str(kind()) == ""


def test_subclasses_pickle_as_themselves() -> None:
    twin = pickle.loads(pickle.dumps(Renamed("a", 1, 2)))
    assert type(twin) is Renamed
    assert twin.qty == 2


class Renamed(Conflict):
    """An application's own kind of conflict."""


class OldFashioned(Retryable):
    def __init__(self) -> None:
        pass


def test_a_retryable_says_when_or_nothing() -> None:
    assert Retryable("why").delay_ms is None
    assert OldFashioned().delay_ms is None
    error = Retryable("why", 7, delay_ms=0)
    assert (error.args, error.delay_ms) == (("why", 7), 0)
    for same in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (same.args, same.delay_ms) == (error.args, 0)


@pytest.mark.parametrize("delay_ms", [-1, 1.0, "5", True])
def test_a_delay_that_is_none_is_refused_where_it_is_raised(delay_ms: Any) -> None:
    with pytest.raises(ValueError, match="delay_ms: expected int from 0"):
        Retryable("why", delay_ms=delay_ms)
