"""What callers may pass: one function a boundary value, each refusing with a `ValueError` that
says what was expected, what came and what to do (CONTRACT.md, "Values")."""

from __future__ import annotations

import inspect
import os
import re
import reprlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import FunctionType
from typing import Any, NoReturn, TypeVar, cast

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session, scoped_session

from leasestore.clock import Clock, read
from leasestore.errors import CallersError
from leasestore.tickets import Event, Outcome, Ticket

LAST_MS = 10**15
"""No time and no token is above this one."""

MOST_AT_ONCE = 1000
"""The most items of a batch."""

_T = TypeVar("_T")

Fault = Callable[[str], object]
Moment = Callable[[Connection], int]

_IDENTIFIER = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MOST = 10**12
_STRICT = {str}
_EVENT_KEYS = frozenset({"id", "qty"})
_TICKET_KEYS = frozenset(Ticket.__annotations__)
_OUTCOMES = ("ok", "retry", "permanent")


@dataclass(frozen=True, slots=True)
class Limits:
    """The upper bounds that an application may widen; the defaults are the contract's.

    `qty` and `max_attempts` are counts, up to 2**31 - 1; `ttl_ms`, `lease_ms` and `delay_ms`
    are milliseconds, up to 10**12. Each is a strict int and none is below its default. Latest
    time accepted: 10**15 minus the longest of the three, so that no sum passes 10**15.

        JobRepository(engine, limits=Limits(ttl_ms=30 * DAY, lease_ms=15 * MINUTE))
    """

    qty: int = 1000
    max_attempts: int = 16
    ttl_ms: int = 60_000
    lease_ms: int = 60_000
    delay_ms: int = 60_000

    def __post_init__(self) -> None:
        for field in fields(self):
            most = _MOST if field.name.endswith("_ms") else 2**31 - 1
            integer(
                f"Limits.{field.name}", getattr(self, field.name), cast("int", field.default), most
            )

    @property
    def latest_ms(self) -> int:
        """The latest `now_ms` that is accepted."""
        return LAST_MS - max(self.ttl_ms, self.lease_ms, self.delay_ms)


def _refuse(name: str, expected: str, got: object, remedy: str = "") -> NoReturn:
    try:
        shown = reprlib.repr(got)
    except Exception:  # noqa: BLE001 - whatever a caller's value does when it is shown
        shown = "(which cannot be shown)"
    raise ValueError(f"{name}: expected {expected}, got {type(got).__name__} {shown}{remedy}")


def integer(name: str, value: object, low: int, high: int, remedy: str = "") -> int:
    """A strict int from `low` to `high`."""
    if type(value) is not int or not low <= value <= high:
        _refuse(name, f"int from {low} to {high}", value, remedy)
    return value


def _bounded(name: str, value: object, low: int, limits: Limits) -> int:
    high: int = getattr(limits, name)
    too_high = type(value) is int and value > high
    remedy = f" (an application widens this bound: Limits({name}=...))" if too_high else ""
    return integer(name, value, low, high, remedy)


def qty(value: object, limits: Limits) -> int:
    return _bounded("qty", value, 1, limits)


def max_attempts(value: object, limits: Limits) -> int:
    return _bounded("max_attempts", value, 1, limits)


def ttl_ms(value: object, limits: Limits) -> int:
    return _bounded("ttl_ms", value, 1, limits)


def lease_ms(value: object, limits: Limits) -> int:
    return _bounded("lease_ms", value, 1, limits)


def delay_ms(value: object, limits: Limits) -> int:
    return _bounded("delay_ms", value, 0, limits)


def first_delay_ms(value: object, ttl: int, limits: Limits) -> int:
    """A delay before the first attempt: one that reaches the deadline could never run."""
    delay = delay_ms(value, limits)
    if delay >= ttl:
        _refuse("delay_ms", f"less than ttl_ms ({ttl}), so that the job can run", delay)
    return delay


def identifier(name: str, value: object) -> str:
    """A strict str of 1 to 64 ASCII letters, digits, `_` and `-`."""
    if type(value) is not str or not _IDENTIFIER.fullmatch(value):
        _refuse(name, "str of 1 to 64 characters out of A-Z a-z 0-9 _ -", value)
    return value


def now_ms(value: object, limits: Limits, name: str = "now_ms") -> int:
    return integer(name, value, 0, limits.latest_ms)


def moment(value: object, limits: Limits) -> Moment:
    """A time or a clock, to be read on a connection: a time is checked at once, a clock then."""
    if callable(value):
        clock = cast("Clock", value)
        told = _carrying(lambda connection: read(clock, connection))
        return lambda connection: now_ms(told(connection), limits, "now_ms read from the clock")
    checked = now_ms(value, limits)
    return lambda _: checked


def _carrying(call: Callable[..., Any]) -> Callable[..., Any]:
    """The same callable; its errors are carried as the caller's own."""

    def carry(*args: object) -> Any:
        try:
            return call(*args)
        except BaseException as error:  # noqa: BLE001 - all of them are the caller's
            raise CallersError(error) from None

    return carry


def clock(value: object) -> Clock:
    if not callable(value):
        _refuse("clock", "a callable without arguments that returns milliseconds", value)
    return cast("Clock", value)


def send(value: object, *, awaited: bool = False) -> None:
    """A plain function, or one whose answer can be awaited, as `run_once` needs it."""
    if not callable(value):
        _refuse("send", "a callable that takes a dict of id and qty", value)
    function: object = value
    is_coroutine = inspect.iscoroutinefunction(function)
    if is_coroutine and not awaited:
        _refuse("send", "a plain function", value, "; leasestore.aio.run_once awaits coroutines")
    if awaited and type(function) is FunctionType and not is_coroutine:
        _refuse("send", "a coroutine function", value, "; leasestore.run_once takes plain ones")


def queue(repository: object, *, awaited: bool = False) -> None:
    """A repository of the right face, with transactions of its own for claim and finish."""
    claim = getattr(repository, "claim", None)
    if not callable(claim):
        _refuse("repository", "a JobRepository", repository)
    if inspect.iscoroutinefunction(claim) is not awaited:
        face = "leasestore.run_once" if awaited else "leasestore.aio.run_once"
        _refuse("repository", "one of the other face", repository, f"; {face} is for this one")
    if getattr(repository, "enlisted", False) is True:
        remedy = ", in whose transaction it would send: claim and finish yourself, see Attempt"
        _refuse("repository", "one with transactions of its own", repository, remedy)


def fault(value: object) -> Fault | None:
    if value is not None and not callable(value):
        _refuse("fault", "None or a callable that takes the name of a point", value)
    return None if value is None else _carrying(value)


def report(value: object) -> Callable[..., object] | None:
    if value is not None and not callable(value):
        _refuse("report", "None or a callable that takes a dict", value)
    return value


def jitter(value: object) -> float:
    """A strict int or float, finite, from 0 to 1."""
    if type(value) not in (int, float) or not 0 <= cast("float", value) <= 1:
        _refuse("jitter", "int or float from 0 to 1", value)
    return cast("float", value)


def limit(value: object) -> int:
    """How many rows a listing may return."""
    return integer("limit", value, 1, 100_000)


def outcome(value: object) -> Outcome:
    return cast("Outcome", choice("outcome", value, _OUTCOMES))


def _record(name: str, value: object, keys: frozenset[str]) -> dict[str, Any]:
    """A strict dict with exactly these keys, each a strict str."""
    if (
        type(value) is not dict
        or len(value) != len(keys)
        or set(map(type, value)) != _STRICT
        or value.keys() != keys
    ):
        _refuse(name, f"dict with exactly the keys {', '.join(sorted(keys))}", value)
    return value


def event(value: object, limits: Limits) -> Event:
    """The event checked and copied, so that nothing the caller does later can change it."""
    record = _record("event", value, _EVENT_KEYS)
    return {"id": identifier("id", record["id"]), "qty": qty(record["qty"], limits)}


def ticket(value: object, limits: Limits) -> Ticket:
    """The ticket checked and copied."""
    record = _record("ticket", value, _TICKET_KEYS)
    return {
        "id": identifier("ticket id", record["id"]),
        "qty": integer("ticket qty", record["qty"], 1, limits.qty),
        "owner": identifier("ticket owner", record["owner"]),
        "token": integer("ticket token", record["token"], 1, LAST_MS),
        "attempt": integer("ticket attempt", record["attempt"], 1, limits.max_attempts),
        "lease_until": integer("ticket lease_until", record["lease_until"], 1, LAST_MS),
    }


def batch(name: str, value: object, check: Callable[[Any], _T]) -> list[_T]:
    """What the check makes of each item; an error names the item's position too."""
    if not isinstance(value, (list, tuple)):
        _refuse(name, f"list or tuple of up to {MOST_AT_ONCE} items", value)
    if len(value) > MOST_AT_ONCE:
        raise ValueError(
            f"{name}: expected up to {MOST_AT_ONCE} items, got {len(value)}; give them in portions"
        )
    checked = []
    for position, item in enumerate(value):
        try:
            checked.append(check(item))
        except ValueError as error:
            raise ValueError(f"{name}[{position}]: {error}") from None
    return checked


def ended(value: object, limits: Limits) -> tuple[Ticket, Outcome, int]:
    """An item of a batch to be finished."""
    if type(value) is not tuple or len(value) != 3:
        _refuse("item", "tuple of ticket, outcome and delay_ms", value)
    shown, how, delay = value
    return ticket(shown, limits), outcome(how), delay_ms(delay, limits)


def flag(name: str, value: object) -> bool:
    if type(value) is not bool:
        _refuse(name, "True or False", value)
    return value


def draw(value: object) -> Callable[[], float]:
    if not callable(value):
        _refuse("draw", "a callable without arguments that returns a float from 0 to 1", value)
    return cast("Callable[[], float]", value)


def choice(name: str, value: object, choices: tuple[str, ...]) -> str:
    if type(value) is not str or value not in choices:
        _refuse(name, " or ".join(map(repr, choices)), value)
    return value


def path(value: object) -> Path:
    """The absolute path of a file, whether there is one or not."""
    if not isinstance(value, str | os.PathLike) or not isinstance(os.fspath(value), str):
        _refuse("path", "str or os.PathLike of str", value)
    return Path(value).absolute()


def queue_path(value: object) -> Path:
    """The absolute path of a file to be opened or made, not one of SQLite's special names."""
    file = path(value)
    given = os.fspath(cast("str | os.PathLike[str]", value))
    if given in ("", ":memory:") or given.startswith("file:") or "\0" in given:
        _refuse("path", "the path of a file (no in-memory database, no URI)", value)
    return file


def _for_asyncio(value: object) -> str:
    if not type(value).__module__.startswith("sqlalchemy.ext.asyncio"):
        return ""
    return "; for asyncio there is leasestore.aio, and `await connection.run_sync(...)`"


def host(value: object) -> Session | scoped_session[Any] | Connection:
    if not isinstance(value, Session | scoped_session | Connection):
        _refuse("session", "a Session, scoped_session or Connection", value, _for_asyncio(value))
    return value


def bind(value: object) -> Engine | Connection:
    if not isinstance(value, (Engine, Connection)):
        _refuse("bind", "a SQLAlchemy Engine or Connection", value, _for_asyncio(value))
    return value


def limits(value: object) -> Limits:
    if not isinstance(value, Limits):
        _refuse("limits", "Limits(...)", value)
    return value


def values(value: object, own_columns: Collection[str]) -> dict[str, Any]:
    """What an application writes into its own columns, by attribute of its model, copied."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        _refuse("values", "a dict of the model's own columns", value)
    for name in value:
        if name not in own_columns:
            known = (
                ", ".join(sorted(own_columns)) or "none: declare a model on JobMixin to have some"
            )
            _refuse("values", f"only the model's own columns ({known})", name)
    return dict(value)


def values_of_each(
    value: object, how_many: int, own_columns: Collection[str]
) -> list[dict[str, Any]]:
    """The same for each event of a batch."""
    if value is None:
        return [{} for _ in range(how_many)]
    checked = batch("values", value, lambda item: values(item, own_columns))
    if len(checked) != how_many:
        raise ValueError(
            f"values: expected one dict for each event ({how_many}), got {len(checked)}"
        )
    return checked
