"""The contract once more, as dicts in memory: what each verb answers, and what the tables hold
afterwards. Written from the contract alone, with no word of SQL, to be read beside it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from leasestore import BadAck, Conflict, Permanent, Retryable

Row = dict[str, Any]
Fault = Callable[[str], object]

LAST_NOW_MS = 10**15 - 60_000


def no_fault(point: str) -> None:
    pass


def ticket_of(job: Row) -> Row:
    """The ticket that the holder of a leased job has in hand."""
    names = ("id", "qty", "owner", "token", "lease_until")
    return {name: job[name] for name in names} | {"attempt": job["attempts"]}


class Reference:
    """The tables `jobs` and `redrives` as lists of rows, and the verbs over them."""

    def __init__(self) -> None:
        self.jobs: list[Row] = []
        self.redrives: list[Row] = []

    def enqueue(
        self, event: Row, now_ms: int, ttl_ms: int, max_attempts: int = 3, *, delay_ms: int = 0
    ) -> bool:
        if delay_ms >= ttl_ms:
            raise ValueError("the job could never run")
        stored = self.get(event["id"])
        if stored and stored["qty"] != event["qty"]:
            raise Conflict(event["id"], stored["qty"], event["qty"])
        if stored:
            return False
        self.jobs.append(
            {
                "seq": len(self.jobs) + 1,
                "id": event["id"],
                "qty": event["qty"],
                "status": "pending",
                "attempts": 0,
                "max_attempts": max_attempts,
                "token": 0,
                "available_at": now_ms + delay_ms,
                "deadline": now_ms + ttl_ms,
                "owner": None,
                "lease_until": None,
                "reason": None,
            }
        )
        return True

    def claim(
        self,
        owner: str,
        now_ms: int,
        lease_ms: int = 1000,
        fault: Fault = no_fault,
        *,
        job_id: str | None = None,
    ) -> Row | None:
        jobs = [job for job in self.jobs if job_id in (None, job["id"])]
        with self._all_or_nothing():
            self._sweep(jobs, now_ms)
            ready = [job for job in jobs if _can_be_claimed(job, now_ms)]
            if not ready:
                return None
            job = ready[0]
            job["attempts"] += 1
            job["token"] += 1
            job["status"] = "leased"
            job["owner"] = owner
            job["lease_until"] = min(now_ms + lease_ms, job["deadline"])
            job["reason"] = None
            fault("after-claim")
        fault("after-commit")
        return ticket_of(job)

    def finish(
        self,
        ticket: Row,
        outcome: str,
        now_ms: int,
        delay_ms: int = 0,
        fault: Fault = no_fault,
    ) -> str | bool:
        job = self._held(ticket)
        if job is None or now_ms >= job["lease_until"] or now_ms >= job["deadline"]:
            return False
        again = now_ms + delay_ms
        with self._all_or_nothing():
            if outcome == "ok":
                _free(job, "done", None)
            elif outcome == "permanent":
                _free(job, "dead", "permanent")
            elif job["attempts"] >= job["max_attempts"]:
                _free(job, "dead", "exhausted")
            elif again >= job["deadline"]:
                _free(job, "dead", "deadline")
            else:
                _free(job, "pending", "retry")
            job["available_at"] = again if job["status"] == "pending" else now_ms
            fault("after-finish")
        fault("after-commit")
        status: str = job["status"]
        return status

    def renew(
        self, ticket: Row, now_ms: int, lease_ms: int = 1000, fault: Fault = no_fault
    ) -> Row | None:
        job = self._held(ticket)
        if job is None or now_ms >= job["lease_until"] or now_ms >= job["deadline"]:
            return None
        with self._all_or_nothing():
            job["lease_until"] = min(now_ms + lease_ms, job["deadline"])
            fault("after-renew")
        fault("after-commit")
        return ticket_of(job)

    def release(self, ticket: Row, fault: Fault = no_fault) -> bool:
        job = self._held(ticket)
        if job is None:
            return False
        with self._all_or_nothing():
            _free(job, "pending", "released")
            job["attempts"] -= 1
            fault("after-release")
        fault("after-commit")
        return True

    def redrive(
        self, job_id: str, now_ms: int, ttl_ms: int, note: str, fault: Fault = no_fault
    ) -> bool:
        job = self._find(job_id)
        if job is None or job["status"] != "dead":
            raise ValueError("not a dead job")
        with self._all_or_nothing():
            self.redrives.append(
                {
                    "seq": len(self.redrives) + 1,
                    "id": job_id,
                    "token": job["token"],
                    "at_ms": now_ms,
                    "note": note,
                }
            )
            fault("after-audit")
            _free(job, "pending", None)
            job["attempts"] = 0
            job["available_at"] = now_ms
            job["deadline"] = now_ms + ttl_ms
            fault("after-redrive")
        fault("after-commit")
        return True

    def get(self, job_id: str) -> Row | None:
        job = self._find(job_id)
        return dict(job) if job else None

    def stuck(self, now_ms: int, limit: int = 100) -> list[Row]:
        ended = [dict(job) for job in self.jobs if _lease_has_ended(job, now_ms)]
        return sorted(ended, key=lambda job: (job["lease_until"], job["seq"]))[:limit]

    def recover(self, now_ms: int) -> dict[str, int]:
        dead = self._sweep(self.jobs, now_ms)
        ended = [job for job in self.jobs if _lease_has_ended(job, now_ms)]
        for job in ended:
            _free(job, "pending", "expired")
        return {"recovered": len(ended), **{r: dead.count(r) for r in ("deadline", "exhausted")}}

    def _sweep(self, jobs: list[Row], now_ms: int) -> list[str]:
        """Bury what has no time or no attempts left; the reasons given."""
        reasons: list[str] = []
        for job in jobs:
            if job["status"] != "pending" and not _lease_has_ended(job, now_ms):
                continue
            if job["deadline"] <= now_ms:
                reasons.append("deadline")
            elif job["attempts"] >= job["max_attempts"]:
                reasons.append("exhausted")
            else:
                continue
            _free(job, "dead", reasons[-1])
        return reasons

    def _find(self, job_id: str) -> Row | None:
        return next((job for job in self.jobs if job["id"] == job_id), None)

    def _held(self, ticket: Row) -> Row | None:
        """The leased job that this ticket matches in full."""
        job = self._find(ticket["id"])
        held = job is not None and job["status"] == "leased" and ticket_of(job) == ticket
        return job if held else None

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """What a transaction is: after an error the rows are as they were."""
        jobs = [dict(job) for job in self.jobs]
        redrives = list(self.redrives)
        try:
            yield
        except BaseException:
            self.jobs, self.redrives = jobs, redrives
            raise


def run_once(
    reference: Reference,
    owner: str,
    clock: Callable[[], int],
    send: Callable[[Row], object],
    jitter: float,
    lease_ms: int = 1000,
) -> Row | None:
    first = clock()
    ticket = reference.claim(owner, first, lease_ms)
    if ticket is None:
        return None
    outcome, delay_ms = "ok", 0
    try:
        answer = send({"id": ticket["id"], "qty": ticket["qty"]})
    except Retryable:
        outcome = "retry"
        delay_ms = math.floor(min(1000, 100 * 2 ** (ticket["attempt"] - 1)) * jitter)
    except Permanent:
        outcome = "permanent"
    else:
        if answer is not True:
            raise BadAck(answer)
    second = clock()
    if type(second) is not int or not first <= second <= LAST_NOW_MS:
        raise ValueError("the clock's second value")
    status = reference.finish(ticket, outcome, second, delay_ms)
    return {"id": ticket["id"], "token": ticket["token"], "status": status or "stale"}


def _free(job: Row, status: str, reason: str | None) -> None:
    job.update(status=status, reason=reason, owner=None, lease_until=None)


def _lease_has_ended(job: Row, now_ms: int) -> bool:
    return job["status"] == "leased" and bool(job["lease_until"] <= now_ms)


def _can_be_claimed(job: Row, now_ms: int) -> bool:
    ready = job["status"] == "pending" and bool(job["available_at"] <= now_ms)
    return ready or _lease_has_ended(job, now_ms)
