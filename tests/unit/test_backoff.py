"""retry_delay and lock_steps: formulas that can be checked by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasestore import retry_delay
from leasestore.backoff import lock_steps
from tests.conformance.values import JITTERS, Values, integers


@pytest.mark.parametrize(
    ("attempt", "base_ms", "cap_ms", "jitter", "delay"),
    [
        (1, 100, 1000, 1, 100),
        (2, 100, 1000, 1, 200),
        (3, 100, 1000, 1, 400),
        (4, 100, 1000, 1, 800),
        (5, 100, 1000, 1, 1000),
        (16, 100, 1000, 1, 1000),
        (16, 1, 60_000, 1, 32_768),
        (16, 60_000, 60_000, 1, 60_000),
        (1, 1, 1, 1, 1),
        (1, 1, 1, 0.999, 0),
        (1, 100, 1000, 0, 0),
        (16, 60_000, 60_000, 0.0, 0),
        (1, 100, 1000, -0.0, 0),
        (1, 100, 1000, 0.5, 50),
        (1, 100, 1000, 0.019, 1),
        (4, 100, 1000, 0.25, 200),
        (5, 100, 1000, 0.9999, 999),
        (10, 3, 1000, 1.0, 1000),
        (9, 3, 1000, 1.0, 768),
    ],
)
def test_doubled_then_capped_then_scaled_then_rounded_down(
    attempt: int, base_ms: int, cap_ms: int, jitter: float, delay: int
) -> None:
    answer = retry_delay(attempt, base_ms, cap_ms, jitter)
    assert (answer, type(answer)) == (delay, int)


@st.composite
def settings(draw: st.DrawFn) -> tuple[int, int, int, float]:
    base_ms = draw(st.integers(1, 60_000))
    jitter = draw(st.one_of(st.floats(0, 1), st.sampled_from([0, 1])))
    return draw(st.integers(1, 16)), base_ms, draw(st.integers(base_ms, 60_000)), jitter


@given(settings())
def test_it_is_the_formula_and_stays_below_the_cap(case: tuple[int, int, int, float]) -> None:
    attempt, base_ms, cap_ms, jitter = case
    delay = retry_delay(attempt, base_ms, cap_ms, jitter)
    assert delay == math.floor(min(cap_ms, base_ms * 2 ** (attempt - 1)) * jitter)
    assert 0 <= delay <= cap_ms
    # Never over the exact product by more than the rounding of a float.
    assert delay <= Fraction(jitter) * min(cap_ms, base_ms * 2 ** (attempt - 1)) + 1


@given(settings())
def test_a_later_attempt_never_waits_less(case: tuple[int, int, int, float]) -> None:
    attempt, base_ms, cap_ms, jitter = case
    earlier = retry_delay(max(1, attempt - 1), base_ms, cap_ms, jitter)
    assert earlier <= retry_delay(attempt, base_ms, cap_ms, jitter)


GOOD = {"attempt": 2, "base_ms": 100, "cap_ms": 1000, "jitter": 0.5}
BOUNDS = {
    "attempt": integers(1, 16),
    "base_ms": integers(1, 1000),
    "cap_ms": integers(100, 60_000),
    "jitter": JITTERS,
}


@pytest.mark.parametrize("name", BOUNDS)
def test_each_argument_is_strict(name: str) -> None:
    values: Values = BOUNDS[name]
    for value in values.good:
        retry_delay(**{**GOOD, name: value})
    for value in values.bad:
        # A base above the cap is an error of the cap.
        owner = "cap_ms|base_ms" if name == "base_ms" else name
        with pytest.raises(ValueError, match=f"({owner}): expected"):
            retry_delay(**{**GOOD, name: value})


@pytest.mark.parametrize(("base_ms", "good"), [(60_000, True), (60_001, False)])
def test_the_longest_base(base_ms: int, good: bool) -> None:
    if good:
        assert retry_delay(1, base_ms, 60_000, 1) == 60_000
    else:
        with pytest.raises(ValueError, match="base_ms"):
            retry_delay(1, base_ms, 60_000, 1)


def test_a_cap_below_the_base_is_refused() -> None:
    assert retry_delay(1, 100, 100, 1) == 100
    with pytest.raises(ValueError, match="cap_ms: expected int from 100"):
        retry_delay(1, 100, 99, 1)


def test_jitter_is_not_drawn_here() -> None:
    assert {retry_delay(3, 100, 1000, 0.7) for _ in range(100)} == {280}


def shortest(low: int, high: int) -> int:
    return low


def longest(low: int, high: int) -> int:
    return high


@pytest.mark.parametrize("draw", [shortest, longest])
@pytest.mark.parametrize("timeout_ms", [0, 1, 7, 8, 9, 50, 1000])
def test_the_steps_add_up_to_the_timeout(timeout_ms: int, draw: Callable[[int, int], int]) -> None:
    steps = list(lock_steps(timeout_ms, draw))
    assert sum(steps) == timeout_ms
    assert all(1 <= step <= 8 for step in steps)


@given(st.integers(0, 2000), st.randoms(use_true_random=False))
def test_uneven_steps_add_up_too(timeout_ms: int, random: Any) -> None:
    steps = list(lock_steps(timeout_ms, random.randint))
    assert sum(steps) == timeout_ms
    assert all(1 <= step <= 8 for step in steps)


def test_steps_are_drawn_one_by_one_as_they_are_needed() -> None:
    drawn: list[tuple[int, int]] = []

    def draw(low: int, high: int) -> int:
        drawn.append((low, high))
        return 5

    steps = lock_steps(60_000, draw)
    assert [next(steps), next(steps)] == [5, 5]
    assert drawn == [(1, 8), (1, 8)]
