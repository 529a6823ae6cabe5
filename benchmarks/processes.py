"""Several processes at work on one queue for a fixed time."""

from __future__ import annotations

import time
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.bench import Sizes
from benchmarks.contenders import Busy, Verbs

_LONGEST_WAIT_S = 120.0
# Forked from a process that has imported everything and done nothing.
_PROCESSES = get_context("forkserver")
_PROCESSES.set_forkserver_preload(["benchmarks.tables"])


@dataclass(frozen=True, slots=True)
class Served:
    """What one process got done, and how often the lock was not free in time."""

    jobs: int
    busy: int


def window(
    sizes: Sizes, opens: type[Any], target: object, processes: int, factor: int = 1
) -> tuple[list[Served], float]:
    """So many processes go through full cycles, all from one moment on, for the window's length
    times the factor: what each got done, and jobs a second."""
    seconds = sizes.window_s * factor
    barrier = _PROCESSES.Barrier(processes)
    pipes, started = [], []
    try:
        for _ in range(processes):
            ours, theirs = _PROCESSES.Pipe()
            arguments = (opens, target, seconds, sizes.warm_up, barrier, theirs)
            process = _PROCESSES.Process(target=_work, args=arguments)
            process.start()
            theirs.close()
            pipes.append(ours)
            started.append(process)
        served = [_heard(pipe, seconds) for pipe in pipes]
        return served, sum(process.jobs for process in served) / seconds
    except BaseException:
        for process in started:
            process.kill()
        raise
    finally:
        for process in started:
            process.join()


def _heard(pipe: Any, seconds: float) -> Served:
    if not pipe.poll(_LONGEST_WAIT_S + seconds):
        raise TimeoutError("a process that works on the queue has not answered")
    served: Served = pipe.recv()
    return served


def _work(
    opens: type[Any],
    target: object,
    seconds: float,
    warm_up: int,
    barrier: Any,
    pipe: Connection,
) -> None:
    contender: Verbs = opens(target)
    for _ in range(warm_up):
        _cycle(contender)
    barrier.wait(_LONGEST_WAIT_S)
    jobs = busy = 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        done = _cycle(contender)
        jobs += bool(done)
        busy += done is None
    contender.close()
    pipe.send(Served(jobs, busy))


def _cycle(contender: Verbs) -> bool | None:
    try:
        return contender.cycle()
    except Busy:
        return None
