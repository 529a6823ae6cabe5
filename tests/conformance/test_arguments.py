"""Every argument of every verb, from both sides of its bounds. A bad one is a `ValueError` that
names it, and nothing at all reaches the database."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from leasestore import JobRepository, open_queue, run_file, run_once
from tests.conformance.scene import HELD, NOW, stage
from tests.conformance.stores import SQLiteStore, Store, released
from tests.conformance.values import (
    FAULTS,
    IDENTIFIERS,
    OUTCOMES,
    Nameless,
    Values,
    integers,
    records,
)
from tests.support import ENGINES, make_file

EVENT = {"id": "new", "qty": 1}
LATEST = 10**15 - 60_000
TIMES = integers(0, LATEST)

DEFAULTS: dict[str, dict[str, Any]] = {
    "enqueue": {"event": EVENT, "now_ms": NOW, "ttl_ms": 60_000},
    "claim": {"owner": "me", "now_ms": NOW},
    "finish": {"ticket": HELD, "outcome": "retry", "now_ms": NOW},
    "renew": {"ticket": HELD, "now_ms": NOW},
    "release": {"ticket": HELD},
    "redrive": {"job_id": "dead", "now_ms": NOW, "ttl_ms": 1000, "note": "by-hand"},
    "get": {"job_id": "held"},
    "stuck": {"now_ms": NOW},
    "recover": {"now_ms": NOW},
    "finish_and_claim": {"ticket": HELD, "outcome": "retry", "owner": "me", "now_ms": NOW},
    "claim_batch": {"owner": "me", "now_ms": NOW, "limit": 2},
    "finish_batch": {"items": [(HELD, "retry", 0)], "now_ms": NOW},
    "enqueue_many": {"events": [EVENT], "now_ms": NOW, "ttl_ms": 60_000},
    "renew_batch": {"tickets": [HELD], "now_ms": NOW},
}
"""A call of each verb in the scene, to which each argument is added in turn."""

ARGUMENTS: dict[tuple[str, str], Values] = {
    ("enqueue", "event"): records(EVENT),
    ("enqueue", "event.id"): IDENTIFIERS,
    ("enqueue", "event.qty"): integers(1, 1000),
    ("enqueue", "now_ms"): TIMES,
    ("enqueue", "ttl_ms"): integers(1, 60_000),
    ("enqueue", "max_attempts"): integers(1, 16),
    ("enqueue", "delay_ms"): integers(0, 59_999),
    ("claim", "owner"): IDENTIFIERS,
    ("claim", "now_ms"): TIMES,
    ("claim", "lease_ms"): integers(1, 60_000),
    ("claim", "fault"): FAULTS,
    ("claim", "job_id"): IDENTIFIERS,
    ("finish", "ticket"): records(HELD),
    ("finish", "outcome"): OUTCOMES,
    ("finish", "now_ms"): TIMES,
    ("finish", "delay_ms"): integers(0, 60_000),
    ("finish", "fault"): FAULTS,
    ("renew", "ticket"): records(HELD),
    ("renew", "now_ms"): TIMES,
    ("renew", "lease_ms"): integers(1, 60_000),
    ("renew", "fault"): FAULTS,
    ("release", "ticket"): records(HELD),
    ("release", "fault"): FAULTS,
    ("redrive", "job_id"): IDENTIFIERS,
    ("redrive", "now_ms"): TIMES,
    ("redrive", "ttl_ms"): integers(1, 60_000),
    ("redrive", "note"): IDENTIFIERS,
    ("redrive", "fault"): FAULTS,
    ("get", "job_id"): IDENTIFIERS,
    ("stuck", "now_ms"): TIMES,
    ("stuck", "limit"): integers(1, 100_000),
    ("recover", "now_ms"): TIMES,
    ("finish_and_claim", "ticket"): records(HELD),
    ("finish_and_claim", "outcome"): OUTCOMES,
    ("finish_and_claim", "owner"): IDENTIFIERS,
    ("finish_and_claim", "now_ms"): TIMES,
    ("finish_and_claim", "lease_ms"): integers(1, 60_000),
    ("finish_and_claim", "delay_ms"): integers(0, 60_000),
    ("finish_and_claim", "fault"): FAULTS,
    ("claim_batch", "owner"): IDENTIFIERS,
    ("claim_batch", "now_ms"): TIMES,
    ("claim_batch", "limit"): integers(1, 1000),
    ("claim_batch", "lease_ms"): integers(1, 60_000),
    ("claim_batch", "fault"): FAULTS,
    ("finish_batch", "items"): Values(
        good=([], (), [(HELD, "ok", 0)], ((HELD, "ok", 0),), [(HELD, "ok", 0)] * 1000),
        bad=(
            *(None, True, 1, "", "items", b"", {}, {1}, HELD, iter([]), Nameless()),
            *((HELD, "ok", 0), [HELD], [None], [()], [[HELD, "ok", 0]], [(HELD, "ok")]),
            *([(HELD, "ok", 0, 0)], [("ok", HELD, 0)], [(HELD, 0, "ok")], [(HELD, "done", 0)]),
            *([(HELD, "retry", bad)] for bad in integers(0, 60_000).bad),
            *([(HELD, "ok", 0), (bad, "ok", 0)] for bad in records(HELD).bad),
            [(HELD, "ok", 0)] * 1001,
        ),
    ),
    ("enqueue_many", "events"): Values(
        good=([], (), [EVENT], (EVENT, EVENT), [EVENT] * 1000),
        bad=(
            *(None, True, 1, "", "new", b"", EVENT, {1}, iter([]), Nameless(), [[EVENT]]),
            *([EVENT, bad] for bad in records(EVENT).bad),
            *([EVENT, {**EVENT, "id": bad}] for bad in IDENTIFIERS.bad),
            *([EVENT, {**EVENT, "qty": bad}] for bad in integers(1, 1000).bad),
            [EVENT] * 1001,
        ),
    ),
    ("enqueue_many", "now_ms"): TIMES,
    ("enqueue_many", "ttl_ms"): integers(1, 60_000),
    ("enqueue_many", "max_attempts"): integers(1, 16),
    ("enqueue_many", "delay_ms"): integers(0, 59_999),
    ("renew_batch", "tickets"): Values(
        good=([], (), [HELD], (HELD,), [HELD] * 1000),
        bad=(
            *(None, True, 1, "", "tickets", b"", HELD, {1}, iter([]), Nameless(), [[HELD]]),
            *([HELD, bad] for bad in records(HELD).bad),
            [HELD] * 1001,
        ),
    ),
    ("renew_batch", "now_ms"): TIMES,
    ("renew_batch", "lease_ms"): integers(1, 60_000),
    ("renew_batch", "fault"): FAULTS,
    ("finish_batch", "now_ms"): TIMES,
    ("finish_batch", "fault"): FAULTS,
    **{
        (verb, f"ticket.{key}"): values
        for verb in ("finish", "renew", "release", "finish_and_claim")
        for key, values in {
            "id": IDENTIFIERS,
            "qty": integers(1, 1000),
            "owner": IDENTIFIERS,
            "token": integers(1, 10**15),
            "attempt": integers(1, 16),
            "lease_until": integers(1, 10**15),
        }.items()
    },
}


def arguments(verb: str, argument: str, value: object) -> dict[str, Any]:
    """A call with one argument, or one item of a dict, of this value."""
    given = {**DEFAULTS[verb]}
    name, _, key = argument.partition(".")
    given[name] = {**given[name], key: value} if key else value
    return given


EACH = pytest.mark.parametrize(("verb", "argument"), ARGUMENTS)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Store, list[str]]]:
    """A scene that no call may change, and whatever was sent to SQLite."""
    path = make_file(tmp_path_factory.mktemp("arguments") / "queue.db")
    sent: list[str] = []
    engine = ENGINES["default"](path)
    # Below SQLAlchemy, so that statements of the driver's own are seen too.
    event.listen(engine, "connect", lambda driver, _: driver.set_trace_callback(sent.append))
    store = SQLiteStore(JobRepository(engine), path, released(engine))
    stage(store)
    assert store.repository.get("held") is not None
    assert sent
    yield store, sent
    engine.dispose()


def snapshot(value: object) -> object:
    """What a caller would notice if an argument were modified."""
    return list(value.items()) if isinstance(value, Mapping) else value


def assert_refused(
    watched: tuple[Store, list[str]], verb: str, argument: str, value: object
) -> None:
    store, sent = watched
    given = arguments(verb, argument, value)
    given_before = {name: snapshot(item) for name, item in given.items()}
    before = store.dump()
    sent.clear()
    with pytest.raises(ValueError, match="expected") as caught:
        getattr(store.repository, verb)(**given)
    assert type(caught.value) is ValueError
    for name in argument.split("."):
        # An event has no second `id` or `qty` to be mistaken for.
        assert name in str(caught.value) or name == "event"
    assert sent == []
    assert store.dump() == before
    assert {name: snapshot(item) for name, item in given.items()} == given_before


@EACH
def test_a_bad_value_is_refused_by_name_and_nothing_is_sent(
    watched: tuple[Store, list[str]], verb: str, argument: str
) -> None:
    for value in ARGUMENTS[verb, argument].bad:
        # `None` is a job of no particular name, and no fault.
        if not (value is None and (verb, argument) == ("claim", "job_id")):
            assert_refused(watched, verb, argument, value)


@pytest.mark.parametrize(
    ("verb", "argument"),
    [
        ("enqueue", "event"),
        ("enqueue", "event.qty"),
        ("claim", "owner"),
        ("claim", "now_ms"),
        ("claim", "fault"),
        ("finish", "outcome"),
        ("finish", "ticket.token"),
        ("stuck", "limit"),
    ],
)
def test_a_number_too_long_to_be_printed_is_refused_by_name(
    watched: tuple[Store, list[str]], verb: str, argument: str
) -> None:
    assert_refused(watched, verb, argument, -(10**5000))


@EACH
def test_a_value_at_its_bound_is_accepted(either_store: Store, verb: str, argument: str) -> None:
    for value in ARGUMENTS[verb, argument].good:
        either_store.wipe()
        stage(either_store)
        if (verb, argument) == ("redrive", "job_id"):
            either_store.insert(id=value, status="dead", reason="permanent")
        getattr(either_store.repository, verb)(**arguments(verb, argument, value))


def test_the_largest_values_are_stored_and_read_back_as_they_are(store: Store) -> None:
    repository, longest = store.repository, "a" * 64
    assert repository.enqueue({"id": longest, "qty": 1000}, LATEST, 60_000, 16)
    stored = repository.get(longest)
    assert stored is not None
    assert (stored["available_at"], stored["deadline"]) == (LATEST, 10**15)
    assert (stored["qty"], stored["max_attempts"]) == (1000, 16)
    store.insert(id="last", token=10**15 - 1, attempts=15, max_attempts=16, deadline=10**15)
    ticket = repository.claim("o" * 64, LATEST, 60_000, job_id="last")
    assert ticket == {
        "id": "last",
        "qty": 1,
        "owner": "o" * 64,
        "token": 10**15,
        "attempt": 16,
        "lease_until": 10**15,
    }
    assert repository.renew(ticket, LATEST, 60_000) == ticket
    assert repository.finish(ticket, "permanent", LATEST) == "dead"
    assert repository.redrive("last", LATEST, 60_000, "n" * 64)
    assert store.rows("redrives") == [
        {"seq": 1, "id": "last", "token": 10**15, "at_ms": LATEST, "note": "n" * 64}
    ]
    assert repository.get("last") == store.row("last")
    assert (store.row("last")["available_at"], store.row("last")["deadline"]) == (LATEST, 10**15)


def test_every_argument_of_every_verb_is_in_the_table() -> None:
    taken = {
        (verb, name)
        for verb in DEFAULTS
        for name in inspect.signature(getattr(JobRepository, verb)).parameters
        # `values` belongs to models of one's own.
        if name not in ("self", "values")
    }
    assert taken == {key for key in ARGUMENTS if "." not in key[1]}


ORDER = {
    "enqueue": ["event", "now_ms", "ttl_ms", "max_attempts"],
    "claim": ["owner", "now_ms", "lease_ms", "fault"],
    "finish": ["ticket", "outcome", "now_ms", "delay_ms", "fault"],
    "redrive": ["job_id", "now_ms", "ttl_ms", "note", "fault"],
    "renew": ["ticket", "now_ms", "lease_ms", "fault"],
    "release": ["ticket", "fault"],
    "get": ["job_id"],
    "stuck": ["now_ms", "limit"],
    "recover": ["now_ms"],
    "finish_and_claim": ["ticket", "outcome", "owner", "now_ms", "lease_ms", "delay_ms"],
    "claim_batch": ["owner", "now_ms", "limit", "lease_ms", "fault"],
    "finish_batch": ["items", "now_ms", "fault"],
    "enqueue_many": ["events", "now_ms", "ttl_ms", "max_attempts"],
    "renew_batch": ["tickets", "now_ms", "lease_ms", "fault"],
}


@pytest.mark.parametrize("verb", ORDER)
def test_arguments_come_in_the_order_of_the_contract(verb: str) -> None:
    parameters = inspect.signature(getattr(JobRepository, verb)).parameters.values()
    positional = [item.name for item in parameters if item.kind is item.POSITIONAL_OR_KEYWORD]
    assert positional[1:] == ORDER[verb]


@pytest.mark.parametrize(
    ("function", "order"),
    [
        (run_once, ["repository", "owner", "clock", "send", "jitter", "lease_ms"]),
        (run_file, ["path", "owner", "clock", "send", "jitter", "lease_ms"]),
        (open_queue, ["path"]),
    ],
)
def test_functions_take_their_arguments_in_the_order_of_the_contract(
    function: Any, order: list[str]
) -> None:
    parameters = inspect.signature(function).parameters.values()
    assert [item.name for item in parameters if item.kind is item.POSITIONAL_OR_KEYWORD] == order


@pytest.mark.parametrize("bind", [None, "sqlite://", 1, object()])
def test_a_repository_wants_an_engine_or_a_connection(bind: Any) -> None:
    with pytest.raises(ValueError, match="bind: expected a SQLAlchemy Engine or Connection"):
        JobRepository(bind)


OTHERWISE_BAD: dict[str, dict[str, Any]] = {
    "claim": {"owner": "a b"},
    "enqueue": {"event": {"id": "new", "qty": 0}},
    "finish": {"outcome": "OK"},
}


@pytest.mark.parametrize("verb", OTHERWISE_BAD)
def test_a_clock_is_not_read_where_another_argument_is_bad(one_store: Store, verb: str) -> None:
    def never() -> int:
        raise AssertionError("the clock was read")

    with pytest.raises(ValueError):
        getattr(one_store.repository, verb)(
            **{**DEFAULTS[verb], "now_ms": never, **OTHERWISE_BAD[verb]}
        )
    assert one_store.dump()["jobs"] == []


@pytest.mark.parametrize(
    ("verb", "argument"),
    [
        ("enqueue", "ttl_ms"),
        ("enqueue", "max_attempts"),
        ("enqueue", "event.qty"),
        ("enqueue", "delay_ms"),
        ("claim", "lease_ms"),
        ("renew", "lease_ms"),
        ("finish", "delay_ms"),
        ("redrive", "ttl_ms"),
    ],
)
def test_an_error_about_a_bound_says_where_it_is_widened(
    one_store: Store, verb: str, argument: str
) -> None:
    with pytest.raises(ValueError, match=rf"Limits\({argument.rpartition('.')[2]}="):
        getattr(one_store.repository, verb)(**arguments(verb, argument, 60_001))


def test_nothing_is_made_by_a_refused_path(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="journal_mode"):
        open_queue(tmp_path / "a.db", journal_mode="OFF")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
