"""system_clock: this host's milliseconds, as the strict int that the verbs want."""

from __future__ import annotations

import time
from typing import cast

import pytest
from sqlalchemy import Connection

from leasestore import Limits, system_clock, validation


def test_it_is_this_hosts_time_in_whole_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 1_700_000_000_123_999_999)
    answer = system_clock()
    assert (answer, type(answer)) == (1_700_000_000_123, int)


def test_it_lies_between_two_readings_of_the_systems_own() -> None:
    before = time.time_ns() // 1_000_000
    now = system_clock()
    assert before <= now <= time.time_ns() // 1_000_000


def test_the_verbs_accept_it() -> None:
    assert validation.moment(system_clock, Limits())(cast("Connection", None)) > 1_700_000_000_000
