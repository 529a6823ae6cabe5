"""What `send` may be: a plain function or a coroutine function, of the contract's dict or of a
`Delivery`."""

from __future__ import annotations

import functools
import inspect
import re
import typing
from collections.abc import Callable
from concurrent.futures import CancelledError
from types import SimpleNamespace
from typing import Any, Protocol

from leasestore import validation
from leasestore.delivery import Attempt
from leasestore.models import JobMixin
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
    """`send`, if it can be called, and with one argument."""
    validation.send(send, awaited=is_coroutine(send))
    function = typing.cast("Callable[[Any], Any]", send)
    signature = _signature(function)
    try:
        if signature is not None:
            signature.bind(None)
    except TypeError as error:
        raise ValueError(
            "send: expected a function that can be called with one argument, the job; got one that "
            f"takes {signature}: {error}"
        ) from None
    return function


def name_of(send: object) -> str:
    """Where it is found, as `module:name`."""
    while isinstance(send, functools.partial):
        send = send.func
    named: Any = send if hasattr(send, "__qualname__") else type(send)
    return f"{named.__module__}:{named.__qualname__}"


def is_coroutine(send: object) -> bool:
    # An object that is called is a coroutine function by its `__call__`.
    function: object = send
    call: object = getattr(type(send), "__call__", None)  # noqa: B004 - as Python looks it up
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def wants_delivery(send: Callable[[Any], object]) -> bool:
    """Whether the first parameter is annotated with `Delivery`."""
    signature = _signature(send)
    parameters = list(signature.parameters.values()) if signature is not None else []
    annotation = _resolved(parameters[0].annotation, send) if parameters else None
    # Of `Delivery | None` each part.
    classes = [one for one in typing.get_args(annotation) or [annotation] if isinstance(one, type)]
    for model in classes:
        if issubclass(model, JobMixin):
            raise ValueError(
                f"send: its first parameter is annotated with {model.__module__}."
                f"{model.__qualname__}, a job model, and no worker gives that; annotate it with "
                "leasestore.Delivery, which has the model's columns as attributes"
            )
    return any(issubclass(one, Delivery) for one in classes)


def _signature(send: Callable[[Any], object]) -> inspect.Signature | None:
    """None of a callable of C, which may have no signature, and has no annotations."""
    try:
        return inspect.signature(send)
    except (TypeError, ValueError):
        return None


def _resolved(annotation: object, send: object) -> object:
    """What an annotation, or its text, means where `send` was written."""
    shim = SimpleNamespace(__annotations__={"first": annotation})
    try:
        return typing.get_type_hints(shim, _globals_of(send))["first"]
    except Exception:  # noqa: BLE001 - whatever evaluating somebody's text may raise
        if not re.search(rf"\b{Delivery.__name__}\b", str(annotation)):
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
