"""What the worker tells: one line an event, through the logger `leasestore.worker`."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress

from sqlalchemy.exc import DBAPIError

from leasestore.worker.running import Running

logger = logging.getLogger("leasestore.worker")

WHY_DEAD = {
    "deadline": "its deadline is over",
    "exhausted": "its attempts are used up",
}
"""Why a job died by itself, in words."""

_LONGEST = 500


def tell(
    level: int, event: str, text: str, error: BaseException | None = None, **fields: object
) -> None:
    """One line; `event` and the fields are attributes of the record. With the traceback of the
    error, and its `error_type`, if there is one."""
    _log(level, text, error, {"event": event, **fields})


def tell_of(
    job: Running,
    level: int,
    event: str,
    text: str,
    error: BaseException | None = None,
    **more: object,
) -> None:
    """The same about a job in hand."""
    ticket = job.ticket
    run = f"job {ticket['id']} (token {ticket['token']}, attempt {ticket['attempt']})"
    fields = {
        "event": event,
        "job_id": ticket["id"],
        "token": ticket["token"],
        "attempt": ticket["attempt"],
        "owner": ticket["owner"],
        **more,
    }
    _log(level, f"{run}: {text}", error, fields)


def _log(level: int, text: str, error: BaseException | None, fields: dict[str, object]) -> None:
    if error is not None:
        fields["error_type"] = kind_of(error)
    # What an application has hung on its loggers may fail; no thread of the worker ends of that.
    with suppress(Exception):
        logger.log(level, "%s", text, exc_info=error, extra=fields)


def bounded(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"


def counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def kind_of(error: BaseException) -> str:
    return type(_said(error)).__name__


def _said(error: BaseException) -> BaseException:
    """Of an error of the database what the driver said: the statement is ours."""
    return error.orig if isinstance(error, DBAPIError) and error.orig is not None else error


def shown(error: BaseException) -> str:
    """The kind and the text of an error on one line, however long it is and whatever its `__str__`
    does."""
    said = _said(error)
    try:
        text = " ".join(str(said).split())
    except Exception:  # noqa: BLE001 - the log goes on without it
        text = "(its text cannot be shown)"
    return bounded(f"{type(said).__name__}: {text}")


class Outage:
    """Tells once that something fails, and once that it works again.

    Args:
        what: what cannot be done, as in "cannot claim".
    """

    def __init__(self, what: str, owner: str) -> None:
        self._what, self._owner = what, owner
        self._lock = threading.Lock()
        self._failures = 0

    def failed(self, error: BaseException) -> int:
        """How many failures in a row it was."""
        with self._lock:
            self._failures += 1
            failures = self._failures
        if failures == 1:
            text = f"cannot {self._what}, and goes on trying: {shown(error)}"
            kind = kind_of(error)
            tell(logging.WARNING, "outage", text, owner=self._owner, error_type=kind)
        return failures

    def over(self) -> None:
        """It worked."""
        with self._lock:
            failures, self._failures = self._failures, 0
        if failures:
            text = f"can {self._what} again, after {counted(failures, 'failure')} in a row"
            tell(logging.WARNING, "outage-over", text, owner=self._owner, failures=failures)
