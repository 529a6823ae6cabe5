"""Workers with small jobs that were stored before."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from importlib.metadata import version

from benchmarks.bench import Bench
from benchmarks.contenders import Opens, Postgresql, Sqlite
from benchmarks.contenders.library import Drained, awaited
from benchmarks.contenders.peers_postgresql import PgQueuerWorker
from benchmarks.databases import Databases
from benchmarks.measure import Table, in_turns, us_each
from benchmarks.tables.peers import found

_JOBS = 500
_AT_ONCE = (1, 4, 10)
_MOST = max(_AT_ONCE)
_FEWEST_ROUNDS = 3


def drain(bench: Bench) -> Table:
    table = Table("drain", "Small jobs, stored before", "us a job", "the first of the group")
    targets: dict[str, Callable[[], Sqlite | Postgresql]] = {}
    if bench.sqlite:
        targets |= {
            f"{journal}, FULL": partial(bench.files.copy, None, journal, "FULL")
            for journal in ("WAL", "DELETE")
        }
    if bench.databases is not None:
        targets[bench.databases.durability()] = bench.databases.copy
    for group, made in targets.items():
        opens: Opens = {
            "claim and finish in a loop": partial(Drained, made(), 0),
            **{_named(places): partial(Drained, made(), places) for places in _AT_ONCE},
            f"{_named(_MOST)}, async def": partial(Drained, made(), _MOST, awaited),
        }
        _drained(bench, table, group, opens, _JOBS, bench.sizes.rounds // 10)
    if bench.peers and bench.databases is not None:
        _beside_a_peer(bench, table, bench.databases)
    return table


def _named(places: int) -> str:
    return f"Worker, {places} at a time"


def _beside_a_peer(bench: Bench, table: Table, databases: Databases) -> None:
    """Many jobs, since a worker's start counts; each has no more in hand than the others."""
    opens: Opens = {
        _named(_MOST): partial(Drained, databases.copy(), _MOST),
        f"{_named(_MOST)}, async def": partial(Drained, databases.copy(), _MOST, awaited),
    }
    peer = found(table, "pgqueuer", ("pgqueuer", "PgQueuerWorker"), databases.bare())
    if peer:
        asyncpg = "asyncpg", "PgQueuerOnAsyncpg"
        peer |= found(table, "pgqueuer, asyncpg", asyncpg, databases.bare())
        table.notes += [
            (
                f"pgqueuer {version('pgqueuer')}: its own worker with an async def; batch_size="
                f"{PgQueuerWorker.batch}, max_concurrent_tasks={PgQueuerWorker.most}; on psycopg, "
                "as leasestore is, or on asyncpg"
            ),
            "pgqueuer's time ends with its last acknowledgement, leasestore's when its worker has",
        ]
    opens |= peer
    rounds = bench.sizes.rounds // 20
    _drained(bench, table, databases.durability(), opens, bench.sizes.drain_jobs, rounds)


def _drained(
    bench: Bench, table: Table, durability: str, opens: Opens, jobs: int, rounds: int
) -> None:
    """Add microseconds for a job that is stored already, by contender."""
    group = f"{durability}; {jobs:,} jobs"
    bench.say(f"{table.name}, {group}")
    with ExitStack() as open_contenders:
        turns = {}
        for name, open_one in opens.items():
            contender = open_contenders.enter_context(closing(open_one()))
            turns[name] = us_each(contender.cycles, jobs, before=contender.store)
        table.add(group, in_turns(max(_FEWEST_ROUNDS, rounds), turns), next(iter(opens)))
