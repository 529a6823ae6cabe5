"""Other queues in PostgreSQL, each through its own calls, one job at a time, or by its own worker.
All are asynchronous: a round is one run of an event loop, so that none pays for starting it at each
job."""

from __future__ import annotations

import asyncio
import uuid
from abc import abstractmethod
from datetime import timedelta
from importlib import import_module
from typing import Any

import psycopg

from benchmarks.contenders import Contender, Postgresql


class _Asynchronous(Contender):
    def __init__(self, target: Postgresql) -> None:
        self._target = target
        self._loop = asyncio.Runner(loop_factory=self._loop_factory())
        self._loop.run(self._open())

    def cycles(self, jobs: int) -> None:
        self._loop.run(self._cycles(jobs))

    def close(self) -> None:
        self._loop.run(self._close())
        self._loop.close()

    def _loop_factory(self) -> Any:
        """None for asyncio's own."""

    @abstractmethod
    async def _open(self) -> None: ...

    @abstractmethod
    async def _cycles(self, jobs: int) -> None: ...

    @abstractmethod
    async def _close(self) -> None: ...


class Procrastinate(_Asynchronous):
    async def _open(self) -> None:
        procrastinate = import_module("procrastinate")
        self._succeeded = import_module("procrastinate.jobs").Status.SUCCEEDED
        connector = procrastinate.PsycopgConnector(
            conninfo=self._target.url, kwargs={"options": self._target.options}
        )
        self._app: Any = procrastinate.App(connector=connector)
        await self._app.open_async()
        await self._app.schema_manager.apply_schema_async()
        self._task: Any = self._app.task(name="send")(_send)
        self._worker = await self._app.job_manager.register_worker()

    async def _cycles(self, jobs: int) -> None:
        manager = self._app.job_manager
        for number in range(jobs):
            await self._task.defer_async(job_id=f"job-{number}")
            job = await manager.fetch_job(queues=None, worker_id=self._worker)
            await manager.finish_job(job=job, status=self._succeeded, delete_job=False)

    async def _close(self) -> None:
        await self._app.close_async()


class PgQueuer(_Asynchronous):
    async def _open(self) -> None:
        self._queries: Any = await self._connected(import_module("pgqueuer.queries").Queries)
        await self._queries.install()
        unlimited = import_module("pgqueuer.ports.repository").EntrypointExecutionParameter(0)
        self._entrypoints = {"send": unlimited}

    async def _cycles(self, jobs: int) -> None:
        manager, heartbeat = uuid.uuid4(), timedelta(seconds=30)
        for number in range(jobs):
            await self._queries.enqueue("send", f"job-{number}".encode())
            (job,) = await self._queries.dequeue(1, self._entrypoints, manager, None, heartbeat)
            await self._queries.log_jobs([(job, "successful", None)])

    async def _close(self) -> None:
        await self._connection.close()

    async def _connected(self, queries: Any) -> Any:
        self._connection: Any = await psycopg.AsyncConnection.connect(
            self._target.url, options=self._target.options, autocommit=True
        )
        return queries.from_psycopg_connection(self._connection)


class PgQueuerWorker(PgQueuer):
    """Its own worker drains jobs that were stored before, on the event loop that its command takes.

    Attributes:
        batch: how many jobs it claims, and acknowledges, at a time.
        most: how many it has in hand; it takes no less than two batches.
    """

    batch, most = 5, 10

    def __init__(self, target: Postgresql) -> None:
        self._left = 0
        self._run: asyncio.Task[None] | None = None
        super().__init__(target)

    def store(self, jobs: int) -> None:
        self._loop.run(self._store(jobs))

    def _loop_factory(self) -> Any:
        return import_module("uvloop").new_event_loop

    async def _open(self) -> None:
        await super()._open()
        self._log_jobs, self._queries.log_jobs = self._queries.log_jobs, self._logged
        self._manager = import_module("pgqueuer").QueueManager
        self._drain = import_module("pgqueuer.types").QueueExecutionMode.drain

    async def _store(self, jobs: int) -> None:
        await self._run_ended()
        payloads = [f"job-{number}".encode() for number in range(jobs)]
        await self._queries.enqueue(["send"] * jobs, payloads, [0] * jobs)

    async def _cycles(self, jobs: int) -> None:
        """Until the last one is acknowledged. What the worker then takes to notice that nothing
        is left, and to end, which may be seconds, does not count."""
        manager = self._manager(self._queries)
        manager.entrypoint("send")(_handle)
        self._left, self._all_logged = jobs, asyncio.Event()
        drains = manager.run(
            mode=self._drain, batch_size=self.batch, max_concurrent_tasks=self.most
        )
        self._run = asyncio.create_task(drains)
        all_logged = asyncio.create_task(self._all_logged.wait())
        await asyncio.wait({self._run, all_logged}, return_when=asyncio.FIRST_COMPLETED)
        if not all_logged.done():
            self._run.result()
        assert not self._left

    async def _logged(self, ended: list[Any]) -> None:
        await self._log_jobs(ended)
        self._left -= sum(status == "successful" for _, status, _ in ended)
        if not self._left:
            self._all_logged.set()

    async def _run_ended(self) -> None:
        if self._run is not None:
            await self._run

    async def _close(self) -> None:
        await self._run_ended()
        await super()._close()


class PgQueuerOnAsyncpg(PgQueuerWorker):
    """The same on the driver that it advises for speed."""

    async def _connected(self, queries: Any) -> Any:
        self._connection = await import_module("asyncpg").connect(
            self._target.url,
            server_settings={"synchronous_commit": self._target.synchronous_commit},
        )
        return queries.from_asyncpg_connection(self._connection)


class Oban(_Asynchronous):
    """Its workers fetch and acknowledge in groups; one at a time as its `drain_queue` does."""

    async def _open(self) -> None:
        oban = import_module("oban")
        separator = "&" if "?" in self._target.url else "?"
        options = self._target.options.replace(" ", "%20").replace("=", "%3D")
        self._pool: Any = await oban.Oban.create_pool(
            f"{self._target.url}{separator}options={options}"
        )
        await import_module("oban.schema").install(self._pool)
        self._oban: Any = oban.Oban(pool=self._pool)
        self._drain = import_module("oban.testing").drain_queue
        self._job: Any = oban.job(queue="default")(_send)

    async def _cycles(self, jobs: int) -> None:
        for number in range(jobs):
            await self._oban.enqueue(self._job.new(f"job-{number}"))
            ended = await self._drain(
                queue="default", oban=self._oban, with_scheduled=False, with_recursion=False
            )
            assert ended["completed"] == 1

    async def _close(self) -> None:
        await self._pool.close()


async def _send(job_id: str) -> None:
    """What a worker has to do."""


async def _handle(job: object) -> None:
    """The same for a job of pgqueuer's."""
