"""What `leasestore demo` shows, built from its result; all of it in ASCII."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from leasestore import Event
from leasestore.demo import conductor
from leasestore.demo.facts import Fact, Result
from leasestore.demo.inputs import INBOX, QUEUE

_STYLES = {"killed": "bold red", "lease over": "yellow", "recovered": "bold green"}


def opening(orders: Sequence[Event]) -> str:
    """What is going to happen."""
    number = f"{len(orders)} orders are" if len(orders) > 1 else "1 order is"
    return (
        f"{number} in a queue file; two couriers deliver to one receiver over HTTP. "
        f"{conductor.FIRST} will be killed when the receiver has counted "
        f"{conductor.doomed(orders)} and the queue does not know it yet.\n"
    )


def progress(facts: Sequence[Fact]) -> str:
    """Where the demo is after these facts, for the line that shows while it runs."""
    killed = [fact for fact in facts if fact.what == "killed"]
    if killed and not any(_is_recovery(fact) for fact in facts):
        return f"{killed[0].who} killed, {killed[0].job} waits for the end of its lease"
    return f"{facts[-1].who} {facts[-1].what} {facts[-1].job}"


def _is_recovery(fact: Fact) -> bool:
    return fact.what == "claimed" and fact.token > 1


def timeline(result: Result) -> Table:
    """Line by line, one for each run of a job, in the order of the claims."""
    table = Table.grid("time", "who", "what", padding=(0, 2))
    table.columns[0].justify = "right"
    table.columns[2].overflow = "fold"
    for fact, told in _lines(result.timeline):
        style = _STYLES.get("recovered" if _is_recovery(fact) else fact.what)
        who = "" if fact.what == "lease over" else fact.who
        table.add_row(f"{fact.at_ms / 1000:.2f} s", who, Text("; ".join(told)), style=style)
    return table


def _lines(facts: Sequence[Fact]) -> list[tuple[Fact, list[str]]]:
    """Each run of a job as the fact that began it, and what is to be told of it in one line."""
    runs: dict[tuple[str, int], list[str]] = {}
    lines: list[tuple[Fact, list[str]]] = []
    for fact in facts:
        told = [_words(fact)]
        if fact.what in ("sent", "finished"):
            runs.setdefault((fact.job, fact.token), []).extend(told)
            continue
        if fact.what == "claimed":
            runs[fact.job, fact.token] = told
        lines.append((fact, told))
    return lines


def _words(fact: Fact) -> str:
    match fact.what:
        case "claimed" if _is_recovery(fact):
            return f"recovered {fact.job}, token {fact.token}"
        case "claimed":
            return f"claimed {fact.job}, token {fact.token}"
        case "sent":
            return f"receiver: {fact.detail}"
        case "finished":
            return fact.detail
        case "killed":
            return f"KILLED ({fact.detail}) before it could finish {fact.job}"
    return f"the lease of {fact.job}, token {fact.token}, is over"


def orders(result: Result) -> Table:
    """Every job's end state, and what the receiver has of it."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("order", overflow="fold")
    for name in ("end", "done by"):
        table.add_column(name, no_wrap=True)
    for name in ("token", "qty", "requests", "effects", "counted"):
        table.add_column(name, justify="right", no_wrap=True)
    for job in result.jobs:
        count = result.count(job["id"])
        numbers = (job["token"], job["qty"], count.requests, count.effects, count.qty)
        wrong = job["id"] in (*result.lost, *result.doubled)
        style = "bold red" if wrong else "bold green" if job["id"] == result.killed else None
        end, by = job["status"], result.done_by.get(job["id"], "nobody")
        table.add_row(job["id"], end, by, *map(str, numbers), style=style)
    return table


def verdict(result: Result) -> Text:
    """The check that matters: requests received against effects counted."""
    counts = [result.count(job["id"]) for job in result.jobs]
    requests, effects = sum(c.requests for c in counts), sum(c.effects for c in counts)
    sums = f"Orders {len(counts)}, requests {requests}, effects {effects}: "
    if result.lost or result.doubled:
        lost, doubled = (", ".join(ids) or "none" for ids in (result.lost, result.doubled))
        return Text(f"{sums}WRONG. Lost: {lost}. Doubled: {doubled}.", style="bold red")
    return Text(f"{sums}nothing lost, nothing doubled.", style="bold green")


def kept(directory: Path) -> str:
    """Where to look further."""
    return f"The jobs: {directory / QUEUE}\nThe receiver's tables: {directory / INBOX}"
