"""Group commit by leader and follower: what comes while something is being written waits, and is
then written together with what comes right after."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")


_COMPANY_MS = 2


class _Place(Generic[_Item, _Answer]):
    """One in the line: what it brings, and what it is told."""

    def __init__(self, item: _Item) -> None:
        self.item = item
        self.told = threading.Event()
        self.leads = False
        self.answer: _Answer | None = None


class Group(Generic[_Item, _Answer]):
    """Writes items for threads that each bring one; nobody writes while another one does.

    Who finds nobody writing leads. Who comes meanwhile waits; the first of them leads next, and
    writes for all that wait by then. A leader waits for as many as there were the last time, though
    hardly for long: those that were written together come back one after the other, and the first
    of them would write alone while the others wait.

    Args:
        write: writes the items, the leader's first, and gives an answer for each.
    """

    def __init__(self, write: Callable[[list[_Item]], Sequence[_Answer | None]]) -> None:
        self._write = write
        self._changed = threading.Condition()
        self._last = 1
        self._waiting: list[_Place[_Item, _Answer]] = []
        self._led = False

    def through(self, item: _Item, patience_ms: int) -> _Answer | None:
        """Write it, alone or with others; the answer.

        Returns:
            None if that is not known: its leader took longer than this one's patience, and may be
            at it still, or has failed.

        Raises:
            Whatever `write` raises, to the leader only.
        """
        mine = _Place[_Item, _Answer](item)
        with self._changed:
            self._waiting.append(mine)
            self._changed.notify_all()
            mine.leads, self._led = not self._led, True
        if not mine.leads:
            mine.told.wait(patience_ms / 1000)
            with self._changed:
                if not mine.leads:
                    if mine in self._waiting:
                        self._waiting.remove(mine)
                    return mine.answer
        return self._lead(mine)

    def _lead(self, mine: _Place[_Item, _Answer]) -> _Answer | None:
        with self._changed:
            self._changed.wait_for(lambda: len(self._waiting) >= self._last, _COMPANY_MS / 1000)
            group, self._waiting = self._waiting, []
            self._last = len(group)
        try:
            answers = self._write([place.item for place in group])
            for place, answer in zip(group, answers, strict=True):
                place.answer = answer
        finally:
            with self._changed:
                for place in self._waiting[:1]:
                    place.leads = True
                self._led = bool(self._waiting)
                told = [*self._waiting[:1], *group]
            for place in told:
                place.told.set()
        return mine.answer
