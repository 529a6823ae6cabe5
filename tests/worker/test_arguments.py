"""What a worker refuses, each time saying what to do instead."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, Optional

import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import AssertionPool, NullPool, QueuePool, SingletonThreadPool, StaticPool

from leasestore import Delivery, Job, JobRepository, Limits, UnsupportedEngine, Worker, open_queue
from leasestore.aio import AsyncJobRepository
from leasestore.worker import handlers
from tests.worker.scene import Queue


def ok(_: Any) -> bool:
    return True


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("owner", ""),
        ("owner", "a b"),
        ("owner", 7),
        ("clock", 7),
        ("jitter", 1.5),
        ("jitter", lambda: 2),
        ("jitter", True),
        ("lease_ms", 0),
        ("lease_ms", 60_001),
        ("lease_ms", 1.0),
        ("concurrency", 0),
        ("concurrency", 1001),
        ("concurrency", True),
        ("poll_ms", 0),
        ("poll_ms", 3_600_001),
        ("grace_ms", -1),
        ("grace_ms", 86_400_001),
        ("max_run_ms", 0),
        ("max_run_ms", "1"),
        ("unclassified", "ignore"),
        ("wakeup", object()),
        ("watcher", "watcher"),
    ],
)
def test_an_argument_out_of_its_bounds(queue: Queue, argument: str, value: Any) -> None:
    arguments: Any = {argument: value}
    named = "jitter|clock" if argument == "jitter" else argument
    with pytest.raises(ValueError, match=f"^({named})"):
        Worker(queue.jobs, ok, **arguments)


def test_wider_limits_count(queue: Queue) -> None:
    jobs = JobRepository(queue.engine, limits=Limits(lease_ms=100_000))
    Worker(jobs, ok, lease_ms=100_000)


def test_a_repository_that_threads_cannot_share(queue: Queue) -> None:
    with (
        queue.engine.connect() as connection,
        pytest.raises(ValueError, match=r"JobRepository\(connection.engine\)"),
    ):
        Worker(JobRepository(connection), ok)
    with Session(queue.engine) as session:
        enlisted: Any = queue.jobs.within(session)
        with pytest.raises(ValueError, match="finish_within"):
            Worker(enlisted, ok)


def test_an_asynchronous_repository() -> None:
    engine = create_async_engine("sqlite+aiosqlite:///queue.db")
    asynchronous: Any = AsyncJobRepository(engine)
    with pytest.raises(ValueError, match="synchronous driver for the same database"):
        Worker(asynchronous, ok)


def test_something_else(queue: Queue) -> None:
    engine: Any = queue.engine
    with pytest.raises(ValueError, match=r"expected a JobRepository over an Engine, got Engine$"):
        Worker(engine, ok)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///file::memory:?uri=true",
        "sqlite:///file:q?mode=memory&cache=shared&uri=true",
    ],
)
def test_a_database_in_memory(url: str) -> None:
    with pytest.raises(UnsupportedEngine, match="use a file"):
        Worker(JobRepository(create_engine(url, poolclass=QueuePool)), ok)


@pytest.mark.parametrize("pool", [AssertionPool, SingletonThreadPool, StaticPool])
def test_a_pool_that_gives_several_the_same_connection(path: Path, pool: Any) -> None:
    engine = create_engine(f"sqlite:///{path}", poolclass=pool)
    with pytest.raises(UnsupportedEngine, match=pool.__name__):
        Worker(JobRepository(engine), ok)


def test_other_pools_and_a_queue_file_will_do(path: Path) -> None:
    engine = create_engine(f"sqlite:///{path}", poolclass=NullPool)
    assert Worker(JobRepository(engine), ok).run(until_empty=True).ended == "empty"
    with open_queue(path) as jobs:
        assert Worker(jobs, ok).run(until_empty=True).ended == "empty"


class Callable:
    def __call__(self, delivery: Delivery) -> bool:
        return True

    def method(self, delivery: Delivery, more: int = 0) -> bool:
        return True

    async def coroutine(self, delivery: Delivery) -> bool:
        return True


class AsyncCallable:
    async def __call__(self, event: dict[str, Any]) -> bool:
        return True


def two(first: int, delivery: Delivery) -> bool:
    return True


def quoted(delivery: "Delivery") -> bool:  # noqa: UP037
    return True


def without(event):  # type: ignore[no-untyped-def]
    return True


def nothing() -> bool:
    return True


def or_none(delivery: Delivery | None) -> bool:
    return True


def optional(delivery: Optional["Delivery"]) -> bool:  # noqa: UP045, UP037
    return True


def or_something(event: dict[str, Any] | None) -> bool:
    return True


def of_the_model(delivery: Job) -> bool:
    return True


def or_of_the_model(delivery: Job | None) -> bool:
    return True


def of_two(event: object, more: object) -> bool:
    return True


def by_name(*, event: object) -> bool:
    return True


def of_a_missing_name(event: Missing) -> bool:  # type: ignore[name-defined]  # noqa: F821
    return True


def of_a_missing_delivery(event: elsewhere.Delivery) -> bool:  # type: ignore[name-defined]  # noqa: F821
    return True


@pytest.mark.parametrize(
    "send",
    [
        Callable(),
        Callable().method,
        Callable().coroutine,
        functools.partial(two, 1),
        quoted,
        or_none,
        optional,
        functools.wraps(quoted)(lambda *args: quoted(*args)),
    ],
)
def test_who_asks_for_a_delivery_gets_one(send: Any) -> None:
    assert handlers.wants_delivery(send)


@pytest.mark.parametrize(
    "send",
    [ok, without, nothing, or_something, of_a_missing_name, AsyncCallable(), two, print, max],
)
def test_who_does_not_ask_gets_the_dict(send: Any) -> None:
    assert not handlers.wants_delivery(send)


def test_a_delivery_that_cannot_be_found_is_not_guessed_at(queue: Queue) -> None:
    with pytest.raises(ValueError, match="not only for type checkers"):
        Worker(queue.jobs, of_a_missing_delivery)


@pytest.mark.parametrize(
    ("send", "name"),
    [(Callable(), "Callable"), (Callable().method, "Callable.method"), (quoted, "quoted")],
)
def test_a_handler_has_a_name(send: Any, name: str) -> None:
    assert handlers.name_of(send) == f"{__name__}:{name}"


@pytest.mark.parametrize("send", [of_the_model, or_of_the_model])
def test_a_model_is_not_taken_for_a_delivery(queue: Queue, send: Any) -> None:
    with pytest.raises(ValueError, match=r"leasestore\.models\.Job, .* leasestore\.Delivery"):
        Worker(queue.jobs, send)


@pytest.mark.parametrize("send", [nothing, of_two, by_name])
def test_a_send_of_other_parameters_than_one(queue: Queue, send: Any) -> None:
    with pytest.raises(ValueError, match=r"send: expected .* with one argument, the job; got one"):
        Worker(queue.jobs, send)


def test_a_send_whose_parameters_cannot_be_known_will_do(queue: Queue) -> None:
    Worker(queue.jobs, max)


@pytest.mark.parametrize("send", [None, 7, "send"])
def test_a_send_that_cannot_be_called(queue: Queue, send: Any) -> None:
    with pytest.raises(ValueError, match=r"^send: expected a callable"):
        Worker(queue.jobs, send)


@pytest.mark.parametrize("send", [Callable().coroutine, AsyncCallable()])
def test_coroutines_are_awaited(queue: Queue, send: Any) -> None:
    queue.enqueue("a")
    assert Worker(queue.jobs, send).run(once=True).done == 1


def test_a_jitter_that_fails_later_on_is_full_length(queue: Queue) -> None:
    numbers = iter([0.5])
    queue.enqueue("a")
    worker = Worker(queue.jobs, ok, jitter=lambda: next(numbers))
    assert worker.run(until_empty=True).done == 1
