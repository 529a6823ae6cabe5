"""How long a claim takes, by what is in the table."""

from __future__ import annotations

import time

from benchmarks.backlogs import (
    SWEPT,
    Part,
    analyze_database,
    analyze_file,
    backlogs,
    fill_database,
    fill_file,
)
from benchmarks.bench import Bench
from benchmarks.contenders import NOW_MS, Verbs
from benchmarks.contenders.library import Library
from benchmarks.contenders.psycopg_by_hand import Transactions
from benchmarks.contenders.sqlite_by_hand import SqliteByHand
from benchmarks.measure import Table


def backlog(bench: Bench) -> Table:
    scale = bench.sizes.scale
    table = Table("backlog", "A claim, by what is in the table", "us a claim", "the time by hand")
    for name, parts in backlogs(scale).items():
        if bench.sqlite:
            _on_sqlite(bench, table, name, parts)
        if bench.databases is not None:
            _on_postgresql(bench, table, name, parts)
    table.notes += [
        f"numbers of jobs times {scale:g}" if scale != 1 else "numbers of jobs as said",
        "SQLite: WAL, OFF; PostgreSQL: synchronous_commit=off: the plan counts, not the disk",
        "the first claim of those past their deadline sweeps them all; it happens once",
    ]
    return table


def _on_sqlite(bench: Bench, table: Table, name: str, parts: list[Part]) -> None:
    bench.say(f"backlog, SQLite, {name}")
    made = bench.files.copy()
    fill_file(made.path, parts)
    for analyzed in (False, True):
        if analyzed:
            analyze_file(made.path)
        copies = [bench.files.copy(made.path, "WAL", "OFF") for _ in range(2)]
        opens = {"by hand": SqliteByHand(copies[0]), "leasestore": Library(copies[1])}
        _claims(bench, table, f"SQLite, {name}", analyzed, opens)
        for copy in copies:
            copy.path.unlink()
    made.path.unlink()


def _on_postgresql(bench: Bench, table: Table, name: str, parts: list[Part]) -> None:
    assert bench.databases is not None
    bench.say(f"backlog, PostgreSQL, {name}")
    made = bench.databases.copy(None, "off")
    fill_database(made, parts)
    for analyzed in (False, True):
        if analyzed:
            analyze_database(made)
        copies = [bench.databases.copy(made, "off") for _ in range(2)]
        opens = {"by hand": Transactions(copies[0]), "leasestore": Library(copies[1])}
        _claims(bench, table, f"PostgreSQL, {name}", analyzed, opens)
        for copy in copies:
            bench.databases.drop(copy)
    bench.databases.drop(made)


def _claims(
    bench: Bench, table: Table, group: str, analyzed: bool, contenders: dict[str, Verbs]
) -> None:
    """One claim after the other, in turns."""
    took: dict[str, list[float]] = {name: [] for name in contenders}
    for contender in contenders.values():
        # Nothing is due yet at this time; the statements are known afterwards.
        assert contender.claim(1) is None
    for _ in range(bench.sizes.claims):
        for name, contender in contenders.items():
            start = time.perf_counter()
            ticket = contender.claim(NOW_MS)
            took[name].append((time.perf_counter() - start) * 1e6)
            assert ticket is not None
    for contender in contenders.values():
        contender.close()
    after = ", after ANALYZE" * analyzed
    if SWEPT in group:
        first = {f"{name}: the first{after}": times[:1] for name, times in took.items()}
        table.add(group, first, f"by hand: the first{after}")
    rest = {f"{name}{after}": times[1:] for name, times in took.items()}
    table.add(group, rest, f"by hand{after}")
