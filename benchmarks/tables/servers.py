"""Worker processes on one PostgreSQL server."""

from __future__ import annotations

from functools import partial

from benchmarks.bench import Bench
from benchmarks.contenders import Verbs
from benchmarks.contenders.library import Library
from benchmarks.contenders.psycopg_by_hand import Autocommit, Transactions
from benchmarks.measure import Table, in_turns
from benchmarks.processes import window


def workers(bench: Bench) -> Table:
    table = Table(
        "workers",
        f"Full cycles on PostgreSQL by 1, 2 and 4 processes, for {bench.sizes.window_s:g} s",
        "jobs/s",
        "by hand with transactions, as many processes",
        more_is_better=True,
    )
    contenders: dict[str, type[Verbs]] = {
        "by hand, transactions": Transactions,
        "by hand, autocommit": Autocommit,
        "leasestore": Library,
    }
    if bench.databases is None:
        return table
    for processes in (1, 2, 4):
        group = f"{bench.databases.durability()}; {_named(processes)}"
        bench.say(f"workers, {group}")
        turns = {
            name: partial(_one, bench, opens, processes, "on") for name, opens in contenders.items()
        }
        table.add(group, in_turns(bench.sizes.windows, turns, warm_up=0), "by hand, transactions")
    return table


def capacity(bench: Bench) -> Table:
    table = Table(
        "capacity",
        f"Full cycles of leasestore on one PostgreSQL server, for {bench.sizes.window_s:g} s",
        "jobs/s",
        "one process",
        more_is_better=True,
    )
    if bench.databases is None:
        return table
    for commit in ("on", "off"):
        group = bench.databases.durability(commit)
        bench.say(f"capacity, {group}")
        turns = {
            _named(processes): partial(_one, bench, Library, processes, commit)
            for processes in (1, 2, 4, 8)
        }
        table.add(group, in_turns(bench.sizes.windows, turns, warm_up=0), _named(1))
    table.notes.append("the workers and the server share the processors of this machine")
    return table


def _named(processes: int) -> str:
    return f"{processes} process{'es' * (processes > 1)}"


def _one(bench: Bench, opens: type[Verbs], processes: int, commit: str) -> float:
    assert bench.databases is not None
    target = bench.databases.copy(None, commit)
    _, speed = window(bench.sizes, opens, target, processes)
    bench.databases.drop(target)
    return speed
