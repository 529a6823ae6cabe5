"""Full cycles of other queues: put one, take one, acknowledge one."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from benchmarks.bench import Bench, cycles_in_turns
from benchmarks.contenders import Opens, Postgresql, Sqlite
from benchmarks.contenders.library import Library
from benchmarks.contenders.psycopg_by_hand import Autocommit
from benchmarks.contenders.sqlite_by_hand import SqliteByHand
from benchmarks.measure import Table

_SQLITE = {
    "huey (no acknowledgement)": ("huey", "Huey"),
    "huey (result stored)": ("huey", "HueyWithResult"),
    "litequeue": ("litequeue", "LiteQueue"),
    "persist-queue": ("persist-queue", "PersistQueue"),
    "firm-queue": ("firm-queue", "Firm"),
}
_SQLITE_NORMAL = ("litequeue", "firm-queue")
_POSTGRESQL = {
    "oban": ("oban", "Oban"),
    "pgqueuer": ("pgqueuer", "PgQueuer"),
    "procrastinate": ("procrastinate", "Procrastinate"),
    "firm-queue": ("firm-queue", "Firm"),
}


def peers(bench: Bench) -> Table:
    table = Table(
        "peers",
        "A full cycle: put one, take one, acknowledge one, each committed",
        "us a cycle",
        "leasestore's time",
    )
    if not bench.peers:
        return table
    if bench.sqlite:
        _sqlite(bench, table, "FULL", list(_SQLITE))
        _sqlite(bench, table, "NORMAL", list(_SQLITE_NORMAL))
    if bench.databases is not None:
        _postgresql(bench, table)
    table.notes += [
        f"versions: {_versions()}",
        "the peers' payloads, checks and guarantees differ: none of them is the contract",
        "WAL, NORMAL is what litequeue and firm-queue ask for: a COMMIT may be lost with the power",
    ]
    return table


def _sqlite(bench: Bench, table: Table, synchronous: str, names: list[str]) -> None:
    opens: Opens = {
        "by hand, sqlite3": partial(SqliteByHand, bench.files.copy(None, "WAL", synchronous)),
        "leasestore": partial(Library, bench.files.copy(None, "WAL", synchronous)),
    }
    for name in names:
        opens |= found(table, name, _SQLITE[name], Sqlite(bench.files.path(), "WAL", synchronous))
    cycles_in_turns(bench, table, f"WAL, {synchronous}", opens, "leasestore")


def _postgresql(bench: Bench, table: Table) -> None:
    assert bench.databases is not None
    opens: Opens = {
        "by hand, autocommit": partial(Autocommit, bench.databases.copy()),
        "leasestore": partial(Library, bench.databases.copy()),
    }
    for name, peer in _POSTGRESQL.items():
        opens |= found(table, name, peer, bench.databases.bare())
    cycles_in_turns(bench, table, bench.databases.durability(), opens, "leasestore")


def found(table: Table, name: str, peer: tuple[str, str], target: Sqlite | Postgresql) -> Opens:
    """The peer, where it is installed."""
    distribution, contender = peer
    try:
        version(distribution)
    except PackageNotFoundError:
        note = f"not installed: {distribution} (pip install -r benchmarks/peers.txt)"
        if note not in table.notes:
            table.notes.append(note)
        return {}
    kind = "sqlite" if isinstance(target, Sqlite) or contender == "Firm" else "postgresql"
    opens: Any = getattr(import_module(f"benchmarks.contenders.peers_{kind}"), contender)
    return {name: partial(opens, target)}


def _versions() -> str:
    found = {}
    for distribution, _ in (_SQLITE | _POSTGRESQL).values():
        try:
            found[distribution] = version(distribution)
        except PackageNotFoundError:
            continue
    return ", ".join(f"{name} {number}" for name, number in sorted(found.items()))
