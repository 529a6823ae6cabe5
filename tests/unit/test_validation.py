"""What callers may pass: each check by itself, and what it says when it refuses."""

from __future__ import annotations

import dataclasses
import os
from collections import OrderedDict, UserDict
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection, create_engine

from leasestore import Limits, validation
from tests.conformance.values import (
    FAULTS,
    IDENTIFIERS,
    JITTERS,
    OUTCOMES,
    Text,
    Values,
    integers,
    records,
)

LIMITS = Limits()
LAST = 10**15
TICKET = {"id": "a", "qty": 1, "owner": "me", "token": 1, "attempt": 1, "lease_until": 1}
EVENT = {"id": "a", "qty": 1}

CHECKS: dict[str, tuple[Callable[[Any], Any], Values]] = {
    "qty": (lambda value: validation.qty(value, LIMITS), integers(1, 1000)),
    "max_attempts": (lambda value: validation.max_attempts(value, LIMITS), integers(1, 16)),
    "ttl_ms": (lambda value: validation.ttl_ms(value, LIMITS), integers(1, 60_000)),
    "lease_ms": (lambda value: validation.lease_ms(value, LIMITS), integers(1, 60_000)),
    "delay_ms": (lambda value: validation.delay_ms(value, LIMITS), integers(0, 60_000)),
    "now_ms": (lambda value: validation.now_ms(value, LIMITS), integers(0, LAST - 60_000)),
    "limit": (validation.limit, integers(1, 100_000)),
    "note": (lambda value: validation.identifier("note", value), IDENTIFIERS),
    "outcome": (validation.outcome, OUTCOMES),
    "jitter": (validation.jitter, JITTERS),
    "event": (lambda value: validation.event(value, LIMITS), records(EVENT)),
    "ticket": (lambda value: validation.ticket(value, LIMITS), records(TICKET)),
}


@pytest.mark.parametrize("name", CHECKS)
def test_a_good_value_comes_back_as_it_is(name: str) -> None:
    check, values = CHECKS[name]
    for value in values.good:
        answer = check(value)
        assert answer == value
        assert type(answer) is type(value)


def test_a_fault_point_is_called_and_its_errors_are_carried() -> None:
    assert validation.fault(None) is None
    passed: list[str] = []
    point = validation.fault(passed.append)
    assert point is not None
    point("after-claim")
    assert passed == ["after-claim"]
    for bad in FAULTS.bad:
        if bad is not None:
            with pytest.raises(ValueError, match="fault: expected"):
                validation.fault(bad)


@pytest.mark.parametrize("name", CHECKS)
def test_a_bad_value_is_refused_with_what_was_expected_and_what_came(name: str) -> None:
    check, values = CHECKS[name]
    for value in values.bad:
        with pytest.raises(ValueError) as caught:
            check(value)
        assert str(caught.value).startswith(f"{name}: expected ")
        assert f"got {type(value).__name__} " in str(caught.value)


def test_a_refusal_stays_short_whatever_came() -> None:
    for value in ("x" * 10**6, list(range(10**6)), 10**4000):
        with pytest.raises(ValueError) as caught:
            validation.identifier("owner", value)
        assert len(str(caught.value)) < 300


def test_a_number_too_long_to_be_printed_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="now_ms: expected"):
        validation.now_ms(10**5000, LIMITS)


@given(st.text())
def test_an_identifier_is_ascii_letters_digits_underscore_and_hyphen(text: str) -> None:
    allowed = set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
    if 1 <= len(text) <= 64 and set(text) <= allowed:
        assert validation.identifier("id", text) == text
    else:
        with pytest.raises(ValueError, match="id"):
            validation.identifier("id", text)


@given(st.from_regex(r"\A[A-Za-z0-9_-]{1,64}\Z"))
def test_every_identifier_is_accepted(text: str) -> None:
    assert validation.identifier("id", text) == text


# Times and clocks

NOWHERE = cast("Connection", None)
"""A clock of the host needs no connection to be read."""


def test_a_number_is_checked_at_once() -> None:
    with pytest.raises(ValueError, match="now_ms"):
        validation.moment(-1, LIMITS)
    assert validation.moment(7, LIMITS)(NOWHERE) == 7


def test_a_clock_is_read_when_it_is_called_and_checked_then() -> None:
    readings = [5, -1]
    clock = validation.moment(lambda: readings.pop(0), LIMITS)
    assert readings == [5, -1]
    assert clock(NOWHERE) == 5
    with pytest.raises(ValueError, match="now_ms read from the clock: expected int"):
        clock(NOWHERE)


def test_a_first_delay_leaves_time_to_run() -> None:
    assert validation.first_delay_ms(9, 10, LIMITS) == 9
    for delay in (10, 11):
        with pytest.raises(ValueError, match=r"delay_ms: expected less than ttl_ms \(10\)"):
            validation.first_delay_ms(delay, 10, LIMITS)
    with pytest.raises(ValueError, match="delay_ms"):
        validation.first_delay_ms(True, 10, LIMITS)


@pytest.mark.parametrize("name", ["clock", "send"])
def test_a_callable_is_asked_for_by_name(name: str) -> None:
    check = getattr(validation, name)
    assert check(print) in (print, None)
    for value in (None, 1, "now", True):
        with pytest.raises(ValueError, match=f"{name}: expected a callable"):
            check(value)


# Records


def test_a_record_is_copied() -> None:
    event, ticket = {**EVENT}, {**TICKET}
    checked_event, checked_ticket = (
        validation.event(event, LIMITS),
        validation.ticket(ticket, LIMITS),
    )
    assert checked_event is not event
    assert checked_ticket is not ticket
    event["qty"] = ticket["qty"] = 9
    assert (checked_event["qty"], checked_ticket["qty"]) == (1, 1)


@pytest.mark.parametrize(
    ("key", "low", "high"),
    [
        ("qty", 1, 1000),
        ("token", 1, LAST),
        ("attempt", 1, 16),
        ("lease_until", 1, LAST),
    ],
)
def test_the_numbers_of_a_ticket(key: str, low: int, high: int) -> None:
    values = integers(low, high)
    for value in values.good:
        assert validation.ticket({**TICKET, key: value}, LIMITS)[key] == value  # type: ignore[literal-required]
    for value in values.bad:
        with pytest.raises(ValueError, match=f"ticket.*{key}"):
            validation.ticket({**TICKET, key: value}, LIMITS)


@pytest.mark.parametrize("key", ["id", "owner"])
def test_the_names_of_a_ticket(key: str) -> None:
    for value in IDENTIFIERS.bad:
        with pytest.raises(ValueError, match=f"ticket.*{key}"):
            validation.ticket({**TICKET, key: value}, LIMITS)


def test_a_refused_record_says_which_keys_it_should_have() -> None:
    with pytest.raises(ValueError, match="keys id, qty, got dict"):
        validation.event({"id": "a"}, LIMITS)
    with pytest.raises(ValueError, match="attempt, id, lease_until, owner, qty, token"):
        validation.ticket({}, LIMITS)


# Choices, paths, binds, values


def test_a_choice_is_strict() -> None:
    assert validation.choice("mode", "a", ("a", "b")) == "a"
    for value in ("c", "", "A", Text("a"), None, 1, ["a"], ("a",)):
        with pytest.raises(ValueError, match="mode: expected 'a' or 'b', got"):
            validation.choice("mode", value, ("a", "b"))


def test_a_path_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    class Entry:
        def __fspath__(self) -> str:
            return "c.db"

    assert validation.queue_path("a.db") == tmp_path / "a.db"
    assert validation.queue_path(Path("b.db")) == tmp_path / "b.db"
    assert validation.queue_path(Entry()) == tmp_path / "c.db"
    assert validation.queue_path("./:memory:") == tmp_path / ":memory:"


@pytest.mark.parametrize(
    "path",
    [":memory:", "", "file:", "file:a.db", "file:a?mode=memory", "a\0b", None, 1, True, b"a.db"],
    ids=repr,
)
def test_what_is_no_path_of_a_file_is_refused(path: object) -> None:
    with pytest.raises(ValueError, match="path: expected"):
        validation.queue_path(path)


def test_a_path_of_bytes_is_refused_behind_an_object_too() -> None:
    class Entry:
        def __fspath__(self) -> bytes:
            return b"a.db"

    assert isinstance(Entry(), os.PathLike)
    with pytest.raises(ValueError, match="path: expected"):
        validation.queue_path(Entry())


def test_a_bind_is_an_engine_or_a_connection() -> None:
    engine = create_engine("sqlite://")
    assert validation.bind(engine) is engine
    with engine.connect() as connection:
        assert validation.bind(connection) is connection
    engine.dispose()
    for value in (None, "sqlite://", engine.url, 1):
        with pytest.raises(ValueError, match="bind: expected a SQLAlchemy Engine or Connection"):
            validation.bind(value)


@pytest.mark.parametrize("kind", [dict, OrderedDict, UserDict, MappingProxyType])
def test_values_are_any_mapping_and_copied(kind: Callable[[Any], Any]) -> None:
    given = {"payload": {"a": 1}}
    checked = validation.values(kind(given), {"payload"})
    assert checked == given
    assert type(checked) is dict
    assert checked is not given


def test_values_may_be_left_out() -> None:
    assert validation.values(None, {"payload"}) == {}


@pytest.mark.parametrize(
    ("values", "own", "told"),
    [
        ({"colour": 1}, {"b", "a"}, r"\(a, b\), got str 'colour'"),
        ({"a": 1, None: 2}, {"a"}, r"\(a\), got NoneType None"),
        ({"colour": 1}, set(), "declare a model on JobMixin"),
        ([("a", 1)], {"a"}, "a dict of the model's own columns, got list"),
        ("a", {"a"}, "got str"),
        (0, {"a"}, "got int 0"),
        ([], {"a"}, "got list"),
    ],
)
def test_values_of_other_columns_are_refused(values: object, own: set[str], told: str) -> None:
    with pytest.raises(ValueError, match=f"values: expected .*{told}"):
        validation.values(values, own)


# Limits

DEFAULTS = {
    "qty": 1000,
    "max_attempts": 16,
    "ttl_ms": 60_000,
    "lease_ms": 60_000,
    "delay_ms": 60_000,
}
MOST = {name: 10**12 if name.endswith("_ms") else 2**31 - 1 for name in DEFAULTS}


def test_the_default_limits_are_the_contracts() -> None:
    assert dataclasses.asdict(Limits()) == DEFAULTS
    assert Limits().latest_ms == LAST - 60_000


@pytest.mark.parametrize("name", DEFAULTS)
def test_limits_can_only_be_widened_and_not_without_end(name: str) -> None:
    values = integers(DEFAULTS[name], MOST[name])
    for value in values.good:
        assert getattr(Limits(**{name: value}), name) == value
    for value in values.bad:
        with pytest.raises(ValueError, match=rf"Limits\.{name}: expected int"):
            Limits(**{name: value})


def test_limits_do_not_change() -> None:
    limits = Limits()
    with pytest.raises(dataclasses.FrozenInstanceError):
        limits.qty = 5000  # type: ignore[misc]


@pytest.mark.parametrize("name", ["ttl_ms", "lease_ms", "delay_ms"])
def test_the_latest_instant_leaves_room_for_the_longest_time(name: str) -> None:
    limits = Limits(**{name: 10**12})
    assert limits.latest_ms == LAST - 10**12
    assert validation.now_ms(limits.latest_ms, limits) == limits.latest_ms
    with pytest.raises(ValueError, match="now_ms"):
        validation.now_ms(limits.latest_ms + 1, limits)


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_refused_bound_says_where_it_is_widened(name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name}: .*Limits\({name}=\.\.\.\)"):
        getattr(validation, name)(MOST[name], LIMITS)


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_widened_bound_is_the_bound(name: str) -> None:
    limits = Limits(**{name: DEFAULTS[name] + 5})
    check = getattr(validation, name)
    assert check(DEFAULTS[name] + 5, limits) == DEFAULTS[name] + 5
    with pytest.raises(ValueError, match=f"to {DEFAULTS[name] + 5}, got"):
        check(DEFAULTS[name] + 6, limits)


def test_wider_limits_hold_for_tickets_too() -> None:
    limits = Limits(qty=5000, max_attempts=100)
    ticket = {**TICKET, "qty": 5000, "attempt": 100}
    assert validation.ticket(ticket, limits) == ticket
    with pytest.raises(ValueError, match="ticket qty"):
        validation.ticket(ticket, LIMITS)
