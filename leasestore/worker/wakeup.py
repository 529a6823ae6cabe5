"""Stands in for `leasestore.wakeup`."""

from __future__ import annotations

import threading

from leasestore.repository import JobRepository


class Wakeup:
    """Nothing wakes it but `wake`."""

    def __init__(self, repository: JobRepository, *, listen: bool = False) -> None:
        self._woken = threading.Event()

    def wait(self, timeout_ms: int) -> bool:
        woken = self._woken.wait(timeout_ms / 1000)
        self._woken.clear()
        return woken

    def wake(self) -> None:
        self._woken.set()

    def close(self) -> None:
        pass
