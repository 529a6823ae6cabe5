"""The example's receiver, with the trouble that a subscriber's URL asks for, at the first run only:
`?trouble=503` answers that; `?trouble=silence` lets the receiver commit and never answers."""

from __future__ import annotations

from urllib.parse import parse_qs

from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send

from examples.webhooks.receiver import app as receiver


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    trouble, delivery = _trouble(scope)
    if trouble == "silence":
        await receiver(scope, receive, _swallow)
        # Answered, which means committed.
        print(f"silent {delivery}", flush=True)
        while (await receive())["type"] != "http.disconnect":
            pass
    elif trouble:
        await PlainTextResponse("in trouble", int(trouble))(scope, receive, send)
    else:
        await receiver(scope, receive, send)


def _trouble(scope: Scope) -> tuple[str, str]:
    """What is asked for, if this is a first run, and the delivery's id."""
    headers = dict(scope.get("headers", []))
    if headers.get(b"webhook-token") != b"1":
        return "", ""
    asked = parse_qs(scope["query_string"].decode())
    return asked.get("trouble", [""])[0], headers[b"webhook-id"].decode()


async def _swallow(_: Message) -> None:
    pass
