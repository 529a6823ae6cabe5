"""Other queues in PostgreSQL, each through its own calls, one job at a time. All are asynchronous:
a round is one run of an event loop, so that none pays for starting it at each job."""

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
        self._loop = asyncio.Runner()
        self._loop.run(self._open())

    def cycles(self, jobs: int) -> None:
        self._loop.run(self._cycles(jobs))

    def close(self) -> None:
        self._loop.run(self._close())
        self._loop.close()

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
        self._connection = await psycopg.AsyncConnection.connect(
            self._target.url, options=self._target.options, autocommit=True
        )
        queries = import_module("pgqueuer.queries").Queries
        self._queries: Any = queries.from_psycopg_connection(self._connection)
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
