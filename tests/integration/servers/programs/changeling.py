"""What a control server becomes when its address has fallen to somebody else; run in the server's own process,
before it begins (``STAND_IN_PROGRAM``, see ``world.environment``).

Until something is written into its folder, CHANGELING/ADDRESS, it is the real server. There:

=============== ===========================================================================================
behaviour.json  what it says instead, by ``METHOD path``: ``status`` and ``body``; ``merge`` into the true
                answer; ``echo``: the challenge, as its proof; ``silent``: nothing, ever
other.pem       from now on new connections are shown this key and certificate
received        every request that reached it since then, a JSON object a line
=============== ===========================================================================================
"""

import asyncio
import json
import os
import ssl
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.web_request import BaseRequest

from tenure.control.app import App
from tenure.control.listener import Listener

FOLDER = Path(os.environ["CHANGELING"]) / os.environ["STAND_IN_ADDRESS"]
_true_call = App.__call__


async def _call(self: App, request: BaseRequest) -> web.StreamResponse:
    try:
        behaviour: dict[str, dict[str, Any]] = json.loads((FOLDER / "behaviour.json").read_text())
    except FileNotFoundError:
        return await _true_call(self, request)
    body = await request.content.read(65536) if request.can_read_body else b""
    await _remember(request, body)
    acting = behaviour.get(f"{request.method} {request.rel_url.raw_path}")
    if acting is None:
        _give_back(request, body)
        return await _true_call(self, request)
    if "silent" in acting:
        await asyncio.Event().wait()
    if "echo" in acting:
        return web.json_response({"proofs": [json.loads(body)["challenge"]]})
    if "merge" in acting:
        _give_back(request, body)
        answer = await _true_call(self, request)
        assert isinstance(answer, web.Response)
        assert isinstance(answer.body, bytes)
        return web.json_response(json.loads(answer.body) | acting["merge"])
    return web.json_response(acting.get("body", {}), status=acting.get("status", 200))


async def _remember(request: BaseRequest, body: bytes) -> None:
    told = {
        "what": f"{request.method} {request.rel_url.raw_path}",
        "headers": dict(request.headers),
        "body": body.decode(errors="replace"),
    }
    with (FOLDER / "received").open("a") as journal:
        journal.write(json.dumps(told) + "\n")


def _give_back(request: BaseRequest, body: bytes) -> None:
    """So that the real answer can be made of it."""
    if body:
        request.content.unread_data(body)  # type: ignore[union-attr]


class _Context:
    """The listener's TLS context: the true one, or another."""

    def __get__(self, listener: Any, owner: Any = None) -> Any:
        other = FOLDER / "other.pem"
        if not other.exists():
            return listener.__dict__["true_context"]
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(other)
        return context

    def __set__(self, listener: Any, context: Any) -> None:
        listener.__dict__["true_context"] = context


FOLDER.mkdir(parents=True, exist_ok=True)
App.__call__ = _call  # type: ignore[method-assign]
Listener._context = _Context()  # type: ignore[assignment]
