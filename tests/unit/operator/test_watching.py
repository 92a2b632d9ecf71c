"""kopf against an API server that is a double: what a real one does only after minutes or years."""

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.support.objects import agent_process, pod
from tests.support.wait import eventually

from tenure.cluster.connection import ConnectionFacts
from tenure.model.masked import Masked
from tenure.operator.cache import ObjectCache, ObjectKey
from tenure.operator.feed import BATCH, Feed
from tenure.operator.streams import StreamMonitor, TappedResponse
from tenure.operator.watching import Watching, kopf_settings
from tenure.telemetry.metrics import WatchedResource

CRITIC = ObjectKey("agents", "critic")
PROCESSES = WatchedResource.AGENT_PROCESSES
PODS = WatchedResource.PODS
Json = dict[str, Any]


def resource(name: str, kind: str, *, namespaced: bool = True) -> Json:
    verbs = ["get", "list", "watch", "patch"]
    return {
        "name": name,
        "singularName": kind.lower(),
        "kind": kind,
        "namespaced": namespaced,
        "verbs": verbs,
    }


DISCOVERY: dict[str, Json] = {
    "/api": {"versions": ["v1"]},
    "/api/v1": {
        "resources": [resource("pods", "Pod"), resource("namespaces", "Namespace", namespaced=False)]
    },
    "/apis": {
        "groups": [
            {
                "name": "tenure.dev",
                "versions": [{"version": "v1alpha1"}],
                "preferredVersion": {"version": "v1alpha1"},
            }
        ]
    },
    "/apis/tenure.dev/v1alpha1": {"resources": [resource("agentprocesses", "AgentProcess")]},
}


class ApiServerDouble:
    """Discovery, lists and watch streams, as told."""

    def __init__(self) -> None:
        self.lists: dict[str, list[Json]] = {"agentprocesses": [], "pods": []}
        self.streams: dict[str, list[asyncio.Queue[Json | None]]] = {"agentprocesses": [], "pods": []}
        self.requests: list[tuple[str, dict[str, str], str]] = []
        self.token = "first"
        self.discovery = dict(DISCOVERY)
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        self.server = TestServer(app, host="127.0.0.1")

    def send(self, plural: str, kind: str, body: Json) -> None:
        """An event on the stream that was opened last."""
        self.streams[plural][-1].put_nowait({"type": kind, "object": body})

    def hang_up(self) -> None:
        for queues in self.streams.values():
            for queue in queues:
                queue.put_nowait(None)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        authorization = request.headers.get("Authorization", "")
        self.requests.append((request.path, dict(request.query), authorization))
        if authorization != f"Bearer {self.token}":
            return web.json_response({"kind": "Status", "code": 401}, status=401)
        if request.path in self.discovery:
            return web.json_response(self.discovery[request.path])
        plural = request.path.rsplit("/", 1)[-1]
        if request.query.get("watch") == "true":
            return await self._stream(request, plural)
        kind = {"pods": "PodList", "agentprocesses": "AgentProcessList"}[plural]
        version = {"pods": "v1", "agentprocesses": "tenure.dev/v1alpha1"}[plural]
        items = [
            {k: v for k, v in item.items() if k not in ("kind", "apiVersion")} for item in self.lists[plural]
        ]
        body = {"kind": kind, "apiVersion": version, "metadata": {"resourceVersion": "50"}, "items": items}
        return web.json_response(body)

    async def _stream(self, request: web.Request, plural: str) -> web.StreamResponse:
        queue: asyncio.Queue[Json | None] = asyncio.Queue()
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        self.streams[plural].append(queue)
        while (event := await queue.get()) is not None:
            await response.write(json.dumps(event).encode() + b"\n")
        return response


class Running:
    def __init__(
        self, api: ApiServerDouble, watching: Watching, cache: ObjectCache, relists: list[int]
    ) -> None:
        self.api = api
        self.watching = watching
        self.cache = cache
        self.relists = relists


@asynccontextmanager
async def watching(api: ApiServerDouble) -> AsyncIterator[Running]:
    await api.server.start_server()
    cache, relists = ObjectCache(), list[int]()

    def facts() -> ConnectionFacts:
        return ConnectionFacts(server=str(api.server.make_url("")), token=Masked(api.token))

    parts = Watching(cache, facts, on_relist=lambda: relists.append(1))
    task = asyncio.create_task(parts.run())
    try:
        async with asyncio.timeout(10):
            await parts.opened.wait()
        yield Running(api, parts, cache, relists)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        api.hang_up()
        await api.server.close()


async def test_lists_and_events_reach_the_cache_and_every_selector_is_applied_by_the_server() -> None:
    api = ApiServerDouble()
    api.lists["agentprocesses"] = [agent_process("critic", version=40)]
    api.lists["pods"] = [pod(uid="p", version=41)]
    async with watching(api) as running:
        stored = await eventually(lambda: running.cache.agent_process(CRITIC), within=10)
        assert stored["kind"] == "AgentProcess", "items of a list carry no kind of their own"
        assert stored["apiVersion"] == "tenure.dev/v1alpha1"
        await eventually(lambda: running.cache.pods_of(CRITIC), within=10)
        api.send("pods", "DELETED", pod(uid="p", version=60))
        await eventually(lambda: running.cache.pods_of(CRITIC)[0].departed, within=10)
        api.send("agentprocesses", "ADDED", agent_process("planner", version=61))
        await eventually(lambda: running.cache.agent_process(ObjectKey("agents", "planner")), within=10)
    for path, query, _ in api.requests:
        if path.endswith("/pods"):
            assert query["labelSelector"] == "tenure.dev/role"
    watched = [query for _, query, _ in api.requests if "watch" in query]
    assert all(query["resourceVersion"] == "50" for query in watched), (
        "from the list's version, none is missed"
    )
    asked = {path for path, _, _ in api.requests}
    lists = {"/api/v1/pods", "/apis/tenure.dev/v1alpha1/agentprocesses"}
    assert asked == set(DISCOVERY) | lists, "neither CRDs nor namespaces nor peerings are looked for"


async def test_a_watch_that_is_too_old_begins_anew_and_a_sweep_is_asked_for() -> None:
    api = ApiServerDouble()
    api.lists["agentprocesses"] = [agent_process("critic", version=40)]
    async with watching(api) as running:
        await eventually(lambda: running.cache.agent_process(CRITIC), within=10)
        assert running.relists == [], "before the first list there was nothing to miss"
        api.lists["agentprocesses"] = [agent_process("planner", version=45)]
        api.send("agentprocesses", "ERROR", {"kind": "Status", "code": 410, "reason": "Expired"})
        await eventually(lambda: running.relists, within=5)
        await eventually(lambda: running.cache.agent_process(ObjectKey("agents", "planner")), within=10)
        assert running.watching.starts == 1


async def test_each_request_carries_the_token_of_the_moment() -> None:
    api = ApiServerDouble()
    async with watching(api) as running:
        opened = len(api.streams["pods"])
        api.token = "rotated"
        api.hang_up()
        await eventually(lambda: len(api.streams["pods"]) > opened, within=5)
        assert api.requests[-1][2] == "Bearer rotated"
        assert running.watching.starts == 1
        api.send("agentprocesses", "ADDED", agent_process("critic", version=61))
        await eventually(lambda: running.cache.agent_process(CRITIC), within=10)


async def test_no_token_is_ever_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    api = ApiServerDouble()
    api.token = "a-token-nobody-may-see"
    async with watching(api):
        pass
    assert "a-token-nobody-may-see" not in caplog.text


async def test_bookmarks_are_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure.operator.watching.SAMPLE_SECONDS", 0.05)
    api = ApiServerDouble()
    async with watching(api) as running:
        await eventually(lambda: running.watching.age(PODS) > 0.5, within=10)
        api.send("pods", "BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": "70"}})
        await eventually(lambda: running.watching.age(PODS) < 0.3, within=10, every=0.01)


async def test_a_crd_that_is_installed_only_later_is_watched_from_then_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """kopf looks for it once, at its start, and then waits without a word."""
    monkeypatch.setattr("tenure.operator.watching.OPENING_LIMIT", 1.5)
    monkeypatch.setattr("tenure.operator.watching.SAMPLE_SECONDS", 0.05)
    api = ApiServerDouble()
    api.discovery["/apis/tenure.dev/v1alpha1"] = {"resources": []}

    async def install() -> None:
        await eventually(lambda: api.streams["pods"], within=20)
        api.discovery["/apis/tenure.dev/v1alpha1"] = DISCOVERY["/apis/tenure.dev/v1alpha1"]

    installing = asyncio.create_task(install())
    async with watching(api) as running:
        await installing
        assert running.watching.starts > 1
        api.send("agentprocesses", "ADDED", agent_process("critic", version=61))
        await eventually(lambda: running.cache.agent_process(CRITIC), within=20)


def test_kopf_posts_nothing_stores_nothing_and_never_kills_the_process() -> None:
    settings = kopf_settings()
    assert settings.posting.enabled is False
    assert settings.scanning.disabled is True
    assert settings.peering.standalone is True
    assert settings.process.ultimate_exiting_timeout is None
    assert settings.queueing.worker_limit is None
    assert settings.persistence.diffbase_storage.build(body={"spec": {}}) == {}  # type: ignore[arg-type,typeddict-item]


class TestFeed:
    async def test_events_arrive_in_order_and_a_burst_leaves_room_for_others(self) -> None:
        home = asyncio.get_running_loop()
        seen: list[str] = []
        feed = Feed(home, lambda what, gone, raw: seen.append(raw["name"]))

        def other_thread() -> None:
            async def push() -> None:
                for number in range(5 * BATCH):
                    feed.push((PODS, False, {"name": str(number)}))

            asyncio.run(push())

        thread = threading.Thread(target=other_thread)
        thread.start()
        turns = 0
        while len(seen) < 5 * BATCH:
            await asyncio.sleep(0)
            turns += 1
            assert turns < 1_000_000
        thread.join()
        assert seen == [str(number) for number in range(5 * BATCH)]

    async def test_one_that_fails_does_not_stop_the_next(self) -> None:
        seen: list[Any] = []

        def deliver(what: WatchedResource, gone: bool, raw: Any) -> None:
            if raw["name"] == "odd":
                raise ValueError("odd")
            seen.append(raw["name"])

        feed = Feed(asyncio.get_running_loop(), deliver)
        feed.push((PODS, False, {"name": "odd"}), (PODS, False, {"name": "even"}))
        await eventually(lambda: seen == ["even"], within=10, every=0.001)

    async def test_nothing_is_delivered_after_closing(self) -> None:
        seen: list[Any] = []
        feed = Feed(asyncio.get_running_loop(), lambda *event: seen.append(event))
        feed.push((PODS, False, {}))
        feed.close()
        feed.push((PODS, False, {}))
        for _ in range(5):
            await asyncio.sleep(0)
        assert seen == []


class TestStreams:
    async def test_the_age_of_a_resource_is_that_of_its_most_silent_namespace(self) -> None:
        now = 0.0
        monitor = StreamMonitor(["red", "blue"], clock=lambda: now)
        now = 30.0
        monitor._show(monitor._streams["/api/v1/namespaces/red/pods"])
        assert monitor.age(PODS) == 30.0
        monitor._show(monitor._streams["/api/v1/namespaces/blue/pods"])
        assert monitor.age(PODS) == 0.0
        assert monitor.oldest() == 30.0, "nothing was heard of agent processes"
        monitor.restart()
        assert monitor.oldest() == 0.0

    async def test_objects_of_a_list_are_taken_over_and_kopf_sees_its_version_only(self) -> None:
        taken: list[tuple[WatchedResource, list[Json]]] = []
        monitor = StreamMonitor(on_list=lambda what, objects: taken.append((what, objects)))
        body = {"kind": "PodList", "apiVersion": "v1", "metadata": {"continue": "c"}, "items": [{"a": 1}]}
        left = monitor._take_over(PODS, body)
        assert left == {"kind": "PodList", "apiVersion": "v1", "metadata": {"continue": "c"}, "items": []}
        assert taken == [(PODS, [{"kind": "Pod", "apiVersion": "v1", "a": 1}])]

    async def test_what_is_no_list_is_left_alone(self) -> None:
        monitor = StreamMonitor(on_list=lambda what, objects: pytest.fail("not a list"))
        assert monitor._take_over(PROCESSES, {"kind": "Status"}) == {"kind": "Status"}
        assert TappedResponse.tap is None
