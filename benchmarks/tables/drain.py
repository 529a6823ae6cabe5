"""A worker with small jobs, against a loop that claims and finishes them one by one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial

from benchmarks.bench import Bench
from benchmarks.contenders import Postgresql, Sqlite
from benchmarks.contenders.library import Drained
from benchmarks.measure import Table, in_turns, us_each

_JOBS = 500
_AT_ONCE = (1, 4, 10)


def drain(bench: Bench) -> Table:
    base = "claim and finish in a loop"
    table = Table("drain", f"{_JOBS} small jobs, stored before", "us a job", base)
    targets: dict[str, Callable[[], Sqlite | Postgresql]] = {}
    if bench.sqlite:
        targets |= {
            f"{journal}, FULL": partial(bench.files.copy, None, journal, "FULL")
            for journal in ("WAL", "DELETE")
        }
    if bench.databases is not None:
        targets[bench.databases.durability()] = bench.databases.copy
    rounds = max(3, bench.sizes.rounds // 10)
    for group, made in targets.items():
        bench.say(f"drain, {group}")
        with ExitStack() as opened:
            turns = {}
            for places in (0, *_AT_ONCE):
                contender = opened.enter_context(closing(Drained(made(), places)))
                name = f"Worker, {places} at a time" if places else base
                turns[name] = us_each(contender.cycles, _JOBS)
            table.add(group, in_turns(rounds, turns), base)
    return table
