"""A full cycle, one process: enqueue, claim, finish."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from benchmarks.bench import Bench, cycles_in_turns
from benchmarks.contenders import Opens, Postgresql, Sqlite
from benchmarks.contenders.library import Grouped, Library, OneStepLess
from benchmarks.contenders.psycopg_by_hand import Autocommit, Transactions
from benchmarks.contenders.sqlalchemy_by_hand import SqlalchemyByHand
from benchmarks.contenders.sqlite_by_hand import SqliteByHand
from benchmarks.measure import Table

_GROUP = 100


def cycle(bench: Bench) -> Table:
    table = Table(
        "cycle",
        "A full cycle on SQLite: enqueue, claim, finish, three transactions",
        "us a cycle",
        "the time by hand",
    )
    if not bench.sqlite:
        return table
    for journal, synchronous in (("WAL", "FULL"), ("DELETE", "FULL"), ("WAL", "OFF")):
        group = f"{journal}, {synchronous}"
        copy = partial(bench.files.copy, None, journal, synchronous)
        opens: Opens = {
            "by hand, sqlite3": partial(SqliteByHand, copy()),
            "by hand, SQLAlchemy": partial(SqlalchemyByHand, copy()),
            "leasestore": partial(Library, copy()),
            "leasestore, finish and claim in one": partial(OneStepLess, copy()),
        }
        clock = time.process_time if synchronous == "OFF" else time.perf_counter
        cycles_in_turns(bench, table, group, opens, "by hand, sqlite3", clock=clock)
    table.notes.append("OFF waits for no disk, and is the processor's time alone")
    return table


def postgresql_cycle(bench: Bench) -> Table:
    table = Table(
        "postgresql-cycle",
        "A full cycle on PostgreSQL, one process: enqueue, claim, finish",
        "us a cycle",
        "the time by hand with transactions",
    )
    if bench.databases is None:
        return table
    base = "by hand, transactions"
    for commit in ("on", "off"):
        group = bench.databases.durability(commit)
        copy = partial(bench.databases.copy, None, commit)
        opens: Opens = {
            base: partial(Transactions, copy()),
            "by hand, autocommit": partial(Autocommit, copy()),
            "leasestore": partial(Library, copy()),
            "leasestore, finish and claim in one": partial(OneStepLess, copy()),
        }
        cycles_in_turns(bench, table, group, opens, base)
    return table


def groups(bench: Bench) -> Table:
    table = Table(
        "groups", "Many jobs a transaction, leasestore", "us a job", "one job a transaction"
    )
    targets: dict[str, Callable[[], Sqlite | Postgresql]] = {}
    if bench.sqlite:
        for journal, synchronous in (("WAL", "FULL"), ("DELETE", "FULL"), ("WAL", "OFF")):
            copy = partial(bench.files.copy, None, journal, synchronous)
            targets[f"{journal}, {synchronous}"] = copy
    if bench.databases is not None:
        targets[bench.databases.durability()] = bench.databases.copy
    for group, made in targets.items():
        opens: Opens = {
            "one by one": partial(Library, made()),
            f"groups of {_GROUP}": partial(Grouped, made(), _GROUP),
        }
        cycles_in_turns(bench, table, group, opens, "one by one", cycles=_GROUP)
    return table
