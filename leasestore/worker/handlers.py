"""What `send` may be: a plain function or a coroutine function, of the contract's dict or of a
`Delivery`."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from concurrent.futures import CancelledError
from types import SimpleNamespace
from typing import Any, Protocol

from leasestore import validation
from leasestore.delivery import Attempt
from leasestore.worker.delivery import Delivery
from leasestore.worker.event_loop import EventLoop
from leasestore.worker.running import Running


class Handler(Protocol):
    """Runs `send` for one job, in the calling thread's time."""

    def open(self) -> None: ...

    def close(self) -> None: ...

    def __call__(self, job: Running, attempt: Attempt, what: object) -> BaseException | None:
        """What `send` raised without a class, if it did; returned, so that no frame that its
        traceback leads to keeps it. If the job was cancelled before, `send` is not called."""
        ...


class Plain:
    """A plain function, called in the thread that asks."""

    def __init__(self, send: Callable[[Any], object]) -> None:
        self._send = send

    def open(self) -> None:
        pass

    def close(self) -> None:
        pass

    def __call__(self, job: Running, attempt: Attempt, what: object) -> BaseException | None:
        if job.may_begin():
            try:
                with attempt:
                    attempt.acknowledge(self._send(what))
            except BaseException as error:  # noqa: BLE001 - what it raises ends its job only
                return error
        return None


class Awaited:
    """A coroutine function, run on an event loop in a thread of its own."""

    def __init__(self, send: Callable[[Any], Any], name: str) -> None:
        self._send, self._loop = send, EventLoop(name)

    def open(self) -> None:
        self._loop.open()

    def close(self) -> None:
        self._loop.close()

    def __call__(self, job: Running, attempt: Attempt, what: object) -> BaseException | None:
        future = self._loop.submit(self._sent(job, attempt, what))
        job.on_cancel(future.cancel)
        try:
            return future.result()
        except CancelledError:
            # Before it began: one that comes later is what `send` raised.
            return None
        finally:
            # The future has the error, whose traceback leads to the job.
            job.on_cancel(None)

    async def _sent(self, job: Running, attempt: Attempt, what: object) -> BaseException | None:
        if job.may_begin():
            try:
                with attempt:
                    attempt.acknowledge(await self._send(what))
            except BaseException as error:  # noqa: BLE001 - SystemExit would end the loop
                return error
        return None


def handler_of(send: Callable[[Any], Any], name: str) -> Handler:
    return Awaited(send, name) if is_coroutine(send) else Plain(send)


def checked(send: object) -> Callable[[Any], Any]:
    """`send`, if it can be called."""
    validation.send(send, awaited=is_coroutine(send))
    return typing.cast("Callable[[Any], Any]", send)


def is_coroutine(send: object) -> bool:
    # An object that is called is a coroutine function by its `__call__`.
    function: object = send
    call: object = getattr(type(send), "__call__", None)  # noqa: B004 - as Python looks it up
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def wants_delivery(send: Callable[[Any], object]) -> bool:
    """Whether the first parameter is annotated with `Delivery`."""
    try:
        parameters = list(inspect.signature(send).parameters.values())
    except (TypeError, ValueError):
        # A callable of C has no signature, and no annotations.
        return False
    annotation: Any = parameters[0].annotation if parameters else None
    if isinstance(annotation, str):
        annotation = _resolved(annotation, send)
    return isinstance(annotation, type) and issubclass(annotation, Delivery)


def _resolved(annotation: str, send: object) -> object:
    """What the text of an annotation means where `send` was written."""
    shim = SimpleNamespace(__annotations__={"first": annotation})
    try:
        return typing.get_type_hints(shim, _globals_of(send))["first"]
    except Exception:  # noqa: BLE001 - whatever evaluating somebody's text may raise
        if annotation.rpartition(".")[2] != Delivery.__name__:
            return None
        raise ValueError(
            f"send: cannot tell what {annotation!r}, the annotation of its first parameter, means; "
            "import it at the top of the module, and not only for type checkers"
        ) from None


def _globals_of(send: object) -> dict[str, Any]:
    while isinstance(send, functools.partial):
        send = send.func
    function: Any = send if inspect.isroutine(send) else type(send).__call__
    return getattr(inspect.unwrap(function), "__globals__", {})
