"""The SQL of the batches: one statement for any number of items, packed into one JSON list."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    FromClause,
    Integer,
    Select,
    Table,
    Text,
    Update,
    and_,
    bindparam,
    case,
    select,
)
from sqlalchemy.types import TypeEngine

from leasestore.models import word
from leasestore.statements import LIMIT, Statements, parameters

(_ITEMS,) = parameters(items=None)


class BatchStatements(Statements):
    """Every statement over one job table and its redrive table, for one job and for many.

    Of the dialect, `unpacked` makes rows of a JSON list. An item has its `position` in the batch
    and what its ticket shows; to be finished, also its `outcome` and when it may be claimed
    `again`.
    """

    def __init__(
        self,
        job: Table,
        redrive: Table,
        own: Mapping[str, Column[Any]],
        insert: Callable[[Table], Any],
        choose: Callable[..., ColumnElement[bool]],
        unpacked: Callable[[ColumnElement[str], Mapping[str, TypeEngine[Any]]], FromClause],
    ) -> None:
        super().__init__(job, redrive, own, insert, choose)
        columns: dict[str, TypeEngine[Any]] = {
            "position": Integer(),
            **{column.name: column.type for column in self._ticket},
            "outcome": Text(),
            "again": job.c.available_at.type,
        }
        self._item = unpacked(bindparam(_ITEMS, type_=Text()), columns).c
        self._live_item = and_(self._matches(dict(self._item.items())), *self._in_time)

    @cached_property
    def claim_batch(self) -> Update:
        # That of a single claim stays written out: for any number the plan may be another one.
        return self._claim(self._terms.order >= self._start, limit=LIMIT)

    @cached_property
    def live(self) -> Select[Any]:
        """The positions of the items that may act.

        Where rows have locks, they are locked, in the same order by everybody: two batches over
        the same jobs wait for each other and do not deadlock.
        """
        found = select(self._item.position).where(self._live_item)
        return found.order_by(self._job.c.seq).with_for_update(key_share=True, of=self._job)

    @cached_property
    def finish_batch(self) -> Update:
        ends, item = self._ends(self._item.again), self._item
        changes = {
            name: case(*((item.outcome == word(outcome), ends[outcome][name]) for outcome in ends))
            for name in ends["ok"]
        }
        statement = self._free(self._live_item, **changes)
        return statement.returning(self._job.c.id, self._job.c.status)
