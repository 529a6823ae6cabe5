"""What dead rows cost on PostgreSQL: each claim passes over those before the first live one."""

from __future__ import annotations

from contextlib import ExitStack

import psycopg

from benchmarks.bench import Bench
from benchmarks.contenders import Postgresql
from benchmarks.contenders.library import Library
from benchmarks.measure import Table
from benchmarks.processes import window

_PROCESSES = 2
# Longer ones than elsewhere: most of the time shall go into jobs, not into starting processes.
_WINDOWS_AT_ONCE = 4
_AT_START, _AT_END = "at the start", "after"


def bloat(bench: Bench) -> Table:
    jobs = bench.sizes.bloat_jobs
    table = Table(
        "bloat",
        f"Full cycles of leasestore by {_PROCESSES} processes, and again after {jobs:,} jobs",
        "jobs/s",
        "the start",
        more_is_better=True,
    )
    if bench.databases is None:
        return table
    with ExitStack() as held:
        targets = {name: bench.databases.copy(None, "off") for name in _kinds()}
        _run(targets["autovacuum off"], "ALTER TABLE jobs SET (autovacuum_enabled = off)")
        held.enter_context(_snapshot(targets["autovacuum on, an old snapshot held"]))
        speeds = _speeds(bench, targets, jobs)
    for name, series in speeds.items():
        few = max(1, len(series) // 5)
        # The first window alone: under an old snapshot the next one is slower already.
        ends = {_AT_START: series[:1] * few, f"{_AT_END} {jobs:,} jobs": series[-few:]}
        table.add(f"{bench.databases.durability('off')}; {name}", ends, _AT_START)
    for name, target in targets.items():
        table.notes.append(f"{name}: the table and its indexes take {_size(target)} in the end")
        bench.databases.drop(target)
    return table


def _kinds() -> tuple[str, ...]:
    return "autovacuum on", "autovacuum off", "autovacuum on, an old snapshot held"


def _speeds(bench: Bench, targets: dict[str, Postgresql], jobs: int) -> dict[str, list[float]]:
    """Jobs a second, window by window in turns, until each table has had so many jobs."""
    done, speeds = dict.fromkeys(targets, 0), {name: list[float]() for name in targets}
    while any(count < jobs for count in done.values()):
        for name, target in targets.items():
            if done[name] < jobs:
                served, speed = window(bench.sizes, Library, target, _PROCESSES, _WINDOWS_AT_ONCE)
                done[name] += sum(process.jobs for process in served)
                speeds[name].append(speed)
                bench.say(f"bloat, {name}: {done[name]:,} jobs, now {speed:,.0f} a second")
    return speeds


def _snapshot(target: Postgresql) -> psycopg.Connection:
    """A transaction that reads once and then stays open, until it is closed."""
    connection = psycopg.connect(target.url)
    connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    connection.execute("SELECT count(*) FROM jobs")
    return connection


def _run(target: Postgresql, statement: str) -> None:
    with psycopg.connect(target.url, autocommit=True) as connection:
        connection.execute(statement.encode())


def _size(target: Postgresql) -> str:
    with psycopg.connect(target.url) as connection:
        asked = connection.execute("SELECT pg_size_pretty(pg_total_relation_size('jobs'))")
        return str(asked.fetchall()[0][0])
