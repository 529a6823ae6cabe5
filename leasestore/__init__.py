"""leasestore: the correct job table for the SQLAlchemy application you already have."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from leasestore.backoff import retry_delay
from leasestore.clock import Clock, system_clock
from leasestore.database_clock import database_clock
from leasestore.delivery import Attempt, run_once
from leasestore.errors import (
    BadAck,
    Conflict,
    LeaseStoreError,
    NotDead,
    Permanent,
    Retryable,
    SchemaError,
    StaleTicket,
    StoreBusy,
    UnsupportedEngine,
)
from leasestore.models import Job, JobMixin, Redrive, RedriveMixin
from leasestore.repository import EnlistedRepository, JobRepository
from leasestore.tickets import (
    Delivered,
    Event,
    JobState,
    Outcome,
    Recovered,
    Status,
    StuckJob,
    Ticket,
)
from leasestore.transactions import immediate
from leasestore.validation import Fault, Limits

if TYPE_CHECKING:
    from leasestore import aio as aio
    from leasestore import schema as schema
    from leasestore.queue_file import QueueFile, open_queue, run_file
    from leasestore.wakeup import Wakeup
    from leasestore.watcher import Watcher
    from leasestore.worker import Delivery, Worked, Worker
else:
    # A process that only enqueues does without these, and without Alembic and greenlet.
    _LATER = {
        "Delivery": "worker",
        "QueueFile": "queue_file",
        "Wakeup": "wakeup",
        "Watcher": "watcher",
        "Worked": "worker",
        "Worker": "worker",
        "open_queue": "queue_file",
        "run_file": "queue_file",
    }

    def __getattr__(name: str) -> Any:
        if name in ("aio", "schema"):
            return import_module(f"leasestore.{name}")
        if name in _LATER:
            value = getattr(import_module(f"leasestore.{_LATER[name]}"), name)
            return globals().setdefault(name, value)
        raise AttributeError(f"module 'leasestore' has no attribute {name!r}")


__all__ = [
    "Attempt",
    "BadAck",
    "Clock",
    "Conflict",
    "Delivered",
    "Delivery",
    "EnlistedRepository",
    "Event",
    "Fault",
    "Job",
    "JobMixin",
    "JobRepository",
    "JobState",
    "LeaseStoreError",
    "Limits",
    "NotDead",
    "Outcome",
    "Permanent",
    "QueueFile",
    "Recovered",
    "Redrive",
    "RedriveMixin",
    "Retryable",
    "SchemaError",
    "StaleTicket",
    "Status",
    "StoreBusy",
    "StuckJob",
    "Ticket",
    "UnsupportedEngine",
    "Wakeup",
    "Watcher",
    "Worked",
    "Worker",
    "database_clock",
    "immediate",
    "open_queue",
    "retry_delay",
    "run_file",
    "run_once",
    "system_clock",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
