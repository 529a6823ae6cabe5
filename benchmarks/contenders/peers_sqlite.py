"""Other queues in a SQLite file, each through its own documented calls. They are looked for when
they are opened, since nobody needs to have them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from sqlalchemy import event

from benchmarks.contenders import Contender, Sqlite, told


class Huey(Contender):
    """A task that is taken is deleted, and nothing is left to acknowledge: two transactions."""

    _answer: bool | None = None

    def __init__(self, target: Sqlite) -> None:
        self._huey: Any = import_module("huey").SqliteHuey(
            filename=str(target.path), fsync=target.synchronous == "FULL"
        )
        self._send = self._huey.task()(lambda _: self._answer)

    def cycles(self, jobs: int) -> None:
        for number in range(jobs):
            self._send(f"job-{number}")
            self._huey.execute(self._huey.dequeue())

    def durability(self) -> str:
        return told(self._huey.storage.conn)

    def close(self) -> None:
        self._huey.storage.close()


class HueyWithResult(Huey):
    """The nearest to an acknowledgement: the task's result is stored. Three transactions."""

    _answer = True


class LiteQueue(Contender):
    def __init__(self, target: Sqlite) -> None:
        self._queue: Any = import_module("litequeue").LiteQueue(str(target.path))
        self._queue.conn.execute(f"PRAGMA synchronous = {target.synchronous}")

    def cycles(self, jobs: int) -> None:
        for number in range(jobs):
            self._queue.put(f"job-{number}")
            message = self._queue.pop()
            # Releases before 0.10 do not fence a claim.
            fence = {"claim_id": message.claim_id} if hasattr(message, "claim_id") else {}
            self._queue.done(message.message_id, **fence)

    def durability(self) -> str:
        return told(self._queue.conn)

    def close(self) -> None:
        self._queue.close()


class PersistQueue(Contender):
    """It has no setting for the durability: SQLite's own default, FULL, holds."""

    def __init__(self, target: Sqlite) -> None:
        assert target.synchronous == "FULL"
        queue = import_module("persistqueue").FIFOSQLiteAckQueue
        self._queue: Any = queue(f"{target.path}.d", auto_commit=True)

    def cycles(self, jobs: int) -> None:
        for number in range(jobs):
            self._queue.put(f"job-{number}")
            taken = self._queue.get(block=False, raw=True)
            self._queue.ack(id=taken["pqid"])

    def durability(self) -> str:
        return told(self._queue._putter)

    def close(self) -> None:
        self._queue.close()


def _sent(job_id: str) -> None:
    """What a worker of firm-queue has to do."""


class Firm(Contender):
    """On either database; it asks for NORMAL on SQLite unless told otherwise."""

    def __init__(self, target: Any) -> None:
        queue = import_module("firm.queue")
        sqlite = isinstance(target, Sqlite)
        url = f"sqlite:///{target.path}" if sqlite else target.url
        self._runtime: Any = queue.configure(database_url=url)
        if sqlite:

            @event.listens_for(self._runtime.engine, "connect")
            def set_synchronous(connection: Any, _: object) -> None:
                connection.execute(f"PRAGMA synchronous = {target.synchronous}")

        import_module("firm.queue.schema").create_all(self._runtime.engine)
        self._run_ready = import_module("firm.queue.worker").run_ready
        self._job = queue.job()(_sent)

    def cycles(self, jobs: int) -> None:
        for number in range(jobs):
            self._job.enqueue(f"job-{number}")
            assert self._run_ready(self._runtime, limit=1) == 1

    def durability(self) -> str | None:
        if self._runtime.engine.dialect.name != "sqlite":
            return None
        with self._runtime.engine.connect() as connection:
            return told(connection.connection.driver_connection)

    def close(self) -> None:
        self._runtime.engine.dispose()
