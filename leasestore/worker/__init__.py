"""A worker that runs for months: it claims jobs, keeps their leases alive while a handler works,
finishes them, and stops gracefully. `Worker` is the whole of it; one file a part.

- `worker`: arguments, and the thread that called `run`: it waits for stops, and for the end.
- `shift`: one run: the jobs in hand, and the threads at work on them.
- `claims`: the thread that claims. `places`: the threads that work jobs, from row to finish.
- `heartbeat`: the threads that renew leases, and the one that notices when a lease is lost.
- `handlers`: what `send` may be. `event_loop`: where coroutines run.
- `running`: a job in hand. `delivery`: what a handler sees of it.
- `settling`: the finish, and what the row says when that has no clear answer.
"""

from __future__ import annotations

from leasestore.worker.delivery import Delivery
from leasestore.worker.results import Worked
from leasestore.worker.worker import Worker

__all__ = ["Delivery", "Worked", "Worker"]
