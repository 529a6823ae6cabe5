"""How a courier takes the receiver's answers, and the queue's."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from sqlalchemy import create_engine

from leasestore import Permanent, Retryable, StoreBusy
from leasestore.demo import courier
from leasestore.demo.courier import Courier, post


@contextmanager
def answering(answer: bytes) -> Iterator[int]:
    """A port of loopback that gives this answer to one request, whatever it is."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                while b"}" not in connection.recv(4096):
                    pass
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


def status(line: str) -> bytes:
    return f"HTTP/1.0 {line}\r\nContent-Length: 4\r\n\r\ntext".encode()


def delivered(answer: bytes) -> str:
    with answering(answer) as port:
        return post(port, {"id": "a", "qty": 1}, {"Lease-Token": "1"})


def test_200_gives_the_receivers_answer() -> None:
    assert delivered(status("200 OK")) == "text"


@pytest.mark.parametrize("line", ["400 Bad Request", "404 Not Found", "499 Odd"])
def test_4xx_is_permanent(line: str) -> None:
    with pytest.raises(Permanent, match=f"the receiver answered {line[:3]}: text"):
        delivered(status(line))


@pytest.mark.parametrize("line", ["500 Oops", "503 Busy", "302 Found", "204 No Content"])
def test_any_other_status_is_to_be_retried(line: str) -> None:
    with pytest.raises(Retryable, match=f"the receiver answered {line[:3]}"):
        delivered(status(line))


@pytest.mark.parametrize("answer", [b"", b"no HTTP at all\r\n\r\n", status("200 OK")[:-1]])
def test_half_an_answer_is_to_be_retried(answer: bytes) -> None:
    with pytest.raises(Retryable, match="no answer from the receiver"):
        delivered(answer)


def test_nobody_there_is_to_be_retried() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
    with pytest.raises(Retryable, match="no answer from the receiver"):
        post(port, {"id": "a", "qty": 1}, {})


def test_a_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert delivered(status("200 OK")) == "text"


def test_a_busy_queue_is_asked_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*_: object) -> None:
        raise StoreBusy("locked")

    monkeypatch.setattr(courier, "run_once", busy)
    engine = create_engine("sqlite:///never-opened.db")
    assert Courier(engine, "courier-1", 1, None, threading.Event()).deliver() is False
