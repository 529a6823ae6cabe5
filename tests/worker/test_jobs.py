"""What becomes of a job, by what `send` answers or raises."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from leasestore import JobRepository, Limits, Permanent, Retryable, Worked, Worker
from tests.worker.scene import Meddled, Queue, Told, at_work


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


def test_a_delay_beyond_the_limits_is_cut_and_told_with_its_reason(
    queue: Queue, told: Told
) -> None:
    queue.jobs.enqueue({"id": "a", "qty": 1}, 1_000, 60_000)
    jobs = JobRepository(queue.engine, limits=Limits(ttl_ms=100_000))
    jobs.enqueue({"id": "b", "qty": 1}, 1_000, 100_000)
    worker = Worker(jobs, answering(Retryable("later", delay_ms=10**5000)), clock=lambda: 1_000)
    assert worker.run(until_empty=True) == Worked(retried=1, dead=1, ended="empty")
    assert queue.row("b")["available_at"] == 61_000
    record = told.wait_for("retried")
    assert record.getMessage().endswith(
        ": pending in 60000 ms (asked for more than 60000, the longest: wider with "
        "Limits(delay_ms=...)): Retryable: later"
    )
    assert (record.levelno, vars(record)["delay_ms"]) == (logging.WARNING, 60_000)
    assert (
        told.wait_for("dead")
        .getMessage()
        .endswith(
            ": dead, its deadline comes before its next attempt (asked for more than 60000, the "
            "longest: wider with Limits(delay_ms=...)): Retryable: later"
        )
    )


@pytest.mark.parametrize("delay", ["soon", -1, True])
def test_what_is_no_delay_is_an_error_that_tells_the_reason(
    queue: Queue, told: Told, delay: Any
) -> None:
    class Odd(Retryable):
        delay_ms = delay

        def __init__(self) -> None:
            Exception.__init__(self, "busy")

    queue.enqueue("a")
    assert Worker(queue.jobs, answering(odd := Odd())).run(once=True).left == 1
    error = told.wait_for("left").exc_info
    assert error
    assert isinstance(error[1], ValueError)
    assert error[1].__cause__ is odd


@pytest.mark.parametrize(
    ("answer", "reason", "text"),
    [
        (Permanent("no such"), "permanent", "dead: Permanent: no such"),
        (Retryable("busy"), "exhausted", "dead, its attempts are used up: Retryable: busy"),
        (Retryable("busy", delay_ms=60_000), "exhausted", "dead, its attempts are used up: "),
    ],
)
def test_a_dead_job_is_told_with_why(
    queue: Queue, told: Told, answer: Any, reason: str, text: str
) -> None:
    queue.enqueue("a", max_attempts=1)
    Worker(queue.jobs, answering(answer)).run(once=True)
    record = told.wait_for("dead")
    assert f": {text}" in record.getMessage()
    assert vars(record)["reason"] == queue.row("a")["reason"] == reason
    assert vars(record)["error_type"] == type(answer).__name__


def test_a_reason_that_cannot_be_read_any_more_is_left_out(
    meddled: Meddled, queue: Queue, told: Told
) -> None:
    queue.enqueue("a", max_attempts=1)

    def gone(*_: object) -> None:
        with queue.engine.begin() as connection:
            connection.exec_driver_sql("DELETE FROM jobs")

    meddled.after["finish"] = gone
    Worker(meddled, answering(Retryable("busy"))).run(once=True)
    record = told.wait_for("dead")
    assert record.getMessage().endswith(": dead: Retryable: busy")
    assert vars(record)["reason"] is None


def test_the_kind_of_an_error_is_told(queue: Queue, told: Told) -> None:
    queue.enqueue("a", "b")
    Worker(queue.jobs, answering(KeyError("bug"))).run(once=True)
    assert vars(told.wait_for("left"))["error_type"] == "KeyError"
    Worker(queue.jobs, answering(Retryable(delay_ms=7))).run(once=True)
    told_fields = vars(told.wait_for("retried"))
    assert (told_fields["error_type"], told_fields["delay_ms"]) == ("Retryable", 7)


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
