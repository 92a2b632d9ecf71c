"""HTTP as this server speaks it: JSON in and out, bodies with a limit, errors in words of our own."""

import asyncio
import json
from collections.abc import Mapping

from aiohttp import web
from aiohttp.web_request import BaseRequest

from tenure.protocol.wire import Body

BODY_SECONDS = 10.0
"""How long a body may take to arrive."""
SERVER_NAME = "tenure"
"""The ``Server`` header: aiohttp's own tells its version and Python's."""


class Rejected(Exception):
    """A request that is answered with an error. ``error`` is a sentence of our own."""

    def __init__(
        self, status: int, error: str, *, headers: Mapping[str, str] | None = None, hang_up: bool = False
    ) -> None:
        super().__init__(error)
        self.status = status
        self.error = error
        self.headers = dict(headers or {})
        self.hang_up = hang_up

    def answer(self) -> web.Response:
        """The answer."""
        answer = failure(self.status, self.error)
        answer.headers.update(self.headers)
        if self.hang_up:
            answer.force_close()
        return answer


def success(message: Body, status: int = 200) -> web.Response:
    """A message as the answer."""
    return _json(status, message.to_wire())


def failure(status: int, error: str) -> web.Response:
    """``{"error": ...}``."""
    return _json(status, json.dumps({"error": error}).encode())


def headers() -> dict[str, str]:
    """What every answer has: nobody in between keeps a credential."""
    return {"Server": SERVER_NAME, "Cache-Control": "no-store"}


def _json(status: int, body: bytes) -> web.Response:
    return web.Response(status=status, body=body, content_type="application/json", headers=headers())


async def read_body(request: BaseRequest, limit: int) -> bytes:
    """The body, of at most ``limit`` bytes, within ``BODY_SECONDS``. Raises ``Rejected``."""
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise Rejected(415, "a body must not be compressed", hang_up=True)
    too_long = Rejected(413, f"the body is longer than {limit} bytes", hang_up=True)
    if (request.content_length or 0) > limit:
        raise too_long
    if "Expect" in request.headers:
        await _agree_to_continue(request)
    chunks: list[bytes] = []
    length = 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while chunk := await request.content.readany():
                length += len(chunk)
                if length > limit:
                    raise too_long
                chunks.append(chunk)
    except TimeoutError:
        raise Rejected(408, "the body took too long", hang_up=True) from None
    except web.RequestPayloadError:
        raise Rejected(400, "the body is not what its headers say", hang_up=True) from None
    return b"".join(chunks)


async def _agree_to_continue(request: BaseRequest) -> None:
    if request.headers["Expect"].lower() != "100-continue":
        raise Rejected(417, "this expectation cannot be met", hang_up=True)
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    # It is no part of the answer that follows.
    request.writer.output_size = 0
