"""examples/shop as it runs: server, worker and carrier are real processes, spoken to over HTTP."""

from __future__ import annotations

import json
import logging
import os
import queue
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import cached_property
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NoReturn, Self, TypeVar
from urllib.parse import urlsplit

import pytest
from alembic import command
from alembic.config import Config
from flask import Flask
from sqlalchemy import URL, NullPool, create_engine, event, func, select

from examples.shop.app import create_app
from examples.shop.models import Delivery, DeliveryRedrive, db
from examples.shop.worker import deliver_next
from leasestore import JobRepository, system_clock
from tests.embedding.plain import locked
from tests.postgresql import Server

pytestmark = pytest.mark.crash

ROOT = Path(__file__).parents[2]
ALEMBIC_INI = ROOT / "examples/shop/alembic.ini"
FLASK = "flask", "--app", "examples.shop.app"
SHORT_LEASE = {"SHOP_LEASE_MS": "1000"}
PATIENCE_SECONDS = 15
ORDER = {"key": "web-1", "customer": "ada@example.org", "product": "tea", "quantity": 2}

T = TypeVar("T")
Answer = tuple[int, dict[str, Any]]


def ask(method: str, url: str, body: object = None) -> Answer:
    """One request: the status and the JSON that came. Bytes are sent as they are."""
    where = urlsplit(url)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    with closing(HTTPConnection(where.netloc, timeout=PATIENCE_SECONDS)) as connection:
        connection.request(method, where.path, data, headers)
        response = connection.getresponse()
        return response.status, json.load(response)


def until(look: Callable[[], T], wanted: Callable[[T], object]) -> T:
    """Look again and again, until it is as wanted."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not wanted(seen := look()):
        assert time.monotonic() < deadline, f"still {seen}"
    return seen


class Process:
    """A process of this Python, and what it says."""

    def __init__(self, environment: dict[str, str], directory: Path, *arguments: str) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-u", *arguments],
            env=environment,
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.said: list[str] = []
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._popen.stdout
        for line in self._popen.stdout:
            self._lines.put(line)

    def wait_for(self, pattern: str) -> re.Match[str]:
        """The next of its lines that is like this."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            try:
                self.said.append(self._lines.get(timeout=left))
            except queue.Empty:
                break
            if found := re.search(pattern, self.said[-1]):
                return found
        raise AssertionError(f"expected a line like {pattern!r}, got {''.join(self.said)}")

    def enter(self) -> None:
        """A line on its standard input."""
        assert self._popen.stdin
        self._popen.stdin.write("\n")
        self._popen.stdin.flush()

    def send(self, number: signal.Signals) -> None:
        self._popen.send_signal(number)

    def ended(self) -> int:
        return self._popen.wait(PATIENCE_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._popen.kill()
        self._reader.join()
        self._popen.__exit__(None, None, None)


def setting(database: URL) -> dict[str, str]:
    return {"SHOP_SQLALCHEMY_DATABASE_URI": database.render_as_string(hide_password=False)}


class Shop:
    """A shop in a directory of its own. What it starts is ended by the stack."""

    def __init__(self, directory: Path, database: URL, stack: ExitStack) -> None:
        self._directory, self._stack = directory, stack
        self.database = database
        self.outside = create_engine(database, poolclass=NullPool)
        """The database past the application."""
        self._settings = {"PYTHONPATH": str(ROOT)} | setting(database)
        self._server: Process | None = None
        self._carrier_url = ""

    def start(self, *arguments: str, **settings: str) -> Process:
        environment = os.environ | self._settings | settings
        return self._stack.enter_context(Process(environment, self._directory, *arguments))

    def run(self, *arguments: str) -> str:
        """A Python module to its end; what it said."""
        ran = subprocess.run(
            [sys.executable, "-m", *arguments],
            env=os.environ | self._settings,
            cwd=self._directory,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert ran.returncode == 0, ran
        return ran.stdout

    def open(self, app: str = "examples.shop.app", **settings: str) -> Process:
        """Start its server, on a port that the system chooses; it need not be ready yet."""
        command = "-m", "flask", "--app", app, "run", "--port", "0"
        self._server = self.start(*command, **settings)
        return self._server

    @cached_property
    def url(self) -> str:
        assert self._server
        return self._server.wait_for(r"Running on (http://127\.0\.0\.1:\d+)")[1]

    def carrier(self, *options: str, port: int = 0) -> Process:
        carrier = self.start("-m", "examples.shop.carrier", str(port), *options)
        self._carrier_url = carrier.wait_for(r"listening on (http://127\.0\.0\.1:\d+/parcels)")[1]
        return carrier

    def carried(self) -> Any:
        return ask("GET", self._carrier_url)[1]

    def worker(self, **settings: str) -> Process:
        settings = {"SHOP_CARRIER_URL": self._carrier_url} | settings
        return self.start("-m", "examples.shop.worker", **settings)

    def ask(self, method: str, path: str, body: object = None) -> Answer:
        return ask(method, self.url + path, body)

    def ask_alone(self, method: str, path: str, body: object = None) -> Answer:
        """Ask while nothing else works: the answer leaves no transaction open, not to read even."""
        answer = self.ask(method, path, body)
        if self.database.get_backend_name() == "sqlite":
            with closing(sqlite3.connect(str(self.database.database), timeout=0)) as plain:
                plain.execute("BEGIN EXCLUSIVE")
        else:
            assert not locked(self.database)
        return answer

    def order(self, key: str = "web-1") -> Any:
        return self.ask("GET", f"/orders/{key}")[1]

    @contextmanager
    def held(self) -> Iterator[None]:
        """The deliveries are in somebody's hands: they can be read, and nothing be finished."""
        engine = self.outside
        if engine.dialect.name == "sqlite":
            engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        with engine.connect() as somebody:
            somebody.exec_driver_sql(
                "BEGIN IMMEDIATE"
                if engine.dialect.name == "sqlite"
                else "SELECT * FROM deliveries FOR UPDATE"
            )
            yield

    def execute(self, *statements: str) -> None:
        with self.outside.begin() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)

    def rows(self, table: str) -> list[dict[str, Any]]:
        with self.outside.connect() as connection:
            rows = connection.exec_driver_sql(f"SELECT * FROM {table} ORDER BY 1")
            return [dict(row) for row in rows.mappings()]

    def state(self) -> dict[str, list[dict[str, Any]]]:
        return {name: self.rows(name) for name in ("orders", "deliveries", "products")}


Made = dict[str, URL]
DATABASES = ["sqlite", "postgresql"]

on_sqlite = pytest.mark.parametrize("shop", ["sqlite"], indirect=True)


@pytest.fixture(scope="module")
def made() -> Made:
    """Of each kind the database of a shop that has sold nothing."""
    return {}


def new_database(kind: str, directory: Path, request: pytest.FixtureRequest) -> URL:
    if kind == "sqlite":
        return URL.create("sqlite", database=str(directory / "shop.db"))
    server: Server = request.getfixturevalue("postgresql")
    return server.empty()


def copied(database: URL, directory: Path, request: pytest.FixtureRequest) -> URL:
    if database.get_backend_name() == "sqlite":
        return database.set(database=str(shutil.copy(str(database.database), directory)))
    server: Server = request.getfixturevalue("postgresql")
    return server.like(database)


@pytest.fixture(params=DATABASES)
def shop(
    request: pytest.FixtureRequest,
    made: Made,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Shop]:
    with ExitStack() as stack:
        if request.param not in made:
            directory = tmp_path_factory.mktemp("empty")
            empty = Shop(directory, new_database(request.param, directory, request), stack)
            empty.run("alembic", "-c", str(ALEMBIC_INI), "upgrade", "head")
            empty.run(*FLASK, "seed")
            made[request.param] = empty.database
        yield Shop(tmp_path, copied(made[request.param], tmp_path, request), stack)


@pytest.fixture(params=DATABASES)
def shop_to_be(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    """One without any table."""
    with ExitStack() as stack:
        yield Shop(tmp_path, new_database(request.param, tmp_path, request), stack)


def test_an_order_is_placed_and_delivered(shop: Shop) -> None:
    server = shop.open()
    shop.carrier()
    worker = shop.worker()

    assert shop.ask("GET", "/health") == (200, {"status": "ok"})
    status, placed = shop.ask("POST", "/orders", ORDER)
    assert (status, placed.pop("delivery")) == (
        201,
        {
            "id": "order-1",
            "status": "pending",
            "attempts": 0,
            "reason": None,
            "carrier_reference": None,
        },
    )
    assert placed == ORDER | {"status": "placed", "delivered_at_ms": None}

    worker.wait_for("INFO:shop.worker:order-1 delivered, C-1")
    delivered = shop.order()
    assert delivered.pop("delivery") == {
        "id": "order-1",
        "status": "done",
        "attempts": 1,
        "reason": None,
        "carrier_reference": "C-1",
    }
    assert abs(delivered.pop("delivered_at_ms") - system_clock()) < 60_000
    assert delivered == ORDER | {"status": "delivered"}
    parcel = {"id": "order-1", "quantity": 2, "product": "tea", "reference": "C-1"}
    address = "12 St James's Square, London"
    assert shop.carried() == {"requests": 1, "parcels": {"order-1": parcel | {"address": address}}}
    assert [product["stock"] for product in shop.rows("products")] == [8]

    server.wait_for("INFO in views: order web-1 placed")
    worker.send(signal.SIGTERM)
    assert worker.ended() == 0


ODD_ORDERS: dict[str, object] = {
    "no JSON": b"{",
    "no object": [ORDER],
    "too little": {"key": "web-1"},
    "too much": ORDER | {"price": 1},
    "empty key": ORDER | {"key": ""},
    "key that no path can have": ORDER | {"key": "a/b"},
    "text that no database can have": ORDER | {"product": "\ud800"},
    "long key": ORDER | {"key": "k" * 65},
    "number for a customer": ORDER | {"customer": 1},
    "list for a product": ORDER | {"product": ["tea"]},
    "text for a quantity": ORDER | {"quantity": "2"},
    "bool for a quantity": ORDER | {"quantity": True},
    "none of it": ORDER | {"quantity": 0},
    "too much of it": ORDER | {"quantity": 1001},
}


def test_what_is_refused_changes_nothing(shop: Shop) -> None:
    shop.open()
    before = shop.state()

    for case, body in ODD_ORDERS.items():
        status, answer = shop.ask_alone("POST", "/orders", body)
        assert (status, list(answer)) == (400, ["error"]), case
    for missing in ({"customer": "bob@example.org"}, {"product": "coffee"}):
        assert shop.ask_alone("POST", "/orders", ORDER | missing)[0] == 404
    sold_out = shop.ask_alone("POST", "/orders", ORDER | {"quantity": 11})
    assert sold_out == (409, {"error": "'tea' is out of stock: 10 left"})
    assert shop.ask_alone("GET", "/orders/web-1") == (404, {"error": "no order 'web-1'"})
    assert shop.ask_alone("GET", "/nowhere")[0] == 404
    assert shop.ask_alone("DELETE", "/orders")[0] == 405
    assert shop.state() == before

    assert shop.ask_alone("POST", "/orders", ORDER)[0] == 201
    assert shop.ask_alone("GET", "/orders/web-1")[0] == 200
    before = shop.state()
    redrives = {
        ("order-2", "x"): 404,
        ("no such id", "x"): 404,
        ("order-1", "x"): 409,
        ("order-1", None): 409,
    }
    for (job_id, note), expected in redrives.items():
        path = f"/deliveries/{job_id.replace(' ', '%20')}/redrive"
        assert shop.ask_alone("POST", path, {"note": note})[0] == expected, (job_id, note)
    assert shop.ask_alone("POST", "/deliveries/order-1/redrive", {})[0] == 400
    assert shop.state() == before


def test_the_same_key_is_the_same_order(shop: Shop) -> None:
    shop.open()
    url = f"{shop.url}/orders"
    with ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(lambda _: ask("POST", url, ORDER), range(8)))
    assert sorted(status for status, _ in answers) == [200] * 7 + [201]
    assert all(order == answers[0][1] for _, order in answers)
    before = shop.state()
    assert [len(before["orders"]), len(before["deliveries"])] == [1, 1]
    assert before["products"][0]["stock"] == 8

    assert shop.ask_alone("POST", "/orders", ORDER) == (200, answers[0][1])
    for change in ({"quantity": 3}, {"product": "coffee"}, {"customer": "bob@example.org"}):
        other = shop.ask_alone("POST", "/orders", ORDER | change)
        assert other == (409, {"error": "order 'web-1' exists with another content"})
    assert shop.state() == before


def create_failing_app() -> Flask:
    """The shop with an error in each request, after all its work and before its commit."""

    def fail(_: object) -> NoReturn:
        held = db.session.scalar(select(func.count()).select_from(Delivery))
        raise RuntimeError(f"forced, with {held} deliveries in hand")

    event.listen(db.session, "before_commit", fail)
    return create_app()


def test_an_error_after_the_enqueue_leaves_no_job(shop: Shop) -> None:
    before = shop.state()
    server = shop.open(f"{__name__}:create_failing_app")
    status, answer = shop.ask_alone("POST", "/orders", ORDER)
    assert (status, list(answer)) == (500, ["error"])
    server.wait_for("RuntimeError: forced, with 1 deliveries in hand")
    assert shop.state() == before


@on_sqlite
def test_a_busy_database_is_said_to_be_busy(shop: Shop) -> None:
    shop.open(SHOP_SQLALCHEMY_ENGINE_OPTIONS='{"connect_args": {"timeout": 0.1}}')
    before = shop.state()
    with shop.held():
        status, answer = shop.ask("POST", "/orders", ORDER)
        assert (status, "locked" in answer["error"]) == (503, True), answer
    assert shop.state() == before
    assert shop.ask_alone("POST", "/orders", ORDER)[0] == 201


def test_a_worker_killed_after_the_carriers_answer_is_replaced(shop: Shop) -> None:
    shop.open()
    carrier = shop.carrier("--hold")
    first = shop.worker(**SHORT_LEASE)
    assert shop.ask("POST", "/orders", ORDER)[0] == 201
    carrier.wait_for("holding order-1")
    with shop.held():
        # The answer can reach the worker, and its finish cannot be.
        carrier.enter()
        carrier.wait_for("answered order-1")
        first.send(signal.SIGKILL)
        assert first.ended() == -signal.SIGKILL

    assert shop.order()["status"] == "placed"
    [delivery_before] = shop.rows("deliveries")
    assert delivery_before["status"] == "leased"
    second = shop.worker()
    second.wait_for("order-1 delivered, C-1")
    assert shop.order()["status"] == "delivered"
    assert shop.order()["delivered_at_ms"] >= delivery_before["lease_until"]
    [delivery] = shop.rows("deliveries")
    assert (delivery["status"], delivery["token"], delivery["attempts"]) == ("done", 2, 2)
    assert delivery["carrier_reference"] == "C-1"
    carried = shop.carried()
    assert (carried["requests"], list(carried["parcels"])) == (2, ["order-1"])


def test_a_stale_finish_changes_neither_order_nor_job(shop: Shop) -> None:
    shop.open()
    carrier = shop.carrier("--hold")
    worker = shop.worker(**SHORT_LEASE)
    assert shop.ask("POST", "/orders", ORDER)[0] == 201
    carrier.wait_for("holding order-1")
    worker.send(signal.SIGSTOP)
    engine = create_engine(shop.database)
    jobs = JobRepository(engine, job=Delivery, redrive=DeliveryRedrive)
    with ExitStack() as stack:
        stack.callback(engine.dispose)
        ticket = until(lambda: jobs.claim("other", system_clock, 60_000), lambda ticket: ticket)
        assert ticket
        carrier.enter()
        carrier.wait_for("answered order-1")
        before = shop.state()
        worker.send(signal.SIGCONT)
        worker.wait_for("order-1 came too late: .*token 1 is stale.*leased, token 2")
        assert shop.state() == before
        assert before["orders"][0]["status"] == "placed"
        assert before["deliveries"][0]["owner"] == "other"

        assert jobs.release(ticket)
    worker.wait_for("order-1 delivered, C-1")
    assert shop.order()["status"] == "delivered"
    assert shop.rows("deliveries")[0]["token"] == 3
    assert shop.carried()["requests"] == 2


def test_a_failing_delivery_is_tried_again_and_redriven(shop: Shop) -> None:
    shop.execute("UPDATE customers SET address = 'unknown'")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    shop.open()
    worker = shop.worker(SHOP_CARRIER_URL=f"http://127.0.0.1:{port}/parcels")
    assert shop.ask("POST", "/orders", ORDER)[0] == 201
    worker.wait_for("order-1 is pending: the carrier did not answer")
    shop.carrier(port=port)
    worker.wait_for("order-1 is dead: the carrier answered 422")
    order = shop.order()
    assert (order["status"], order["delivery"]["reason"]) == ("placed", "permanent")
    assert order["delivery"]["attempts"] >= 2

    path = "/deliveries/order-1/redrive"
    for note in ("no identifier", "", 1, None):
        assert shop.ask("POST", path, {"note": note})[0] == 400, note
    assert shop.order() == order
    shop.execute("UPDATE customers SET address = '1 New Street'")
    status, delivery = shop.ask("POST", path, {"note": "address-mended"})
    assert (status, delivery["status"], delivery["attempts"]) == (200, "pending", 0)
    worker.wait_for("order-1 delivered, C-1")
    order = shop.order()
    assert (order["status"], order["delivery"]["attempts"]) == ("delivered", 1)
    [audit] = shop.rows("delivery_redrives")
    assert (audit["id"], audit["note"]) == ("order-1", "address-mended")
    assert shop.rows("deliveries")[0]["token"] == audit["token"] + 1
    assert shop.ask("POST", path, {"note": "again"})[0] == 409


ORDERS = "INSERT INTO orders (key, customer_id, product_id, quantity, status, delivered_at_ms)"
SHOP_BEFORE = (
    "INSERT INTO customers VALUES (7, 'ada@example.org', '12 St James''s Square')",
    "INSERT INTO products VALUES (3, 'tea', 10)",
    f"{ORDERS} VALUES ('old-1', 7, 3, 5, 'delivered', 1700000000000)",
    f"{ORDERS} VALUES ('old-2', 7, 3, 1, 'placed', NULL)",
)


def test_a_shop_from_before_is_upgraded(shop_to_be: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = shop_to_be
    for name, value in setting(shop.database).items():
        monkeypatch.setenv(name, value)
    config, tables = Config(ALEMBIC_INI), ("customers", "products", "orders")
    command.upgrade(config, "0001")
    shop.execute(*SHOP_BEFORE)
    before = [shop.rows(table) for table in tables]
    shop.open()
    status, answer = shop.ask_alone("GET", "/health")
    assert (status, "deliveries" in answer["error"]) == (503, True), answer
    assert shop.ask_alone("POST", "/orders", ORDER)[0] == 503
    assert [shop.rows(table) for table in tables] == before

    command.upgrade(config, "head")
    command.check(config)
    assert [shop.rows(table) for table in tables] == before
    assert shop.ask_alone("GET", "/health")[0] == 200
    assert shop.order("old-1")["delivery"] is None

    shop.carrier()
    worker = shop.worker()
    runs = [shop.start("-m", *FLASK, "enqueue-open-orders") for _ in range(2)]
    said = [run.wait_for(r"(\d) deliveries enqueued")[1] for run in runs]
    assert sorted(said) == ["0", "1"]
    status, placed = shop.ask("POST", "/orders", ORDER)
    assert status == 201
    for job_id, key in ("order-2", "old-2"), (placed["delivery"]["id"], "web-1"):
        worker.wait_for(f"{job_id} delivered")
        assert shop.order(key)["delivery"]["id"] == job_id
    assert shop.rows("orders")[0] == before[2][0]


def use_all_with_loggers_of_ones_own() -> None:
    """In a process of its own, since loggers are the process's."""
    logging.basicConfig(level=logging.WARNING, format="own format: %(message)s")
    own = logging.getLogger("own")
    own.setLevel(logging.INFO)
    before = [(log.level, log.disabled, log.handlers[:]) for log in (logging.root, own)]
    command.upgrade(Config(ALEMBIC_INI), "head")
    app = create_app()
    assert app.test_client().post("/orders", json=ORDER).status_code == 201
    assert deliver_next(app, "worker-1")
    assert [(log.level, log.disabled, log.handlers) for log in (logging.root, own)] == before
    loggers = [log for log in logging.root.manager.loggerDict.values() if hasattr(log, "disabled")]
    assert not any(log.disabled for log in loggers)
    own.info("as before")


@on_sqlite
def test_the_applications_loggers_are_its_own(shop: Shop) -> None:
    name = use_all_with_loggers_of_ones_own.__name__
    program = shop.start("-c", f"import {__name__} as t; t.{name}()")
    program.wait_for("^own format: as before$")
    assert program.ended() == 0
