"""`examples/webhooks` end to end: its web application, its senders and a receiver as real
processes that talk HTTP. Every wait is for a line that a process writes."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from alembic.config import main as alembic_command
from sqlalchemy import URL

import examples
from examples.webhooks.app import app
from tests.conformance.postgresql import beside
from tests.embedding.plain import locked
from tests.postgresql import Server

pytestmark = pytest.mark.crash

ROOT = Path(examples.__file__).parent.parent
LEASE_MS = 1500
WAIT_S = 30.0
EVENT = {"kind": "order.paid", "body": {"order": 17}}
NOWHERE = "http://127.0.0.1:1/"


# --- Processes and databases


@dataclass(frozen=True)
class Place:
    """A directory, and where the product has its rows; the receiver has its own there."""

    directory: Path
    database: URL

    @property
    def inbox(self) -> URL:
        return on_sqlite(self.directory / "receiver.db")

    def settings(self) -> dict[str, str]:
        """As the processes are told."""
        return {
            "WEBHOOKS_DATABASE": self.database.render_as_string(hide_password=False),
            "RECEIVER_DATABASE": self.inbox.render_as_string(),
        }

    def alembic(self, *arguments: str) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("WEBHOOKS_DATABASE", self.settings()["WEBHOOKS_DATABASE"])
            alembic_command(["-c", str(ROOT / "examples/webhooks/alembic.ini"), *arguments])


DATABASES = ["sqlite", "asyncpg"]

only_on_sqlite = pytest.mark.parametrize("running", ["sqlite"], indirect=True, scope="module")


def on_sqlite(file: Path) -> URL:
    return URL.create("sqlite+aiosqlite", database=str(file))


def new_place(kind: str, directory: Path, request: pytest.FixtureRequest) -> Place:
    if kind == "sqlite":
        return Place(directory, on_sqlite(directory / "webhooks.db"))
    server: Server = request.getfixturevalue("postgresql")
    return Place(directory, server.empty().set(drivername=f"postgresql+{kind}"))


def query(database: URL, statement: str, *values: object) -> list[tuple[Any, ...]]:
    if database.get_backend_name() == "sqlite":
        with closing(sqlite3.connect(str(database.database))) as plain, plain:
            return plain.execute(statement, values).fetchall()
    with beside(database) as session:
        answer = session.execute(statement.replace("?", "%s").encode(), values)
        return answer.fetchall() if answer.description else []


def counted(database: URL) -> tuple[int, int]:
    """How many events and deliveries there are."""
    ((events,),) = query(database, "SELECT count(*) FROM events")
    ((deliveries,),) = query(database, "SELECT count(*) FROM webhook_deliveries")
    return events, deliveries


def unlocked(database: URL, wait_s: float = 0) -> bool:
    """Whether nobody has a transaction open: on SQLite not even to read, which would keep others
    from COMMIT."""
    if database.get_backend_name() != "sqlite":
        return not locked(database, wait_s)
    file = str(database.database)
    with closing(sqlite3.connect(file, timeout=wait_s, isolation_level=None)) as other:
        try:
            other.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError:
            return False
        return True


class Child:
    """A process, and the lines that it has written so far."""

    def __init__(self, place: Place, module: str, *arguments: str, fd: int | None = None) -> None:
        # No proxy may stand between the processes and loopback.
        kept = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
        told = {"PYTHONPATH": str(ROOT), "WEBHOOKS_LEASE_MS": str(LEASE_MS)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env=kept | told | place.settings(),
            pass_fds=() if fd is None else (fd,),
            bufsize=0,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.lines: list[str] = []

    def hear(self, words: str) -> None:
        """Wait until it has written a line with these words."""
        end = time.monotonic() + WAIT_S
        while not any(words in line for line in self.lines):
            assert self.process.stdout is not None
            left = max(0, end - time.monotonic())
            ready, _, _ = select.select([self.process.stdout], [], [], left)
            line = self.process.stdout.readline().decode() if ready else ""
            if not line:
                pytest.fail(f"expected {words!r} within {WAIT_S} s, heard:\n{''.join(self.lines)}")
            self.lines.append(line)

    def suspend(self, database: URL) -> None:
        """Stop it where it has no transaction open; when it looks for work it has, for a moment."""
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            self.process.send_signal(signal.SIGSTOP)
            os.waitpid(self.process.pid, os.WUNTRACED)
            if unlocked(database):
                return
            self.process.send_signal(signal.SIGCONT)
            # Until it has come out of the transaction, so that it is stopped somewhere else.
            unlocked(database, wait_s=1)
        pytest.fail("it has a transaction open all the time")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to end, and say how it ended."""
        self.process.send_signal(number)
        self.process.communicate(timeout=WAIT_S)
        return self.process.returncode

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


class House:
    """A place, and the processes that work there."""

    def __init__(self, place: Place, stack: ExitStack) -> None:
        self.place, self.database, self._stack = place, place.database, stack

    def sender(self) -> Child:
        return self._kept(Child(self.place, "examples.webhooks.sender"))

    def serve(self, application: str) -> tuple[Child, httpx.Client]:
        """A server, and a client for it. The socket listens from the start, so that a request
        that comes before the server is up only waits."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            fd, port = listener.fileno(), listener.getsockname()[1]
            arguments = (application, "--fd", str(fd), "--log-level", "warning")
            child = self._kept(Child(self.place, "uvicorn", *arguments, fd=fd))
        url = f"http://127.0.0.1:{port}"
        client = httpx.Client(base_url=url, timeout=WAIT_S, trust_env=False)
        return child, self._stack.enter_context(client)

    def _kept(self, child: Child) -> Child:
        self._stack.callback(child.end)
        return child


# --- The product, as its clients see it


def created(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 201, response.text
    return dict(response.json())


def found(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    return dict(response.json())


class Servers:
    """The web application, and a receiver that can be in trouble."""

    def __init__(self, house: House) -> None:
        self.place, self.database = house.place, house.database
        _, self.product = house.serve("examples.webhooks.app:app")
        self.troubled, self.receiver = house.serve("tests.examples.troubled_receiver:app")

    def subscribe(self, name: str, url: str = "", trouble: str = "") -> None:
        url = url or f"{self.receiver.base_url}/webhooks?trouble={trouble}"
        created(self.product.post("/subscriptions", json={"name": name, "url": url}))

    def publish(self) -> list[str]:
        """The ids of the deliveries of a new event."""
        event = created(self.product.post("/events", json=EVENT))
        return [delivery["id"] for delivery in event["deliveries"]]

    def delivery(self, delivery_id: str) -> dict[str, Any]:
        event = found(self.product.get(f"/events/{delivery_id.partition('-')[0]}"))
        (state,) = (state for state in event["deliveries"] if state["id"] == delivery_id)
        return dict(state)

    def seen(self, delivery_id: str) -> dict[str, Any]:
        """What the receiver has of it: the highest token, and the number of effects."""
        return found(self.receiver.get(f"/webhooks/{delivery_id}"))


@pytest.fixture(scope="module", params=DATABASES)
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Servers]:
    with ExitStack() as stack:
        place = new_place(request.param, tmp_path_factory.mktemp("running"), request)
        place.alembic("upgrade", "head")
        yield Servers(House(place, stack))


@pytest.fixture
def servers(running: Servers) -> Servers:
    """The servers, with nobody subscribed and nothing published."""
    for table in ("webhook_deliveries", "webhook_redrives", "events", "subscriptions"):
        query(running.database, f"DELETE FROM {table}")
    return running


@pytest.fixture(params=DATABASES)
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    """A place of the test's own."""
    with ExitStack() as stack:
        yield House(new_place(request.param, tmp_path, request), stack)


@pytest.fixture
def couriers(servers: Servers) -> Iterator[House]:
    """Where senders start, to end with the test."""
    with ExitStack() as stack:
        yield House(servers.place, stack)


# --- Deliveries


def test_an_event_is_delivered_once_to_each_subscriber(servers: Servers, couriers: House) -> None:
    sender = couriers.sender()
    servers.subscribe("accounts")
    servers.subscribe("stores")

    deliveries = servers.publish()

    assert len(deliveries) == 2
    for delivery in deliveries:
        sender.hear(f"{delivery} token 1: answered 200, done")
        assert servers.delivery(delivery)["status"] == "done"
        assert servers.seen(delivery) == {"token": 1, "effects": 1}
        notices = "SELECT kind, body FROM notices WHERE webhook_id = ?"
        assert query(couriers.place.inbox, notices, delivery) == [("order.paid", '{"order": 17}')]
    assert sender.stop() == 0


def test_a_refused_delivery_is_dead_until_it_is_redriven(servers: Servers, couriers: House) -> None:
    sender = couriers.sender()
    servers.subscribe("accounts", trouble="410")
    (delivery,) = servers.publish()
    sender.hear(f"{delivery} token 1: answered 410, dead")
    state = servers.delivery(delivery)
    assert (state["reason"], state["result"]) == ("permanent", "answered 410")

    redriven = servers.product.post(f"/deliveries/{delivery}/redrive", json={"note": "mended"})

    assert found(redriven)["status"] == "pending"
    sender.hear(f"{delivery} token 2: answered 200, done")
    assert servers.seen(delivery) == {"token": 2, "effects": 1}
    audit = query(servers.database, "SELECT id, token, note FROM webhook_redrives")
    assert audit == [(delivery, 1, "mended")]


def test_a_subscriber_in_trouble_is_tried_again(servers: Servers, couriers: House) -> None:
    sender = couriers.sender()
    servers.subscribe("busy", trouble="503")
    servers.subscribe("away", url=NOWHERE)

    busy, away = servers.publish()

    sender.hear(f"{busy} token 1: answered 503, pending")
    sender.hear(f"{away} token 1: no answer: ConnectError, pending")
    sender.hear(f"{busy} token 2: answered 200, done")
    assert servers.delivery(busy)["attempts"] == 2
    assert servers.seen(busy) == {"token": 2, "effects": 1}


def test_the_delivery_of_a_killed_sender_is_sent_again_with_one_effect(
    servers: Servers, couriers: House
) -> None:
    killed = couriers.sender()
    servers.subscribe("accounts", trouble="silence")
    (delivery,) = servers.publish()
    # The receiver has committed, and the sender does not know.
    servers.troubled.hear(f"silent {delivery}")
    assert killed.stop(signal.SIGKILL) == -signal.SIGKILL
    assert servers.delivery(delivery)["status"] == "leased"
    assert servers.seen(delivery) == {"token": 1, "effects": 1}

    couriers.sender().hear(f"{delivery} token 2: answered 200, done")

    assert servers.seen(delivery) == {"token": 2, "effects": 1}
    late = {"Webhook-Id": delivery, "Webhook-Token": "1"}
    replay = servers.receiver.post("/webhooks", json=EVENT, headers=late)
    assert replay.status_code == 409, replay.text
    assert servers.seen(delivery) == {"token": 2, "effects": 1}


def test_the_result_of_a_sender_that_lost_its_lease_is_dropped(
    servers: Servers, couriers: House
) -> None:
    late = couriers.sender()
    servers.subscribe("accounts", trouble="silence")
    (delivery,) = servers.publish()
    servers.troubled.hear(f"silent {delivery}")
    late.suspend(servers.database)
    couriers.sender().hear(f"{delivery} token 2: answered 200, done")

    late.process.send_signal(signal.SIGCONT)

    late.hear(f"{delivery} token 1: no answer: TimeoutError, stale")
    state = servers.delivery(delivery)
    assert (state["status"], state["result"]) == ("done", "answered 200")


# --- Requests


def test_a_bad_request_is_told_what_is_wrong(servers: Servers) -> None:
    servers.subscribe("accounts")
    (delivery,) = servers.publish()
    redrive = f"/deliveries/{delivery}/redrive"
    refused: list[tuple[str, dict[str, Any], int, str]] = [
        ("/subscriptions", {"name": "stores", "url": "no URL"}, 422, '["body","url"]'),
        ("/subscriptions", {"name": "accounts", "url": NOWHERE}, 409, "named 'accounts'"),
        ("/events", {"kind": "order.paid"}, 422, '["body","body"]'),
        (redrive, {"note": "because I say so"}, 422, '["body","note"]'),
        (redrive, {"note": "mended"}, 409, "it is pending"),
        ("/deliveries/other/redrive", {"note": "mended"}, 404, "no delivery 'other'"),
    ]
    for path, body, status, words in refused:
        response = servers.product.post(path, json=body)
        assert response.status_code == status, (path, body, response.text)
        assert words in response.text
    assert servers.product.get("/events/other").status_code == 404


@only_on_sqlite
def test_a_request_that_fails_after_an_enqueue_leaves_nothing(servers: Servers) -> None:
    servers.subscribe("accounts")
    servers.subscribe("stores")
    query(
        servers.database,
        "CREATE TRIGGER full BEFORE INSERT ON webhook_deliveries "
        "WHEN EXISTS (SELECT * FROM webhook_deliveries) "
        "BEGIN SELECT RAISE(ABORT, 'no room for a second one'); END",
    )
    try:
        failed = servers.product.post("/events", json=EVENT)
    finally:
        query(servers.database, "DROP TRIGGER full")

    assert failed.status_code == 500
    assert counted(servers.database) == (0, 0)


ITS_EVENTS = "SELECT id, kind, CAST(body AS TEXT) FROM events"


def test_the_product_is_upgraded_with_its_rows(house: House) -> None:
    house.place.alembic("upgrade", "0001")
    query(house.database, "INSERT INTO events VALUES ('e1', 'order.paid', '{\"order\": 1}')")
    query(house.database, "INSERT INTO subscriptions VALUES (7, 'accounts', ?)", NOWHERE)
    _, product = house.serve("examples.webhooks.app:app")
    early = product.get("/health")
    assert early.status_code == 503
    assert "the database lacks webhook_deliveries, webhook_redrives" in early.text

    house.place.alembic("upgrade", "head")
    house.place.alembic("check")

    assert query(house.database, ITS_EVENTS) == [("e1", "order.paid", '{"order": 1}')]
    assert query(house.database, "SELECT * FROM subscriptions") == [(7, "accounts", NOWHERE)]
    assert found(product.get("/health")) == {"status": "ok"}
    assert found(product.get("/events/e1"))["deliveries"] == []
    (delivery,) = created(product.post("/events", json=EVENT))["deliveries"]
    assert (delivery["subscription_id"], delivery["status"]) == (7, "pending")
    house.sender().hear(f"{delivery['id']} token 1: no answer: ConnectError, pending")


@only_on_sqlite
def test_a_client_that_goes_away_holds_nobody_up(servers: Servers) -> None:
    file = str(servers.database.database)
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        # Its request waits for the lock, for longer than the client does.
        with pytest.raises(httpx.ReadTimeout):
            servers.product.post("/events", json=EVENT, timeout=0.2)
        other.execute("ROLLBACK")

    servers.publish()

    assert unlocked(servers.database, WAIT_S)


# --- In this process, where a request can be cancelled at a chosen point


@pytest.fixture
def own_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> URL:
    """A migrated database for the application in this process, which waits shortly for locks."""
    place = Place(tmp_path, on_sqlite(tmp_path / "webhooks.db"))
    place.alembic("upgrade", "head")
    url = place.settings()["WEBHOOKS_DATABASE"]
    monkeypatch.setenv("WEBHOOKS_DATABASE", f"{url}?timeout=0.1")
    return place.database


def client_within() -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://product")


def test_a_busy_database_is_said_to_be_busy(own_database: URL) -> None:
    async def publish() -> httpx.Response:
        async with app.router.lifespan_context(app), client_within() as client:
            return await client.post("/events", json=EVENT)

    with closing(sqlite3.connect(str(own_database.database), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        busy = asyncio.run(publish())

    assert (busy.status_code, busy.headers["Retry-After"]) == (503, "1"), busy.text


def test_a_request_cancelled_anywhere_leaves_no_transaction_open(own_database: URL) -> None:
    cancelled = asyncio.run(cancel_at_every_answer(own_database))

    assert cancelled > 10, "a publication takes more answers of the database than that"


async def cancel_at_every_answer(database: URL) -> int:
    """Publish, cancelled when the first, the second, ... answer of the database arrives, until
    it gets through; how often it was cancelled."""
    async with app.router.lifespan_context(app), client_within() as client:
        for name in ("accounts", "stores"):
            created(await client.post("/subscriptions", json={"name": name, "url": NOWHERE}))
        cancelled = 0
        while await cancelled_at(cancelled + 1, client):
            assert unlocked(database)
            events, deliveries = counted(database)
            assert deliveries == 2 * events, cancelled
            assert app.state.database.engine.pool.checkedout() == 0
            cancelled += 1
        return cancelled


async def cancelled_at(answer: int, client: httpx.AsyncClient) -> bool:
    loop = asyncio.get_running_loop()
    request = asyncio.create_task(client.post("/events", json=EVENT))
    tell, left = loop.call_soon_threadsafe, answer

    def told(*arguments: Any, **settings: Any) -> asyncio.Handle:
        # This is how the driver's thread brings its answers: each ends one await.
        nonlocal left
        left -= 1
        if left == 0:
            tell(request.cancel)
        return tell(*arguments, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "call_soon_threadsafe", told)
        await asyncio.wait([request])
    return request.cancelled()
