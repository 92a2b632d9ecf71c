"""One hosted instance."""

from aiohttp import web

from tenure.control.instances.stream import Stream
from tenure.protocol.messages import OutcomeAnswer


class Hosted:
    id: str

    def outcome(self) -> OutcomeAnswer:
        raise NotImplementedError

    def acknowledge(self, turn_id: int) -> None:
        raise NotImplementedError

    def attach(self, ws: web.WebSocketResponse, *, acknowledges: bool = False) -> Stream:
        raise NotImplementedError
