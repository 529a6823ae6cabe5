"""The SQL of every verb, the same on every database: Core statements without I/O, each built
once for a pair of tables. `parameters` names the values that they bind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Insert,
    Integer,
    ScalarSelect,
    Select,
    Table,
    Update,
    and_,
    bindparam,
    case,
    exists,
    false,
    insert,
    literal_column,
    null,
    or_,
    select,
    update,
)

from leasestore.models import BLOCK_BITS, Terms, word
from leasestore.tickets import JobState, Outcome

COLUMNS = tuple(JobState.__annotations__)
"""The contract's columns of a job table, in order."""

FEW_DEAD = 20
"""That many deaths a claim leaves to a sweep of its own. PostgreSQL plans for a number that it
knows: without one it fears a third of all jobs, and would plan anew at each claim."""

_ONE, _FEW = literal_column("1", Integer), literal_column(str(FEW_DEAD), Integer)
# In an UPDATE a bare name could be that of one of the application's own columns.
_PREFIX = "_ls_"
LIMIT: ColumnElement[int] = bindparam(_PREFIX + "limit", type_=Integer())
"""How many rows at most."""


def parameters(**values: object) -> dict[str, object]:
    """Values under the names that the statements bind."""
    return {_PREFIX + name: value for name, value in values.items()}


def own_parameters(values: Mapping[str, object]) -> dict[str, object]:
    """The same for values of the application's own columns."""
    return {f"{_PREFIX}own_{name}": value for name, value in values.items()}


def _bind(name: str, column: Column[Any]) -> ColumnElement[Any]:
    return bindparam(_PREFIX + name, type_=column.type)


def _counted(statement: Insert) -> Insert:
    # Not every driver still knows the count when its cursor is closed.
    return statement.execution_options(preserve_rowcount=True)


class Statements:
    """Every statement over one job table and its redrive table.

    `own` maps an application's attributes to its own columns. `choose`, of the dialect, makes
    a condition that holds for the rows that some questions are about, chosen once and for all.
    """

    def __init__(
        self,
        job: Table,
        redrive: Table,
        own: Mapping[str, Column[Any]],
        choose: Callable[..., ColumnElement[bool]],
    ) -> None:
        self._job, self._redrive, self._own = job, redrive, own
        self._choose = choose
        self._inserts: dict[tuple[str, ...], Insert] = {}
        self._finishes: dict[tuple[str, ...], Update] = {}
        column = job.c
        self._row = [column[name] for name in COLUMNS]
        self._ticket = [
            column[name] for name in ("id", "qty", "owner", "token", "attempts", "lease_until")
        ]
        self._now = _bind("now", column.deadline)
        self._named = column.id == _bind("id", column.id)
        self._terms = Terms(dict(column.items()))
        self._late = column.deadline <= self._now
        self._doomed = or_(self._late, self._terms.spent)
        self._expired = and_(self._terms.leased, column.lease_until <= self._now)
        self._dead = column.status == word("dead")
        bound = {each.name: _bind(each.name, each) for each in self._ticket}
        self._held = and_(self._terms.leased, self._shows(bound))
        self._live = and_(self._held, column.lease_until > self._now, column.deadline > self._now)
        asked = _bind("until", column.deadline)
        self._until = case((column.deadline < asked, column.deadline), else_=asked)

    def _shows(self, ticket: Mapping[str, ColumnElement[Any]]) -> ColumnElement[bool]:
        """Whether the row has what this ticket, or a part of one, shows."""
        return and_(*(self._job.c[name] == value for name, value in ticket.items()))

    # Reading

    @cached_property
    def get(self) -> Select[Any]:
        return select(*self._row).where(self._named)

    @cached_property
    def own_of(self) -> Select[Any]:
        """The application's own columns by its names of them, and the deadline."""
        own = (column.label(name) for name, column in self._own.items())
        return select(self._job.c.deadline, *own).where(self._named)

    @cached_property
    def stuck(self) -> Select[Any]:
        longest_ended_first = self._job.c.lease_until, self._job.c.seq
        return select(*self._row).where(self._expired).order_by(*longest_ended_first).limit(LIMIT)

    @cached_property
    def lock(self) -> Select[Any]:
        """The rows of these jobs, kept from others until the transaction ends, in order of seq."""
        column = self._job.c
        ids = bindparam(_PREFIX + "ids", type_=column.id.type, expanding=True)
        chosen = select(column.seq).where(column.id.in_(ids)).order_by(column.seq)
        return chosen.with_for_update(key_share=True)

    # Enqueue

    def enqueue(self, names: tuple[str, ...] = ()) -> Insert:
        """One INSERT that yields to a row of the same id, whoever commits it.

        The sub-select spares the common duplicate an attempt, which would burn a seq.
        """
        if names not in self._inserts:
            self._inserts[names] = self._enqueue(names)
        return self._inserts[names]

    def _enqueue(self, names: tuple[str, ...]) -> Insert:
        row = self._new_row(names)
        absent = select(*row.values()).where(~exists().where(self._named))
        return _counted(self._yielding(row, absent))

    def _yielding(self, row: Mapping[Column[Any], Any], rows: Any) -> Insert:
        # As a suffix: SQLAlchemy 2.0 compiles the databases' own INSERTs anew at each execution.
        suffixed = rows.suffix_with("ON CONFLICT (id) DO NOTHING")
        return insert(self._job).from_select(list(row), suffixed)

    def _new_row(self, names: tuple[str, ...]) -> dict[Column[Any], Any]:
        column = self._job.c
        return {
            column.id: _bind("id", column.id),
            column.qty: _bind("qty", column.qty),
            column.status: word("pending"),
            column.attempts: literal_column("0"),
            column.max_attempts: _bind("max_attempts", column.max_attempts),
            column.token: literal_column("0"),
            column.available_at: _bind("available_at", column.available_at),
            column.deadline: _bind("deadline", column.deadline),
            **self._own_binds(names),
        }

    # Claim

    @cached_property
    def sweep(self) -> Update:
        return self._sweep()

    @cached_property
    def sweep_pending(self) -> Update:
        return self._sweep(self._job.c.status == word("pending"))

    def _sweep(self, *only: ColumnElement[bool]) -> Update:
        """Alone, without a claim; it returns which jobs died, and why."""
        column = self._job.c
        dying = self._choose(column.seq, *self._dying(*only))
        changed = self._free(dying, status=word("dead"), reason=self._cause())
        return changed.returning(column.id, column.token, column.attempts, column.reason)

    def _dying(self, *only: ColumnElement[bool]) -> list[Select[Any]]:
        """What must die. Two questions, since each has an index of its own."""
        terms = self._terms
        free = terms.free_at <= self._now
        return [self._question(why, free, *only) for why in (self._late, terms.spent)]

    @cached_property
    def claim(self) -> Update:
        return self._claim(_ONE)

    def _claim(self, limit: ColumnElement[int]) -> Update:
        terms = self._terms
        late, spent = self._dying()
        # No job is in both, so that as many die as are found. In words that the index over
        # deadlines does not have, since it is not the one to ask.
        in_time = self._job.c.deadline - self._now > literal_column("0")
        first = self._question(
            terms.order >= self._start,
            terms.claimable_at <= self._now,
            # What must die is still there: the questions are all asked before anything is changed.
            ~self._doomed,
        )
        chosen = self._choose(
            self._job.c.seq,
            late.order_by(self._job.c.deadline).limit(_FEW),
            spent.where(in_time).order_by(terms.free_at).limit(_FEW),
            then=first.order_by(terms.order).limit(limit),
            fewer_than=_FEW,
        )
        return self._bury_or_lease(chosen)

    @cached_property
    def claim_one(self) -> Update:
        terms = self._terms
        dying = and_(self._doomed, terms.free_at <= self._now)
        claimable = terms.claimable_at <= self._now
        question = self._question(self._named, or_(dying, claimable))
        return self._bury_or_lease(self._choose(self._job.c.seq, question))

    def _bury_or_lease(self, chosen: ColumnElement[bool]) -> Update:
        """Sweep and claim at once: of the rows chosen, each that must die dies, and any other is
        leased. It returns them all; one that died has a reason. With `FEW_DEAD` of them there may
        be more to sweep, and where none is leased beside them, one to lease.

        Each row itself says which, in the state in which it was chosen: nobody else can change it
        any more.
        """
        column = self._job.c
        one_more = self._fate(literal_column("0"), _ONE)
        return (
            update(self._job)
            .where(chosen)
            .values(
                status=self._fate(word("dead"), word("leased")),
                attempts=column.attempts + one_more,
                token=column.token + one_more,
                owner=self._fate(null(), _bind("owner", column.owner)),
                lease_until=self._fate(null(), self._until),
                reason=self._cause(),
            )
            .returning(column.seq, column.reason, *self._ticket)
        )

    def _fate(self, dead: ColumnElement[Any], alive: ColumnElement[Any]) -> ColumnElement[Any]:
        return case((self._doomed, dead), else_=alive)

    def _cause(self, otherwise: ColumnElement[Any] = null()) -> ColumnElement[Any]:
        """Why a row must die; of one with neither time nor attempts, time is why."""
        late, spent = (self._late, word("deadline")), (self._terms.spent, word("exhausted"))
        return case(late, spent, else_=otherwise)

    def _question(self, *conditions: ColumnElement[bool]) -> Select[Any]:
        """Which open jobs."""
        return select(self._job.c.seq).where(self._terms.open, *conditions)

    @cached_property
    def _start(self) -> ScalarSelect[int]:
        """No job before this seq can be claimed now; NULL: none at all can.

        Block after block is asked for the first moment in it, so that the many jobs that wait
        for a later time cost a look at each block and not at each job.
        """
        first = select(self._step().label("step")).cte("walk", recursive=True)
        beyond = self._terms.block > first.c.step.bitwise_rshift(_ONE)
        following = self._step(beyond).correlate(first).scalar_subquery()
        nothing_yet = first.c.step.bitwise_and(_ONE) == literal_column("0")
        step = first.union_all(select(following).where(nothing_yet)).c.step
        start = step.bitwise_rshift(_ONE) * literal_column(str(1 << BLOCK_BITS), Integer)
        return select(start).where(step.bitwise_and(_ONE) == _ONE).scalar_subquery()

    def _step(self, *beyond: ColumnElement[bool]) -> ScalarSelect[int]:
        """The next block with a job that does not have to die, and whether one of them can be
        claimed now: twice the block, and one more if so."""
        terms = self._terms
        waits = terms.claimable_at > self._now
        ready = case((waits, literal_column("0")), else_=_ONE)
        return (
            select(terms.block * literal_column("2") + ready)
            .where(terms.open, or_(waits, ~self._doomed), *beyond)
            .order_by(terms.block, terms.claimable_at)
            .limit(_ONE)
            .scalar_subquery()
        )

    # What a ticket may do

    def finish(self, outcome: Outcome, names: tuple[str, ...] = ()) -> Update:
        """The conditional end of a run; it returns the new status."""
        key = (outcome, *names)
        if key not in self._finishes:
            self._finishes[key] = self._finish(outcome, names)
        return self._finishes[key]

    def _finish(self, outcome: Outcome, names: tuple[str, ...]) -> Update:
        end = self._ends(_bind("again", self._job.c.available_at))[outcome]
        statement = self._free(self._live, **end).values(self._own_binds(names))
        return statement.returning(self._job.c.status)

    def _ends(self, again: ColumnElement[int]) -> dict[Outcome, dict[str, Any]]:
        """What each outcome makes of the row; `again` is when a retry may be claimed."""
        column = self._job.c
        no_attempts, no_time = column.attempts >= column.max_attempts, column.deadline <= again
        over = or_(no_attempts, no_time)
        return {
            "ok": {"status": word("done"), "reason": null(), "available_at": self._now},
            "permanent": {
                "status": word("dead"),
                "reason": word("permanent"),
                "available_at": self._now,
            },
            "retry": {
                "status": case((over, word("dead")), else_=word("pending")),
                "reason": case(
                    (no_attempts, word("exhausted")),
                    (no_time, word("deadline")),
                    else_=word("retry"),
                ),
                "available_at": case((over, self._now), else_=again),
            },
        }

    @cached_property
    def renew(self) -> Update:
        changed = update(self._job).where(self._live).values(lease_until=self._until)
        return changed.returning(*self._ticket)

    @cached_property
    def release(self) -> Update:
        return self._free(
            self._held,
            status=word("pending"),
            reason=word("released"),
            attempts=self._job.c.attempts - literal_column("1"),
        )

    # Operators

    @cached_property
    def recover(self) -> Update:
        # Repeats what the sweep just did: it passed over rows that somebody had locked.
        ended = select(self._job.c.seq).where(self._expired, ~self._doomed)
        chosen = self._choose(self._job.c.seq, ended)
        return self._free(chosen, status=word("pending"), reason=word("expired"))

    @cached_property
    def ended(self) -> Select[Any]:
        """The rows of `stuck`, which nobody else can change now; those that somebody else works
        on are passed over."""
        return self.stuck.with_for_update(skip_locked=True, key_share=True)

    @cached_property
    def recover_ended(self) -> Update:
        """Of these rows each is freed, or found dead; it returns what became of each."""
        column = self._job.c
        seqs = bindparam(_PREFIX + "seqs", type_=column.seq.type, expanding=True)
        return self._free(
            column.seq.in_(seqs),
            self._expired,
            status=self._fate(word("dead"), word("pending")),
            reason=self._cause(word("expired")),
        ).returning(column.seq, column.status, column.reason)

    @cached_property
    def audit(self) -> Insert:
        """The audit row of a redrive, written only if the job is dead."""
        audit, column = self._redrive.c, self._job.c
        row: dict[Column[Any], Any] = {
            audit.id: column.id,
            audit.token: column.token,
            audit.at_ms: _bind("now", audit.at_ms),
            audit.note: _bind("note", audit.note),
        }
        # Locked, so that of two redrives at the same time one finds the job no longer dead.
        dead = select(*row.values()).where(self._named, self._dead).with_for_update(key_share=True)
        return _counted(insert(self._redrive).from_select(list(row), dead))

    @cached_property
    def revive(self) -> Update:
        return self._free(
            self._named,
            self._dead,
            status=word("pending"),
            attempts=literal_column("0"),
            available_at=self._now,
            deadline=_bind("deadline", self._job.c.deadline),
            reason=null(),
        )

    # Shared

    @cached_property
    def no_change(self) -> Update:
        """Changes nothing, and takes what lock there is for changing something."""
        return update(self._job).where(false()).values(qty=self._job.c.qty)

    def _free(self, *conditions: ColumnElement[bool], **changes: Any) -> Update:
        """A conditional UPDATE after which nobody holds the row."""
        nobody = {"owner": null(), "lease_until": null()}
        return update(self._job).where(*conditions).values({**nobody, **changes})

    def _own_binds(self, names: tuple[str, ...]) -> dict[Column[Any], Any]:
        columns = {name: self._own[name] for name in names}
        return {column: _bind(f"own_{name}", column) for name, column in columns.items()}
