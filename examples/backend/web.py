"""The page and the JSON for curl. On loopback, for one person: there is no login."""

import json
import os
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from examples.backend.page import render
from examples.backend.service import Service
from tenure.backend import FinalError, RetryableError

SERVICE = web.AppKey("service", Service)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def application(service: Service) -> web.Application:
    """The application."""
    app = web.Application(middlewares=[_guarded])
    app[SERVICE] = service
    app.add_routes(
        [
            web.get("/", _page),
            web.get("/events", _events),
            web.get("/api/sessions", _sessions),
            web.post("/api/sessions", _begin),
            web.get("/api/sessions/{id}/events", _lines),
            web.post("/api/sessions/{id}/prompt", _prompt),
            web.post("/api/sessions/{id}/cancel", _cancel),
            web.post("/api/sessions/{id}/stop", _stop),
            web.post("/api/sessions/{id}/permissions/{pending}", _answer),
        ]
    )
    return app


@web.middleware
async def _guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse other sites' pages in this person's browser, and say the library's two kinds of refusal in HTTP."""
    host = request.host.rsplit(":", 1)[0]
    if host not in ("127.0.0.1", "localhost") or request.headers.get("Sec-Fetch-Site") == "cross-site":
        return web.json_response({"error": "for this machine only"}, status=403)
    try:
        return await handler(request)
    except KeyError:
        return web.json_response({"error": "no such session is driven from here"}, status=404)
    except RetryableError as error:
        answer = {"error": str(error), "reason": error.reason, "retry": True}
        return web.json_response(answer, status=503, headers={"Retry-After": "1"})
    except FinalError as error:
        return web.json_response({"error": str(error), "reason": error.reason, "retry": False}, status=409)


async def _page(request: web.Request) -> web.Response:
    service = request.app[SERVICE]
    sessions = await service.view()
    for one in sessions:
        one["lines"] = service.lines(one["id"])
    text = render(os.getpid(), service.backend.server_identity, service.found, sessions)
    return web.Response(text=text, content_type="text/html")


async def _events(request: web.Request) -> web.StreamResponse:
    """Server-sent events: one for each change."""
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
    await answer.prepare(request)
    async for _ in request.app[SERVICE].changes():
        try:
            await answer.write(b"data: changed\n\n")
        except ConnectionError:
            break
    return answer


async def _sessions(request: web.Request) -> web.Response:
    service = request.app[SERVICE]
    return web.json_response(
        {
            "backend_pid": os.getpid(),
            "control_server": service.backend.server_identity,
            "sessions_found": service.found,
            "sessions": await service.view(),
        }
    )


async def _lines(request: web.Request) -> web.Response:
    return web.json_response({"events": request.app[SERVICE].lines(request.match_info["id"])})


async def _begin(request: web.Request) -> web.StreamResponse:
    asked = await _asked(request)
    session_id = await request.app[SERVICE].begin(str(asked.get("prompt", "")), str(asked.get("id", "")))
    return _done(request, {"id": session_id}, 201)


async def _prompt(request: web.Request) -> web.StreamResponse:
    asked = await _asked(request)
    turn = await request.app[SERVICE].prompt(request.match_info["id"], str(asked.get("prompt", "")))
    return _done(request, {"turn": turn}, 202)


async def _cancel(request: web.Request) -> web.StreamResponse:
    await request.app[SERVICE].cancel(request.match_info["id"])
    return _done(request, {})


async def _stop(request: web.Request) -> web.StreamResponse:
    await request.app[SERVICE].stop(request.match_info["id"])
    return _done(request, {})


async def _answer(request: web.Request) -> web.StreamResponse:
    asked, where = await _asked(request), request.match_info
    await request.app[SERVICE].answer(where["id"], where["pending"], str(asked.get("option", "")))
    return _done(request, {})


async def _asked(request: web.Request) -> dict[str, Any]:
    """The fields of a form, or of a JSON object."""
    if request.content_type == "application/json":
        try:
            asked = await request.json()
        except ValueError:
            asked = None
        if not isinstance(asked, dict):
            raise web.HTTPBadRequest(
                text=json.dumps({"error": "a JSON object is needed"}), content_type="application/json"
            )
        return asked
    return dict(await request.post())


def _done(request: web.Request, answer: dict[str, Any], status: int = 200) -> web.StreamResponse:
    """JSON for programs; back to the page for a form."""
    if "text/html" in request.headers.get("Accept", ""):
        return web.Response(status=303, headers={"Location": "/"})
    return web.json_response(answer, status=status)
