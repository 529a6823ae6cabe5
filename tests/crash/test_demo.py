"""`leasestore demo` with its real processes: what it shows happens, and nothing is left behind."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

import leasestore
from leasestore import Event, open_queue, system_clock
from leasestore.demo import conductor, courier, inbox, processes, receiver
from leasestore.demo.facts import Count, Fact
from leasestore.demo.inputs import read_orders, sample_orders
from leasestore.demo.processes import Crew, DemoFailed
from tests.support import rows

pytestmark = pytest.mark.crash

COURIER, RECEIVER = courier.__name__, receiver.__name__
ORDER: Event = {"id": "order-1", "qty": 7}
COMMAND = [sys.executable, "-m", "leasestore.cli", "demo"]


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """Where the command under test makes its temporary files, and how its processes are told."""
    path = tmp_path / "tmp"
    path.mkdir()
    return path


def environment(temporary: Path) -> dict[str, str]:
    source = str(Path(leasestore.__file__).parent.parent)
    return os.environ | {"TMPDIR": str(temporary), "PYTHONPATH": source, "COLUMNS": "80"}


def run_demo(temporary: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        env=environment(temporary),
        # Nothing may depend on the directory; and what lies there is not imported.
        cwd=temporary.parent,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def processes_of(temporary: Path) -> list[str]:
    """The command lines of living processes that the command under test started."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        # They come and go while we look.
        with suppress(OSError):
            if str(temporary).encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text())
    return found


def assert_nothing_left(temporary: Path) -> None:
    assert (list(temporary.iterdir()), processes_of(temporary)) == ([], [])


def test_a_killed_couriers_order_is_recovered(tmp_path: Path, temporary: Path) -> None:
    keep = tmp_path / "keep"
    ran = run_demo(temporary, "--keep", str(keep))

    assert (ran.returncode, ran.stderr) == (0, ""), ran
    assert sorted(path.name for path in keep.iterdir()) == ["inbox.db", "queue.db"]
    jobs = {job["id"]: job for job in rows(keep / "queue.db")}
    assert {job["status"] for job in jobs.values()} == {"done"}
    assert jobs["order-1003"]["token"] == 2
    runs = [
        (request["owner"], request["token"])
        for request in rows(keep / "inbox.db", "requests")
        if request["job_id"] == "order-1003"
    ]
    assert runs == [("courier-1", "1"), ("courier-2", "2")]
    effects = [(effect["job_id"], effect["qty"]) for effect in rows(keep / "inbox.db", "effects")]
    assert sorted(effects) == [
        (order["id"], order["qty"]) for order in read_orders(sample_orders())
    ]
    assert rows(keep / "queue.db", "redrives") == []
    for line in (
        "courier-1  KILLED (signal 9) before it could finish order-1003",
        "courier-2  recovered order-1003, token 2; receiver: counted before; done",
        "Orders 8, requests 9, effects 8: nothing lost, nothing doubled.",
    ):
        assert line in ran.stdout
    assert max(len(line) for line in ran.stdout.split("\n") if str(keep) not in line) <= 80
    assert_nothing_left(temporary)

    again = run_demo(temporary, "--keep", str(keep))
    assert (again.returncode, again.stdout) == (2, "")
    assert "of an earlier run" in again.stderr


def test_nothing_is_left_where_nothing_is_to_be_kept(tmp_path: Path, temporary: Path) -> None:
    orders = tmp_path / "orders.jsonl"
    orders.write_text(json.dumps(ORDER))
    # Where the children would find it, were they to import from the working directory.
    (tmp_path / "json.py").write_text("raise SystemExit('wrong json')")
    ran = subprocess.run(
        [sys.executable, "-P", *COMMAND[1:], "--orders", str(orders)],
        env=environment(temporary),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, ""), ran
    assert "Orders 1, requests 2, effects 1: nothing lost" in ran.stdout
    assert_nothing_left(temporary)


@contextmanager
def on_a_terminal(temporary: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The command on a terminal of its own, and the terminal's other end."""
    ours, its = pty.openpty()
    # A shell that runs the tests in the background lets its children ignore SIGINT.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        env = environment(temporary) | {"TERM": "xterm"}
        running = subprocess.Popen(COMMAND, env=env, stdin=its, stdout=its, stderr=its)
    finally:
        signal.signal(signal.SIGINT, before)
        os.close(its)
    with running:
        try:
            yield running, ours
        finally:
            running.kill()
            os.close(ours)


def read_until(terminal: int, text: bytes) -> bytes:
    shown = b""
    # The terminal's end is an error on Linux.
    with suppress(OSError):
        while text not in shown:
            shown += os.read(terminal, 4096)
    return shown


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_in_mid_run_leaves_nothing_behind(temporary: Path, number: signal.Signals) -> None:
    with on_a_terminal(temporary) as (running, terminal):
        shown = read_until(terminal, b"waits for the end of its lease")
        assert b"waits for the end of its lease" in shown, shown
        assert len(processes_of(temporary)) == 3, "the command, the receiver, the second courier"
        running.send_signal(number)
        # And once more, as an impatient hand does.
        running.send_signal(number)
        shown = read_until(terminal, b"\0")
        assert running.wait(15) == 128 + number
    assert f"Interrupted by {number.name}".encode() in shown
    assert_nothing_left(temporary)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "errors.log"


@pytest.fixture
def crew(log: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Crew]:
    # Here nobody waits, and a busy machine may be slow.
    monkeypatch.setattr(processes, "_GRACE_S", 30)
    with Crew(log, 30) as crew:
        yield crew


def heard(crew: Crew) -> dict[str, Any]:
    """The next report, however long it takes."""
    while (report := crew.hear()) is None:
        pass
    return report


def listening(crew: Crew, file: Path) -> int:
    """The port of a receiver with this inbox."""
    crew.start("receiver", RECEIVER).tell(inbox=str(file))
    port: int = heard(crew)["port"]
    return port


def posted(port: int, body: bytes, headers: dict[str, str] | None = None) -> tuple[int, str]:
    with closing(HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request("POST", "/", body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def test_the_receiver_counts_an_order_once(crew: Crew, log: Path, tmp_path: Path) -> None:
    file = tmp_path / "inbox.db"
    port = listening(crew, file)
    body = json.dumps(ORDER).encode()
    run = {"Lease-Owner": "courier-1", "Lease-Token": "1"}
    assert posted(port, body, run) == (200, "counted")
    # Committed with the answer, not later.
    assert [row["qty"] for row in rows(file, "effects")] == [7]
    assert posted(port, body) == (200, "counted before")
    list(crew.stop())
    with inbox.opened(file) as engine:
        assert inbox.counts(engine) == {"order-1": Count(requests=2, effects=1, qty=7)}
    logged = [(row["owner"], row["token"]) for row in rows(file, "requests")]
    assert logged == [("courier-1", "1"), (None, None)]
    assert log.read_text() == ""


BAD_REQUESTS: list[tuple[bytes, dict[str, str], str]] = [
    (b"{", {}, "Expecting property name"),
    (b"", {}, "Content-Length: expected int from 1 to 4096"),
    (b"{}", {"Content-Length": "-1"}, "Content-Length: expected int from 1 to 4096"),
    (b"{}", {"Content-Length": "two"}, "invalid literal"),
    (b"[" * 4097, {}, "Content-Length: expected int from 1 to 4096"),
    (b"[" * 4096, {}, ""),
    (b"\xff", {}, "can't decode"),
    (b"[]", {}, "event: expected dict"),
    (b'{"id": "order-1", "qty": 0}', {}, "qty: expected int"),
]


def test_bad_requests_are_refused_and_count_nothing(crew: Crew, log: Path, tmp_path: Path) -> None:
    file = tmp_path / "inbox.db"
    port = listening(crew, file)
    for body, headers, said in BAD_REQUESTS:
        status, text = posted(port, body, headers)
        assert (status, said in text) == (400, True), (body, headers, text)
    list(crew.stop())
    assert (rows(file, "requests"), rows(file, "effects")) == ([], [])
    assert log.read_text() == ""


def test_a_courier_left_alone_before_its_finish_ends_and_leaves_its_lease(
    crew: Crew, log: Path, tmp_path: Path
) -> None:
    port, file = listening(crew, tmp_path / "inbox.db"), tmp_path / "queue.db"
    with open_queue(file) as queue:
        queue.enqueue(ORDER, system_clock, 60_000)
    child = crew.start("courier-1", COURIER)
    child.tell(queue=str(file), port=port, owner="courier-1", doomed="order-1")
    facts = [Fact(**heard(crew)) for _ in range(2)]
    assert [(fact.what, fact.token, fact.detail) for fact in facts] == [
        ("claimed", 1, ""),
        ("sent", 1, "counted"),
    ]
    assert list(crew.stop()) == []
    assert child.killed is False
    (row,) = rows(file)
    assert (row["status"], row["owner"], row["token"]) == ("leased", "courier-1", 1)
    assert log.read_text() == ""


def test_children_end_quietly_if_they_are_never_told_anything(crew: Crew, log: Path) -> None:
    children = [crew.start("receiver", RECEIVER), crew.start("courier-1", COURIER)]
    assert list(crew.stop()) == []
    assert [child.killed for child in children] == [False, False]
    assert log.read_text() == ""


def test_a_child_that_does_not_end_is_killed(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_GRACE_S", 0)
    child = crew.start("receiver", RECEIVER)
    list(crew.stop())
    assert child.killed is True


def test_a_child_that_ends_unasked_fails_the_demo_with_its_last_words(
    crew: Crew,
) -> None:
    child = crew.start("stranger", "leasestore.demo.nowhere")
    with pytest.raises(DemoFailed, match=r"stranger ended unasked: .*leasestore\.demo\.nowhere"):
        heard(crew)
    child.tell(nobody="listens")


def test_what_was_not_heard_before_the_end_is_heard_at_the_end(crew: Crew, tmp_path: Path) -> None:
    crew.start("receiver", RECEIVER).tell(inbox=str(tmp_path / "inbox.db"))
    assert [list(report) for report in crew.stop()] == [["port"]]


def test_a_receiver_that_cannot_open_its_inbox_fails_the_demo(tmp_path: Path) -> None:
    (tmp_path / "inbox.db").mkdir()
    facts: list[Fact] = []
    with pytest.raises(
        DemoFailed, match=r"receiver ended unasked: sqlalchemy\.exc\.OperationalError"
    ):
        conductor.run([ORDER], tmp_path, facts.append)
    assert facts == []


def test_the_demo_gives_up_before_its_watcher_does() -> None:
    # So a run that ended well was shorter. Measuring one would measure how busy the machine is.
    assert conductor.DEADLINE_S + processes._GRACE_S <= 15


def test_a_demo_out_of_time_fails_and_leaves_nothing(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", None)
    facts: list[Fact] = []
    with pytest.raises(DemoFailed, match="it had not come to its end after 0 s"):
        conductor.run([ORDER], None, facts.append, deadline_s=0)
    assert_nothing_left(temporary)


def test_an_error_in_mid_run_leaves_nothing(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", None)

    def fail(fact: Fact) -> None:
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        conductor.run([ORDER], None, fail)
    assert_nothing_left(temporary)
