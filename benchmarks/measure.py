"""Contenders in turns, and what is said of their rounds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

Rounds = Mapping[str, Sequence[float]]
"""By contender, in the order of the rounds."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The median and the middle half of the rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)


@dataclass(frozen=True, slots=True)
class Row:
    """One contender's figure, and its ratio to the group's base."""

    group: str
    contender: str
    figure: Spread
    ratio: Spread | None


@dataclass(slots=True)
class Table:
    """`unit` is the figures', `against` says what the ratios are ratios to. A group's name states
    its durability, where anything is written."""

    name: str
    title: str
    unit: str
    against: str
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    more_is_better: bool = False

    @property
    def reading(self) -> str:
        """How to read the ratios."""
        return f"ratios to {self.against}; {'more' if self.more_is_better else 'less'} is better"

    def add(self, group: str, rounds: Rounds, base: str | None = None) -> None:
        """The rows of one group; the ratio of each round is to the base's figure in that round."""
        for contender, figures in rounds.items():
            ratio = None
            if base is not None and base in rounds:
                ratio = Spread.of([a / b for a, b in zip(figures, rounds[base], strict=True)])
            self.rows.append(Row(group, contender, Spread.of(figures), ratio))


def in_turns(
    rounds: int, contenders: Mapping[str, Callable[[], float]], *, warm_up: int = 1
) -> dict[str, list[float]]:
    """The figures of all contenders, each once a round; every other round is in reverse order.
    The rounds of the warm-up come first and do not count."""
    figures: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(-warm_up, rounds):
        order = list(contenders) if number % 2 else list(contenders)[::-1]
        for name in order:
            figure = contenders[name]()
            if number >= 0:
                figures[name].append(figure)
    return figures


def us_each(
    do: Callable[[int], object],
    count: int,
    clock: Callable[[], float] = time.perf_counter,
    *,
    before: Callable[[int], object] = lambda _: None,
) -> Callable[[], float]:
    """Microseconds for each of so many, without what comes before."""

    def measure() -> float:
        before(count)
        start = clock()
        do(count)
        return (clock() - start) / count * 1e6

    return measure
