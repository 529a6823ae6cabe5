"""The tables, by the name that the command line has for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from benchmarks.bench import Bench
from benchmarks.measure import Table
from benchmarks.tables.backlog import backlog
from benchmarks.tables.bloat import bloat
from benchmarks.tables.contention import contention
from benchmarks.tables.cycle import cycle, groups, postgresql_cycle
from benchmarks.tables.drain import drain
from benchmarks.tables.imports import imports
from benchmarks.tables.peers import peers
from benchmarks.tables.servers import capacity, workers

TABLES: Mapping[str, Callable[[Bench], Table]] = {
    "cycle": cycle,
    "postgresql-cycle": postgresql_cycle,
    "peers": peers,
    "groups": groups,
    "drain": drain,
    "backlog": backlog,
    "contention": contention,
    "workers": workers,
    "imports": imports,
    "capacity": capacity,
    "bloat": bloat,
}
