"""What becomes of a job, by what `send` answers or raises."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from leasestore import Permanent, Retryable, Worked, Worker
from tests.worker.scene import Queue, Told, at_work


class Muddled(BaseException):
    """Neither an Exception, nor to be shown."""

    def __str__(self) -> str:
        raise ValueError("cannot be shown")


class Long(Exception):
    def __str__(self) -> str:
        return "\u00e9" * 1_000_000


def answering(answer: object) -> Callable[[Any], object]:
    def send(_: Any) -> object:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return send


def awaited(answer: object) -> Callable[[Any], Any]:
    async def send(_: Any) -> object:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return send


FACES = [pytest.param(answering, id="plain"), pytest.param(awaited, id="coroutine")]
UNCLASSIFIED = [
    ValueError("boom"),
    Long(),
    Muddled(),
    SystemExit(3),
    KeyboardInterrupt(),
    GeneratorExit(),
    asyncio.CancelledError(),
    None,
    1,
    "true",
    object(),
    float("nan"),
    b"\0" * 1000,
]


def kind(value: object) -> str:
    return type(value).__name__


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize(
    ("answer", "end", "worked"),
    [
        (True, ("done", None, 1), Worked(done=1, ended="once")),
        (Retryable("no"), ("pending", "retry", 1), Worked(retried=1, ended="once")),
        (Permanent("no"), ("dead", "permanent", 1), Worked(dead=1, ended="once")),
    ],
    ids=["True", "Retryable", "Permanent"],
)
def test_a_job_ends_by_its_class(
    either_queue: Queue, face: Any, answer: Any, end: Any, worked: Worked
) -> None:
    either_queue.enqueue("a")
    assert Worker(either_queue.jobs, face(answer)).run(once=True) == worked
    assert either_queue.end("a") == end


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("answer", UNCLASSIFIED, ids=kind)
def test_an_answer_without_a_class_leaves_the_job_to_its_lease(
    queue: Queue, told: Told, face: Any, answer: Any
) -> None:
    queue.enqueue("a", "b")
    worker = Worker(queue.jobs, face(answer), owner="w")
    # One place: the second job shows that neither the thread nor the loop is lost.
    assert worker.run(until_empty=True) == Worked(left=2, ended="empty")
    for job_id in ("a", "b"):
        row = queue.row(job_id)
        assert (row["status"], row["owner"], row["attempts"]) == ("leased", "w", 1)
    record = told.wait_for("left", 2)
    assert (record.levelno, record.exc_info is not None) == (logging.ERROR, True)
    assert vars(record)["job_id"] in ("a", "b")
    assert (vars(record)["token"], vars(record)["attempt"], vars(record)["owner"]) == (1, 1, "w")


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("answer", UNCLASSIFIED, ids=kind)
def test_or_has_it_tried_again_where_that_is_asked_for(
    queue: Queue, told: Told, face: Any, answer: Any
) -> None:
    queue.enqueue("a", max_attempts=2)
    worker = Worker(queue.jobs, face(answer), jitter=0, unclassified="retry")
    assert worker.run(until_empty=True) == Worked(retried=1, dead=1, ended="empty")
    assert queue.end("a") == ("dead", "exhausted", 2)
    assert told.events("retried", "dead") == ["retried", "dead"]
    assert all(
        record.exc_info for record in told.records if vars(record)["event"] in ("retried", "dead")
    )


def test_a_class_is_told_with_its_reason_cut_short(queue: Queue, told: Told) -> None:
    queue.enqueue("a")
    Worker(queue.jobs, answering(Permanent("x" * 10_000_000))).run(once=True)
    text = told.wait_for("dead").getMessage()
    assert text.startswith("job a (token 1, attempt 1): dead: Permanent: xxx")
    assert text.endswith("(10000011 characters)")
    assert len(text) < 700


def test_a_reason_that_cannot_be_shown_costs_nothing_but_itself(queue: Queue, told: Told) -> None:
    class Shy(Retryable):
        def __str__(self) -> str:
            raise ValueError

    queue.enqueue("a")
    Worker(queue.jobs, answering(Shy())).run(once=True)
    assert queue.end("a") == ("pending", "retry", 1)
    assert told.texts()[-2].endswith(": Shy: (its text cannot be shown)")


def test_a_retry_waits_as_long_as_the_error_says(queue: Queue) -> None:
    for job_id in ("a", "b"):
        queue.jobs.enqueue({"id": job_id, "qty": 1}, 1_000, 60_000)

    def send(event: Any) -> bool:
        raise Retryable("later", delay_ms=5_000 if event["id"] == "a" else None)

    Worker(queue.jobs, send, clock=lambda: 1_000, jitter=0.5).run(until_empty=True)
    assert queue.row("a")["available_at"] == 6_000
    assert queue.row("b")["available_at"] == 1_050


def test_a_delay_beyond_the_limits_is_an_error_without_a_class(queue: Queue, told: Told) -> None:
    queue.enqueue("a")
    worker = Worker(queue.jobs, answering(Retryable("later", delay_ms=60_001)))
    assert worker.run(once=True) == Worked(left=1, ended="once")
    error = told.wait_for("left").exc_info
    assert error
    assert "Limits(delay_ms=...)" in str(error[1])


def test_a_failing_job_holds_nobody_back(queue: Queue) -> None:
    queue.enqueue("bad", *(f"good-{n}" for n in range(20)))

    def send(event: Any) -> bool:
        if event["id"] == "bad":
            raise Retryable(delay_ms=0)
        return True

    with at_work(Worker(queue.jobs, send), until_empty=True) as going:
        assert going.ended() == Worked(done=20, retried=2, dead=1, ended="empty")


def test_send_gets_a_dict_of_its_own(queue: Queue) -> None:
    queue.enqueue("a")

    def send(event: dict[str, Any]) -> bool:
        assert event == {"id": "a", "qty": 1}
        event.clear()
        return True

    assert Worker(queue.jobs, send).run(once=True).done == 1


class Heavy(Exception):
    """An error that is seen to go."""


@pytest.mark.parametrize("face", ["plain", "coroutine"])
@pytest.mark.parametrize("kind", [Heavy, Retryable])
def test_an_error_is_not_kept_until_the_garbage_is_collected(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, face: str, kind: type[Exception]
) -> None:
    # A log handler may keep it, which is not the worker's doing.
    monkeypatch.setattr(logging.getLogger("leasestore.worker"), "disabled", True)
    queue.enqueue("a", "b")
    raised: list[weakref.ref[BaseException]] = []

    def plain(_: Any) -> bool:
        error = kind("boom")
        raised.append(weakref.ref(error))
        try:
            raise error
        finally:
            del error

    async def coroutine(event: Any) -> bool:
        return plain(event)

    gc.disable()
    try:
        Worker(queue.jobs, plain if face == "plain" else coroutine).run(once=True)
        assert raised[0]() is None
    finally:
        gc.enable()
