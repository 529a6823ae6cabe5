"""Requests run to their end, whoever loses patience meanwhile."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send


@dataclass(frozen=True, slots=True)
class Uncancelled:
    """A request that is cancelled ends first, and is cancelled then.

    Its transactions are short, so that this costs little. Cancelled in the middle of a SELECT, on
    the other hand, an SQLite connection is closed with the cursor still open: SQLite then keeps
    the transaction, and the write lock with it, until Python's collector finds the cursor.
    """

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = asyncio.ensure_future(self.app(scope, receive, send))
        try:
            await asyncio.shield(request)
        except asyncio.CancelledError:
            # Nobody is left to be told how it ended. A second cancellation does go through.
            with suppress(Exception):
                await request
            raise
