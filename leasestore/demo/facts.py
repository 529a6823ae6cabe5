"""What the demo finds out, as data: facts in time, requests and effects, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from leasestore.tickets import JobState

What = Literal["claimed", "sent", "finished", "killed", "lease over"]


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that happened to one run of a job.

    `at_ms` counts from the start of the demo; in a child's report it is the system clock's time.
    `detail` is the receiver's answer to what was sent, the status that a run left, or the signal.
    """

    at_ms: int
    who: str
    what: What
    job: str
    token: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Count:
    """What the receiver has of one order: requests, effects, and the quantity they add up to."""

    requests: int = 0
    effects: int = 0
    qty: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    """How a demo ended: `killed` is the order whose courier was killed, `jobs` the final rows."""

    killed: str
    timeline: Sequence[Fact]
    jobs: Sequence[JobState]
    counts: Mapping[str, Count]

    def count(self, job: str) -> Count:
        """What the receiver has of this order, nothing included."""
        return self.counts.get(job, Count())

    @property
    def lost(self) -> list[str]:
        """The orders that are not done, or of which less was counted than ordered."""
        return [
            job["id"]
            for job in self.jobs
            if job["status"] != "done" or self.count(job["id"]).qty < job["qty"]
        ]

    @property
    def doubled(self) -> list[str]:
        """The orders of which more was counted than ordered."""
        return [job["id"] for job in self.jobs if self.count(job["id"]).qty > job["qty"]]

    @property
    def done_by(self) -> dict[str, str]:
        """Who finished which order."""
        return {
            fact.job: fact.who
            for fact in self.timeline
            if fact.what == "finished" and fact.detail == "done"
        }
