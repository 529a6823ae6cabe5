"""What a run of a worker comes to."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

Ended = Literal["empty", "once", "stopped", "late", "forced"]
End = Literal["done", "retried", "dead", "stale", "left", "released"]


@dataclass(frozen=True, slots=True)
class Worked:
    """What a worker did in one run, and how the run ended.

    Attributes:
        done, retried, dead: jobs that it finished, by what became of them; those that the handler
            finished in its own transaction included.
        stale: jobs that were somebody else's, or whose time was over, when they were to be
            finished.
        left: jobs not finished, whose leases end by themselves: `send` failed without a class, or
            the finish could not be written while the lease lasted.
        released: jobs given back before their `send` began, because a stop came, or because there
            was no place for them any more.
        swept: jobs that its claims found with no time or no attempts left, and that are dead now.
        running: jobs whose `send` was still at work when the run ended; their leases end by
            themselves, too. Their threads go on as long as the process does.
        ended: `empty` (`until_empty`, or `once` with nothing to claim), `once` (one job claimed and
            worked), `stopped` (by `stop` or a signal, everything in hand brought to an end), `late`
            (`grace_ms` was over before that), `forced` (a second stop came before that).
    """

    done: int = 0
    retried: int = 0
    dead: int = 0
    stale: int = 0
    left: int = 0
    released: int = 0
    swept: int = 0
    running: int = 0
    ended: Ended = "stopped"


def in_words(worked: Worked) -> str:
    """What was done, for people."""
    counts = [f"{number} {what}" for what, number in asdict(worked).items() if what != "ended"]
    return ", ".join(told for told in counts if not told.startswith("0 ")) or "no jobs"
