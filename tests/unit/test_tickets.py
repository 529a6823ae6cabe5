"""The shapes of what goes out and comes back, against the words of the contract."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import pytest

from leasestore import tickets
from leasestore.models import Job
from tests.support import CONTRACT_DDL


@pytest.mark.parametrize(
    ("shape", "keys"),
    [
        (tickets.Event, ["id", "qty"]),
        (tickets.Ticket, ["id", "qty", "owner", "token", "attempt", "lease_until"]),
        (tickets.Recovered, ["recovered", "deadline", "exhausted"]),
        (tickets.Delivered, ["id", "token", "status"]),
        (
            tickets.JobState,
            [
                *("seq", "id", "qty", "status", "attempts", "max_attempts", "token"),
                *("available_at", "deadline", "owner", "lease_until", "reason"),
            ],
        ),
    ],
)
def test_the_keys_are_the_contracts_in_order(shape: Any, keys: list[str]) -> None:
    assert list(shape.__annotations__) == keys
    assert shape.__required_keys__ == set(keys)


def test_the_words_are_the_contracts() -> None:
    assert get_args(tickets.Status) == ("pending", "leased", "done", "dead")
    assert get_args(tickets.Outcome) == ("ok", "retry", "permanent")
    answers = str(get_type_hints(tickets.Delivered)["status"])
    assert all(f"'{word}'" in answers for word in ("pending", "done", "dead", "stale"))


def test_every_status_passes_the_check_of_the_table() -> None:
    for status in get_args(tickets.Status):
        assert f"'{status}'" in CONTRACT_DDL


def test_a_row_has_the_columns_of_the_table() -> None:
    assert list(tickets.JobState.__annotations__) == [column.name for column in Job.__table__.c]


def test_only_what_may_be_null_may_be_none() -> None:
    hints = get_type_hints(tickets.JobState)
    nullable = {name for name, hint in hints.items() if type(None) in get_args(hint)}
    assert nullable == {"owner", "lease_until", "reason"}
