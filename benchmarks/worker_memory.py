"""Whether a worker's memory stays flat: `python -m benchmarks.worker_memory [JOBS]` says what the
process holds after each tenth of the jobs, 100,000 unless given. One worker with eight threads
works them from a SQLite file, without waiting for the disk."""

from __future__ import annotations

import resource
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, event

from leasestore import JobRepository, Limits, Worker, schema, system_clock

_DAY_MS = 24 * 3_600_000
_AT_ONCE = 1000


def main(jobs: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        engine = create_engine(f"sqlite:///{Path(folder) / 'queue.db'}", pool_size=12)

        @event.listens_for(engine, "connect")
        def set_durability(connection: Any, _: object) -> None:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = OFF")

        schema.upgrade(engine)
        queue = JobRepository(engine, limits=Limits(ttl_ms=_DAY_MS))
        for start in range(0, jobs, _AT_ONCE):
            events: list[Any] = [
                {"id": f"job-{number}", "qty": 1}
                for number in range(start, min(start + _AT_ONCE, jobs))
            ]
            queue.enqueue_many(events, system_clock, _DAY_MS)
        worked, counting = 0, threading.Lock()

        def send(_: object) -> bool:
            nonlocal worked
            with counting:
                worked += 1
                if worked % (jobs // 10) == 0:
                    _say(f"{worked:>9,} jobs: {_held_kb():>9,} kB at most so far")
            return True

        _say(str(Worker(queue, send, concurrency=8).run(until_empty=True)))
        engine.dispose()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _held_kb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
