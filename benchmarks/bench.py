"""What a run was asked for, and where its databases are."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

from benchmarks.contenders import Opens
from benchmarks.databases import Databases, Files
from benchmarks.measure import Table, in_turns, us_each


@dataclass(frozen=True, slots=True)
class Sizes:
    """How long a run is."""

    rounds: int = 100
    cycles: int = 10
    claims: int = 50
    scale: float = 1.0
    window_s: float = 3.0
    warm_up: int = 20
    windows: int = 5
    drain_jobs: int = 10_000
    bloat_jobs: int = 100_000


QUICK = Sizes(
    rounds=8,
    cycles=10,
    claims=20,
    scale=0.01,
    window_s=0.5,
    warm_up=10,
    windows=3,
    drain_jobs=500,
    bloat_jobs=2_000,
)


@dataclass(slots=True)
class Bench:
    """The tables to come take what they need from here."""

    files: Files
    databases: Databases | None
    sizes: Sizes
    sqlite: bool = True
    peers: bool = False
    tables: list[Table] = field(default_factory=list)

    def say(self, what: str) -> None:
        sys.stderr.write(f"... {what}\n")


def cycles_in_turns(
    bench: Bench,
    table: Table,
    group: str,
    opens: Opens,
    base: str,
    *,
    cycles: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Add microseconds for a full cycle, by contender, at the durability that the group states."""
    bench.say(f"{table.name}, {group}")
    count = cycles or bench.sizes.cycles
    with ExitStack() as open_contenders:
        turns = {}
        for name, open_one in opens.items():
            contender = open_contenders.enter_context(closing(open_one()))
            told = contender.durability()
            assert told in (None, group), f"{name} is at {told}, not at {group}"
            turns[name] = us_each(contender.cycles, count, clock)
        table.add(group, in_turns(bench.sizes.rounds, turns), base)
