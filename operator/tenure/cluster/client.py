"""One way to the API server: a listed call, a plain JSON body, a time limit, a typed error.

``kubernetes.aio`` brings credentials and TLS; its models are not used, since they refuse templates that the
API server accepts.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import aiohttp
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config.config_exception import ConfigException

from tenure import __version__
from tenure.cluster.answers import error_of
from tenure.cluster.calls import CALLS, LEASES, Call, Resource, Verb, declared
from tenure.cluster.connection import ConnectionFacts, facts_of, load_configuration
from tenure.cluster.errors import ApiError, Unavailable
from tenure.cluster.ports import Json

_METHODS = {
    Verb.GET: "GET",
    Verb.LIST: "GET",
    Verb.CREATE: "POST",
    Verb.UPDATE: "PUT",
    Verb.PATCH: "PATCH",
    Verb.DELETE: "DELETE",
}
_WRITES = frozenset({Verb.CREATE, Verb.UPDATE, Verb.PATCH, Verb.DELETE})

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
_JSON = "application/json"
_METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

DEFAULT_TIME_LIMIT = 10.0
PAGE_SIZE = 500


@dataclass(frozen=True, slots=True)
class Listing:
    """All objects of a kind at one moment, as metadata only."""

    items: tuple[Json, ...]
    """Each has ``metadata`` (without ``managedFields``) and nothing else of use."""
    resource_version: str


class KubernetesClient:
    """The API server, as far as ``tenure.cluster.calls`` goes. Use it as a context manager, or ``close()``
    it. ``calls``: what it may be used for, the operator's or a backend's.

    ``fence`` is asked before each write to anything but a Lease; when it answers False nothing is sent and
    ``Unavailable`` is raised: a program that lost its Lease cannot write, whatever its tasks are doing.
    """

    def __init__(
        self,
        configuration: Configuration,
        *,
        time_limit: float = DEFAULT_TIME_LIMIT,
        fence: Callable[[], bool] | None = None,
        calls: tuple[Call, ...] = CALLS,
    ) -> None:
        self._calls = calls
        self._configuration = configuration
        self._api: Any = ApiClient(configuration)  # its methods are untyped
        self._api.user_agent = f"tenure/{__version__}"
        self._time_limit = time_limit
        self.fence: Callable[[], bool] = fence or _always

    @classmethod
    async def connect(
        cls,
        environ: Mapping[str, str] | None = None,
        *,
        time_limit: float = DEFAULT_TIME_LIMIT,
        calls: tuple[Call, ...] = CALLS,
    ) -> Self:
        """A client for the cluster that the environment names; contacts nothing yet. Raises ``NoCluster``."""
        return cls(await load_configuration(environ), time_limit=time_limit, calls=calls)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._api.close()

    def connection_facts(self) -> ConnectionFacts:
        """Server, CA and the credential of this moment: what kopf's login handler returns."""
        return facts_of(self._configuration)

    async def request(
        self,
        verb: Verb,
        resource: Resource,
        *,
        namespace: str | None,
        name: str | None = None,
        body: Json | list[Json] | None = None,
        query: Sequence[tuple[str, str]] = (),
        content_type: str = _JSON,
        accept: str = _JSON,
        time_limit: float | None = None,
    ) -> Json:
        """Make one call and return the decoded body.

        ``time_limit`` (seconds) covers everything from connecting to the last byte. Raises ``ApiError`` and
        nothing else, but for ``UndeclaredCall`` when ``tenure.cluster.calls`` does not list the call.
        """
        declared(resource, verb, self._calls)
        if verb in _WRITES and resource != LEASES and not self.fence():
            raise Unavailable(0, "NotLeading", "not sent: this operator does not hold the Lease")
        limit = self._time_limit if time_limit is None else time_limit
        try:
            async with asyncio.timeout(limit):
                status, raw = await self._exchange(
                    _METHODS[verb], resource.path(namespace, name), namespace, name, body, query,
                    {"Accept": accept, "Content-Type": content_type}, limit,
                )  # fmt: skip
        except TimeoutError:
            raise Unavailable(0, "Timeout", f"no answer within {limit:g} s") from None
        except (aiohttp.ClientError, OSError, ConfigException) as error:
            # Without its text: it may quote what was sent.
            raise Unavailable(0, "NoAnswer", f"the call failed: {type(error).__name__}") from error
        return _decode(status, raw)

    async def _exchange(
        self,
        method: str,
        path: str,
        namespace: str | None,
        name: str | None,
        body: Json | list[Json] | None,
        query: Sequence[tuple[str, str]],
        headers: dict[str, str],
        limit: float,
    ) -> tuple[int, bytes]:
        serialized = await self._api.param_serialize(
            method,
            path,
            path_params={"namespace": namespace or "", "name": name or ""},
            query_params=list(query),
            header_params=headers,
            body=body,
            auth_settings=["BearerToken"],
        )
        answer = await self._api.call_api(*serialized, _request_timeout=aiohttp.ClientTimeout(total=limit))
        try:
            return int(answer.status), await answer.read()
        finally:
            answer.response.release()

    async def list_objects(
        self, resource: Resource, namespace: str | None, label_selector: str = ""
    ) -> Listing:
        """Metadata of all objects of a kind, page by page; None as namespace means all namespaces.

        A continuation that expired (410) starts over, twice at most. Raises ``ApiError``.
        """
        attempts = 3
        while True:
            attempts -= 1
            try:
                return await self._list_once(resource, namespace, label_selector)
            except ApiError as error:
                if error.status != 410 or not attempts:
                    raise

    async def _list_once(self, resource: Resource, namespace: str | None, label_selector: str) -> Listing:
        items: list[Json] = []
        query = [("limit", str(PAGE_SIZE))]
        if label_selector:
            query.append(("labelSelector", label_selector))
        continuation = ""
        while True:
            page = await self.request(
                Verb.LIST,
                resource,
                namespace=namespace,
                query=[*query, ("continue", continuation)] if continuation else query,
                accept=f"{_METADATA_LIST},{_JSON}",
            )
            items.extend(_light(item) for item in page.get("items") or ())
            meta = page.get("metadata") or {}
            continuation = str(meta.get("continue") or "")
            if not continuation:
                return Listing(tuple(items), str(meta.get("resourceVersion", "")))


def _light(item: Json) -> Json:
    return {"metadata": {k: v for k, v in item.get("metadata", {}).items() if k != "managedFields"}}


def _decode(status: int, raw: bytes) -> Json:
    try:
        body: Any = json.loads(raw) if raw else {}
    except ValueError:
        body = None
    if not 200 <= status < 300:
        raise error_of(status, body)
    if not isinstance(body, dict):
        raise Unavailable(status, "UnreadableAnswer", "the answer was no JSON object")
    return body


def _always() -> bool:
    return True
