"""An event loop in a thread of its own, which no error of a task ends."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from leasestore.worker.log import tell

_T = TypeVar("_T")
_JOIN_S = 1.0


class EventLoop:
    """The loop, from `open` to `close`."""

    def __init__(self, name: str) -> None:
        self._thread = threading.Thread(target=self._run, name=f"{name} event loop", daemon=True)
        self._opened = threading.Event()
        self._closing = False
        self._loop: asyncio.AbstractEventLoop

    def open(self) -> None:
        self._thread.start()
        self._opened.wait()

    def submit(self, coroutine: Coroutine[Any, Any, _T]) -> Future[_T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def close(self) -> None:
        """Cancel what is still running, and end the loop; one that is blocked is left to itself."""
        self._closing = True
        # It may not have been started.
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            self._opened.set()
            while not self._closing:
                try:
                    self._loop.run_forever()
                except BaseException as error:  # noqa: BLE001 - SystemExit in a task, for one
                    text = "a task ended the event loop, which goes on"
                    tell(logging.ERROR, "loop-failed", text, error)
