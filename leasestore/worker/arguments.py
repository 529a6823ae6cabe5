"""What a worker may be given, beside the values that the verbs take too."""

from __future__ import annotations

from typing import Any, TypeVar, cast

from sqlalchemy import Engine
from sqlalchemy.pool import AssertionPool, SingletonThreadPool, StaticPool

from leasestore import validation
from leasestore.errors import UnsupportedEngine
from leasestore.repository import JobRepository
from leasestore.worker.terms import Unclassified

_T = TypeVar("_T")
_NEEDED = "repository: expected a JobRepository over an Engine, got"


def repository(value: object) -> JobRepository:
    """One whose verbs any thread can call, each in a transaction of its own."""
    if getattr(value, "enlisted", False) is True:
        raise ValueError(
            f"{_NEEDED} an enlisted one, whose transaction would be open while send runs; give the "
            "repository itself, and finish in your own transaction by Delivery.finish_within"
        )
    if not isinstance(value, JobRepository):
        remedy = ""
        if type(value).__name__ == "AsyncJobRepository":
            remedy = (
                "; a worker is synchronous at the database, whatever send is: give "
                "JobRepository(create_engine(...)), with a synchronous driver for the same database"
            )
        raise ValueError(f"{_NEEDED} {type(value).__name__}{remedy}")
    if not isinstance(value._bind, Engine):
        raise ValueError(
            f"{_NEEDED} one over a Connection, which a worker's threads cannot share; give "
            "JobRepository(connection.engine)"
        )
    _shared_by_threads(value._bind, value)
    return value


def _shared_by_threads(engine: Engine, of: JobRepository) -> None:
    of._queue.dialect.refuse_private(engine)
    if isinstance(engine.pool, AssertionPool | SingletonThreadPool | StaticPool):
        raise UnsupportedEngine(
            f"this engine has a {type(engine.pool).__name__}, which gives threads one connection "
            "together, or takes one away from them; leave poolclass out, or use a QueuePool"
        )


def unclassified(value: object) -> Unclassified:
    return cast("Unclassified", validation.choice("unclassified", value, ("leave", "retry")))


def max_run_ms(value: object) -> int | None:
    return None if value is None else validation.integer("max_run_ms", value, 1, 10**12)


def has(name: str, value: _T, *methods: str) -> _T:
    """None, or something with these methods."""
    for method in methods if value is not None else ():
        attribute: Any = getattr(value, method, None)
        if not callable(attribute):
            raise ValueError(
                f"{name}: expected an object with {', '.join(methods)}, got {type(value).__name__}"
            )
    return value
