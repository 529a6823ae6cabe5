"""Four processes on one SQLite file."""

from __future__ import annotations

from functools import partial

from benchmarks.bench import Bench
from benchmarks.contenders import Verbs
from benchmarks.contenders.library import Library
from benchmarks.contenders.sqlite_by_hand import SqliteByHand
from benchmarks.measure import Table, in_turns
from benchmarks.processes import Served, window

_PROCESSES = 4
_CONTENDERS: dict[str, type[Verbs]] = {"by hand, sqlite3": SqliteByHand, "leasestore": Library}


def contention(bench: Bench) -> Table:
    table = Table(
        "contention",
        f"{_PROCESSES} processes on one SQLite file, for {bench.sizes.window_s:g} s",
        "jobs/s, or a share",
        "the same contender alone",
        more_is_better=True,
    )
    if not bench.sqlite:
        return table
    for journal in ("WAL", "DELETE"):
        group = f"{journal}, FULL"
        bench.say(f"contention, {group}")
        served: dict[tuple[str, int], list[list[Served]]] = {
            (name, processes): [] for name in _CONTENDERS for processes in (1, _PROCESSES)
        }
        turns = {
            f"{name}, {processes}": partial(_one, bench, journal, name, processes, served)
            for name, processes in served
        }
        figures = in_turns(bench.sizes.windows, turns, warm_up=0)
        for name in _CONTENDERS:
            alone, together = f"{name}, 1", f"{name}, {_PROCESSES}"
            table.add(group, {key: figures[key] for key in (alone, together)}, alone)
            windows = served[name, _PROCESSES]
            shares = [min(s.jobs for s in w) / max(1, *(s.jobs for s in w)) for w in windows]
            table.add(group, {f"{name}: least served / best served": shares})
            busy = sum(s.busy for w in windows for s in w)
            table.notes.append(f"{group}, {name}: {busy} calls of all windows found it locked")
    return table


def _one(
    bench: Bench,
    journal: str,
    name: str,
    processes: int,
    served: dict[tuple[str, int], list[list[Served]]],
) -> float:
    target = bench.files.copy(None, journal)
    each, speed = window(bench.sizes, _CONTENDERS[name], target, processes)
    served[name, processes].append(each)
    return speed
