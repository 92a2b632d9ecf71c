"""A thin admin client of a real API server, for tests: plain JSON in, plain JSON out, errors with the
server's own words.

It shares no code with the product's adapter, so that a test does not believe the code under test.
"""

import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal, Self

import aiohttp

Object = dict[str, Any]
PatchKind = Literal["merge", "strategic", "json", "apply"]

_PATCH_TYPES = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",
}
GROUP_PATHS = {
    "agentprocesses": "/apis/tenure.dev/v1alpha1",
    "controlservers": "/apis/tenure.dev/v1alpha1",
    "leases": "/apis/coordination.k8s.io/v1",
}
_CLUSTER_SCOPED = {"namespaces", "nodes"}


class ApiError(RuntimeError):
    """A refusal by the API server. ``status`` is the HTTP status, ``reason`` the API's reason word."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


def path(
    plural: str, namespace: str | None = None, name: str | None = None, subresource: str | None = None
) -> str:
    """The URL path of a kind: core kinds, ``agentprocesses``, ``controlservers`` and ``leases``; give
    other groups as literal paths."""
    parts = [GROUP_PATHS.get(plural, "/api/v1")]
    if namespace is not None and plural not in _CLUSTER_SCOPED:
        parts.append(f"namespaces/{namespace}")
    parts.append(plural)
    parts.extend(part for part in (name, subresource) if part is not None)
    return "/".join(parts)


class AdminClient:
    """``async with AdminClient(server, authority, token)``; one aiohttp session, closed at the end.

    Every method takes a URL path (see ``path``) and raises ``ApiError`` for an answer of 400 and above,
    and aiohttp's own errors when there is no answer.
    """

    def __init__(self, server: str, authority: Path, token: str, *, limit: float = 30.0) -> None:
        self.server = server
        self._tls = ssl.create_default_context(cafile=str(authority))
        self._token = token
        self._limit = limit
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            base_url=self.server,
            headers={"Authorization": f"Bearer {self._token}"},
            connector=aiohttp.TCPConnector(ssl=self._tls, limit=0),
            timeout=aiohttp.ClientTimeout(total=self._limit),
            trust_env=False,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, url: str, **query: str) -> Object:
        """GET one object or a list."""
        return await self.request("GET", url, query=query)

    async def find(self, url: str) -> Object | None:
        """GET one object, None when there is none."""
        try:
            return await self.get(url)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def list(self, url: str, **query: str) -> list[Object]:
        """The items of a list; ``labelSelector`` and ``fieldSelector`` as keyword arguments."""
        items: list[Object] = (await self.get(url, **query))["items"]
        return items

    async def create(self, url: str, body: Object, **query: str) -> Object:
        """POST to a collection (or to a subresource such as ``binding`` or ``eviction``)."""
        return await self.request("POST", url, body=body, query=query)

    async def replace(self, url: str, body: Object, **query: str) -> Object:
        """PUT an object."""
        return await self.request("PUT", url, body=body, query=query)

    async def patch(self, url: str, body: Any, kind: PatchKind = "merge", **query: str) -> Object:
        """PATCH; ``kind="apply"`` is server-side apply and needs ``fieldManager``."""
        return await self.request("PATCH", url, body=body, query=query, content_type=_PATCH_TYPES[kind])

    async def delete(
        self, url: str, *, grace: int | None = None, uid: str | None = None, propagation: str | None = None
    ) -> Object:
        """DELETE; ``grace`` in seconds, ``uid`` as a precondition, ``propagation`` Foreground,
        Background or Orphan."""
        options: Object = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if propagation is not None:
            options["propagationPolicy"] = propagation
        return await self.request("DELETE", url, body=options)

    async def evict(self, namespace: str, pod: str) -> Object:
        """Ask the Eviction API to remove a pod, as ``kubectl drain`` does."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": namespace},
        }
        return await self.create(path("pods", namespace, pod, "eviction"), body)

    async def watch(self, url: str, **query: str) -> AsyncIterator[tuple[str, Object]]:
        """Yield (type, object) until the server ends the stream; an ERROR event is raised as ``ApiError``."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._limit)
        async with self._http.get(url, params={"watch": "true", **query}, timeout=timeout) as response:
            await _refuse(response)
            # By hand and not by readline(): objects may be longer than the stream reader's line limit.
            pending = bytearray()
            async for chunk in response.content.iter_any():
                pending += chunk
                *lines, rest = pending.split(b"\n")
                pending = bytearray(rest)
                for line in lines:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        status = event["object"]
                        raise ApiError(
                            status.get("code", 0), status.get("reason", ""), status.get("message", "")
                        )
                    yield event["type"], event["object"]

    async def request(
        self,
        method: str,
        url: str,
        *,
        body: Any = None,
        query: dict[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        """One request; the JSON answer."""
        data = None if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"Content-Type": content_type}
        async with self._http.request(
            method, url, params=query or {}, data=data, headers=headers
        ) as response:
            await _refuse(response)
            answer: Object = await response.json()
            return answer

    @property
    def _http(self) -> aiohttp.ClientSession:
        assert self._session is not None, "use 'async with'"
        return self._session


async def _refuse(response: aiohttp.ClientResponse) -> None:
    if response.status < 400:
        return
    text = await response.text()
    try:
        status = json.loads(text)
    except ValueError:
        status = {}
    raise ApiError(response.status, status.get("reason", ""), status.get("message", text[:500]))
