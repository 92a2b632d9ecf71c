"""One request at a time: which route it is for, whether it is permitted, and an answer whatever happens."""

from aiohttp import web
from aiohttp.web_request import BaseRequest

from tenure.control.http import Rejected
from tenure.control.listener import Connection
from tenure.control.owner import Owner
from tenure.control.routes import Call, Route, Routes, rejection
from tenure.protocol.proof import bearer


class App:
    """Answers requests: give it to a ``Listener``."""

    def __init__(self, owner: Owner, routes: Routes) -> None:
        self._owner = owner
        self._routes = routes.table()

    async def __call__(self, request: BaseRequest) -> web.StreamResponse:
        """The answer. Errors, of whatever kind, are ``{"error": ...}``."""
        try:
            return await self._answer(request)
        except Rejected as rejected:
            return rejected.answer()

    async def _answer(self, request: BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        assert isinstance(connection, Connection)
        connection.spoke()
        route, instance_id = self._route(request)
        presented = bearer(request.headers.get("Authorization"))
        if route.operation is not None:
            if self._owner.known(presented):
                connection.trust()
            # Before the body: whoever is not known has none of it read.
            refused = self._owner.permit(presented, route.operation)
            if refused is not None:
                raise rejection(refused)
        return await route.answer(Call(request, presented, instance_id))

    def _route(self, request: BaseRequest) -> tuple[Route, str]:
        path = request.rel_url.raw_path
        allowed = []
        for route in self._routes:
            matched = route.path.fullmatch(path)
            if matched is None:
                continue
            if route.method == request.method:
                return route, matched.groupdict().get("id") or ""
            allowed.append(route.method)
        if allowed:
            said = {"Allow": ", ".join(sorted(set(allowed)))}
            raise Rejected(405, "this path does not take that method", headers=said)
        raise Rejected(404, "there is no such path")
