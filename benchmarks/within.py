"""What a guest costs: `within(session).enqueue` against an INSERT by hand in the same session.

    python benchmarks/within.py

Both write the same row, in transactions of 100 rows on a SQLite file (DELETE, FULL), in turns; the
figures are medians of the rounds, and their ratio. The INSERT by hand has none of the checks.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import create_engine, insert
from sqlalchemy.orm import Session

from leasestore import JobRepository, immediate
from leasestore.models import Base

ROUNDS, ROWS = 40, 100
JOBS = Base.metadata.tables["jobs"]


def by_hand(session: Session, job_id: str) -> None:
    session.execute(
        insert(JOBS),
        {
            "id": job_id,
            "qty": 1,
            "status": "pending",
            "attempts": 0,
            "max_attempts": 3,
            "token": 0,
            "available_at": 0,
            "deadline": 60_000,
        },
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        engine = create_engine(f"sqlite:///{Path(folder) / 'queue.db'}")
        Base.metadata.create_all(engine)
        jobs = JobRepository(engine)

        def through_within(session: Session, job_id: str) -> None:
            jobs.within(session).enqueue({"id": job_id, "qty": 1}, 0, 60_000)

        contenders: dict[str, Callable[[Session, str], None]] = {
            "by hand": by_hand,
            "within": through_within,
        }
        took: dict[str, list[float]] = {name: [] for name in contenders}
        for number in range(ROUNDS):
            for name, write in contenders.items():
                took[name].append(_round(Session(engine), write, f"{name[:2]}-{number}"))
        engine.dispose()
    medians = {name: statistics.median(times) / ROWS * 1e6 for name, times in took.items()}
    for name, median in medians.items():
        sys.stdout.write(f"{name:8} {median:7.1f} us a row\n")
    sys.stdout.write(f"ratio    {medians['within'] / medians['by hand']:7.2f}\n")


def _round(session: Session, write: Callable[[Session, str], None], prefix: str) -> float:
    """Seconds for the rows of one transaction, without its BEGIN and COMMIT."""
    with session, immediate(session):
        start = time.perf_counter()
        for number in range(ROWS):
            write(session, f"{prefix}-{number}".replace(" ", "_"))
        return time.perf_counter() - start


if __name__ == "__main__":
    main()
