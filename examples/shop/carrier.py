"""A stand-in for a parcel carrier's HTTP interface: `python -m examples.shop.carrier [port]`.

It takes each parcel once, by its id, and keeps everything in memory.
"""

from __future__ import annotations

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any

import click

UNKNOWN_ADDRESS = "unknown"


class Carrier(ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, port: int, hold: bool) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.lock = threading.Lock()
        self.hold, self.requests = hold, 0
        self.parcels: dict[str, dict[str, Any]] = {}

    def take(self, parcel: dict[str, Any]) -> str:
        with self.lock:
            self.requests += 1
            reference = f"C-{len(self.parcels) + 1}"
            known = self.parcels.setdefault(parcel["id"], parcel | {"reference": reference})
            return str(known["reference"])


class Handler(BaseHTTPRequestHandler):
    server: Carrier

    def do_POST(self) -> None:
        parcel = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if parcel["address"] == UNKNOWN_ADDRESS:
            self.answer(422, {"error": "no such address"})
            return
        reference = self.server.take(parcel)
        if self.server.hold:
            click.echo(f"holding {parcel['id']}")
            self.server.hold = False
            sys.stdin.readline()
        self.answer(200, {"reference": reference})
        click.echo(f"answered {parcel['id']}")

    def do_GET(self) -> None:
        self.answer(200, {"requests": self.server.requests, "parcels": self.server.parcels})

    def answer(self, status: int, body: dict[str, Any]) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        """Only parcels are worth a line."""


@click.command()
@click.argument("port", type=int, default=8900)
@click.option("--hold", is_flag=True, help="Answer the first parcel once a line is entered.")
def main(port: int, hold: bool) -> None:
    with Carrier(port, hold) as carrier:
        click.echo(f"listening on http://127.0.0.1:{carrier.server_address[1]}/parcels")
        carrier.serve_forever()


if __name__ == "__main__":
    main()
