"""The SQL of the batches: one statement for any number of items, packed into one JSON list."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    FromClause,
    Insert,
    Integer,
    Select,
    Table,
    Text,
    Update,
    and_,
    bindparam,
    case,
    exists,
    literal_column,
    select,
    update,
)
from sqlalchemy.sql import ColumnCollection
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
        super().__init__(job, redrive, own, choose)
        self._insert = insert
        self._inserts_of_many: dict[tuple[str, ...], Insert] = {}
        columns: dict[str, TypeEngine[Any]] = {
            "position": Integer(),
            **{column.name: column.type for column in self._ticket},
            "outcome": Text(),
            "again": job.c.available_at.type,
        }
        self._item = unpacked(bindparam(_ITEMS, type_=Text()), columns).c
        self._live_item = self._live_by(self._item)

    def _live_by(self, item: ColumnCollection[str, Any]) -> ColumnElement[bool]:
        """Whether the row is the one that an item's ticket was handed out for, and in time."""
        ends, left = self._job.c.lease_until, self._job.c.deadline - self._now
        shown = {each.name: item[each.name] for each in self._ticket if each is not ends}
        # In words that no index has but the one over ids: all that one claim took end at one time,
        # and each item would look at each of them; and among the entries of leased jobs are those
        # of all that were leased since the last VACUUM.
        leased = self._job.c.status.concat(literal_column("''")) == word("leased")
        same_end = ends.is_not_distinct_from(item.lease_until)
        in_time = item.lease_until > self._now, left > literal_column("0")
        # Of a list PostgreSQL expects so many items that it would rather walk through a table of
        # ten thousand jobs; after a condition that goes without saying, a third of them.
        fewer = item.position >= literal_column("0")
        return and_(leased, self._shows(shown), same_end, *in_time, fewer)

    @cached_property
    def stored(self) -> Select[Any]:
        """The content of those jobs that exist."""
        content = [self._job.c.id, self._job.c.qty]
        return select(*content).where(self._job.c.id == self._item.id)

    @cached_property
    def enqueue_items(self) -> Insert:
        """One INSERT for all items, each yielding to a row of the same id, whoever commits it; it
        returns the ids of the new ones."""
        row = {
            **self._new_row(()),
            self._job.c.id: self._item.id,
            self._job.c.qty: self._item.qty,
        }
        known = exists().where(self._job.c.id == self._item.id).correlate(self._item.id.table)
        in_order = select(*row.values()).where(~known).order_by(self._item.position)
        return self._yielding(row, in_order).returning(self._job.c.id)

    def enqueue_rows(self, names: tuple[str, ...]) -> Insert:
        """The same for rows with columns of the application's own, whose values only their types
        can bring to the database. None of them may be known: each attempt would burn a seq."""
        if names not in self._inserts_of_many:
            insert = self._insert(self._job).values(self._new_row(names))
            yielding = insert.on_conflict_do_nothing(index_elements=[self._job.c.id])
            self._inserts_of_many[names] = yielding.returning(self._job.c.id)
        return self._inserts_of_many[names]

    @cached_property
    def claim_batch(self) -> Update:
        # That of a single claim stays written out: for any number the plan may be another one.
        return self._claim(LIMIT)

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
        return statement.returning(self._job.c.id, self._job.c.token, self._job.c.status)

    @cached_property
    def renew_batch(self) -> Update:
        changed = update(self._job).where(self._live_item).values(lease_until=self._until)
        return changed.returning(*self._ticket)
