"""The receiver, a process of its own: HTTP on loopback, an answer only after its commit."""

from __future__ import annotations

import json
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer

from sqlalchemy import Engine

from leasestore import system_clock, validation
from leasestore.demo import inbox, protocol
from leasestore.tickets import Event
from leasestore.validation import Limits

_MOST_BYTES = 4096


class Receiver(ThreadingHTTPServer):
    """Listens on a port that the system chooses."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.engine = engine

    def server_bind(self) -> None:
        # HTTPServer asks the resolver for the host's name here, which can take long.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", self.socket.getsockname()[1]


class Handler(BaseHTTPRequestHandler):
    """POST an order: 200 and `counted` or `counted before`, or 400 and what is wrong with it."""

    timeout = 5

    def do_POST(self) -> None:
        try:
            order = self._order()
        except (ValueError, RecursionError) as error:
            self._answer(HTTPStatus.BAD_REQUEST, str(error))
            return
        owner, token = self.headers["Lease-Owner"], self.headers["Lease-Token"]
        assert isinstance(self.server, Receiver)
        new = inbox.receive(self.server.engine, order, owner, token, system_clock())
        self._answer(HTTPStatus.OK, "counted" if new else "counted before")

    def log_message(self, format: str, *args: object) -> None:
        """Requests are logged in the inbox; stderr is for errors."""

    def _order(self) -> Event:
        length = int(self.headers["Content-Length"] or 0)
        validation.integer("Content-Length", length, 1, _MOST_BYTES)
        return validation.event(json.loads(self.rfile.read(length)), Limits())

    def _answer(self, status: HTTPStatus, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    """Told the inbox's file, tell the port, and serve until the input ends."""
    told = protocol.orders()
    with inbox.opened(Path(told["inbox"])) as engine, Receiver(engine) as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        serving.start()
        protocol.say(port=server.server_port)
        protocol.wait_for_end()
        server.shutdown()
        serving.join()


if __name__ == "__main__":
    main()
