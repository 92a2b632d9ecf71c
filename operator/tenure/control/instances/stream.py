"""One stream of one instance."""

from collections.abc import Mapping
from enum import IntEnum

from aiohttp import web

from tenure.protocol.wire import LARGE


class CloseCode(IntEnum):
    """Why the server closes a stream."""

    NORMAL = 1000
    NOT_TEXT = 1003
    MALFORMED = 1007
    TOO_LONG = 1009
    REPLACED = 4001
    """A newer stream on the same instance took over."""
    RELEASED = 4002
    """All streams are closed: the credential was rotated, or the server shuts down."""
    INSTANCE_STOPPED = 4003
    SILENT = 4004


def stream_socket() -> web.WebSocketResponse:
    """The socket of a stream, to be prepared: pings and pongs are the stream's own business."""
    return web.WebSocketResponse(autoping=False, compress=False, max_msg_size=LARGE)


def wants_acknowledgement(query: Mapping[str, str]) -> bool:
    """Whether a reader acknowledges events itself (``?ack=1``)."""
    return query.get("ack") == "1"


class Stream:
    async def run(self) -> None:
        raise NotImplementedError
